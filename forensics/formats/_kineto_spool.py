"""Keeps Arrow tables until they are asked for again, in memory as far as a bound allows, then in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

import pyarrow as pa

MEMORY_BYTES = 32 << 20
GROUP_ROWS = 200_000


class Spool:
    """Tables of one schema in the order given; close it to remove its file."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._group_rows = int(GROUP_ROWS * min(1.0, max(0.1, memory_bytes / MEMORY_BYTES)))
        self._tables: list[pa.Table | int] = []  # a number: its place in the file
        self._held = 0
        self._file: IO[bytes] | None = None

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        if self._held + table.nbytes <= self._memory_bytes:
            self._held += table.nbytes
            self._tables.append(table)
            return
        self._file = self._file or tempfile.TemporaryFile(prefix="forensics-trace-")  # noqa: SIM115
        self._tables.append(self._file.seek(0, 2))
        options = pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True, use_threads=False)
        with pa.ipc.new_stream(self._file, table.schema, options=options) as out:
            out.write_table(table.unify_dictionaries())

    def groups(self) -> Iterator[pa.Table]:
        """All tables in order, joined to about GROUP_ROWS rows (fewer with little memory); each is given once."""
        waiting: list[pa.Table] = []
        self._tables.reverse()
        while self._tables:
            waiting.append(self._take(self._tables.pop()))
            if sum(table.num_rows for table in waiting) >= self._group_rows:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    def _take(self, kept: pa.Table | int) -> pa.Table:
        if isinstance(kept, pa.Table):
            return kept
        assert self._file is not None
        self._file.seek(kept)
        return pa.ipc.open_stream(self._file).read_all()

    def close(self) -> None:
        self._tables.clear()
        if self._file:
            self._file.close()
