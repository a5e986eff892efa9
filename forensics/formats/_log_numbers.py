"""Reads the lines of numbers of one log: the step that each process is at, and its metrics as samples."""

from __future__ import annotations

from bisect import bisect_left

import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._log_columns import ColumnReader, Columns, Writer
from forensics.formats._log_lines import Block
from forensics.formats._log_marks import Labels, Line
from forensics.formats._log_metrics import metric_reader
from forensics.formats._log_prefix import parse
from forensics.formats._log_processes import Processes
from forensics.formats._log_samples import Kind, SampleRows
from forensics.formats._log_scan import Scan
from forensics.formats._log_time import Clock


class Numbers:
    """`steps`: the last step of each process so far."""

    def __init__(self, labels: Labels, clock: Clock, processes: Processes, samples: SampleRows) -> None:
        self._labels = labels
        self._clock = clock
        self._processes = processes
        self._samples = samples
        self._metrics = metric_reader()
        self._reader = ColumnReader(labels, self._metrics, clock)
        self.steps: dict[int, int] = {}
        self._step_at: dict[int, int] = {}  # the piece that told the step, in this block

    def begin(self, block: Block, scan: Scan, counting: pa.Array, taken: list[int]) -> None:
        """Starts with a block. `counting`: its pieces that may be lines of numbers; `taken`: those that are none."""
        self._block = block
        self._step_at.clear()
        self._columns, left = self._reader.read(block, counting)
        changes_day = self._clock.days is not None and self._clock.days.changes
        if changes_day or (self._is_yearless() and self._years_depend_on_order([*left.to_pylist(), *taken])):
            self._columns, left = [], counting
        self._singles = scan.counting(block, left)
        # Processes are numbered in the order in which the log names them.
        meetings = [(writer.first, writer) for columns in self._columns for writer in columns.writers]
        self._meetings = sorted(meetings, key=lambda meeting: meeting[0])
        self._n_met = 0

    def _is_yearless(self) -> bool:
        """Whether years follow from the order of lines: of some that are read as columns, or of others."""
        stamps = [writer.line.stamp for columns in self._columns for writer in columns.writers]
        known = self._clock.met_yearless
        return any(stamp is not None and (known or stamp.kind == "yearless") for stamp in stamps)

    def _years_depend_on_order(self, others: list[int]) -> bool:
        """Whether the block's times without a year lie so far apart that each has the year of those before it.

        `others`: pieces that are not read as columns.
        """
        stamps = [writer.line.stamp for columns in self._columns for writer in columns.writers]
        stamps += [parse(self._block[index].text, self._labels).stamp for index in others]
        return self._clock.may_change_year(stamp for stamp in stamps if stamp is not None)

    def read(self, start: int, end: int) -> None:
        """Reads the lines of numbers from piece `start` to before piece `end`, of which none is notable."""
        first, last = bisect_left(self._singles, start), bisect_left(self._singles, end)
        for index in self._singles[first:last]:
            self._meet(start, index)
            piece = self._block[index]
            line = parse(piece.text, self._labels)
            self.take(index, self._processes.number(line), line, piece.number)
        self._meet(start, end)
        for columns in self._columns:
            self._accept(columns, start, end)

    def take(self, at: int, proc: int, line: Line, number: int) -> None:
        """Reads one line, piece `at` of the block."""
        metrics = self._metrics.read(line.text)
        if metrics is None:
            return
        if metrics.step is not None:
            self.steps[proc], self._step_at[proc] = metrics.step, at
        if metrics.names:
            ts_ns = self._clock.ns(line.stamp, number)
            kind = Kind(tuple(metrics.names), tuple(metrics.units), metrics.printer)
            self._samples.add(at, proc, metrics.step, ts_ns, number, kind, metrics.values)

    def end(self) -> None:
        """Ends the block."""
        for columns in self._columns:
            if columns.accepted and columns.template.names:
                self._add(columns)
        self._samples.end_block()

    def _meet(self, start: int, end: int) -> None:
        """Gives the writers of columns that are first met before piece `end` their processes."""
        while self._n_met < len(self._meetings) and self._meetings[self._n_met][0] < end:
            first, writer = self._meetings[self._n_met]
            if first >= start:  # else the line was taken as one of a message
                self._number(writer)
            self._n_met += 1

    def _number(self, writer: Writer) -> int:
        if writer.proc is None:
            writer.proc = self._processes.number(writer.line)
        return writer.proc

    def _accept(self, columns: Columns, start: int, end: int) -> None:
        first, last = columns.accept(start, end)
        if first == last:
            return
        for at, step, writer in columns.last_steps(first, last):
            proc = self._number(writer)
            if at > self._step_at.get(proc, -1):
                self.steps[proc], self._step_at[proc] = step, at
        if columns.template.names:
            self._clock.ns(columns.stamp(last - 1))  # the clock has to know the year that it is

    def _add(self, columns: Columns) -> None:
        procs = pa.array([self._number(writer) for writer in columns.writers], pa.int32()).take(columns.writer_of)
        ts_ns = None
        if columns.times is not None:
            midnights = [self._midnight(writer) for writer in columns.writers]
            ts_ns = pc.add(pa.array(midnights, pa.int64()).take(columns.writer_of), columns.times)
        whole = columns.accepted == [(0, len(columns))]
        chosen = None if whole else pa.concat_arrays([_between(first, last) for first, last in columns.accepted])

        def pick(column: pa.Array) -> pa.Array:
            return column if chosen is None else column.take(chosen)

        self._samples.add_lines(
            pick(columns.indices),
            pick(procs),
            None if columns.steps is None else pick(columns.steps),
            None if ts_ns is None else pick(ts_ns),
            pick(self._block.numbers(columns.indices)),
            Kind(tuple(columns.template.names), tuple(columns.template.units), columns.template.printer),
            [v if isinstance(v, float) else pick(v) for v in columns.values],
        )

    def _midnight(self, writer: Writer) -> int | None:
        """The beginning of the day of a writer's stamps, on the log's clock."""
        ns = self._clock.ns(writer.line.stamp, self._block.number(writer.first))
        return None if ns is None or writer.time_ns is None else ns - writer.time_ns


def _between(first: int, last: int) -> pa.Array:
    return pa.array(range(first, last), pa.int32())
