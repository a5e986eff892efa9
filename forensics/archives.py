"""Unpacks tar and zip archives member by member: bounded in bytes, ratio and count, following nothing.

What a member's name or kind makes unusual is said of that member; damage costs what it hits. Members are written under
numbers, so that no name of theirs ever becomes a path.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from forensics.artifact import Source
from forensics.compression import allowed_bytes, compression_of
from forensics.deadline import Deadline
from forensics.errors import ArtifactError, OutOfTime, Untrusted
from forensics.tar_members import FIRST_OF_TORCH, is_tar_header, is_torch_tar
from forensics.zip_members import LOCAL, ZipEntry, copy_member, find_header, read_directory, read_header

MAX_MEMBERS = 20_000
_CHUNK = 1 << 20
_MOST_EMPTY_READS = 16  # at a tar's end; a few belong to any that was cut
_DISK_SHARE = 0.9  # of the free space
_MAX_HEADER_BYTES = 1 << 20  # of long names and extended headers, which are read at once
_HIDES = "what this member holds"
# torch.save and npz files are zips too; they are artifacts of their own.
_CHECKPOINT = (b"/data.pkl", b"/byteorder", b"/.data/serialization_id", b".npy")
Problem = tuple[str, str, str]  # code, message, hides


@dataclass
class Member:
    """A member by its name; `path` None: it was not unpacked, and `problems` says why."""

    name: str
    path: Path | None
    problems: list[Problem] = field(default_factory=list)


class Budget:
    """What one file may unpack to, archives inside it included, and until when."""

    def __init__(self, n_bytes: int, work: Path, until: Deadline | None = None) -> None:
        self._until = until or Deadline()
        self._left = min(allowed_bytes(n_bytes), int(shutil.disk_usage(_existing(work)).free * _DISK_SHARE))
        self._members = 0

    def check_time(self) -> None:
        if self._until.expired():
            raise OutOfTime("the time limit was reached; the rest was not unpacked")

    def count(self) -> None:
        self.check_time()
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise Untrusted(f"more than {MAX_MEMBERS} members; the rest was not unpacked")

    def fits(self, n_bytes: int) -> bool:
        return n_bytes <= self._left

    def take(self, n_bytes: int) -> None:
        self.check_time()
        self._left -= n_bytes
        if self._left < 0:
            raise Untrusted("it unpacks to more than it may (bytes or ratio); the rest was not unpacked")


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def archive_kind(file: Path, start: bytes, *, compressed: bool) -> str | None:
    """`zip`, `tar` or `packed`, for what begins with `start` once it is decompressed.

    `packed`: has to be decompressed to a file before it can be told what it is.
    """
    maybe_torch = start.startswith(FIRST_OF_TORCH) and is_tar_header(start[:512])
    if compressed and (compression_of(start) or start.startswith(LOCAL) or maybe_torch):
        return "packed"
    if start.startswith((LOCAL, b"PK\x05\x06")):
        return None if _is_checkpoint(file) else "zip"
    if not is_tar_header(start[:512]):
        return None
    with file.open("rb") as stream:
        return None if is_torch_tar(stream) else "tar"


def _is_checkpoint(file: Path) -> bool:
    with file.open("rb") as stream:
        first = read_header(stream, 0)
        entries = read_directory(stream)
    names = [entry.name for entry in entries[:50]] if entries else [first[0].name] if first else []
    return any(name.endswith(_CHECKPOINT) for name in names)


def unpack(file: Path, kind: str, target: Path, budget: Budget) -> Iterator[Member]:
    """The members in the archive's order; raises ArtifactError where nothing more can be unpacked."""
    target.mkdir(parents=True, exist_ok=True)
    names: dict[str, int] = {}
    for member in {"zip": _zip, "tar": _tar, "packed": _packed}[kind](file, target, budget):
        seen = names[member.name] = names.get(member.name, 0) + 1
        if seen > 1:
            message = f"member {seen} of the name {member.name!r}"
            member.problems.append(("duplicate-name", message, "which of them is meant"))
            member.name += f"~{seen}"
        yield member


def _named(name: str) -> tuple[str, list[Problem]]:
    """The name as a text, and what is unusual about it."""
    problems: list[Problem] = []
    text = os.fsencode(name).decode("utf-8", "replace")
    if text != name:
        problems.append(("name-no-text", "its name is no text; bytes of it are shown as replacements", "its real name"))
    if text.startswith(("/", "\\")) or ".." in text.replace("\\", "/").split("/") or text[1:3] == ":\\":
        message = "its name leads out of the archive; it was read from where nothing else lies"
        problems.append(("outside-name", message, "nothing"))
    return text, problems


class _File:
    """A member's file, written within the budget."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self._budget = budget
        self._out = path.open("wb")

    def write(self, data: bytes) -> None:
        self._budget.take(len(data))
        self._out.write(data)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()


def _packed(file: Path, target: Path, budget: Budget) -> Iterator[Member]:
    source = Source(file, file.name)
    with source.open() as stream, _File(target / "0", budget) as out:
        while data := stream.read(_CHUNK):
            out.write(data)
    damaged = [("damaged-compression", source.damage, "everything after the damaged place")] if source.damage else []
    yield Member("content", target / "0", damaged)


def _zip(file: Path, target: Path, budget: Budget) -> Iterator[Member]:
    with file.open("rb") as stream:
        entries = read_directory(stream)
        if entries is not None:
            for number, entry in enumerate(entries):
                if not entry.is_folder:
                    budget.count()
                    found = read_header(stream, entry.header)
                    yield _zip_member(stream, entry, found and found[1], target / str(number), budget)[0]
            return
        yield from _zip_by_headers(stream, target, budget)


def _zip_by_headers(stream: BinaryIO, target: Path, budget: Budget) -> Iterator[Member]:
    at, n_found = find_header(stream, 0), 0
    while at is not None:
        found = read_header(stream, at)
        end = at + len(LOCAL)
        if found is not None:
            entry, start = found
            budget.count()
            n_found += not entry.is_folder
            end = start + (entry.packed or 0)
            if not entry.is_folder:
                member, end = _zip_member(stream, entry, start, target / str(n_found), budget)
                yield member
        at = find_header(stream, max(end, at + len(LOCAL)))
    raise ArtifactError(
        f"its directory is missing, as in an archive that was cut; {n_found} members were found by the headers before"
        " them; which others it had is not known"
    )


def _zip_member(stream: BinaryIO, entry: ZipEntry, start: int | None, path: Path, budget: Budget) -> tuple[Member, int]:
    """The member, and where the data behind it begins, as far as that is known."""
    try:
        name = entry.name.decode("utf-8", "surrogateescape" if entry.is_utf8 else "strict")
    except UnicodeDecodeError:
        name = entry.name.decode("cp437")
    text, problems = _named(name)
    why = _zip_refusal(entry, start)
    if why is not None or start is None:
        code, message = why or ("damaged-member", "its data is not where the directory says")
        return Member(text, None, [*problems, (code, message, _HIDES)]), (start or 0) + (entry.packed or 0)
    with _File(path, budget) as out:
        end, wrong = copy_member(stream, entry, start, out.write)
    if wrong:
        problems.append(("damaged-member", f"{wrong}; what comes before was kept", "the rest of this member"))
    return Member(text, path, problems), end


def _zip_refusal(entry: ZipEntry, start: int | None) -> tuple[str, str] | None:
    kind = stat.S_IFMT(entry.mode)
    if kind == stat.S_IFLNK:
        return "link", "a symbolic link; links are not followed"
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        return "special-file", "a device, pipe or socket; not opened"
    if entry.encrypted:
        return "encrypted", "encrypted; unpack it with its password and analyze the folder"
    if not entry.readable:
        return "unopened", f"compressed by method {entry.method}, which is not read; unpack it and analyze the folder"
    return None


class _BoundedInfo(tarfile.TarInfo):
    """Headers that carry long names or attributes are read at once, so their size is bounded."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        extended = self.type in {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE}
        if (extended or self.type in tarfile.GNU_TYPES[:2]) and self.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


class _Ending:
    """Ends for tarfile, which skips as many bytes as a header claims, far behind the end of the file too."""

    def __init__(self, stream: BinaryIO, budget: Budget) -> None:
        self._stream, self._budget = stream, budget
        self._n_empty = 0

    def read(self, size: int) -> bytes:
        self._budget.check_time()
        data = self._stream.read(size)
        self._n_empty += not data
        if self._n_empty > _MOST_EMPTY_READS:
            raise EOFError("it ends before the end of its last member")
        return data


def _tar(file: Path, target: Path, budget: Budget) -> Iterator[Member]:
    source = Source(file, file.name)
    try:
        with source.open() as stream:
            ending: Any = _Ending(stream, budget)
            with tarfile.open(fileobj=ending, mode="r|", tarinfo=_BoundedInfo) as archive:
                for number, info in enumerate(archive):
                    if not info.isdir():
                        budget.count()
                        yield _tar_member(archive, info, target / str(number), budget)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ArtifactError(source.damage or str(error)) from error
    if source.damage:
        raise ArtifactError(source.damage)


def _tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo, path: Path, budget: Budget) -> Member:
    text, problems = _named(info.name)
    refusal = _tar_refusal(info, budget)
    content = None if refusal else archive.extractfile(info)
    if content is None:
        code, message = refusal or ("special-file", "of a kind that is not opened")
        return Member(text, None, [*problems, (code, message, _HIDES)])
    # The stream stands where a member's data begins. Of one that is cut `extractfile` would lose what it had.
    stream: Any = content if info.issparse() else archive.fileobj
    left = info.size
    with _File(path, budget) as out:
        try:
            while left and (chunk := stream.read(min(left, _CHUNK))):
                out.write(chunk)
                left -= len(chunk)
            if left:
                raise EOFError("unexpected end of data")
        except (tarfile.TarError, EOFError, OSError) as error:
            said = f"its data ends early ({error}); what comes before was kept"
            problems.append(("damaged-member", said, "the rest of this member"))
    return Member(text, path, problems)


def _tar_refusal(info: tarfile.TarInfo, budget: Budget) -> tuple[str, str] | None:
    if info.issym() or info.islnk():
        kind = "symbolic" if info.issym() else "hard"
        target = os.fsencode(info.linkname).decode("utf-8", "replace")
        return "link", f"a {kind} link to {target!r}; links are not followed"
    if not info.isreg():
        return "special-file", "a device, pipe or something else that is no file; not opened"
    if info.issparse() and not budget.fits(info.size):
        return "too-large", f"a sparse file of {info.size} bytes, more than it may unpack to"
    return None
