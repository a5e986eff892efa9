"""What a format sees of an artifact (`Head`, `Source`) and where it puts what it found (`Sink`).

A format never learns about the case: it hands Arrow tables (or DuckDB relations) to the sink, whose columns are
those of `schema.sql` except that

* `artifact_id` and `rank` are left out, `proc_id` is `proc`: the number given to `Sink.proc` (default 0),
* texts are texts: `name` where the table has `name_id`, `shapes` for `shapes_id`, and so on; the case interns them,
* `stack_id` is the id that `Stacks.add` returned; the frames follow in one `emit("stack", stacks.table())`.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from forensics.compression import DECODERS, ReadAhead, allowed_bytes, compression_of, open_compressed
from forensics.deadline import Deadline

HEAD_BYTES = 64 * 1024
LEAST_ZEROS = 512  # that are taken for a hole: a disk's smallest block
_ZEROS = bytes(LEAST_ZEROS)
_ZEROS_AT_ONCE = 1 << 20
# Stands for the year in which a log of stamps without a year begins: a leap year, so that 29 February exists.
UNKNOWN_YEAR = 2000
_ALONE_BYTES = 4 << 20  # unpacked before another thread goes on with it: beginnings are often all that is read


@dataclass(frozen=True)
class Head:
    """The beginning of an artifact, decompressed, for recognising it by content."""

    name: str  # path relative to the analyzed folder, "/" separated; a hint only
    data: bytes  # up to HEAD_BYTES
    whole: bool  # data is all of it

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", errors="replace")


@dataclass
class Source:
    """One artifact on disk. Compressed content is opened in place; damage is kept, not raised."""

    path: Path
    name: str
    sha256: str = ""
    threads: int = 2
    companions: dict[str, Source] = field(default_factory=dict)  # by own name: what `Format.companions` chose
    damage: str | None = field(default=None, init=False)

    @property
    def own_name(self) -> str:
        """The file's name without folders and archives."""
        return self.name.replace("!", "/").rpartition("/")[2]

    def open(self) -> BinaryIO:
        """Decompressed content from its first byte. Where compression is cut, the stream ends and `damage` says so."""
        return io.BufferedReader(_Decompressed(self), buffer_size=1 << 20)

    def head(self, size: int = HEAD_BYTES, until: Deadline | None = None) -> Head:
        """The beginning, behind zeros that a crash left there; nothing where these go on when time is over."""
        with self.open() as stream:
            data, _ = past_zeros(stream, stream.read(size + 1), size + 1, until)
        return Head(self.name, data[:size], len(data) <= size)


def past_zeros(stream: BinaryIO, data: bytes, size: int, until: Deadline | None = None) -> tuple[bytes, int]:
    """Up to `size` bytes behind at least LEAST_ZEROS zeros, where `data`, read from the stream before, begins with
    them, and how many zeros these are; else the data and 0. Zeros are read until `until`.

    Files that were sized before they were written, or cut at a place beyond their end, begin so after a crash.
    """
    if not data.startswith(_ZEROS):
        return data, 0
    n_zeros = 0
    while True:
        rest = data.lstrip(b"\0")
        n_zeros += len(data) - len(rest)
        if rest:
            return rest + stream.read(max(size - len(rest), 0)), n_zeros
        data = stream.read(_ZEROS_AT_ONCE)
        if not data or (until is not None and until.expired()):
            return b"", n_zeros


class _Decompressed(io.RawIOBase):
    """Plain or decompressed bytes; ends early, with a note on the source, where compressed data is damaged."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file: Any = source.path.open("rb")
        magic = self._file.read(6)
        size = self._file.seek(0, io.SEEK_END)
        self._file.seek(0)
        kind = compression_of(magic)
        self._reader: Any = open_compressed(kind, self._file) if kind else self._file
        self._left = allowed_bytes(size) if kind else size
        # Not of lz4: of data that is cut its decoder gives less the more it is asked for at once.
        self._until_ahead = _ALONE_BYTES if kind in DECODERS and source.threads > 1 else None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._reader is self._file:
            return int(self._file.readinto(buffer))
        try:
            if self._until_ahead is not None and self._until_ahead <= 0:
                self._reader, self._until_ahead = ReadAhead(self._reader), None
            data = self._reader.read(len(buffer))
        except Exception as error:  # isal, zstandard, lzma, bz2 and pyarrow each raise types of their own
            self._source.damage = f"compressed data ends early or is damaged ({error})"
            return 0
        self._left -= len(data)
        if self._until_ahead is not None:
            self._until_ahead -= len(data)
        if self._left < 0:
            self._source.damage = "it unpacks to more than it may (bytes or ratio); the rest was not read"
            return 0
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if isinstance(self._reader, ReadAhead):
            self._reader.close()
        self._file.close()
        super().close()


@dataclass(frozen=True)
class Frame:
    function: str
    file: str | None = None
    line: int | None = None


def is_user_file(file: str | None) -> bool:
    """Whether a frame's file is the job's own code rather than a library's or the interpreter's."""
    if not file or file.startswith("<"):
        return False
    lowered = file.replace("\\", "/").lower()
    if any(part in lowered for part in ("site-packages/", "dist-packages/", "/lib/python3", "<frozen", ".so", ".cpp")):
        return False
    libraries = ("torch", "transformers", "deepspeed", "accelerate", "pytorch_lightning", "lightning", "numpy", "vllm")
    return not any(f"/{name}/" in lowered or lowered.startswith(f"{name}/") for name in libraries)


class Stacks:
    """Interns call stacks as a tree whose ids follow from the frames alone."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int | None, int, Frame, int | None]] = {}
        self._known: dict[tuple[int | None, Frame], int] = {}

    def add(self, frames: Iterable[Frame]) -> int | None:
        """Id of a stack given outermost frame first; None for no frames."""
        node: int | None = None
        for frame in frames:
            node = self.inner(node, frame)
        return node

    def inner(self, outer: int | None, frame: Frame) -> int:
        """Id of the stack that has one frame more than the stack `outer`; None is the empty stack."""
        key = (outer, frame)
        known = self._known.get(key)
        if known is None:
            text = f"{outer}\0{frame.function}\0{frame.file}\0{frame.line}"
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
            known = int.from_bytes(digest.digest(), "big")
            self._known[key] = known
            depth, user = (0, None) if outer is None else (self._rows[outer][1] + 1, self._rows[outer][3])
            self._rows[known] = (outer, depth, frame, known if is_user_file(frame.file) else user)
        return known

    def depth(self, stack: int) -> int:
        """How many callers the innermost frame of a stack has."""
        return self._rows[stack][1]

    def __len__(self) -> int:
        return len(self._rows)

    def table(self) -> pa.Table:
        """Columns id, parent_id, depth, function, file, line, user_stack_id: emit it as "stack"."""
        rows = self._rows
        return pa.table(
            {
                "id": pa.array(list(rows), pa.uint64()),
                "parent_id": pa.array([r[0] for r in rows.values()], pa.uint64()),
                "depth": pa.array([r[1] for r in rows.values()], pa.int32()),
                "function": pa.array([r[2].function for r in rows.values()], pa.string()),
                "file": pa.array([r[2].file for r in rows.values()], pa.string()),
                "line": pa.array([r[2].line for r in rows.values()], pa.int32()),
                "user_stack_id": pa.array([r[3] for r in rows.values()], pa.uint64()),
            }
        )


class Sink(Protocol):
    """Where a format puts what it found. Everything is kept in the order given."""

    def emit(self, table: str, data: Any) -> None:
        """Adds rows to a table of `schema.sql`. `data`: pyarrow Table or RecordBatch, or a DuckDB relation.

        Columns may be left out (they become NULL, `proc` becomes 0); an unknown column or table raises ValueError.
        """

    def proc(
        self,
        number: int = 0,
        *,
        rank: int | None = None,
        rank_origin: str = "none",
        local_rank: int | None = None,
        world_size: int | None = None,
        host: str | None = None,
        pid: int | None = None,
        device: int | None = None,
        attempt: int | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> None:
        """Says what is known of process `number` of this artifact; later calls add to earlier ones.

        Processes that are not described take rank, host and attempt from the file's name and folder.
        """

    def cover(
        self,
        capability: str,
        *,
        proc: int = 0,
        job: bool = False,
        complete: bool = True,
        n_read: int = 0,
        n_kept: int = 0,
        from_ns: int | None = None,
        to_ns: int | None = None,
    ) -> None:
        """Declares what this evidence can support (names in `states.CAPABILITIES`); `job`: of no one process."""

    def warn(self, code: str, message: str, hides: str, *, byte: int | None = None, line: int | None = None) -> None:
        """Records what could not be read and which questions that leaves open."""

    def fact(
        self,
        key: str,
        value: str,
        *,
        scope: str,
        line: int | None = None,
        number: float | None = None,
        proc: int | None = None,
    ) -> None:
        """Records one setting or version; `proc` None means the job or host as a whole."""

    def clock(self, kind: str, *, error_ns: int | None = None) -> None:
        """Says which clock the times follow: epoch, local, yearless, dayless, boot, relative or none (the default).

        local: wall time without a zone; yearless: the same in the years from UNKNOWN_YEAR on (when the true year is
        known, a fact `year` tells it); dayless: the same from 1 January of UNKNOWN_YEAR on (a fact `day` tells what
        that day was, as a date whose number is its ordinal); boot: since the host's start; relative: since a start of
        its own.
        """

    def damaged(self, quality: str, *, byte: int | None = None, lost_bytes: int | None = None) -> None:
        """Sets the artifact's quality: repaired, partial or failed. Without a call it is complete."""


class Format(Protocol):
    """A module in `forensics/formats/`. Its name is the format's name.

    Where an artifact lies in several files, the module may also define

        def companions(head: Head, names: Sequence[str]) -> Sequence[str]

    `head`: of a file that this format recognised. `names`: the other files in its folder (or its folder of an archive),
    without folders, sorted. Those that it returns are `source.companions[name]` during `load` and `locate`, each a
    Source to open like any other; names and contents are part of the cache key. A companion that no format recognises
    counts as read; one that a format recognises is loaded as an artifact of its own as well.

    Where rows also follow from files of the package (a catalogue), it may define

        def edition() -> str

    which tells one state of these files from others, in characters of file names; it is part of the cache key.
    """

    __name__: str
    VERSION: int  # raised whenever `load` gives other rows, so that cached rows are not reused
    TITLE: str  # one line for `forensics formats`
    PROVIDES: Sequence[str]  # capabilities that it may declare

    def recognise(self, head: Head) -> int:
        """0 when the content is not of this format, else how sure it is (1 to 100); the surest format loads it."""

    def load(self, source: Source, sink: Sink) -> None:
        """Loads the artifact. Raises ArtifactError when nothing (more) can be read; what was emitted is kept."""


@dataclass(frozen=True)
class Place:
    """Where in an artifact something is: at most one of line, byte and row is needed to find it again."""

    line: int | None = None
    byte: int | None = None
    row: int | None = None
    text: str | None = None  # the content found there, shortened
