"""Call chains of an export (CUDA_CALLCHAINS, OSRT_CALLCHAINS) as stacks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Frame, Sink, Stacks
from forensics.formats._nsys_report import Report
from forensics.formats._nsys_tables import OSRT, RUNTIME

_CHAINS = {RUNTIME: "CUDA_CALLCHAINS", OSRT: "OSRT_CALLCHAINS"}
_MAX_FRAMES = 2_000_000
_MAX_DEPTH = 512


@dataclass
class CallChains:
    """Reads a table of chains once, when the first block that may refer to it comes."""

    report: Report
    stacks: Stacks
    _known: dict[str, dict[int, int]] = field(default_factory=dict)

    def add_to(self, table: str, rows: pa.Table, block: pa.Table) -> pa.Table:
        """`rows` of slices of `block` with the stack of each that has one."""
        chains = _CHAINS.get(table)
        if chains is None or "callchainId" not in block.column_names or not self.report.tables.columns(chains):
            return rows
        if table not in self._known:
            self._known[table] = self._read(chains)
        encoded = block.column("callchainId").combine_chunks().dictionary_encode()
        ids = pa.array([self._known[table].get(i) for i in encoded.dictionary.to_pylist()], pa.uint64())
        return rows.append_column("stack_id", pc.take(ids, encoded.indices))

    def _read(self, chains: str) -> dict[int, int]:
        frames: dict[int, list[tuple[int, int, int]]] = {}
        n = 0
        for block in self.report.tables.read(chains, ("id", "stackDepth", "symbol", "module")):
            if set(block.column_names) < {"id", "stackDepth", "symbol"}:
                return {}
            for row in block.slice(0, max(0, _MAX_FRAMES - n)).to_pylist():
                if row["id"] is not None and row["stackDepth"] is not None and row["stackDepth"] < _MAX_DEPTH:
                    frames.setdefault(row["id"], []).append((row["stackDepth"], row["symbol"], row.get("module")))
            n += block.num_rows
        ids = {number for chain in frames.values() for _, *named in chain for number in named if number is not None}
        texts = self.report.texts(pa.array(sorted(ids), pa.int64()))
        stacks = {}
        for chain, members in frames.items():
            # Depth 0 is the innermost frame.
            calls = [
                Frame(texts.get(s) or "?", texts.get(m))
                for _, s, m in sorted(members, reverse=True, key=lambda f: f[0])
            ]
            stack = self.stacks.add(calls)
            if stack is not None:
                stacks[chain] = stack
        return stacks

    def emit(self, sink: Sink) -> None:
        table = self.stacks.table()
        if table.num_rows:
            sink.emit("stack", table)
