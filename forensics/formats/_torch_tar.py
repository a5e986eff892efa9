"""Where tensors lie in the tar that torch.save wrote up to version 0.1.10 (2017), which `torch.load` still reads.

Its members: `storages`, a number and for each storage a pickle (key, place, type), its number of elements and its data,
then a pickle of storages that are parts of others; `tensors`, a number and for each tensor a pickle (key, key of its
storage, type), then dimensions, sizes, strides and offset as integers; `pickle`, the state, which names tensors and
storages by their keys.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import Any, BinaryIO

from forensics.errors import ArtifactError
from forensics.formats._checkpoint_layout import BITS, MAX_TENSORS, Layout, mark_places, read_at
from forensics.formats._state_tree import tensors_in
from forensics.formats._symbolic_pickle import Global, Storage, Tensor, dtype_of_storage, walk_symbolically
from forensics.formats._torch_layout import Places, placed_tensor, tell_state
from forensics.tar_members import tar_members

_MAX_ENTRY = 4096  # bytes of the pickle before a storage or tensor
_MAX_PICKLE = 256 << 20
_MAX_DIMENSIONS = 64


def read_torch_tar(file: BinaryIO, file_size: int) -> Layout:
    layout = Layout("torch-legacy")
    members = tar_members(file)
    if not {"pickle", "storages", "tensors"} <= members.keys():
        raise ArtifactError(
            "a member is missing or damaged; expected pickle, tensors and storages, as torch.save wrote"
        )
    stored: Places = {}
    storages = _storages(file, *members["storages"], stored)
    known: dict[str, Tensor | Storage] = {**storages, **_tensors(file, *members["tensors"], storages)}
    start, size = members["pickle"]
    state, foreign = walk_symbolically(read_at(file, start, min(size, _MAX_PICKLE)), known)
    ends = [first + (n_bytes or 0) for first, n_bytes in stored.values()]
    if max(ends, default=0) > file_size:
        message = f"the storages are to end at byte {max(ends)}; the file ends at byte {file_size}"
        layout.add("truncated", message, "values of the tensors behind that place", file_size)
    tell_state(layout, state.value, state.error, foreign, start)
    layout.tensors = [placed_tensor(n, t, stored) for n, t in islice(tensors_in(state.value), MAX_TENSORS)]
    mark_places(layout.tensors, file_size)
    return layout


class _Entries:
    """Pickles and integers one behind the other, up to the end of a member."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self.at, self._end = file, start, start + size

    def pickled(self, most: int = _MAX_ENTRY) -> Any:
        found = walk_symbolically(read_at(self._file, self.at, min(most, self._end - self.at)))[0]
        if found.error is not None:
            raise ArtifactError(f"byte {self.at}: {found.error}; expected the pickle of an entry")
        self.at += found.end
        return found.value

    def integers(self, form: str) -> tuple[int, ...]:
        data = read_at(self._file, self.at, struct.calcsize(form))
        self.at += struct.calcsize(form)
        if len(data) < struct.calcsize(form) or self.at > self._end:
            raise ArtifactError(f"byte {self.at}: the file ends in an entry")
        return struct.unpack(form, data)

    def number(self) -> int:
        n = self.pickled()
        if type(n) is not int or not 0 <= n <= MAX_TENSORS:
            raise ArtifactError(f"byte {self.at}: not a number of entries")
        return n

    def named(self) -> tuple[str, Any, Any]:
        told = self.pickled()
        if type(told) is not tuple or len(told) != 3:
            raise ArtifactError(f"byte {self.at}: not the pickle of an entry, which has three parts")
        return str(told[0])[:200], told[1], told[2]


def _storages(file: BinaryIO, start: int, size: int, stored: Places) -> dict[str, Storage]:
    """Storages by key; where each lies is put into `stored`."""
    entries = _Entries(file, start, size)
    found: dict[str, Storage] = {}
    for _ in range(entries.number()):
        key, place, kind = entries.named()
        (n_elements,) = entries.integers("<q")
        dtype = dtype_of_storage(kind.name if isinstance(kind, Global) else "")
        n_bytes = n_elements * BITS.get(dtype or "", 8) // 8
        if n_elements < 0:
            raise ArtifactError(f"byte {entries.at}: a storage of {n_elements} elements")
        found[key] = Storage(dtype, key, str(place)[:40], n_elements)
        stored[key] = (entries.at, n_bytes)
        entries.at += n_bytes
        if entries.at > start + size:
            return found
    views = entries.pickled(_MAX_PICKLE)
    for view in views if type(views) is list else ():
        if type(view) is tuple and len(view) == 4 and str(view[1]) in stored and type(view[2]) is type(view[3]) is int:
            key, root, (first, _) = str(view[0])[:200], found[str(view[1])], stored[str(view[1])]
            width = BITS.get(root.dtype or "", 8) // 8
            found[key] = Storage(root.dtype, key, root.location, view[3])
            stored[key] = (first + view[2] * width, view[3] * width)
    return found


def _tensors(file: BinaryIO, start: int, size: int, storages: dict[str, Storage]) -> dict[str, Tensor]:
    entries = _Entries(file, start, size)
    found: dict[str, Tensor] = {}
    for _ in range(entries.number()):
        key, storage_key, _ = entries.named()
        n_dimensions, _ = entries.integers("<ii")
        if not 0 <= n_dimensions <= _MAX_DIMENSIONS:
            raise ArtifactError(f"byte {entries.at}: a tensor of {n_dimensions} dimensions")
        numbers = entries.integers(f"<{2 * n_dimensions + 1}q")
        storage = storages.get(str(storage_key))
        shape, stride = numbers[:n_dimensions], numbers[n_dimensions:-1]
        found[key] = Tensor(storage, numbers[-1], shape, stride, storage.dtype if storage else None)
    return found
