"""Where tensors lie in what torch.save wrote: the zip of today, and the row of pickles before version 1.6.

Zip: NAME/data.pkl names storages, NAME/data/KEY holds each, stored as it is. The directory is at the end, so a file
that was cut has none; the header before each member then tells what is there. Before: five pickles (magic number,
version, system, the state, the keys of storages), then each storage behind its number of elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from forensics.errors import ArtifactError
from forensics.formats._checkpoint_layout import BITS, MAX_TENSORS, Layout, StoredTensor, mark_places, read_at, shape_of
from forensics.formats._state_tree import settings_in, step_in, tensors_in
from forensics.formats._symbolic_pickle import Tensor, walk_symbolically
from forensics.zip_members import LOCAL, ZipEntry, copy_member, find_header, read_directory, read_header

MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
_MAX_PICKLE_BYTES = 256 << 20
_MAX_PART_PICKLE = 1 << 16  # of one tensor
_MAX_MEMBERS = 1_000_000
# Key of a storage → where its data begins, and bytes; None where only the pickle tells: headers before members do not.
Places = dict[str, tuple[int, int | None]]


class Member:
    """A member of the zip and where its data begins."""

    __slots__ = ("entry", "start")

    def __init__(self, entry: ZipEntry, start: int) -> None:
        self.entry, self.start = entry, start


def read_torch_zip(file: BinaryIO, file_size: int) -> tuple[Layout, dict[str, Member]]:
    """The layout, and the members by what their names end in, for whoever compares their checksums."""
    layout = Layout("torch-zip")
    members = _members(file, file_size, layout)
    if not members and _is_row_of_zips(file):
        return _read_row(file, file_size), {}
    if any(name.startswith("code/") for name in members):
        layout.kind = "torchscript"
    pickled = members.get("data.pkl")
    if pickled is None:
        raise ArtifactError("no member data.pkl, which tells the tensors; expected a file that torch.save wrote")
    order = members.get("byteorder")
    if order is not None and read_at(file, order.start, 3) == b"big":
        layout.byteorder = ">"
    parts: list[bytes] = []
    _, wrong = copy_member(file, pickled.entry, pickled.start, _bounded(parts))
    if wrong and "checksum" not in wrong:
        layout.add(
            "truncated", f"data.pkl, which names the tensors: {wrong}", "tensors behind that place", pickled.start
        )
    _add_state(layout, b"".join(parts), _storages(members), pickled.start)
    mark_places(layout.tensors, file_size)
    return layout, members


def _is_row_of_zips(file: BinaryIO) -> bool:
    """Whether the directory at the end is that of a later zip than the one that the file begins with."""
    entries = read_directory(file)
    return bool(entries) and min(entry.header for entry in entries or []) > 0


def _read_row(file: BinaryIO, file_size: int) -> Layout:
    """One zip behind the other, each with one tensor or value, as torch.distributed.checkpoint writes its shards."""
    layout = Layout("distributed-shard")
    zips: list[dict[str, Member]] = []
    for entry, start in _headers(file):
        name = entry.name.decode("utf-8", "replace").partition("/")[2]
        if name == "data.pkl":
            zips.append({})
        if zips:
            zips[-1][name] = Member(entry, start)
    for number, members in enumerate(zips[:MAX_TENSORS]):
        pickled = members["data.pkl"]
        data = read_at(file, pickled.start, _MAX_PART_PICKLE)
        for _, tensor in tensors_in(walk_symbolically(data)[0].value):
            layout.tensors.append(placed_tensor(f"part {number}", tensor, _storages(members)))
    mark_places(layout.tensors, file_size)
    return layout


def _storages(members: dict[str, Member]) -> Places:
    return {
        name.removeprefix("data/"): (member.start, member.entry.packed)
        for name, member in members.items()
        if name.startswith("data/") and not member.entry.method
    }


def _bounded(parts: list[bytes]) -> Any:
    left = [_MAX_PICKLE_BYTES]

    def keep(data: bytes) -> None:
        left[0] -= len(data)
        if left[0] < 0:
            raise ValueError(f"more than {_MAX_PICKLE_BYTES} bytes")
        parts.append(data)

    return keep


def _members(file: BinaryIO, file_size: int, layout: Layout) -> dict[str, Member]:
    entries = read_directory(file)
    found: dict[str, Member] = {}
    if entries and min(entry.header for entry in entries) > 0 and read_at(file, 0, 4) == LOCAL:
        return {}
    if entries is None:
        message = "the directory at the end is missing, as in a file whose writing or copying was cut short"
        layout.add(
            "no-directory", message, "tensors that lay behind the end, and torch.load refuses the file", file_size
        )
        headers = _headers(file)
    else:
        headers = (pair for entry in entries[:_MAX_MEMBERS] if (pair := _placed(file, entry)))
    for entry, start in headers:
        name = entry.name.decode("utf-8", "replace").partition("/")[2]
        found[name] = Member(entry, start)
    return found


def _placed(file: BinaryIO, entry: ZipEntry) -> tuple[ZipEntry, int] | None:
    header = read_header(file, entry.header)
    return (entry, header[1]) if header else None


def _headers(file: BinaryIO) -> Iterator[tuple[ZipEntry, int]]:
    """Members by the headers before them. What only looks like a header lies in another folder than the first."""
    at, n_found, folder = find_header(file, 0), 0, b""
    while at is not None and n_found < _MAX_MEMBERS:
        found = read_header(file, at)
        end = at + 4
        folder = folder or (found[0].name.partition(b"/")[0] if found else b"")
        if found is not None and found[0].name.startswith(folder + b"/"):
            n_found += 1
            yield found
            end = max(end, found[1] + (found[0].packed or 0))
        at = find_header(file, end)


def read_torch_legacy(file: BinaryIO, file_size: int) -> Layout:
    layout = Layout("torch-legacy")
    data = read_at(file, 0, _MAX_PICKLE_BYTES)
    at = len(MAGIC)
    for _ in range(2):  # version and system
        at += walk_symbolically(data[at : at + 4096])[0].end
    state_at = at
    state, foreign = walk_symbolically(data[at:])
    keys: list[str] = []
    if state.error is None:
        at += state.end
        listed, _ = walk_symbolically(data[at:])
        at += listed.end
        keys = [str(key) for key in listed.value] if isinstance(listed.value, list) else []
    del data
    tensors = list(tensors_in(state.value))
    sizes = {t.storage.key: BITS.get(t.storage.dtype or "", 8) // 8 for _, t in tensors if t.storage}
    stored: Places = {}
    for key in keys:
        n_elements = int.from_bytes(read_at(file, at, 8), "little")
        n_bytes = n_elements * sizes.get(key, 1)
        stored[key] = (at + 8, n_bytes)
        at += 8 + n_bytes
    if state.error is None and at > file_size:
        message = f"the storages are to end at byte {at}; the file ends at byte {file_size}"
        layout.add("truncated", message, "values of the tensors behind that place", file_size)
    tell_state(layout, state.value, state.error, foreign, state_at)
    layout.tensors = [placed_tensor(name, tensor, stored) for name, tensor in tensors[:MAX_TENSORS]]
    mark_places(layout.tensors, file_size)
    return layout


def _add_state(layout: Layout, data: bytes, stored: Places, base: int) -> None:
    state, foreign = walk_symbolically(data)
    tell_state(layout, state.value, state.error, foreign, base)
    for name, tensor in tensors_in(state.value):
        if len(layout.tensors) >= MAX_TENSORS:
            layout.add("too-many", f"more than {MAX_TENSORS} tensors", "the others")
            break
        layout.tensors.append(placed_tensor(name, tensor, stored))


def tell_state(layout: Layout, value: Any, error: ArtifactError | None, foreign: dict[str, int], base: int) -> None:
    if error is not None:
        place = base + (error.byte or 0)
        if not any(problem.code == "truncated" for problem in layout.problems):
            layout.add("bad-pickle", f"the pickle that names the tensors: {error}", "tensors behind that place", place)
    if foreign:
        names = ", ".join(sorted(foreign)[:5]) + (", …" if len(foreign) > 5 else "")
        message = f"it names {names}; these were kept as names, nothing was imported or called"
        layout.add("foreign-names", message, "values that only they could rebuild", base + min(foreign.values()))
    layout.settings = settings_in(value)
    layout.step = step_in(layout.settings)


def placed_tensor(name: str, tensor: Tensor, stored: Places) -> StoredTensor:
    shape, stride = shape_of(tensor.shape), shape_of(tensor.stride)
    dtype = tensor.dtype or "unknown"
    if shape is None or tensor.storage is None:
        return StoredTensor(name, dtype, shape or (), None, 0, "meta", fault="no-data")
    found = StoredTensor(name, dtype, shape, None, 0, tensor.storage.location, tensor.storage.key, stride)
    size = BITS.get(dtype, 0) // 8
    place = stored.get(tensor.storage.key)
    if stride is None or len(stride) != len(shape) or type(tensor.offset) is not int:
        found.fault = "outside"
        return found
    if stride == _dense(shape):
        found.stride = None
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if found.n_elements else 0
    found.n_bytes = reach * size
    if place is None:
        found.fault = "no-data" if found.n_bytes else None
        return found
    found.start = place[0] + tensor.offset * size
    n_stored = place[1] if place[1] is not None else tensor.storage.n_elements * (size if tensor.storage.dtype else 1)
    if tensor.offset < 0 or tensor.offset * size + found.n_bytes > n_stored:
        found.fault = "outside"
    return found


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of elements in the order of the last index. Of sizes of 1 torch keeps any."""
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= max(size, 1)
    return tuple(reversed(strides))
