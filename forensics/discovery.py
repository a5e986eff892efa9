"""Lists what lies in a folder, file or archive, and what each file says of its process by name and place alone.

Archives are unpacked one level deep into a working folder, bounded by count, bytes and ratio.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from forensics.artifact import HEAD_BYTES, Format, Head, Source
from forensics.errors import ArtifactError, ForensicsError
from forensics.formats import formats

MAX_MEMBERS = 20_000
MAX_UNPACKED_BYTES = 200 << 30
MAX_RATIO = 500  # the densest real traces compress about 60:1
MAX_NESTING = 2
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Hints:
    """What path and name say of the process that left a file; weaker than what its content says."""

    rank: int | None = None
    rank_origin: str = "none"
    local_rank: int | None = None
    host: str | None = None
    attempt: int | None = None
    local_rank_origin: str | None = None
    host_origin: str | None = None
    attempt_origin: str | None = None


@dataclass
class Found:
    source: Source
    format: str | None
    hints: Hints
    bytes: int
    problems: list[tuple[str, str, str]] = field(default_factory=list)  # code, message, hides
    part_of: str | None = None  # the artifact that reads this file as one of its companions


def discover(path: Path, work: Path, *, outputs: Path | None = None) -> list[Found]:
    """Every artifact below `path` in the order of names; archives are unpacked below `work`.

    `outputs`: a folder to leave out, since results are not artifacts. Raises ForensicsError when `path` does not exist.
    """
    if not path.exists():
        raise ForensicsError(f"{path}: not found; expected a folder, a file or an archive that a job left behind")
    files = [(path, path.name)] if path.is_file() else list(_files_below(path, outputs))
    found: list[Found] = []
    for file, name in files:
        found += _open_archives(file, name, work, 0)
    found.sort(key=lambda f: f.source.name)
    _join_companions(found)
    return found


def _files_below(folder: Path, outputs: Path | None) -> Iterator[tuple[Path, str]]:
    root = folder.resolve()
    # Earlier results are no artifacts, wherever they were written.
    results = [p.parent.resolve() for p in folder.rglob("case.duckdb") if (p.parent / "report.json").is_file()]
    left_out = [*results, *([outputs.resolve()] if outputs else [])]
    for file in sorted(folder.rglob("*")):
        real = file.resolve()
        inside = real.is_relative_to(root)  # links out of the folder are not the job's
        result = any(part.endswith(".forensics") for part in file.relative_to(folder).parts[:-1])
        if inside and not result and not any(real.is_relative_to(out) for out in left_out) and _is_regular(file):
            # Names that are no text are shown with replacements; the path itself stays as it is.
            yield file, os.fsencode(file.relative_to(folder).as_posix()).decode("utf-8", "replace")


def _is_regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return False


def _open_archives(file: Path, name: str, work: Path, depth: int) -> list[Found]:
    try:
        kind = _archive_kind(file)
    except OSError as error:
        return [_problem(file, name, "unreadable", str(error))]
    if kind is None:
        return [_look_at(file, name)]
    if depth >= MAX_NESTING:
        return [_problem(file, name, "nested-too-deep", f"archive inside {depth} archives was not opened")]
    target = work / hashlib.sha256(name.encode()).hexdigest()[:16]
    found: list[Found] = []
    try:
        for member, unpacked in _unpack(file, kind, target):
            found += _open_archives(unpacked, f"{name}!{member}", work, depth + 1)
    except (ArtifactError, OSError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        found.append(_problem(file, name, "archive", f"the archive could not be read to its end: {error}"))
    return found


def _archive_kind(file: Path) -> str | None:
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic == b"PK\x03\x04":
        # torch.save and npz files are zips too; they are artifacts of their own.
        try:
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()[:50]
        except (zipfile.BadZipFile, OSError):
            return "zip"
        checkpoint = any(n.endswith(("/data.pkl", "/byteorder", "/.data/serialization_id", ".npy")) for n in names)
        return None if checkpoint else "zip"
    with Source(file, file.name).open() as stream:
        head = stream.read(512)
    return "tar" if head[257:262] == b"ustar" else None


def _unpack(file: Path, kind: str, target: Path) -> Iterator[tuple[str, Path]]:
    budget = _Budget(min(MAX_UNPACKED_BYTES, max(file.stat().st_size, 1 << 20) * MAX_RATIO))
    if kind == "zip":
        with zipfile.ZipFile(file) as archive:
            for number, info in enumerate(archive.infolist()):
                if not info.is_dir():
                    with archive.open(info) as stream:
                        yield info.filename, budget.copy(stream, target / str(number))  # type: ignore[arg-type]
        return
    with Source(file, file.name).open() as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for number, item in enumerate(tar):
            content = tar.extractfile(item) if item.isreg() else None  # links and devices are never followed
            if content is not None:
                yield item.name, budget.copy(content, target / str(number))  # type: ignore[arg-type]


class _Budget:
    """Bounds what one archive may unpack to."""

    def __init__(self, allowed: int) -> None:
        self._left = allowed
        self._members = 0

    def copy(self, stream: BinaryIO, to: Path) -> Path:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise ArtifactError(f"more than {MAX_MEMBERS} members; the rest was not unpacked")
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("wb") as out:
            while chunk := stream.read(_CHUNK):
                self._left -= len(chunk)
                if self._left < 0:
                    raise ArtifactError("it unpacks to more than it may (bytes or ratio); the rest was not unpacked")
                out.write(chunk)
        return to


def _look_at(file: Path, name: str) -> Found:
    source = Source(file, name)
    try:
        head = source.head(HEAD_BYTES)
        source.sha256 = _sha256(file)
    except OSError as error:
        return _problem(file, name, "unreadable", str(error))
    size = file.stat().st_size
    found = Found(source, _recognise(head), hints_from_name(name), size)
    if size and not head.data and source.damage:
        found.problems.append(("damaged-compression", source.damage, "all of this file's content"))
    return found


def _problem(file: Path, name: str, code: str, message: str) -> Found:
    source = Source(file, name)
    try:
        source.sha256, size = _sha256(file), file.stat().st_size
    except OSError:
        size = 0
    return Found(source, None, hints_from_name(name), size, [(code, message, "what the unread part holds")])


def _recognise(head: Head) -> str | None:
    """The surest format; the first by name where two are equally sure."""
    if not head.data.strip(b"\0 \r\n\t"):
        return None
    scores = {name: _sureness(module, head) for name, module in formats().items()}
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best and scores[best] > 0 else None


def _sureness(module: Format, head: Head) -> int:
    try:
        return module.recognise(head)
    except Exception:  # a format that fails on hostile content does not recognise it
        return 0


def _join_companions(found: Sequence[Found]) -> None:
    """Gives formats that read several files the others that they ask for."""
    folders: dict[str, dict[str, Found]] = {}
    for item in found:
        folders.setdefault(_folder(item), {})[item.source.own_name] = item
    for item in found:
        choose = getattr(formats()[item.format], "companions", None) if item.format else None
        if choose is None:
            continue
        beside = {name: other for name, other in folders[_folder(item)].items() if other is not item}
        try:
            chosen = sorted(set(choose(item.source.head(), sorted(beside))) & beside.keys())
        except Exception:  # as in _sureness: it then loads without them, and says what it lacks
            chosen = []
        for name in chosen:
            item.source.companions[name] = beside[name].source
            beside[name].part_of = beside[name].part_of or item.source.name


def _folder(item: Found) -> str:
    return item.source.name.removesuffix(item.source.own_name)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# rank3, rank_3, rank-3, rank.3; not part of a longer word or number.
_RANK = re.compile(r"(?<![a-z])rank[_.\-=]?(\d{1,6})(?![\d])", re.IGNORECASE)
_ATTEMPT = re.compile(r"(?<![a-z])(?:attempt|restart|run)[_.\-=]?(\d{1,4})(?!\d)", re.IGNORECASE)
_HOST = re.compile(r"^(?:host|node|worker-node|gpu-node)[\w\-]*\d+$", re.IGNORECASE)
# torchelastic: RUN_ID/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}
_ELASTIC = re.compile(r"(?:^|/)attempt_(\d+)/(\d+)/[^/]+$")
_DUMP = re.compile(r"(?:^|[/_])dump_(\d+)$")  # flight recorder dumps end in the rank


def hints_from_name(name: str) -> Hints:
    """Rank, host and attempt as file name and folders tell them."""
    folder, _, file = name.rpartition("/")
    elastic = _ELASTIC.search(name)
    in_file = _ATTEMPT.search(file)
    attempt = in_file or _ATTEMPT.search(folder)
    host = next((part for part in reversed(folder.replace("!", "/").split("/")) if _HOST.match(part)), None)
    known = {
        "local_rank": int(elastic[2]) if elastic else None,
        "local_rank_origin": "folder" if elastic else None,
        "host": host,
        "host_origin": "folder" if host else None,
        "attempt": int(attempt[1]) if attempt else None,
    }
    if attempt:
        place = "file-name" if in_file else "folder"
        known["attempt_origin"] = "run" if attempt[0].lower().startswith("run") else place
    for text, origin in ((file, "file-name"), (folder, "folder")):
        rank = _RANK.search(text) or (_DUMP.search(text) if origin == "file-name" else None)
        if rank:
            return Hints(int(rank[1]), origin, **known)  # type: ignore[arg-type]
    return Hints(**known)  # type: ignore[arg-type]
