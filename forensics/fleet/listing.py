"""Names, sizes and stamps of all files below a root, in a folder or behind an fsspec URL; nothing is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import ForensicsError

MAX_FILES = 5_000_000  # below one root
_RESULTS = {"case.duckdb", "report.json"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: its name relative to the root with `/`, its bytes, and what changes when its content does.

    `modified_ns` is 0 where the store does not tell.
    """

    name: str
    bytes: int
    stamp: str
    modified_ns: int


def is_url(root: str) -> bool:
    return "://" in root


def list_root(root: str, leave_out: Path | None = None) -> list[Entry]:
    """Every file below `root`, by name; a root that is a file gives itself, under its own name.

    `leave_out`: the fleet itself. Raises ForensicsError where the root cannot be listed or holds too much.
    """
    entries: list[Entry] = []
    for entry in _remote(root) if is_url(root) else _local(Path(root), leave_out):
        entries.append(entry)
        if len(entries) > MAX_FILES:
            raise ForensicsError(f"{root}: more than {MAX_FILES} files; expected less; give its parts one by one")
    return sorted(entries, key=lambda entry: entry.name)


def _local(root: Path, leave_out: Path | None) -> Iterator[Entry]:
    if root.is_file():
        yield _entry(root.name, root.stat())
        return
    if not root.is_dir():
        raise ForensicsError(f"{root}: not found; expected a folder with jobs, a URL, or an archive")
    fleet = os.path.realpath(leave_out) if leave_out else ""
    waiting = [(os.fspath(root), "")]
    while waiting:
        place, prefix = waiting.pop()
        try:
            with os.scandir(place) as listing:
                found = list(listing)
        except OSError:  # what may not be read here may not be analyzed either
            continue
        if prefix and {entry.name for entry in found} >= _RESULTS:  # results of an analysis are no job
            continue
        for entry in found:
            if entry.name.startswith(".") or entry.name.endswith(".forensics") or entry.name == "__pycache__":
                continue
            if entry.is_dir(follow_symlinks=False):
                if not fleet or os.path.realpath(entry.path) != fleet:
                    waiting.append((entry.path, f"{prefix}{entry.name}/"))
            elif entry.is_file(follow_symlinks=False):
                try:
                    yield _entry(prefix + entry.name, entry.stat(follow_symlinks=False))
                except OSError:  # gone meanwhile
                    continue


def _entry(name: str, known: os.stat_result) -> Entry:
    shown = os.fsencode(name).decode("utf-8", "surrogateescape")
    return Entry(shown, known.st_size, f"{known.st_mtime_ns}.{known.st_ino}", known.st_mtime_ns)


def _remote(root: str) -> Iterator[Entry]:
    system, path = open_url(root)
    try:
        found: dict[str, Any] = system.find(path, detail=True)
    except Exception as error:
        raise ForensicsError(f"{root}: cannot be listed ({type(error).__name__}: {error})") from error
    base = path.rstrip("/")
    for full, known in found.items():
        name = full[len(base) :].lstrip("/") or base.rpartition("/")[2]
        if any(part.startswith(".") or part.endswith(".forensics") for part in name.split("/")):
            continue
        when = known.get("LastModified") or known.get("mtime") or known.get("updated") or ""
        yield Entry(name, int(known.get("size") or 0), f"{known.get('ETag') or known.get('etag') or ''}{when}", 0)


def open_url(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it. Raises ForensicsError with what to install."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        message = f"{url}: {error}; expected the package that reads it; install torch-forensics[remote]"
        raise ForensicsError(message) from error
    except ValueError as error:
        raise ForensicsError(f"{url}: {error}; expected a URL that fsspec knows, such as s3://bucket/jobs") from error
    return system, str(path)
