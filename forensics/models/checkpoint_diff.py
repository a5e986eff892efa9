"""Compares two stored states tensor by tensor and adds what moved up along the tree of names.

Values are read a few megabytes at a time from both files, so memory does not grow with them. Distances are of the
elements that are finite on both sides; those that are finite in the first state alone are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf, sqrt
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from forensics.artifact import Source
from forensics.errors import ForensicsError
from forensics.formats import formats
from forensics.formats._checkpoint_layout import Layout, StoredTensor, at_places, read_at
from forensics.formats._gguf_layout import MAGIC as GGUF
from forensics.formats._gguf_layout import read_gguf
from forensics.formats._safetensors_layout import is_safetensors, read_safetensors
from forensics.formats._tensor_values import chunks
from forensics.formats._torch_layout import MAGIC as LEGACY
from forensics.formats._torch_layout import read_torch_legacy, read_torch_zip
from forensics.formats._torch_tar import read_torch_tar
from forensics.tar_members import is_torch_tar

_READABLE = {"safetensors", "torch_checkpoint", "gguf"}


@dataclass(frozen=True)
class Stored:
    """One tensor and the open file that holds it."""

    tensor: StoredTensor
    file: BinaryIO
    byteorder: str


@dataclass
class TensorDiff:
    """`state`: equal | moved | shape | dtype (values compared all the same) | only-a | only-b | unread."""

    name: str
    state: str
    detail: str = ""
    n_elements: int = 0
    n_changed: int = 0
    n_broken: int = 0  # finite in A, not finite in B
    n_compared: int = 0  # finite in both
    max_distance: float = 0.0
    squares: float = 0.0  # of the distances
    squares_a: float = 0.0

    @property
    def relative(self) -> float:
        """Euclidean distance of both over the norm of A."""
        return _relative(self.squares, self.squares_a)


@dataclass
class Branch:
    """What the tensors below one part of the names add up to."""

    name: str
    states: dict[str, int] = field(default_factory=dict)
    n_broken: int = 0
    max_distance: float = 0.0
    squares: float = 0.0
    squares_a: float = 0.0
    children: dict[str, Branch] = field(default_factory=dict)

    @property
    def relative(self) -> float:
        """As of a tensor, over all tensors below that were compared."""
        return _relative(self.squares, self.squares_a)

    def add(self, diff: TensorDiff) -> None:
        self.states[diff.state] = self.states.get(diff.state, 0) + 1
        self.n_broken += diff.n_broken
        self.max_distance = max(self.max_distance, diff.max_distance)
        self.squares += diff.squares
        self.squares_a += diff.squares_a


def _relative(squares: float, squares_a: float) -> float:
    if not squares_a:
        return inf if squares else 0.0
    return sqrt(squares / squares_a)


def diff_states(a: Path, b: Path) -> list[TensorDiff]:
    """Every tensor of both states, by name. `a` and `b`: a file, or a folder whose files are one state.

    Raises ForensicsError where one of them holds no tensor.
    """
    with ExitStack() as stack:
        left, right = open_state(a, stack), open_state(b, stack)
        names = list(left) + [name for name in right if name not in left]
        return [_compare(name, left.get(name), right.get(name)) for name in names]


def tree_of(diffs: Sequence[TensorDiff]) -> Branch:
    """The tensors as a tree of the parts of their names."""
    root = Branch("")
    for diff in diffs:
        branch = root
        branch.add(diff)
        for part in diff.name.split("."):
            branch = branch.children.setdefault(part, Branch(part))
            branch.add(diff)
    return root


def open_state(path: Path, stack: ExitStack) -> dict[str, Stored]:
    """Tensors by name; of a name in several files the first file's counts."""
    files = [path] if path.is_file() else sorted(place for place in path.iterdir() if place.is_file())
    state: dict[str, Stored] = {}
    for place in files:
        source = Source(place, place.name)
        head = source.head()
        if not any(formats()[name].recognise(head) for name in _READABLE):
            continue
        file, size = stack.enter_context(at_places(source))
        layout = _layout(file, size)
        for tensor in layout.tensors:
            state.setdefault(tensor.name, Stored(tensor, file, layout.byteorder))
    if not state:
        raise ForensicsError(f"{path}: no tensor found; expected a checkpoint, or a folder that holds one")
    return state


def _layout(file: BinaryIO, size: int) -> Layout:
    start = read_at(file, 0, len(LEGACY))
    if start.startswith(GGUF):
        return read_gguf(file, size)
    if start == LEGACY:
        return read_torch_legacy(file, size)
    if is_safetensors(start):
        return read_safetensors(file, size)
    return read_torch_tar(file, size) if is_torch_tar(file) else read_torch_zip(file, size)[0]


def _compare(name: str, a: Stored | None, b: Stored | None) -> TensorDiff:
    if a is None or b is None:
        one = a or b
        assert one is not None
        return TensorDiff(name, "only-b" if a is None else "only-a", _shown(one.tensor), one.tensor.n_elements)
    diff = TensorDiff(name, "equal", n_elements=a.tensor.n_elements)
    if a.tensor.shape != b.tensor.shape:
        return TensorDiff(name, "shape", f"{_shown(a.tensor)} against {_shown(b.tensor)}", a.tensor.n_elements)
    n_read = 0
    values_a, values_b = (chunks(s.file, s.tensor, s.byteorder) for s in (a, b))
    for one, other in _in_step(values_a, values_b):
        n_read += one.size
        _add(diff, one, other)
    if n_read < a.tensor.n_elements:
        faults = ", ".join(sorted({s.tensor.fault or s.tensor.dtype for s in (a, b)}))
        return TensorDiff(
            name, "unread", f"values of {a.tensor.n_elements - n_read} elements: {faults}", a.tensor.n_elements
        )
    if diff.n_changed:
        diff.state = "moved"
    if a.tensor.dtype != b.tensor.dtype:
        diff.state, diff.detail = "dtype", f"{a.tensor.dtype} against {b.tensor.dtype}"
    return diff


def _in_step(a: Iterator[Any], b: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """The same stretches of both, whose types may be of other sizes; ends where one of them ends."""
    one = other = np.empty(0)
    while True:
        one = one if one.size else next(a, one)
        other = other if other.size else next(b, other)
        n = min(one.size, other.size)
        if not n:
            return
        yield one[:n], other[:n]
        one, other = one[n:], other[n:]


def _add(diff: TensorDiff, one: Any, other: Any) -> None:
    if one.dtype == other.dtype and one.tobytes() == other.tobytes():
        wide = one.astype(np.float64)
        wide = wide[np.isfinite(wide)]
        diff.n_compared += int(wide.size)
        diff.squares_a += float(np.dot(wide, wide))
        return
    a, b = one.astype(np.float64), other.astype(np.float64)
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    both = finite_a & finite_b
    diff.n_broken += int((finite_a & ~finite_b).sum())
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    diff.n_changed += int(a.size - same.sum())
    a, b = a[both], b[both]
    diff.n_compared += int(a.size)
    if a.size:
        moved = np.abs(b - a)
        diff.max_distance = max(diff.max_distance, float(moved.max()))
        with np.errstate(over="ignore"):
            diff.squares += float(np.dot(moved, moved))
            diff.squares_a += float(np.dot(a, a))


def _shown(tensor: StoredTensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
