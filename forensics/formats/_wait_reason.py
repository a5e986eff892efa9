"""Says what a thread waits for, by its stack. The table is `_wait_table`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from forensics.formats._wait_table import (
    CRASHES,
    DEVICE_CALL,
    GLUE,
    INTERPRETER,
    LIBRARIES,
    NATIVE,
    PLUMBING,
    PLUMBING_FILES,
    PYTHON,
    SPINS,
    Row,
)

_MAX_FRAMES = 64  # read of one stack
_MAX_NAME = 400
_UNNAMED = re.compile(r"(?:0x[0-9a-fA-F]+|\?\?)$")
_NUMBER = re.compile(r"0x[0-9a-fA-F]{1,16}|-?\d{1,10}")
_PREFIXES = re.compile(r"_+(?:GI_+|libc_)?")


class Call(NamedTuple):
    """A frame. `arguments` as `name=value, name=value` where a dump has them."""

    function: str
    file: str | None = None
    arguments: str = ""


class Wait(NamedTuple):
    """`on`: what identifies it (address, process id, `fd N`) where known, then what it is for."""

    kind: str | None
    on: str | None


def _indexed(rows: Iterable[Row]) -> dict[str, list[Row]]:
    index: dict[str, list[Row]] = {}
    for row in rows:
        for function in row.functions.split():
            index.setdefault(function, []).append(row)
    return index


_PYTHON, _NATIVE = _indexed(PYTHON), _indexed(NATIVE)


def wait_of(calls: Sequence[Call], *, spins: bool = False) -> Wait | None:
    """What a stack, innermost frame first, waits for. `spins`: the thread runs, so only busy waiting is waiting."""
    found: Row | None = None
    what, identity = "", ""
    for call in calls[:_MAX_FRAMES]:
        name = bare_name(call.function, call.file)
        if is_interpreter(name):
            break
        row = _row_of(call, name, found)
        if row is None and not _is_plumbing(call, name):
            break
        if row is not None:
            found, what = row, row.what or name
            identity = identity or _identity(row, call.arguments)
            if row.stops:
                break
    if found is None or (spins and not {found.kind, what} & SPINS):
        return None
    return Wait(found.kind, f"{identity} {what}" if identity else what)


def has_crashed(calls: Sequence[Call]) -> bool:
    """Whether a native stack stands in a signal handler or in abort."""
    return any(
        call.function == "<signal handler called>" or bare_name(call.function, call.file) in CRASHES
        for call in calls[:_MAX_FRAMES]
    )


def is_interpreter(function: str) -> bool:
    return INTERPRETER.match(function) is not None


def is_unnamed(function: str) -> bool:
    """Whether a frame shows no more than an address."""
    return _UNNAMED.match(function) is not None


def _row_of(call: Call, name: str, inner: Row | None) -> Row | None:
    file = call.file or ""
    if not is_python(file):
        rows = _NATIVE.get(name, ())
        fitting = [row for row in rows if _fits(row, inner)]
        return fitting[0] if fitting else _device_or_library(name, file, inner)
    qualified = ".".join(call.function.rsplit(".", 2)[-2:])
    for key in (qualified, name):
        for row in _PYTHON.get(key, ()):
            if _same_file(file, row.file) and _fits(row, inner):
                return row
    return None


def _fits(row: Row, inner: Row | None) -> bool:
    return not row.inner or (inner is not None and row.inner in {inner.kind, inner.what})


def _device_or_library(name: str, file: str, inner: Row | None) -> Row | None:
    if DEVICE_CALL.match(name):
        return Row("device", name, "", "")
    if inner is not None:
        return None  # a thread that sleeps in there may be one that the library keeps for later
    return next((Row(kind, what, "", "") for library, kind, what in LIBRARIES if library in file), None)


def _is_plumbing(call: Call, name: str) -> bool:
    file = call.file or ""
    if is_python(file):
        return any(_same_file(file, part) for part in PLUMBING_FILES)
    glue = name in GLUE or name.startswith("pybind11::") or _UNNAMED.match(name) is not None
    if glue or name in _NATIVE or PLUMBING.search(file):
        return True
    return any(library in file for library, _, _ in LIBRARIES)


def is_python(file: str) -> bool:
    return file.endswith((".py", ".pyx", ">"))  # ">": <frozen …>, <string>


@lru_cache(maxsize=4096)
def _same_file(file: str, part: str) -> bool:
    """Whether a path is that of a module of Python's library or of a package."""
    path = file.replace("\\", "/")
    if path == part:
        return True
    if not path.endswith("/" + part):
        return False
    of_package = part.startswith(("torch/", "device_communicators/"))
    return of_package or "python" in path.lower() or path[: -len(part)] in {".../", "lib/"}


@lru_cache(maxsize=8192)
def bare_name(function: str, file: str | None) -> str:
    """A Python function without its class; a native one without namespace noise, arguments, templates and version."""
    name = function[:_MAX_NAME]
    if is_python(file or ""):
        return name.rsplit(".", 1)[-1]
    name = name.partition("@")[0].replace("(anonymous namespace)::", "")
    if "<" in name:
        name = _without_templates(name)
    name = name.partition("(")[0].strip()
    name = name.rpartition(" ")[2] or name  # the result's type, which some demanglers print
    prefix = _PREFIXES.match(name)
    return name[prefix.end() :] if prefix and not INTERPRETER.match(name) else name


def _without_templates(name: str) -> str:
    kept, depth = [], 0
    for letter in name:
        depth += letter == "<"
        if not depth:
            kept.append(letter)
        depth -= letter == ">" and depth > 0
    return "".join(kept)


def _identity(row: Row, arguments: str) -> str:
    """The value of the argument that names what is waited for: an address, a process id or `fd N`."""
    if not row.argument or not arguments:
        return ""
    for part in arguments[:4000].split(", "):
        name, _, value = part.partition("=")
        if name.strip() == row.argument:
            number = _NUMBER.match(value.rpartition("=")[2])  # fd=fd@entry=5
            if number is None:
                return ""
            return f"fd {number[0]}" if row.argument in {"fd", "epfd"} else number[0]
    return ""
