"""Cuts a TORCH_TRACE log into records: a line with a glog prefix and one JSON object, and its payload.

Payload lines begin with one tab each. Lines of other writers between them are told apart by having neither tab nor
prefix. Offsets are bytes of the decompressed stream, lines count from 1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from forensics.formats._lenient_json import JsonError, parse_json
from forensics.formats._log_time import Stamp, full_stamp, time_ns, yearless_stamp

MAX_RECORD_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_QUARTER_NS = 15 * 60 * 10**9
_DAY_NS = 86_400 * 10**9
_START = re.compile(rb"\n(?!\t)")
HEADER = re.compile(
    rb"(?:\[?[\w.\-]{1,40}\]?:\s{0,4})?[VIWEC](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) {1,8}(\d{1,20}) "
    rb"[^:\n]{1,1000}:\d{1,9}\] (?=\{)"
)


@dataclass
class Record:
    line: int
    byte: int
    stamp: Stamp | None
    pid: int
    fields: dict[str, Any]
    payload: bytes = b""
    has_payload: str | None = None

    @property
    def is_intact(self) -> bool:
        """Whether the payload is the one whose MD5 the record announces."""
        return hashlib.md5(self.payload, usedforsecurity=False).hexdigest() == self.has_payload

    @property
    def text(self) -> str:
        return self.payload.decode("utf-8", "replace")


@dataclass
class Records:
    """Reads a stream once; what could not be read is told to `on_bad(line, byte, what)`."""

    stream: BinaryIO
    on_bad: Any
    n_lines: int = 0
    n_oversized: int = 0
    _waiting: Record | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Record]:
        for line, byte, block in self._blocks():
            head, _, body = block.partition(b"\n")
            found = HEADER.match(head)
            if found is None:
                if head.strip(b"\r \t"):
                    self.on_bad(line, byte, "neither the prefix of a record nor a line of its payload")
                # A line of another writer inside of a payload: the payload goes on behind it.
                if body and self._waiting is not None:
                    self._waiting.payload += (b"\n" if self._waiting.payload else b"") + _untabbed(body)
                continue
            if self._waiting is not None:
                yield self._waiting
            self._waiting = self._record(line, byte, head, found, body)
        if self._waiting is not None:
            yield self._waiting

    def _record(self, line: int, byte: int, head: bytes, found: re.Match[bytes], body: bytes) -> Record | None:
        try:
            fields = parse_json(head[found.end() :].decode("utf-8", "replace"))
        except JsonError as error:
            self.on_bad(line, byte, f"no JSON behind the prefix ({error})")
            return None
        if not isinstance(fields, dict):
            self.on_bad(line, byte, "no JSON object behind the prefix")
            return None
        month, day, hour, minute, second, fraction, pid = (part.decode("ascii") for part in found.groups())
        stamp = yearless_stamp(int(month), int(day), time_ns(hour, minute, second, fraction))
        announced = fields.get("has_payload")
        return Record(
            line, byte, stamp, int(pid), fields, _untabbed(body), announced if isinstance(announced, str) else None
        )

    def _blocks(self) -> Iterator[tuple[int, int, bytes]]:
        """(line, byte, text) of each line without a leading tab together with the lines that have one after it."""
        data, byte, line = b"", 0, 1
        while True:
            chunk = self.stream.read(_CHUNK_BYTES)
            data += chunk
            cut = _last_start(data) if chunk else len(data)
            if cut == 0 and len(data) > MAX_RECORD_BYTES:
                self.n_oversized += 1
                cut = len(data)
            at = 0
            while at < cut:
                found = _START.search(data, at, cut)
                end = found.start() if found else cut - data.endswith(b"\n", 0, cut)
                block = data[at:end]
                yield line, byte + at, block
                next_at = found.end() if found else cut
                line += data.count(b"\n", at, next_at)
                at = next_at
            self.n_lines = line - (not data.endswith(b"\n", 0, cut)) if cut else self.n_lines
            data, byte = data[cut:], byte + cut
            if not chunk:
                return


def _last_start(data: bytes) -> int:
    """Index of the last line that does not begin with a tab, as far as the data tells."""
    at = len(data) - 1
    while at > 0:
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return 0
        if data[at + 1] != 0x09:
            return at + 1
    return 0


def _untabbed(body: bytes) -> bytes:
    return body[1:].replace(b"\n\t", b"\n") if body.startswith(b"\t") else body


class TraceClock:
    """Turns the wall times of records, without year and zone, into ns since the epoch by records that know both."""

    def __init__(self) -> None:
        self._year: int | None = None
        self._month = 0
        self._zone_ns = 0

    def anchor(self, stamp: Stamp | None, epoch_ns: int) -> None:
        """Says that the record with this stamp was written at `epoch_ns`, give or take seven minutes."""
        if self._year is not None or stamp is None or not 10**18 <= epoch_ns < 4 * 10**18:
            return
        about = 1970 + int(epoch_ns / (365.2425 * _DAY_NS))
        for year in (about, about - 1, about + 1):
            local = full_stamp(year, stamp.month, stamp.day, stamp.ns % _DAY_NS, None)
            if local is not None and abs(local.ns - epoch_ns) <= 14 * 3600 * 10**9 + _QUARTER_NS:
                self._year, self._month = year, stamp.month
                self._zone_ns = round((local.ns - epoch_ns) / _QUARTER_NS) * _QUARTER_NS
                return

    @property
    def is_known(self) -> bool:
        return self._year is not None

    def ns(self, stamp: Stamp | None) -> int | None:
        if stamp is None or self._year is None:
            return None
        # A log over New Year's Eve is days long, not eleven months.
        year = self._year + (stamp.month <= 2 and self._month >= 11) - (stamp.month >= 11 and self._month <= 2)
        local = full_stamp(year, stamp.month, stamp.day, stamp.ns % _DAY_NS, None)
        return None if local is None else local.ns - self._zone_ns
