"""Dumps of Dynamo's cache entries: the guards of each compiled version of a function, as PyTorch prints them.

What `_debug_get_cache_entry_list` gives prints its guards as a tree; each tree is one entry of the cache.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from forensics.artifact import Frame, Head, Sink, Source, Stacks
from forensics.errors import ArtifactError
from forensics.formats._columns import clean_text
from forensics.formats._text_lines import decode_text

VERSION = 1
TITLE = "Dynamo cache entries (printed guards)"
PROVIDES = ("compile_event",)

_MAX_BYTES = 1 << 27
_MAX_EVENTS = 500_000
_MAX_LINE = 20_000
_TREE = re.compile(r"^TREE_GUARD_MANAGER:", re.MULTILINE)
_GUARD = re.compile(r"(?:\| )*\+- (?P<kind>[A-Z][A-Z0-9_]{1,60}): (?P<text>.+)")
# The guarded line of the user, and where it stands; the path is cut at its beginning.
_WHERE = re.compile(r"\s+# (?P<code>.{0,2000}?)\s*# (?P<file>\S{1,500}):(?P<line>\d{1,9}) in (?P<function>\S{1,200})")
_INTERNAL = re.compile(r"\s+# (?P<file>\S{1,500}):(?P<line>\d{1,9}) in (?P<function>\S{1,200})\s*$")
_COMPILE_ID = re.compile(r"(?:compile_id\W{1,3}|Torch-Compiled Region: )(!?\d+/\d+(?:_\d+)?)")
_NO_REASON = {"GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK"}  # hold for every entry


def recognise(head: Head) -> int:
    text = decode_text(head.data)
    trees = _TREE.search(text)
    return 60 if trees and re.search(r"^\+- RootGuardManager", text, re.MULTILINE) else 0


def load(source: Source, sink: Sink) -> None:
    with source.open() as stream:
        text = decode_text(stream.read(_MAX_BYTES))
    rows: list[dict[str, Any]] = []
    stacks = Stacks()
    entry: dict[str, Any] | None = None
    compile_id: str | None = None
    n_entries = n_dropped = 0
    for number, line in enumerate((whole[:_MAX_LINE] for whole in text.split("\n")), 1):
        if found := _COMPILE_ID.search(line):
            compile_id = found[1]
        if line.startswith("TREE_GUARD_MANAGER:"):
            entry = {"kind": "guards", "compile_id": compile_id, "name": None, "reason": None, "line": number}
            entry |= {"stack_id": None, "guards": []}
            compile_id, n_entries = None, n_entries + 1
            rows.append(entry)
        elif entry is not None and (guard := _GUARD.fullmatch(line)):
            if len(rows) >= _MAX_EVENTS:
                n_dropped += 1
            else:
                rows.append(_guard_row(guard, entry, stacks, number))
    if not n_entries:
        raise ArtifactError(f"{source.name}: no guards; expected TREE_GUARD_MANAGER of each cache entry", byte=0)
    _emit(sink, rows, stacks)
    sink.cover("compile_event", complete=False, n_read=len(rows) + n_dropped, n_kept=len(rows))
    if n_dropped:
        sink.warn("too-many-guards", f"{n_dropped} guards were counted, not kept", "what these compare")
    if not text.endswith("\n") and len(text.rsplit("\n", 1)[-1]) > 0:
        sink.warn("truncated", "the last line does not end: the dump may be cut", "entries behind that place")


def _guard_row(guard: re.Match[str], entry: dict[str, Any], stacks: Stacks, number: int) -> dict[str, Any]:
    where = _WHERE.search(guard["text"])
    place = where or _INTERNAL.search(guard["text"])
    compared = guard["text"][: place.start()].strip() if place else guard["text"].strip()
    stack = None
    if where is not None:
        stack = stacks.add([Frame(where["function"], clean_text(where["file"], 500), int(where["line"]))])
        entry["name"] = entry["name"] or clean_text(where["function"], 200)
        entry["stack_id"] = entry["stack_id"] or stack
    if guard["kind"] not in _NO_REASON and len(entry["guards"]) < 20:
        entry["guards"].append(compared[:300])
        entry["reason"] = "; ".join(entry["guards"])
    reason = clean_text(f"{guard['kind']}: {compared}", 2000)
    known = {"kind": "guard", "compile_id": entry["compile_id"], "name": entry["name"], "reason": reason}
    return {**known, "stack_id": stack, "line": number}


def _emit(sink: Sink, rows: list[dict[str, Any]], stacks: Stacks) -> None:
    columns: dict[str, Any] = {"row": pa.array(range(len(rows)), pa.int64())}
    for name in ("kind", "compile_id", "name", "reason"):
        columns[name] = pa.array([row[name] for row in rows], pa.string())
    columns["stack_id"] = pa.array([row["stack_id"] for row in rows], pa.uint64())
    sink.emit("compile_event", pa.table(columns))
    if len(stacks):
        sink.emit("stack", stacks.table())
    lines = pa.array([row["line"] for row in rows], pa.int64())
    tables = ["compile_event"] * len(rows)
    sink.emit("position", pa.table({"table": tables, "row": columns["row"], "line": lines}))
