"""Collects the metrics of one log, block by block, and hands them to the sink in the order of their lines.

The first 2,000,000 values are all kept, and so are the last block's (8 MiB of text). Of the lines between, one in 2^n
is kept, chosen by scrambling the number of the step (else of the line), so that all processes keep the same steps, but
for a step whose lines a block's end parts; n grows by one with every further 250,000 values, from block to block. Lines
with a value that is not finite are kept beside them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Sink

BATCH = 65_536
MAX_SAMPLES = 2_000_000
MAX_NOT_FINITE = 200_000  # values kept beyond the first MAX_SAMPLES because one of their line is not finite
_PER_LEVEL = 250_000
_MAX_LEVEL = 20
_SCRAMBLE = 2_654_435_761  # odd, about 2^32 / golden ratio: consecutive numbers are spread evenly
_PLACES = 1 << 20  # values of one piece: a record of a JSON log may hold several lines of metrics

_LINE = pa.schema(
    [("key", pa.int64()), ("proc", pa.int32()), ("step", pa.int64()), ("ts_ns", pa.int64()), ("line", pa.int64())]
)
_ROW = pa.schema([*_LINE, ("name", pa.int32()), ("value", pa.float64())])


class Kind(NamedTuple):
    """What lines of one loop have in common."""

    names: tuple[str, ...]
    units: tuple[str | None, ...]
    printer: str | None


@dataclass(frozen=True)
class SampleLines:
    """Lines of the same metrics. `lines`: columns of _LINE; `values`: a column for each name."""

    kind: Kind
    lines: pa.Table
    values: Sequence[pa.Array]

    def filter(self, mask: pa.Array) -> SampleLines:
        return replace(self, lines=self.lines.filter(mask), values=[column.filter(mask) for column in self.values])


class SampleRows:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._row = 0
        self._n_odd = 0
        self.kept: Counter[int] = Counter()
        self.n_dropped = 0
        self._numbers: dict[tuple[str, str | None, str | None], int] = {}
        self._single: dict[Kind, list[tuple[int | float | None, ...]]] = {}
        self._last_key = -1
        self._block: list[SampleLines] = []
        self._held: list[SampleLines] = []  # the block before, of which it is not known whether it is the last one
        self._ready: list[pa.Table] = []
        self._n_ready = 0

    def add(
        self, at: int, proc: int, step: int | None, ts_ns: int | None, line: int, kind: Kind, values: Sequence[float],
    ) -> None:  # fmt: skip
        """The metrics of one line, piece `at` of its block; pieces in order."""
        key = max(at * _PLACES, self._last_key + 1)
        self._last_key = key + len(values)
        self._single.setdefault(kind, []).append((key, proc, step, ts_ns, line, *values))

    def add_lines(
        self, at: pa.Array, proc: pa.Array, step: pa.Array | None, ts_ns: pa.Array | None, line: pa.Array, kind: Kind,
        values: Sequence[pa.Array | float],
    ) -> None:  # fmt: skip
        """The metrics of many lines of the block, in order; a number where all lines have the same value."""
        n = len(at)
        missing = pa.nulls(n, pa.int64())
        key = pc.multiply(at.cast(pa.int64()), _PLACES)
        columns = [key, proc, missing if step is None else step, missing if ts_ns is None else ts_ns, line]
        values = [pa.repeat(pa.scalar(v, pa.float64()), n) if isinstance(v, float) else v for v in values]
        self._block.append(SampleLines(kind, pa.Table.from_arrays(columns, schema=_LINE), values))

    def end_block(self) -> None:
        """Says that what was added since the last call is all of a block."""
        for kind, rows in self._single.items():
            columns = list(zip(*rows, strict=True))
            lines = [pa.array(column, field.type) for column, field in zip(columns, _LINE, strict=False)]
            values = [pa.array(column, pa.float64()) for column in columns[len(_LINE) :]]
            self._block.append(SampleLines(kind, pa.Table.from_arrays(lines, schema=_LINE), values))
        block, self._block, self._single, self._last_key = self._block, [], {}, -1
        self._put(self._held, whole=False)
        self._held = block

    @property
    def n_rows(self) -> int:
        return self._row

    def close(self) -> None:
        self._put(self._held, whole=True)
        self._held = []
        self._emit()

    def _put(self, block: Sequence[SampleLines], *, whole: bool) -> None:
        """Makes rows of a block's lines: of all, if `whole` or there is room, else of some."""
        beyond = self._row - MAX_SAMPLES
        level = 0 if whole or beyond < 0 else min(1 + beyond // _PER_LEVEL, _MAX_LEVEL)
        kept = [self._thinned(lines, level) if level else lines for lines in block]
        tables = [self._rows(lines) for lines in kept if len(lines.lines)]
        if not tables:
            return
        rows = pa.concat_tables(tables)
        if len(tables) > 1:
            rows = rows.take(pc.sort_indices(rows["key"]))
        self._ready.append(rows)
        self._n_ready += len(rows)
        self._row += len(rows)
        if self._n_ready >= BATCH:
            self._emit()

    def _thinned(self, given: SampleLines, level: int) -> SampleLines:
        number = pc.coalesce(given.lines["step"], given.lines["line"]).combine_chunks()
        scrambled = pc.bit_wise_and(pc.multiply(number, _SCRAMBLE), 0xFFFF_FFFF)
        chosen = pc.equal(pc.shift_right(scrambled, 32 - level), 0)
        if self._n_odd < MAX_NOT_FINITE:
            finite = reduce(pc.and_, (pc.is_finite(column) for column in given.values))
            self._n_odd += len(given.values) * pc.and_not(pc.invert(finite), chosen).true_count
            chosen = pc.or_(chosen, pc.invert(finite))
        kept = given.filter(chosen)
        self.n_dropped += (len(given.lines) - len(kept.lines)) * len(given.values)
        return kept

    def _rows(self, given: SampleLines) -> pa.Table:
        """One row for each value: those of the first line, then those of the second."""
        n, k = len(given.lines), len(given.values)
        line_of, place_of, name_of = (
            array("i", bytes(4 * n * k)),
            array("q", bytes(8 * n * k)),
            array("i", bytes(4 * n * k)),
        )
        value_of = array("d", bytes(8 * n * k))
        lines = _counted(n)
        kind = given.kind
        for place, (name, unit, column) in enumerate(zip(kind.names, kind.units, given.values, strict=True)):
            line_of[place::k] = lines
            place_of[place::k] = array("q", [place]) * n
            number = self._numbers.setdefault((name, unit, kind.printer), len(self._numbers))
            name_of[place::k] = array("i", [number]) * n
            value_of[place::k] = _doubles(column)
        repeated = given.lines.take(_arrow(line_of, pa.int32()))
        key = pc.add(repeated["key"], _arrow(place_of, pa.int64()))
        columns = [key, *repeated.columns[1:], _arrow(name_of, pa.int32()), _arrow(value_of, pa.float64())]
        return pa.Table.from_arrays(columns, schema=_ROW)

    def _emit(self) -> None:
        if not self._n_ready:
            return
        rows = pa.concat_tables(self._ready)
        n, first = len(rows), self._row - self._n_ready
        for proc in pc.value_counts(rows["proc"]):
            self.kept[proc["values"].as_py()] += proc["counts"].as_py()
        names, units, printers = (pa.array(column, pa.string()) for column in zip(*self._numbers, strict=True))
        columns = {
            "row": pc.add(_arrow(_counted(n), pa.int32()).cast(pa.int64()), first),
            **{name: rows[name] for name in ("proc", "step", "ts_ns", "line")},
            "source": pa.repeat("log", n),
            "name": pc.take(names, rows["name"]),
            "entity": pc.take(printers, rows["name"]),
            "unit": pc.take(units, rows["name"]) if units.null_count < len(units) else pa.nulls(n, pa.string()),
            "value": rows["value"],
        }
        self._sink.emit("sample", pa.table(columns))
        self._ready, self._n_ready = [], 0


_ordinals = array("i")


def _counted(n: int) -> array[int]:
    """0 to n - 1."""
    if len(_ordinals) < n:
        _ordinals.extend(range(len(_ordinals), n))
    return _ordinals[:n]


def _doubles(column: pa.Array) -> array[float]:
    found = array("d")
    found.frombytes(memoryview(column.buffers()[1])[8 * column.offset : 8 * (column.offset + len(column))])
    return found


def _arrow(values: array[int] | array[float], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
