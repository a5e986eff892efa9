"""Tables of `torch.cuda.memory_summary()` within a log, as rows of `sample`."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from forensics.artifact import Sink
from forensics.formats._log_lines import Block
from forensics.formats._log_marks import Labels
from forensics.formats._log_prefix import parse
from forensics.formats._log_processes import Processes
from forensics.formats._log_time import Clock
from forensics.formats._memory_summary import MARK, Summary, starts_summary
from forensics.formats._samples import SampleRows

MAX_TABLES = 10_000
_MAX_LINES = 400  # of a log from a title on; a table has 50, and those of several ranks may be mixed


@dataclass
class _Table:
    proc: int
    ts_ns: int | None
    summary: Summary
    lines_left: int = _MAX_LINES


class SummaryLines:
    def __init__(self, sink: Sink, labels: Labels, clock: Clock, processes: Processes) -> None:
        self._sink = sink
        self._labels = labels
        self._clock = clock
        self._processes = processes
        self._tables: list[_Table] = []
        self._open: dict[int, _Table] = {}
        self.n_dropped = 0

    def read(self, block: Block) -> None:
        data = block.pieces.buffers()[2]
        if not self._open and (data is None or MARK.encode() not in data.to_pybytes()):
            return
        titles = pc.indices_nonzero(pc.match_substring(block.pieces, MARK)).to_pylist()
        index = 0
        while index < len(block):
            if not self._open:
                titles = [title for title in titles if title >= index]
                if not titles:
                    return
                index = titles[0]
            self._take(block, index)
            index += 1

    def _take(self, block: Block, index: int) -> None:
        piece = block[index]
        line = parse(piece.text[:1000], self._labels)
        begun = starts_summary(line.text)
        if begun is not None:
            proc = self._processes.number(line)
            table = _Table(proc, self._clock.ns(line.stamp, piece.number), begun)
            self._open[proc] = table
            if len(self._tables) < MAX_TABLES:
                self._tables.append(table)
            else:
                self.n_dropped += 1
        elif "|" in line.text:
            # Only the first line of a message may have a prefix.
            proc = self._processes.number(line)
            found = self._open.get(proc) or (list(self._open.values())[-1] if not line.prefixed else None)
            if found is not None:
                found.summary.feed(line.text, piece.number)
        for proc, table in list(self._open.items()):
            table.lines_left -= 1
            if table.summary.whole or table.lines_left <= 0:
                del self._open[proc]

    def close(self, *, first_row: int, n_read: int) -> None:
        """Emits the rows, numbered on from those of the log's metrics."""
        samples = SampleRows(self._sink, "log", first_row=first_row)
        for table in self._tables:
            for figure in table.summary.figures:
                samples.add(
                    figure.name, figure.value, unit=figure.unit, line=figure.line,
                    proc=table.proc, ts_ns=table.ts_ns, device=table.summary.device,
                )  # fmt: skip
        samples.flush()
        for proc in sorted({table.proc for table in self._tables}):
            mine = [table.summary for table in self._tables if table.proc == proc]
            whole = all(summary.whole and not summary.n_bad for summary in mine)
            n_kept = sum(len(summary.figures) for summary in mine)
            self._sink.cover("sample.allocator", proc=proc, complete=whole, n_read=n_read, n_kept=n_kept)
        if self.n_dropped:
            text = f"{self.n_dropped} further memory summaries were counted, not kept"
            self._sink.warn("too-many-samples", text, "the allocator's counters later on")
