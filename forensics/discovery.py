"""Lists what lies in a folder, file or archive, and what each file says of its process by name and place alone.

Archives are unpacked into a working folder, at most two deep (`archives` bounds what comes out). Links are not
followed: one that leads to another file of the folder counts as read there, any other is listed as not read.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from forensics.archives import Budget, Problem, archive_kind, unpack
from forensics.artifact import HEAD_BYTES, LEAST_ZEROS, Format, Head, Source
from forensics.compression import compression_of, unopened_kind
from forensics.deadline import Deadline
from forensics.errors import ArtifactError, ForensicsError, OutOfTime
from forensics.formats import formats

MAX_NESTING = 2
REMARKS = {"name-no-text", "outside-name", "duplicate-name"}  # problems that keep nothing from being read
_CHUNK = 1 << 20
_LOOKED_AT = 256 << 20  # of what a file of no known format unpacks to
_MOST_HASHED = 4  # at a time


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
    problems: list[Problem] = field(default_factory=list)
    part_of: str | None = None  # the artifact with which this file is read: as a companion, or since it is a link to it


def check_there(path: Path) -> None:
    """Raises ForensicsError when `path` does not exist."""
    if not path.exists():
        raise ForensicsError(f"{path}: not found; expected a folder, a file or an archive that a job left behind")


def discover(
    path: Path, work: Path, *, leave_out: Sequence[Path] = (), deadline: Deadline | None = None
) -> list[Found]:
    """Every artifact below `path` in the order of names; archives are unpacked below `work`.

    `leave_out`: folders with results, which are no artifacts. Raises ForensicsError when `path` does not exist.
    """
    check_there(path)
    until = deadline or Deadline()
    found: list[Found] = []
    with _Hashes(until) as hashes:
        for entry in [_Entry(path, path.name)] if path.is_file() else _entries_below(path, leave_out):
            if entry.said or entry.part_of:
                found.append(_listed(entry))
            elif until.expired():
                found.append(_listed(entry, _LATE))
            else:
                entry.before = found[-1].format if found else None
                opened = _open(entry, work, until)
                hashes.add(opened)
                found += opened
        hashes.finish()
    found.sort(key=lambda f: f.source.name)
    _join_companions(found)
    return found


_HIDES = "what the unread part holds"
_LATE = ("time-limit", "not read: the time limit was reached", _HIDES)


@dataclass
class _Entry:
    """A file before it is opened.

    `said`: why it is not to be opened; `part_of`: the file that it is a link to; `before`: format of the one before.
    """

    path: Path
    name: str
    said: Problem | None = None
    part_of: str | None = None
    problems: list[Problem] = field(default_factory=list)
    before: str | None = None


def _entries_below(folder: Path, leave_out: Sequence[Path]) -> Iterator[_Entry]:
    root = os.path.realpath(folder)
    results = {os.path.realpath(place) for place in leave_out}
    waiting = [(os.fspath(folder), "")]
    while waiting:
        place, prefix = waiting.pop()
        try:
            with os.scandir(place) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            yield _Entry(Path(place), prefix.rstrip("/") or ".", ("unreadable", f"a folder: {error.strerror}", _HIDES))
            continue
        names = {entry.name for entry in entries}
        if prefix and {"case.duckdb", "report.json"} <= names:  # earlier results, wherever they were written
            continue
        for entry in entries:
            name = prefix + entry.name
            if entry.is_symlink():
                link = _link(entry, name, root)
                if link is not None:
                    yield link
            elif entry.is_dir(follow_symlinks=False):
                if not entry.name.endswith(".forensics") and (
                    not results or os.path.realpath(entry.path) not in results
                ):
                    waiting.append((entry.path, f"{name}/"))
            elif entry.is_file(follow_symlinks=False):
                yield _named(entry, name)
            else:
                yield _named(entry, name, ("special-file", "a pipe, socket or device; not opened", _HIDES))


def _named(entry: os.DirEntry[str], name: str, said: Problem | None = None) -> _Entry:
    """Names that are no text are shown with replacements; the path itself stays as it is."""
    shown = os.fsencode(name).decode("utf-8", "replace")
    problems: list[Problem] = []
    if shown != name:
        problems.append(("name-no-text", "its name is no text; bytes of it are shown as replacements", "its real name"))
    return _Entry(Path(entry.path), shown, said, problems=problems)


def _link(entry: os.DirEntry[str], name: str, root: str) -> _Entry | None:
    """None for a link to a folder below `root`, whose files are listed where they are."""
    real = os.path.realpath(entry.path)
    if real != root and not real.startswith(root + os.sep):
        message = f"a link to {Path(entry.path).readlink()}, outside the folder; not followed"
        return _named(entry, name, ("link", message, "what it leads to"))
    try:
        mode = Path(real).stat().st_mode
    except OSError:
        return _named(entry, name, ("link", f"a link to {Path(entry.path).readlink()}, which leads nowhere", "nothing"))
    if stat.S_ISDIR(mode):
        return None
    link = _named(entry, name)
    link.part_of = os.path.relpath(real, root)
    return link


def _listed(entry: _Entry, problem: Problem | None = None) -> Found:
    """A file that is not read: only that it is there, and why that is all."""
    said = [p for p in (problem, entry.said) if p]
    return Found(Source(entry.path, entry.name), None, hints_from_name(entry.name), 0, said, entry.part_of)


def _open(entry: _Entry, work: Path, until: Deadline, depth: int = 0, budget: Budget | None = None) -> list[Found]:
    """The file, or what it holds where it is an archive."""
    try:
        found, start, compressed = _look_at(entry)
        kind = archive_kind(entry.path, start, compressed=compressed)
    except OSError as error:
        return [_listed(entry, ("unreadable", error.strerror or str(error), _HIDES))]
    if kind is None:
        head = Head(entry.name, start[:HEAD_BYTES], len(start) <= HEAD_BYTES)
        if start.startswith(bytes(LEAST_ZEROS)):
            head = found.source.head(until=until)
            found.problems.append(_LATE if until.expired() and not head.data else _zeros(head))
        found.format = _recognise(head, entry.before)
        if compressed and found.format is None and not found.problems:
            _look_for_damage(found, until)
        if found.format is None and _SUFFIX.search(entry.name) and found.bytes and not compressed:
            found.problems.append(("not-compressed", "its name says that it is compressed; its content is not", _HIDES))
        return [found]
    if depth >= MAX_NESTING:
        found.problems.append(("nested-too-deep", f"archive inside {depth} archives was not opened", _HIDES))
        return [found]
    inside: list[Found] = []
    allowed = budget or Budget(found.bytes, work, until)
    target = work / hashlib.sha256(entry.name.encode()).hexdigest()[:16]
    try:
        for member in unpack(entry.path, kind, target, allowed):
            inner = _unpacked_name(entry.name) if kind == "packed" else member.name
            name = f"{entry.name}!{inner}"
            if member.path is None:
                inside.append(Found(Source(entry.path, name), None, hints_from_name(name), 0, member.problems))
            else:
                before = inside[-1].format if inside else None
                part = _Entry(member.path, name, problems=member.problems, before=before)
                inside += _open(part, work, until, depth + 1, allowed)
    except (ArtifactError, OSError) as error:
        code = "time-limit" if isinstance(error, OutOfTime) else "archive"
        found.problems.append((code, f"the archive could not be read to its end: {error}", _HIDES))
        inside.append(found)
    return inside


# Names of compressed files; those of archives tell their own problems.
_SUFFIX = re.compile(r"\.(?:gz|zst|xz|bz2|lz4)$", re.IGNORECASE)


def _unpacked_name(name: str) -> str:
    """What a compressed file is called once it is not: formats read ranks and steps from names."""
    own = re.split(r"[/!]", name)[-1]
    return _SUFFIX.sub("", own) or "content"


def _zeros(head: Head) -> Problem:
    if head.data:
        return "zeros", "it begins with zeros, as a crash leaves a file that was sized before it was written", _HIDES
    return "zeros", "it holds nothing but zeros, as a crash leaves a file of which nothing was written", _HIDES


def _look_at(entry: _Entry) -> tuple[Found, bytes, bool]:
    """The file (hashed where it is small), its first HEAD_BYTES + 1 bytes, decompressed, and whether they were so."""
    source = Source(entry.path, entry.name)
    with entry.path.open("rb", buffering=0) as stream:
        start = stream.read(_CHUNK)
        size = len(start) if len(start) < _CHUNK else os.fstat(stream.fileno()).st_size
    if len(start) < _CHUNK:
        source.sha256 = hashlib.sha256(start).hexdigest()
    found = Found(source, None, hints_from_name(entry.name), size, list(entry.problems))
    kind = unopened_kind(start)
    if kind is not None:
        message = f"a {kind}, which is not opened; unpack it and analyze the folder"
        found.problems.append(("unopened", message, _HIDES))
    if compression_of(start) is None:
        return found, start[: HEAD_BYTES + 1], False
    with source.open() as content:
        start = content.read(HEAD_BYTES + 1)
    if size and not start and source.damage:
        found.problems.append(("damaged-compression", source.damage, "all of this file's content"))
    return found, start, True


def _look_for_damage(found: Found, until: Deadline) -> None:
    """Of what no format loads nobody else would say that its compressed data is cut."""
    with found.source.open() as content:
        left = _LOOKED_AT
        while left > 0 and not until.expired() and (data := content.read(_CHUNK)):
            left -= len(data)
    if found.source.damage:
        found.problems.append(("damaged-compression", found.source.damage, "everything after the damaged place"))


class _Hashes:
    """Hashes large files on threads of their own while others are looked at. Archives that were unpacked need none."""

    def __init__(self, until: Deadline) -> None:
        self._until = until
        self._pool = ThreadPoolExecutor(min(_MOST_HASHED, os.cpu_count() or 1))
        self._waiting: deque[tuple[Found, Future[tuple[str, int]]]] = deque()

    def __enter__(self) -> _Hashes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, found: Iterable[Found]) -> None:
        for item in found:
            if item.bytes and not item.source.sha256:
                self._waiting.append((item, self._pool.submit(_hashed, item.source.path, self._until)))
                if len(self._waiting) > _MOST_HASHED:
                    self._take()

    def finish(self) -> None:
        while self._waiting:
            self._take()

    def _take(self) -> None:
        item, future = self._waiting.popleft()
        try:
            item.source.sha256, item.bytes = future.result()
        except OutOfTime:
            item.format = None
            item.problems.append(_LATE)
        except OSError as error:
            item.format, item.bytes = None, 0
            item.problems.append(("unreadable", error.strerror or str(error), _HIDES))


def _hashed(path: Path, until: Deadline) -> tuple[str, int]:
    digest, n_bytes = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as stream:
        buffer = memoryview(bytearray(_CHUNK))
        while n_read := stream.readinto(buffer):
            if until.expired():
                raise OutOfTime("the time limit was reached")
            digest.update(buffer[:n_read])
            n_bytes += n_read
    return digest.hexdigest(), n_bytes


def _recognise(head: Head, before: str | None = None) -> str | None:
    """The surest format; the first by name where two are equally sure.

    `before`: the format of the file before. Where it knows this one for certain no other is asked: thousands of ranks
    leave files of one kind, and most formats look at each as a text.
    """
    if not head.data.strip(b"\0 \r\n\t"):
        return None
    if before is not None and _sureness(formats()[before], head) >= _CERTAIN:
        return before
    scores = {name: _sureness(module, head) for name, module in formats().items()}
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best and scores[best] > 0 else None


_CERTAIN = 95  # no format is surer of anything


def _sureness(module: Format, head: Head) -> int:
    try:
        return module.recognise(head)
    except Exception:  # a format that fails on hostile content does not recognise it
        return 0


def _join_companions(found: Sequence[Found]) -> None:
    """Gives formats that read several files the others that they ask for."""
    folders: dict[str, dict[str, Found]] = {}
    for item in (item for item in found if item.source.sha256):  # links and what else was not read stay closed
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
    if elastic:  # RUN_ID is a word of the user's and ends in random letters and digits: `one-rank_578i2lyn` is no rank
        folder = name[: elastic.start()].rpartition("/")[0] + elastic[0].rpartition("/")[0]
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
