"""Answers of health probes, as `curl -i`, `curl -v` or a loop around them leaves them: one answer or many.

An answer is a status line with headers and a body, curl's own error, or a JSON object that tells a state. It becomes a
sample `health` of 1 or 0, with the HTTP status beside it (`health.http_status`); a body that says why is a fact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._exposition import stamp_of
from forensics.formats._lenient_json import JsonError, parse_json
from forensics.formats._samples import SampleRows
from forensics.formats._text_lines import clean_text, decode_text, head_lines, numbered_lines
from forensics.redact import masked_text

VERSION = 1
TITLE = "Answers of health probes (HTTP texts of curl, JSON states)"
PROVIDES = ("sample.gauge",)

_SURE = 75
_STATUS = re.compile(r"(?:< )?HTTP/\d(?:\.\d)? (\d{3})\b")
_HEADER = re.compile(r"(?:< )?[A-Za-z][A-Za-z0-9-]{1,60}: ")
_TALK = re.compile(r"(?:[*>{}<] |[*>{}<]$)")
_ASKED = re.compile(r"(?:> |\$ )?(?:GET|HEAD|curl)\b[^\n]{0,200}?(?:(?<=\s)|https?://[^/\s]{1,100})(/[\w./-]{1,100})")
_REFUSED = re.compile(r"curl: \((\d{1,2})\) (.{1,200})|000$")
_NAMED = re.compile(r"health|ready|readiness|live(?:ness|z)?|probe|ping", re.IGNORECASE)
_STATES = ("status", "state", "healthy", "ready", "live", "is_healthy")
_WELL = frozenset({"ok", "healthy", "ready", "live", "alive", "up", "pass", "serving", "success", "true"})
_ILL = frozenset(
    {"unhealthy", "not_ready", "not ready", "error", "down", "fail", "failed", "dead", "unavailable", "false"}
)
_MAX_ANSWERS = 200_000
_MAX_FACTS = 50
_MAX_STAMP = 60  # characters of a line that is a time and little else
_LOOK_AT_LINES = 200


def recognise(head: Head) -> int:
    lines = [line for line in head_lines(decode_text(head.data), whole=head.whole)[:_LOOK_AT_LINES] if line.strip()]
    if not lines or not _NAMED.search(head.name + "\n" + "\n".join(lines[:20])):
        return 0
    n_answers = sum(_STATUS.match(line) is not None or _REFUSED.match(line) is not None for line in lines)
    n_states = sum(_state(line) is not None for line in lines)
    n_known = sum(_is_known(line) for line in lines)
    named = _NAMED.search(head.name.rpartition("/")[2]) is not None
    if n_answers + (n_states if named else 0) == 0:
        return 0
    return _SURE if n_known >= 0.8 * len(lines) else 0


def _is_known(line: str) -> bool:
    known = (_STATUS, _HEADER, _TALK, _REFUSED, _ASKED)
    return (
        any(form.match(line) for form in known)
        or _state(line) is not None
        or (stamp_of(line) is not None and len(line) < _MAX_STAMP)
    )


def _state(line: str) -> bool | None:
    """Whether a JSON object says that the service is well; None when it says nothing of the kind."""
    if not line.lstrip().startswith("{") or len(line) > 20_000:
        return None
    try:
        value = parse_json(line)
    except JsonError:
        return None
    for key in _STATES:
        told = str(value.get(key, "")).lower() if isinstance(value, dict) else ""
        if told in _WELL or told in _ILL:
            return told in _WELL
    return None


@dataclass
class _Answers:
    """Puts answers together line by line: a status begins one, what follows belongs to it."""

    rows: SampleRows
    ns: int | None = None
    path: str | None = None
    zones: set[bool] = field(default_factory=set)
    reasons: list[tuple[int, str]] = field(default_factory=list)
    count: int = 0
    _line: int | None = None
    _status: int | None = None
    _well: bool | None = None
    _said: str | None = None

    def read(self, number: int, text: str) -> None:
        line = text.strip()
        status, refused, asked = _STATUS.match(line), _REFUSED.match(line), _ASKED.match(line)
        stamp = stamp_of(line) if not status else None
        if stamp and (len(line) < _MAX_STAMP or _HEADER.match(line)):
            self.zones.add(stamp.zoned)
            if self._line is None or not _HEADER.match(line):
                self.close()
            self.ns = stamp.ns
        elif status or refused:
            self.close()
            self._line, self._status = number, int(status[1]) if status else None
            self._well = self._status is not None and 200 <= self._status < 300
            self._said = refused[2] if refused else None
        elif asked:
            self.close()
            self.path = asked[1]
        elif line and not _HEADER.match(line) and not _TALK.match(line):
            self._body(number, line)

    def _body(self, number: int, line: str) -> None:
        state = _state(line)
        if self._line is None and state is not None:
            self._line = number
        if self._line is not None:
            self._well = (self._well is not False and state) if state is not None else self._well
            self._said = self._said or line[:200]

    def close(self) -> None:
        """Keeps the answer that is complete now."""
        if self._line is None or self.count >= _MAX_ANSWERS:
            return
        self.count += 1
        at = {"ts_ns": self.ns, "line": self._line, "entity": self.path}
        self.rows.add("health", float(bool(self._well)), unit="bool", **at)  # type: ignore[arg-type]
        if self._status is not None:
            self.rows.add("health.http_status", float(self._status), **at)  # type: ignore[arg-type]
        if not self._well and len(self.reasons) < _MAX_FACTS:
            self.reasons.append((self._line, self._said or f"HTTP {self._status}"))
        self._line = self._status = self._well = self._said = None


def load(source: Source, sink: Sink) -> None:
    answers = _Answers(SampleRows(sink, "gauge"))
    for number, text, _ in numbered_lines(source):
        answers.read(number, text)
    answers.close()
    answers.rows.flush()
    if not answers.count:
        raise ArtifactError(
            f"{source.name}: no answer of a probe; expected HTTP/1.1 NNN or a JSON object with a status"
        )
    if answers.zones:
        sink.clock("local" if answers.zones == {False} else "epoch")
    for line, said in answers.reasons:
        sink.fact("health.answer", masked_text(clean_text(said))[:300], scope="note", line=line)
    sink.cover("sample.gauge", complete=source.damage is None, n_read=answers.count, n_kept=answers.count)
