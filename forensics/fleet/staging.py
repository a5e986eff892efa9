"""Brings a job's files together in one folder where they are not so already, within a budget of disk space.

Local files are linked (copied where they cannot be); those of object stores are fetched. A job that is one folder or
file on this machine is read where it lies.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from forensics.errors import ForensicsError
from forensics.finding import format_bytes
from forensics.fleet.job_runner import Order
from forensics.fleet.listing import is_url, open_url


class OverBudget(ForensicsError):
    """The files of one job are larger than what may be staged."""


@contextmanager
def staged(order: Order, scratch: Path) -> Iterator[tuple[Path, list[tuple[str, Path]]]]:
    """The path to analyze, and (name, path) of each file. Raises ForensicsError for what cannot be fetched."""
    if not is_url(order.root) and not order.gathered:
        base = Path(order.root)
        yield Path(order.place), [(name, base / name) for name, _ in order.files]
        return
    target = scratch / (PurePosixPath(order.job.get("name") or order.key).name or "job")
    target.mkdir()
    files = _fetch(order, target) if is_url(order.root) else _gather(order, target)
    try:
        yield target, files
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _gather(order: Order, target: Path) -> list[tuple[str, Path]]:
    base = Path(order.root)
    files = []
    for name, _ in order.files:
        path = _inside(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(base / name, path)
        except OSError:  # another file system
            _check(order, order.files)
            shutil.copyfile(base / name, path, follow_symlinks=False)
        files.append((name, path))
    return files


def _fetch(order: Order, target: Path) -> list[tuple[str, Path]]:
    _check(order, order.files)
    system, path = open_url(order.root)
    files = []
    for name, _ in order.files:
        place = _inside(target, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        base = path.rstrip("/")
        source = base if len(order.files) == 1 and base.endswith(f"/{name}") else f"{base}/{name}"
        try:
            system.get_file(source, os.fspath(place))
        except Exception as error:
            raise ForensicsError(f"{order.root}/{name}: cannot be fetched ({type(error).__name__}: {error})") from error
        files.append((name, place))
    return files


def _check(order: Order, files: Sequence[tuple[str, int]]) -> None:
    total = sum(size for _, size in files)
    if order.disk_bytes and total > order.disk_bytes:
        raise OverBudget(
            f"its files are {format_bytes(total)}; --disk-budget leaves {format_bytes(order.disk_bytes)} a job"
        )


def _inside(target: Path, name: str) -> Path:
    """Names of an object store may hold anything."""
    path = target.joinpath(*(part for part in PurePosixPath(name).parts if part not in {"..", "/"}))
    if not path.is_relative_to(target) or path == target:
        raise ForensicsError(f"{name!r}: no name of a file; expected one below the root")
    return path
