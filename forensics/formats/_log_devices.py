"""Hands what `nvidia-smi` printed into a log over to its own readers, and puts their samples behind the log's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Sink
from forensics.formats._device_fields import DeviceSamples
from forensics.formats._log_lines import Block
from forensics.formats._log_marks import Labels
from forensics.formats._log_prefix import parse
from forensics.formats._log_time import Clock
from forensics.formats._nvidia_smi_query import QueryText, is_device_heading
from forensics.formats._nvidia_smi_table import TableText
from forensics.formats._quantities import parse_time
from forensics.formats.metrics_csv import DeviceTable

_OF_HOST = re.compile(r"(?:Timestamp|Driver Version|CUDA Version|Attached GPUs) +: |=+NVSMI LOG=+")
_CSV_SIGNS = ("utilization.gpu", "memory.used", "memory.total", "memory.free", "temperature.gpu", "power.draw")
_HEADER = "|".join(map(re.escape, _CSV_SIGNS))
_MAX_ROW = 4000  # characters
_TIME = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, ")  # as nvidia-smi writes it
_MAX_OUTSIDE = 2  # blank lines within one output


class _Behind:
    """A sink for rows of `sample` that are numbered after others, which are not known yet. The clock is the log's."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.samples: list[pa.Table] = []

    def emit(self, table: str, data: Any) -> None:
        self.samples.append(data)

    def clock(self, kind: str, **known: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


class DeviceRows:
    """Rows of `nvidia-smi --query-gpu=… --format=csv`, in a loop among the lines of a log; its header comes first."""

    def __init__(self, samples: DeviceSamples, labels: Labels, clock: Clock) -> None:
        self._labels = labels
        self._clock = clock
        self._csv = DeviceTable(samples)
        self.n_lines = 0

    def read(self, block: Block) -> None:
        data = block.pieces.buffers()[2]
        if self._csv.n_columns == 0 and (data is None or not _any_sign(data.to_pybytes())):
            return
        index = 0
        while index < len(block):
            if self._csv.n_columns == 0:
                headers = pc.indices_nonzero(pc.match_substring_regex(block.pieces, _HEADER)).to_pylist()
                index = next((i for i in headers if i >= index and self._begin(block, i)), len(block) - 1) + 1
            else:
                rows = pc.greater_equal(pc.count_substring(block.pieces, ","), self._csv.n_columns - 1)
                for at in pc.indices_nonzero(rows).to_pylist():
                    if at >= index and not self._begin(block, at):
                        self._take(block, at)
                return

    def _begin(self, block: Block, index: int) -> bool:
        text = block[index].text
        begun = any(sign in text for sign in _CSV_SIGNS) and len(text) < _MAX_ROW
        begun = begun and self._csv.begin(parse(text, self._labels).text, block[index].number)
        self.n_lines += begun
        return begun

    def _take(self, block: Block, index: int) -> None:
        piece = block[index]
        if len(piece.text) > _MAX_ROW:
            return
        # A time, at the beginning or behind a prefix, is the row's own where the header has one.
        own = _TIME.search(piece.text)
        whole = piece.text[own.start() :] if own else piece.text
        for text in (whole, parse(piece.text, self._labels).text):
            if self._csv.resumes(text):
                self.n_lines += 1
                self._csv.read(text, piece.number, timed=self._clock.kind in {"none", "local"})
                return


def _any_sign(data: bytes) -> bool:
    return any(sign.encode() in data for sign in _CSV_SIGNS)


class DeviceText:
    """Feed it lines while `is_open`, and those that `begins` tells."""

    def __init__(self, sink: Sink, labels: Labels, clock: Clock) -> None:
        self._sink = sink
        self._behind = _Behind(sink)
        self._samples = DeviceSamples(self._behind)
        self._table = TableText(self._samples)
        self._query = QueryText(self._samples)
        self._proc: int | None = None  # whose output is open
        self.rows = DeviceRows(self._samples, labels, clock)
        self._kind = ""
        self._n_blank = 0
        self._n_lines = 0

    @property
    def is_open(self) -> bool:
        return self._proc is not None

    def take(self, proc: int, text: str, number: int, before: Callable[[], list[str]]) -> bool:
        """Whether a line is of such output. `before` gives the lines above it that may tell the time, a local one."""
        if self._proc is None:
            if not _begins(text):
                return False
            self._proc, self._kind = proc, "query" if "NVSMI LOG" in text else "table"
            moments = [moment for line in before() if (moment := parse_time(line.strip())) is not None]
            self._table.ts_ns = moments[-1].ns if moments else None
        elif proc != self._proc:
            return False
        self._n_blank = 0 if text.strip() else self._n_blank + 1
        readers = {"query": self._query.read, "table": self._table.read}
        if text.strip():
            is_own = (self._kind != "query" or _may_be_of_query(text)) and readers[self._kind](text, number)
        else:
            is_own = self._n_blank <= _MAX_OUTSIDE
        if not is_own:
            self._proc = None
        self._n_lines += is_own
        return is_own

    def close(self, first_row: int) -> int:
        """Emits the samples, numbered from `first_row` on; gives the number after the last one."""
        self._query.finish()
        self._samples.finish(n_read=self._n_lines + self.rows.n_lines, complete=False)
        for rows in self._behind.samples:
            numbers = pc.add(rows["row"], first_row)
            self._sink.emit("sample", rows.set_column(rows.schema.get_field_index("row"), "row", numbers))
        return first_row + self._samples.count


def _may_be_of_query(text: str) -> bool:
    """Whether a line is indented as the fields of devices are, or one of the few that are not."""
    return text[0].isspace() or is_device_heading(text) or _OF_HOST.match(text) is not None


def _begins(text: str) -> bool:
    if "NVSMI LOG" in text:
        return text.lstrip().startswith("=")
    return "NVIDIA-SMI" in text and text.lstrip().startswith("|")
