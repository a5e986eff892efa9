"""Keys of one stored state that write the same parameter, and a reversible patch that keeps the first of each.

Keys collide when they are equal once the names that wrappers add are taken off (`module.`, `_orig_mod.`,
`base_model.model.`, the adapter name `default`): whichever is loaded last decides. What is loaded together: the tensors
of one file, and those of the shards that one index names. First: by file name, then by place in the file.

A patch holds, of each file, what stands where before and after, so that it can be applied and taken back; both check
the whole file by its SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.artifact import Source
from forensics.errors import ForensicsError
from forensics.formats._adapter_modules import plain_name
from forensics.formats._checkpoint_layout import StoredTensor, at_places, read_at
from forensics.formats._safetensors_layout import is_safetensors, read_safetensors

FORMAT = "forensics.state_patch/1"
_MAX_REMOVED = 256 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Collision:
    """All places that write one parameter, the one that is kept first."""

    key: str
    sources: tuple[tuple[Path, StoredTensor], ...]


def collision_key(name: str) -> str:
    """The parameter that loading writes for a key."""
    return plain_name(name).replace(".default.weight", ".weight")


def find_collisions(folder: Path) -> list[Collision]:
    """Collisions among the safetensors files directly in a folder, in the order of their keys.

    Raises ForensicsError where there is no folder, or none of these files in it.
    """
    if not folder.is_dir():
        raise ForensicsError(f"{folder}: no such folder; expected the folder of a checkpoint")
    files = {path.name: path for path in sorted(folder.glob("*.safetensors"))}
    if not files:
        raise ForensicsError(f"{folder}: holds no *.safetensors file; expected the folder of a checkpoint")
    units = {frozenset([name]) for name in files} | {
        frozenset(set(_shards(index).values()) & files.keys()) for index in sorted(folder.glob("*.index.json"))
    }
    found: dict[tuple[str, tuple[str, ...]], Collision] = {}
    for unit in sorted(units, key=sorted):
        writers: dict[str, list[tuple[Path, StoredTensor]]] = defaultdict(list)
        for name in sorted(unit):
            for tensor in _tensors(files[name]):
                writers[collision_key(tensor.name)].append((files[name], tensor))
        for key, sources in writers.items():
            if len(sources) > 1:
                found[key, tuple(path.name for path, _ in sources)] = Collision(key, tuple(sources))
    keys = dict(sorted(found, key=lambda pair: len(pair[1])))  # of both, the wider unit
    return [found[key, keys[key]] for key in sorted(keys)]


def keep_first(collisions: Sequence[Collision]) -> dict[str, Any]:
    """The patch that takes all but the first source of each collision out of its file."""
    dropped: dict[Path, list[StoredTensor]] = defaultdict(list)
    for collision in collisions:
        for path, tensor in collision.sources[1:]:
            dropped[path].append(tensor)
    if sum(tensor.n_bytes for tensors in dropped.values() for tensor in tensors) > _MAX_REMOVED:
        raise ForensicsError(f"more than {_MAX_REMOVED} bytes would go; expected an adapter, not whole models")
    edits = {path: _without(path, tensors) for path, tensors in sorted(dropped.items())}
    for index in sorted({i for path in dropped for i in path.parent.glob("*.index.json")}):
        changed = _index_edit(index, collisions)
        if changed:
            edits[index] = [changed]
    return {"format": FORMAT, "files": [_described(path, changes) for path, changes in edits.items()]}


def apply_patch(patch: Any, folder: Path, *, undo: bool = False) -> list[Path]:
    """Applies a patch to the files of a folder, or takes it back; all files are checked before the first is replaced.

    Raises ForensicsError where a file is not the one that the patch was made for.
    """
    entries = _checked(patch)
    written: list[tuple[Path, Path]] = []
    try:
        for entry in entries:
            path = folder / Path(str(entry["file"])).name
            before, after = (entry["sha256_before"], entry["sha256_after"])[:: -1 if undo else 1]
            temporary = path.with_name(f"{path.name}.patching")
            written.append((temporary, path))
            if _digest(path) != before:
                raise ForensicsError(f"{path}: not the file that the patch was made for; nothing was changed")
            _rewrite(path, temporary, _edits(entry, undo=undo))
            if _digest(temporary) != after:
                raise ForensicsError(f"{path}: the patch does not give what it says; nothing was changed")
        for temporary, path in written:
            temporary.replace(path)
    finally:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)
    return [path for _, path in written]


def _checked(patch: Any) -> list[dict[str, Any]]:
    """The entries of a patch, each with its file and both digests."""
    said = patch.get("format") if isinstance(patch, dict) else type(patch).__name__
    if said != FORMAT:
        raise ForensicsError(f"{str(said)[:100]}; expected a patch of the format {FORMAT}")
    entries = patch.get("files")
    for entry in entries if isinstance(entries, list) else [None]:
        held: dict[str, Any] = entry if isinstance(entry, dict) else {}
        texts = [held.get(key) for key in _ENTRY_TEXTS]
        if not all(isinstance(text, str) and text for text in texts) or not isinstance(held.get("edits"), list):
            raise ForensicsError(f"an entry of the patch lacks {', '.join(_ENTRY_TEXTS)} or edits; nothing was changed")
    return list(entries)


_ENTRY_TEXTS = ("file", "sha256_before", "sha256_after")
_Edit = tuple[int, bytes, bytes]  # place before, what stands there, what is to stand there


def _tensors(path: Path) -> list[StoredTensor]:
    with at_places(Source(path, path.name)) as (file, size):
        if not is_safetensors(read_at(file, 0, 16)):
            return []
        return sorted(read_safetensors(file, size).tensors, key=lambda t: (t.start or 0, t.name))


def _shards(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return {}
    weights = found.get("weight_map") if isinstance(found, dict) else None
    return {str(k): str(v) for k, v in weights.items()} if isinstance(weights, dict) else {}


def _without(path: Path, dropped: Sequence[StoredTensor]) -> list[_Edit]:
    gone = {(tensor.name, tensor.start) for tensor in dropped}
    with path.open("rb") as file:
        size = path.stat().st_size
        layout = read_safetensors(file, size)
        if layout.problems or any(tensor.fault or tensor.start is None for tensor in layout.tensors):
            raise ForensicsError(f"{path}: it is damaged; expected a whole file")
        n_header = struct.unpack("<Q", read_at(file, 0, 8))[0]
        written = json.loads(read_at(file, 8, n_header), object_pairs_hook=list)
        metadata = next((dict(entry) for name, entry in written if name == "__metadata__"), None)
        types = {(n, tuple(dict(e)["data_offsets"])): dict(e)["dtype"] for n, e in written if n != "__metadata__"}
        header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        removals: list[_Edit] = []
        at, data = 0, 8 + n_header
        for tensor in sorted(layout.tensors, key=lambda t: (t.start or 0, t.n_bytes)):
            start = tensor.start or 0
            if (tensor.name, tensor.start) in gone:
                removals.append((start, read_at(file, start, tensor.n_bytes), b""))
                continue
            dtype = types[tensor.name, (start - data, start - data + tensor.n_bytes)]
            header[tensor.name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [at, at + tensor.n_bytes]}
            at += tensor.n_bytes
        old = read_at(file, 0, data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [(0, old, struct.pack("<Q", len(text)) + text), *removals]


def _index_edit(index: Path, collisions: Sequence[Collision]) -> _Edit | None:
    """Names that lost their place lead to the one that was kept, where it has the same name; others go."""
    old = index.read_bytes()
    found = json.loads(old)
    weights = found.get("weight_map")
    for collision in collisions:
        first, kept = collision.sources[0]
        for path, tensor in collision.sources[1:]:
            if weights.get(tensor.name) == path.name:
                if tensor.name == kept.name:
                    weights[tensor.name] = first.name
                else:
                    del weights[tensor.name]
    new = json.dumps(found, indent=2).encode() + b"\n"
    return (0, old, new) if json.loads(old) != found else None


def _described(path: Path, edits: Sequence[_Edit]) -> dict[str, Any]:
    entry: dict[str, Any] = {"file": path.name, "sha256_before": _digest(path)}
    entry["edits"] = [{"at": at, "old": _coded(old), "new": _coded(new)} for at, old, new in edits]
    after = hashlib.sha256()
    for data in _pieces(path, edits):
        after.update(data)
    return entry | {"sha256_after": after.hexdigest()}


def _edits(entry: dict[str, Any], *, undo: bool) -> list[_Edit]:
    try:
        edits = [(int(e["at"]), base64.b64decode(e["old"]), base64.b64decode(e["new"])) for e in entry["edits"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ForensicsError(f"{str(entry.get('file'))[:200]}: an edit that cannot be read ({error})") from error
    if not undo:
        return edits
    reversed_edits, shift = [], 0
    for at, old, new in edits:
        reversed_edits.append((at + shift, new, old))
        shift += len(new) - len(old)
    return reversed_edits


def _pieces(path: Path, edits: Sequence[_Edit]) -> Any:
    """The content of a file with its edits made, a piece at a time."""
    with path.open("rb") as file:
        for at, old, new in edits:
            left = at - file.tell()
            while left > 0 and (data := file.read(min(left, _CHUNK))):
                left -= len(data)
                yield data
            if left or file.read(len(old)) != old:
                raise ForensicsError(f"{path}: other bytes at {at} than the patch expects")
            yield new
        while data := file.read(_CHUNK):
            yield data


def _rewrite(path: Path, target: Path, edits: Sequence[_Edit]) -> None:
    with target.open("wb") as out:
        for data in _pieces(path, edits):
            out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _coded(data: bytes) -> str:
    return base64.b64encode(data).decode()
