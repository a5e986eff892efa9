"""Puts lines together again that were cut because several processes write to one pipe.

Where a line of one process begins inside another's, its prefix stands in the middle of a line; the rest of the line
that was cut follows later, at the beginning of a line, without a prefix. A process goes on where it stopped: once a
line with its prefix begins anew, what was cut of it is known to be whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from forensics.formats._log_blocks import FRAME, HEADER, bare_exception_line, exception_line
from forensics.formats._log_lines import Piece
from forensics.formats._log_marks import Labels, Line
from forensics.formats._log_prefix import parse

_MAX_CUT = 64  # lines that are cut at the same time
_MAX_LINES = 512  # after which nothing more is expected of a line
_MAX_PARTS = 256  # of one line

_MARK = re.compile(r"\[(?:rank|default|trainer)\d{1,6}\]:|\[\d{1,9},\d{1,6}\]<(?:stdout|stderr|stddiag)>:")
# A number and a colon are a label only before what begins a line of a traceback.
_RAISED = r"[A-Za-z_][\w.]{0,80}(?:Error|Exception|Group|Interrupt|Exit): "
_LABEL = re.compile(
    r"(?<!\d)\d{1,5}: (?=Traceback \(most recent|  File \"|    \S|  [+|]|The above exception|During handling of)"
    rf"|(?<=[^\d\s])\d{{1,5}}: (?={_RAISED})"
)
_SECOND_LABEL = re.compile(rf" {{0,4}}\d{{1,5}}: ((?=\d{{1,5}}: {_RAISED}))")
_SOURCE = re.compile(r" {4,}\S|\s*[~^]+\s*$")
_GROUP = re.compile(r"\s*(?:\||\+[-+]{2}|\+ Exception Group)")
_BROKEN_MARK = re.compile(
    r"\[(?:r|ra|ran|rank\d*\]?|d|de|def|defa|defau|defaul|default\d*\]?|\d+,\d*(?:\]<?[a-z]*>?)?)$"
)
# How well a line goes on with what was cut.
_NOT, _HARDLY, _PERHAPS, _MAY, _LIKELY, _SURELY = range(6)


class Found(NamedTuple):
    """A line with its prefix, and the piece of the log where it ended; where it was cut, if it never ended."""

    text: str
    piece: Piece


class Torn:
    """`active`: whether the block at hand has lines with such prefixes, so that one inside a line is a line's begin.

    `in_traceback` says whether the writer of a line is in the middle of one.
    """

    def __init__(self, labels: Labels, in_traceback: Callable[[Line], bool]) -> None:
        self._labels = labels
        self._in_traceback = in_traceback
        self._cut: list[Found] = []
        self.active = False

    @property
    def is_open(self) -> bool:
        return bool(self._cut)

    def mend(self, piece: Piece) -> list[Found]:
        """The lines that a line of the log completes."""
        if not self._cut and not self._may_hold_another(piece.text):
            return [Found(piece.text, piece)]
        *cut, last = self._parts(piece.text)
        whole = self._given_up(piece.number)
        for index, part in enumerate([*cut, last]):
            text = part
            if index == 0 and self._cut and not self._mark(part) and not _BROKEN_MARK.match(part):
                text = self._joined(part)
            elif self._cut:
                whole += self._ended_by(self._mark(part))
            (self._cut if index < len(cut) else whole).append(Found(text, piece))
        n_many = max(len(self._cut) - _MAX_CUT, 0)
        whole, self._cut = self._cut[:n_many] + whole, self._cut[n_many:]
        return whole

    def rest(self) -> list[Found]:
        """What was cut and never went on."""
        cut, self._cut = self._cut, []
        return cut

    def _may_hold_another(self, text: str) -> bool:
        if self._labels.srun:
            return _LABEL.search(text, 1) is not None or _SECOND_LABEL.match(text) is not None
        return self.active and text.find("]", 2) > 0 and _MARK.search(text, 1) is not None

    def _parts(self, text: str) -> list[str]:
        parts: list[str] = []
        while len(parts) < _MAX_PARTS and (at := self._next_begin(text)):
            broken = _BROKEN_MARK.search(text[:at])
            parts += filter(None, [text[: broken.start()], text[broken.start() : at]] if broken else [text[:at]])
            text = text[at:]
        return [*parts, text]

    def _next_begin(self, text: str) -> int | None:
        """Where in a line the next one begins."""
        if not self._may_hold_another(text):
            return None
        line_text = parse(text, self._labels).text
        prefix = len(text) - len(line_text) if text.endswith(line_text) else 0
        marks: dict[str, str] = {}
        for mark in _MARK.finditer(text) if self.active else ():
            kind = "mpi" if mark[0].endswith(">:") else mark[0][1:].rstrip("]:0123456789")
            # `[default1]:[rank1]:` is one prefix, and so is what a launcher puts before the same mark of its process.
            if mark.start() >= max(prefix, 1) or marks.setdefault(kind, mark[0]) != mark[0]:
                return mark.start()
        if not self._labels.srun:
            return None
        if second := _SECOND_LABEL.match(text):
            return second.start(1)
        label = _LABEL.search(text, max(prefix, 1))
        return label.start() if label else None

    def _given_up(self, number: int) -> list[Found]:
        n_old = sum(number - found.piece.number > _MAX_LINES for found in self._cut)
        old, self._cut = self._cut[:n_old], self._cut[n_old:]
        return old

    def _ended_by(self, mark: str) -> list[Found]:
        """What was cut of the process that begins another line."""
        ended = [found for found in self._cut if self._mark(found.text) == mark] if mark else []
        self._cut = [found for found in self._cut if found not in ended]
        return ended

    def _mark(self, text: str) -> str:
        """The process that the prefix names."""
        line = parse(text, self._labels)
        return f"{line.rank} {line.local_rank}" if line.rank is not None or line.local_rank is not None else ""

    def _joined(self, text: str) -> str:
        """The line with what was cut of its beginning, where one is likely to be that and the line is none itself."""
        stamped = parse(text, self._labels)
        if stamped.prefixed:
            return text
        fits = [self._fit(found.text, text) for found in self._cut]
        best = max(fits)
        if best == _NOT or (best < _MAY and (stamped.level or bare_exception_line(text.strip()))):
            return text
        chosen = len(fits) - 1 - fits[::-1].index(best)  # the last one of those that fit alike
        return self._cut.pop(chosen).text + text

    def _fit(self, before: str, after: str) -> int:
        """How well a line goes on with what was cut."""
        line = parse(before + after, self._labels)
        if not self._mark(before):
            return _SURELY if self._mark(before + after) else _NOT if before.startswith("[") else _PERHAPS
        begun, whole, inside = parse(before, self._labels).text.strip(), line.text, self._in_traceback(line)
        if begun and (HEADER in after or (exception_line(begun) and (FRAME.match(after) or _SOURCE.match(after)))):
            return _NOT
        if HEADER in whole:
            return _SURELY if begun else _MAY
        if exception_line(whole.strip()) or FRAME.match(whole) or _GROUP.match(whole) or _SOURCE.match(whole):
            return _SURELY if begun and not exception_line(begun) else _MAY + inside
        return _PERHAPS - (inside and not begun)
