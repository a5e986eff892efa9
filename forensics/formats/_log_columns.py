"""Reads the lines of numbers of a block that have many of their kind as columns, and says which are left to be read
one by one.

Reading line by line is the reference: the first and the last line of every kind are read both ways, and where that
differs the kind is not read as columns.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from forensics.formats._log_lines import Block, joined
from forensics.formats._log_marks import Labels, Line
from forensics.formats._log_metrics import MAX_STEP, MetricReader
from forensics.formats._log_prefix import parse
from forensics.formats._log_template import Template, learn, looks_of, without_digits
from forensics.formats._log_time import Clock, Stamp

MIN_LINES = 48  # of the same words in one block, for which columns pay
_MAX_TEMPLATES = 20_000
_SCALE = {n: 10 ** (9 - n) for n in range(1, 10)}


@dataclass(slots=True)
class Writer:
    """What the prefixes of some lines have in common: all but the time of day.

    `line`: the first of them, at index `first`; `time_ns`: its time of day; `proc`: its process, once it was met.
    """

    first: int
    line: Line
    time_ns: int | None
    proc: int | None = None


@dataclass
class Columns:
    """Lines of one template in one block, in order. `times`: ns since midnight of the stamp's own clock."""

    template: Template
    indices: pa.Array
    writers: list[Writer]
    writer_of: pa.Array  # positions in `writers`
    times: pa.Array | None
    steps: pa.Array | None
    values: list[pa.Array | float]
    accepted: list[tuple[int, int]] = field(default_factory=list)  # positions from and to that are not read otherwise

    def accept(self, start: int, end: int) -> tuple[int, int]:
        """Positions of the lines from piece `start` to before piece `end`, which are to be rows."""
        view = memoryview(self.indices.buffers()[1]).cast("Q")[: len(self)]
        first, last = bisect_left(view, start), bisect_left(view, end)
        if last > first:
            self.accepted.append((first, last))
        return first, last

    def last_steps(self, first: int, last: int) -> Iterator[tuple[int, int, Writer]]:
        """Index and step of the last of some lines of each writer."""
        if self.steps is None or first == last:
            return
        steps = memoryview(self.steps.buffers()[1]).cast("q")
        indices = memoryview(self.indices.buffers()[1]).cast("Q")
        if len(self.writers) == 1:
            yield indices[last - 1], steps[last - 1], self.writers[0]
            return
        writer_of = memoryview(self.writer_of.buffers()[1]).cast("i")
        for number, position in dict(zip(writer_of[first:last], range(first, last), strict=True)).items():
            yield indices[position], steps[position], self.writers[number]

    def __len__(self) -> int:
        return len(self.indices)

    def stamp(self, position: int) -> Stamp | None:
        """The stamp of a line."""
        writer = self.writers[self.writer_of[position].as_py()]
        stamp: Stamp | None = writer.line.stamp
        if stamp is None or self.times is None or writer.time_ns is None:
            return stamp
        return stamp._replace(ns=stamp.ns + self.times[position].as_py() - writer.time_ns)


class NotAlike(Exception):
    """Lines of the same words are not of one template."""


@dataclass
class ColumnReader:
    """Reads the lines of one log; templates are kept from block to block."""

    labels: Labels
    metrics: MetricReader
    clock: Clock
    _templates: dict[bytes, Template | None] = field(default_factory=dict)

    def read(self, block: Block, counting: pa.Array) -> tuple[list[Columns], pa.Array]:
        """Lines of numbers as columns, and those for which that was not possible."""
        codes = block.codes.take(counting)
        counts = pc.value_counts(codes)
        many = counts.filter(pc.greater_equal(counts.field("counts"), MIN_LINES)).field("values")
        found, taken = list[Columns](), list[int]()
        for code in many.to_pylist():
            columns = self._read(block, block.words[code], counting.filter(pc.equal(codes, code)))
            if columns is not None:
                found.append(columns)
                taken.append(code)
        if not taken:
            return found, counting
        return found, counting.filter(pc.invert(pc.is_in(codes, pa.array(taken, codes.type))))

    def _read(self, block: Block, words: bytes, indices: pa.Array) -> Columns | None:
        if words not in self._templates:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            self._templates[words] = learn(block.raw(indices[0].as_py()), self.labels, self.metrics)
        template = self._templates[words]
        if template is None:
            return None
        try:
            columns = self._columns(template, block, indices)
            for position in (0, len(indices) - 1):
                self._compare(columns, position, block)
        except (NotAlike, pa.ArrowInvalid):
            return None
        return columns

    def _columns(self, template: Template, block: Block, indices: pa.Array) -> Columns:
        n = len(indices)
        table = _table(template, block.pieces.take(indices))
        for name, looks in template.mixed:
            if any(looks_of(text) != looks for text in table[name].cast(pa.binary()).unique().to_pylist()):
                raise NotAlike
        if any(table[name].null_count for name in template.numbers):
            raise NotAlike
        if any(pc.any(pc.not_equal(table[name], text)).as_py() for name, text in template.named):
            raise NotAlike
        for name, form in template.placed:
            if not pc.all(pc.match_substring_regex(table[name].unique(), f"^{form}$")).as_py():
                raise NotAlike
        times = _times([table[name].combine_chunks() for name in template.time]) if template.time else None
        steps = _steps(table[template.step].combine_chunks()) if template.step is not None else None
        values = [table[v].combine_chunks() if isinstance(v, str) else v for v in template.values]
        if steps is not None and steps.null_count:
            raise NotAlike
        writer_of = _writers([table[name].combine_chunks() for name in template.keys], n)
        firsts = _firsts(writer_of, pc.max(writer_of).as_py() + 1)
        if len(firsts) * 4 > n:
            raise NotAlike
        writers = []
        for first in firsts:
            line = parse(block[indices[first].as_py()].text, self.labels)
            if without_digits(line.text) != template.body or (line.stamp is None) == bool(template.time):
                raise NotAlike
            if line.stamp is not None and not self.clock.follows(line.stamp):
                raise NotAlike
            writers.append(Writer(indices[first].as_py(), line, times[first].as_py() if times is not None else None))
        return Columns(template, indices, writers, writer_of, times, steps, values)

    def _compare(self, columns: Columns, position: int, block: Block) -> None:
        """Holds a line to what reading it alone gives."""
        line = parse(block[columns.indices[position].as_py()].text, self.labels)
        metrics = self.metrics.read(line.text)
        writer = columns.writers[columns.writer_of[position].as_py()].line
        if columns.stamp(position) != line.stamp or _identity(line) != _identity(writer):
            raise NotAlike
        step = columns.steps[position].as_py() if columns.steps is not None else None
        values = [v if isinstance(v, float) else v[position].as_py() for v in columns.values]
        if metrics is None:
            if step is not None or values:
                raise NotAlike
        elif (
            (step, columns.template.names) != (metrics.step, metrics.names)
            or columns.template.printer != metrics.printer
            or not _same(values, metrics.values)
        ):
            raise NotAlike


def _identity(line: Line) -> tuple[object, ...]:
    return line.marks, line.rank, line.local_rank, line.place, line.pid, line.actor, line.device, line.writer


def _same(some: list[float], others: list[float]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def _table(template: Template, lines: pa.Array) -> pa.Table:
    text = joined(lines)
    table = csv.read_csv(
        pa.BufferReader(text.translate(template.separators)),
        read_options=csv.ReadOptions(use_threads=False, column_names=template.columns, block_size=len(text) + 1),
        parse_options=csv.ParseOptions(
            delimiter=" ", quote_char=False, double_quote=False, escape_char=False, ignore_empty_lines=False
        ),
        convert_options=template.convert,
    )
    if table.num_rows != len(lines):
        raise NotAlike
    return table


def _steps(numbers: pa.Array) -> pa.Array:
    in_range = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, float(MAX_STEP)))
    return pc.if_else(in_range, numbers, None).cast(pa.int64(), safe=False)


def _times(texts: list[pa.Array]) -> pa.Array:
    hour, minute, second, *rest = texts
    if rest:
        fraction = rest[0]
    else:
        width = _width(second)
        fraction = pc.utf8_slice_codeunits(second, 3) if width > 2 else None
        if width > 2 and not pc.all(pc.equal(pc.utf8_slice_codeunits(second, 2, 3), ".")).as_py():
            raise NotAlike
        second = pc.utf8_slice_codeunits(second, 0, 2)
    total = pa.scalar(0, pa.int64())
    for part in (hour, minute, second):
        if _width(part) != 2:
            raise NotAlike
        total = pc.add(pc.multiply(total, 60), part.cast(pa.int64()))
    total = pc.multiply(total, 10**9)
    if fraction is None:
        return total
    width = _width(fraction)
    if width not in _SCALE:
        raise NotAlike
    return pc.add(total, pc.multiply(fraction.cast(pa.int64()), _SCALE[width]))


def _width(texts: pa.Array) -> int:
    """The length of all texts."""
    found = pc.min_max(pc.binary_length(texts))
    if found["min"] != found["max"]:
        raise NotAlike
    width: int = found["min"].as_py()
    return width


def _writers(keys: list[pa.Array], n: int) -> pa.Array:
    """For each line the number of its combination of keys, by first appearance."""
    if not keys:
        return pa.nulls(n, pa.int32()).fill_null(0)
    numbers = keys[0].dictionary_encode().indices.cast(pa.int64())
    for key in keys[1:]:
        encoded = key.dictionary_encode()
        numbers = pc.add(pc.multiply(numbers, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
    return numbers.dictionary_encode().indices


def _firsts(numbers: pa.Array, n: int) -> list[int]:
    """Where each of the numbers 0 to n - 1 stands first."""
    if n <= 32:
        return [pc.index(numbers, number).as_py() for number in range(n)]
    places = dict(zip(reversed(numbers.to_pylist()), range(len(numbers) - 1, -1, -1), strict=True))
    return [places[number] for number in range(n)]
