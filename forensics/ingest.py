"""Runs formats over artifacts into a Parquet cache keyed by content, so that a second run parses nothing.

A cache entry is the folder SHA256-NAME-FORMAT-vVERSION[-EDITION] with `meta.json` and one Parquet file per emitted
batch. It is written under another name and renamed, so that a kill leaves no half entry. The order in which loads end
shows in nothing: results follow the order of the artifacts.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from forensics.children import Children, Task
from forensics.deadline import Deadline
from forensics.discovery import REMARKS, Found
from forensics.errors import ForensicsError
from forensics.formats import formats
from forensics.leftovers import remove_leftovers, temporary_folder
from forensics.loading import load_artifact
from forensics.parquet_sink import ParquetSink, add_warning, layout

_SCRATCH = "loading-"


@dataclass
class Loaded:
    """One artifact after ingest: its cache entry (None when nothing was loaded) and what was said about it."""

    found: Found
    folder: Path | None
    meta: dict[str, Any]
    reused: bool = False

    def tables(self) -> dict[str, list[Path]]:
        if self.folder is None:
            return {}
        return {table: [self.folder / part for part in parts] for table, parts in self.meta["tables"].items()}


def ingest(
    found: Sequence[Found],
    cache: Path,
    *,
    children: Children | None = None,
    deadline: Deadline | None = None,
    on_artifact: Callable[[int, int, str], None] = lambda *_: None,
) -> list[Loaded]:
    """Loads every artifact, from the cache where it can; `on_artifact(number, total, name)` reports progress.

    `children`: where loads run; without, in this process, which is for artifacts that are trusted. What the deadline
    cuts off is listed as not loaded. Raises ForensicsError where a disk is full.
    """
    until = deadline or Deadline()
    cache.mkdir(parents=True, exist_ok=True)
    remove_leftovers(_SCRATCH, cache)
    results: dict[int, Loaded] = {}
    entries: dict[Path, list[int]] = {}  # what has the same content and name is loaded once
    for number, item in enumerate(found):
        if item.format is None:
            results[number] = Loaded(item, None, _meta_of_unread(item))
        else:
            entries.setdefault(_entry(item, cache), []).append(number)
    tasks = []
    scratch = temporary_folder(_SCRATCH, cache)
    for entry, numbers in entries.items():
        known = _cached(entry)
        if known is not None:
            results.update((number, Loaded(found[number], entry, known, reused=True)) for number in numbers)
        else:
            item = found[numbers[0]]
            tasks.append(Task(numbers[0], str(item.format), item.source, scratch / str(numbers[0]), item.bytes))
    places = {numbers[0]: (entry, numbers) for entry, numbers in entries.items()}
    try:
        for task, meta in children.run(tasks, until) if children else _run_here(tasks, until):
            on_artifact(len(results), len(found), task.source.name)
            entry, numbers = places[task.key]
            if meta is None:
                results.update((number, _not_loaded(found[number])) for number in numbers)
                continue
            if meta.get("no_space"):  # what else is read would lack rows too, here or in the case
                raise ForensicsError(f"{task.source.name}: {meta['no_space']}; free some space and run again")
            folder = task.folder if meta.get("fault") else _publish(task.folder, entry)  # the next run tries them again
            for number in numbers:
                results[number] = Loaded(found[number], folder, meta, reused=number != task.key)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):  # not empty: what failed is still to be read
        scratch.rmdir()
    return [_with_problems(results[number]) for number in range(len(found))]


def _run_here(tasks: Sequence[Task], deadline: Deadline) -> Iterator[tuple[Task, dict[str, Any] | None]]:
    for task in tasks:
        meta = None
        if not deadline.expired():
            task.folder.mkdir()
            meta = load_artifact(task.format, formats()[task.format], task.source, ParquetSink(task.folder))
        yield task, meta


def remove_unfinished(loaded: Sequence[Loaded]) -> None:
    """Removes the rows of loads that failed, which are in no cache, once the case has them."""
    for item in loaded:
        if item.folder is not None and item.folder.parent.name.startswith(_SCRATCH):
            shutil.rmtree(item.folder.parent, ignore_errors=True)


def _meta_of_unread(item: Found) -> dict[str, Any]:
    lost = any(code not in REMARKS for code, _, _ in item.problems)
    quality = "failed" if lost else "complete" if item.part_of else "unknown" if item.bytes else "empty"
    return {"quality": quality, "clock": "none", "warnings": [], "procs": {}, "coverage": [], "facts": [], "tables": {}}


def _not_loaded(item: Found) -> Loaded:
    meta = {**_meta_of_unread(item), "quality": "failed", "late": True}
    add_warning(meta, "time-limit", "not loaded: the time limit was reached", "everything in this file")
    return Loaded(item, None, meta)


def _with_problems(item: Loaded) -> Loaded:
    """What discovery met is no part of the cache entry: the same content may lie elsewhere without it."""
    if item.found.problems:
        said, item.meta = item.meta["warnings"], {**item.meta, "warnings": []}
        for code, message, hides in item.found.problems:
            add_warning(item.meta, code, message, hides)
        item.meta["warnings"] += said
    return item


def _entry(item: Found, cache: Path) -> Path:
    module = formats()[str(item.format)]
    edition = getattr(module, "edition", None)
    version = f"v{module.VERSION}" if edition is None else f"v{module.VERSION}-{edition()}"
    return cache / f"{item.source.sha256}-{_surroundings(item)}-{item.format}-{version}"


def _publish(scratch: Path, entry: Path) -> Path:
    try:
        scratch.rename(entry)
    except OSError:  # left half-written by something else, or written by another run at this moment
        if _cached(entry) is None:
            shutil.rmtree(entry, ignore_errors=True)
            scratch.rename(entry)
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    return entry


def _surroundings(item: Found) -> str:
    """What takes part in an artifact's rows beside its content: its own name, and its companions.

    Formats read host, rank or time from the name where the content has none.
    """
    companions = [(name, other.sha256) for name, other in sorted(item.source.companions.items())]
    said = "\0".join([item.source.own_name, *(word for pair in companions for word in pair)])
    return hashlib.blake2b(said.encode("utf-8", "replace"), digest_size=16 if companions else 4).hexdigest()


def _cached(entry: Path) -> dict[str, Any] | None:
    try:
        meta: dict[str, Any] = orjson.loads((entry / "meta.json").read_bytes())
        parts = [(entry / name, size) for name, size in meta["sizes"].items()]
        whole = all(path.stat().st_size == size for path, size in parts) and meta["layout"] == layout()
    except (OSError, orjson.JSONDecodeError, KeyError, AttributeError, TypeError):
        return None
    return meta if whole else None
