"""What `/metrics` of a serving engine answers: the Prometheus text format and OpenMetrics, one scrape or many.

Names and values stay as the engine wrote them; labels become the entity, and those of `*_info` metrics are facts.
A scrape begins at a line with a time, behind `# EOF`, or where a series comes again; its time is that of its samples,
else of that line, else of the file's name. Buckets stay buckets: rules take quantiles between scrapes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._exposition import Comment, Reading, Stamp, entity_of, read_line, stamp_of, unit_of
from forensics.formats._quantities import epoch_ns
from forensics.formats._samples import SampleRows
from forensics.formats._text_lines import BadLines, clean_text, decode_text, head_lines, numbered_lines
from forensics.redact import masked_value

VERSION = 1
TITLE = "Prometheus and OpenMetrics texts (/metrics of vLLM, SGLang, Triton and others)"
PROVIDES = ("sample.gauge", "fact")

_SURE = 85
_WITHOUT_TYPES = 60
_LOOK_AT_LINES = 300
_MAX_SAMPLES = 4_000_000
_MAX_SERIES = 500_000  # of one scrape that are remembered
_MAX_FACTS = 1000
_HIDES = "the figures of that line"
# What curl prints around an answer, and what separates scrapes.
_AROUND = re.compile(r"HTTP/\d|[A-Za-z-]{2,40}: |[<>*] |[-=#*~\s]{0,80}$|curl: |\$ ")
_TIME_IN_NAME = re.compile(r"(?<!\d)(1\d{9}(?:\d{3})?)(?!\d)")


def recognise(head: Head) -> int:
    lines = [line for line in head_lines(decode_text(head.data), whole=head.whole)[:_LOOK_AT_LINES] if line.strip()]
    read = [read_line(line) for line in lines]
    readings = [item for item in read if isinstance(item, Reading)]
    types = [item for item in read if isinstance(item, Comment) and item.kind in {"TYPE", "HELP"} and item.name]
    n_around = sum(item is None and _AROUND.match(line) is not None for item, line in zip(read, lines, strict=True))
    n_known = len(readings) + sum(isinstance(item, Comment | Stamp) for item in read) + n_around
    if not readings or n_known < 0.8 * len(lines):
        return 0
    if types and any(
        comment.name and item.name.startswith(comment.name) for comment in types for item in readings[:50]
    ):
        return _SURE
    return _WITHOUT_TYPES if sum(bool(item.labels) for item in readings) * 3 > len(lines) else 0


@dataclass
class _Scrapes:
    """Where one scrape ends and the next one begins, and when each was made."""

    first_ns: int | None
    number: int = 0
    ns: int | None = None
    seen: set[tuple[str, str | None]] = field(default_factory=set)
    _stamped: bool = False

    def stamp(self, stamp: Stamp) -> None:
        self._begin(stamp.ns)
        self._stamped = True

    def end(self) -> None:
        """Behind `# EOF`."""
        if self.seen:
            self._begin(None)

    def place(self, name: str, entity: str | None) -> None:
        if (name, entity) in self.seen:
            self._begin(None)
        if not self.number:
            self.number, self.ns = 1, self.ns if self._stamped else self.first_ns
        if len(self.seen) < _MAX_SERIES:
            self.seen.add((name, entity))

    def _begin(self, ns: int | None) -> None:
        if self.seen or not self.number:
            self.number += 1
        self.seen.clear()
        self.ns = ns


def load(source: Source, sink: Sink) -> None:
    named = _TIME_IN_NAME.search(source.own_name)
    stamped = stamp_of(source.own_name)
    scrapes = _Scrapes(epoch_ns(named[1]) if named else stamped.ns if stamped else None)
    rows = SampleRows(sink, "gauge")
    bad = BadLines(sink, "bad-line", _HIDES)
    kinds: dict[str, str] = {}
    told: set[tuple[str, str]] = set()
    zones: set[bool] = set()
    times: list[int] = []
    n_read = 0
    for number, text, whole in numbered_lines(source):
        item = read_line(text)
        if isinstance(item, Comment):
            if item.kind == "TYPE" and item.name and item.word and len(kinds) < _MAX_SERIES:
                kinds[item.name] = item.word
            elif item.kind == "EOF":
                scrapes.end()
        elif isinstance(item, Stamp):
            scrapes.stamp(item)
            zones.add(item.zoned)
        elif isinstance(item, Reading) and whole:
            n_read += 1
            _add(rows, scrapes, kinds, item, number)
            if len(times) < 2 and scrapes.ns is not None:
                times.append(scrapes.ns)
            if item.name.endswith("_info") and len(told) < _MAX_FACTS:
                _tell(sink, item, number, told)
        elif text.strip() and not text.startswith("#") and not _AROUND.match(text.strip()):
            n_read += 1
            bad.add(number, f"no sample ({text[:80]!r}); expected NAME{{LABELS}} VALUE")
    rows.flush()
    bad.close()
    if not rows.count:
        raise ArtifactError(f"{source.name}: no line holds a sample; expected NAME{{LABELS}} VALUE")
    _describe(
        sink,
        rows.count,
        n_read,
        scrapes,
        zoned=zones != {False},
        has_times=bool(times),
        whole=not bad.count and source.damage is None,
    )


def _add(rows: SampleRows, scrapes: _Scrapes, kinds: dict[str, str], item: Reading, line: int) -> None:
    entity = entity_of(item.labels)
    scrapes.place(item.name, entity)
    if rows.count >= _MAX_SAMPLES:
        return
    stem = item.name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum").removesuffix("_total")
    kind = kinds.get(item.name) or kinds.get(stem)
    device = next(
        (int(value) for name, value in item.labels if name in _DEVICES and value.isdecimal() and len(value) < 4), None
    )
    rows.add(
        clean_text(item.name),
        item.value,
        ts_ns=item.ts_ns if item.ts_ns is not None else scrapes.ns,
        line=line,
        entity=clean_text(entity) if entity else None,
        device=device,
        unit=unit_of(item.name, kind),
    )


_DEVICES = {"gpu", "gpu_id", "gpu_index", "device"}


def _tell(sink: Sink, item: Reading, line: int, told: set[tuple[str, str]]) -> None:
    """Settings that an engine exports as labels of a metric that is always 1."""
    prefix = item.name.rpartition(":")[2].removesuffix("_info")
    for name, value in item.labels:
        key = f"{prefix}.{name}"
        if value and (key, value) not in told:
            told.add((key, value))
            number = float(value) if re.fullmatch(r"\d{1,15}(?:\.\d{1,9})?", value) else None
            sink.fact(clean_text(key), masked_value(name, clean_text(value)), scope="option", line=line, number=number)


def _describe(
    sink: Sink, n_kept: int, n_read: int, scrapes: _Scrapes, *, zoned: bool, has_times: bool, whole: bool
) -> None:
    if n_kept >= _MAX_SAMPLES:
        sink.warn("too-many-samples", f"only the first {_MAX_SAMPLES} samples were kept", "later scrapes")
        sink.damaged("partial")
    if has_times:
        sink.clock("epoch" if zoned else "local")
    sink.fact("scrapes", str(scrapes.number), scope="note", number=scrapes.number)
    sink.cover("sample.gauge", complete=whole, n_read=n_read, n_kept=n_kept)
