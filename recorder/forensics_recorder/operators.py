"""Records every operator of a step: its inputs' and outputs' statistics, where it stands in the model and the code.

Rows are those of the format `forensics.tensor_stats/1`, in the order in which operators ran. `from` of an input is the
`order` of the operator that last wrote its memory, so the rows hold the data flow of forward and backward. Backward
operators carry the autograd node and its sequence number, which is that of the forward operator they belong to.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forensics_recorder.values import statistics

# Operators that only make or mark memory say nothing about where a value comes from.
_SILENT = frozenset(
    f"aten::{name}" for name in ("detach", "empty_like", "zeros_like", "ones_like", "new_zeros", "new_empty", "empty")
)
_MAX_ROWS = 200_000
_MAX_FRAMES = 40


class OperatorRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Use as `with recorder: ...` around forward and backward. Rows gather in `rows`, at most 200 000.

    Raises nothing of its own into the recorded code; `fault` keeps the first thing that went wrong here.
    """

    def __init__(self, model: Any, step: int) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self.fault: str | None = None
        self._step = step
        self._order = -1
        self._modules: list[str] = []
        self._handles: list[Any] = []
        self._model = model
        self._writers: dict[int, int] = {}  # address of a storage: order of the operator that wrote it last
        self._owner: dict[int, str] = {}  # sequence number of an autograd node: path of the module that made it
        self._names: dict[int, str] = {}  # address of a parameter's storage: its name
        # Statistics by storage, then by place and version; forgotten when an operator writes to the storage.
        self._known: dict[int, dict[tuple[Any, ...], dict[str, Any]]] = {}

    def __enter__(self) -> OperatorRecorder:
        for name, parameter in self._model.named_parameters():
            self._names[_storage_of(parameter)] = name
        for name, module in self._model.named_modules():
            if name:
                enter = module.register_forward_pre_hook(lambda _m, _i, name=name: self._modules.append(name))
                leave = module.register_forward_hook(lambda _m, _i, _o: self._leave_module(), always_call=True)
                self._handles += [enter, leave]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().partition(".")[0]
        if func.is_view or name in _SILENT or len(self.rows) >= _MAX_ROWS:
            result = func(*args, **kwargs)
            if not func.is_view and name != "aten::detach":
                self._guarded(lambda: self._forget(*_floating(result)))
            return result
        inputs = self._guarded(lambda: [self._row(tensor, "input") for tensor in _floating((args, kwargs))]) or []
        result = func(*args, **kwargs)
        self._guarded(lambda: self._add(name, inputs, result))
        return result

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            self.fault = self.fault or f"{type(error).__name__}: {error}"
            return None

    def _add(self, name: str, inputs: list[dict[str, Any]], result: Any) -> None:
        self._order += 1
        outputs = []
        for tensor in _floating(result):
            self._forget(tensor)
            self._writers[_storage_of(tensor)] = self._order
            outputs.append(self._row(tensor, "output"))
        if not outputs:
            return
        node = torch._C._current_autograd_node()
        place: dict[str, Any] = {"step": self._step, "order": self._order, "op": name}
        if node is None:
            # The operator's autograd node is made before the operator runs, so the last number given is its own.
            sequence = torch._C._autograd._get_sequence_nr() - 1
            module = self._modules[-1] if self._modules else ""
            self._owner[sequence] = module
            place |= {"phase": "forward", "module": module, "sequence": sequence, "stack": _own_frames()}
        else:
            sequence = node._sequence_nr()
            place |= {"phase": "backward", "module": self._owner.get(sequence, ""), "sequence": sequence}
            place["autograd"] = node.name()
        now = time.time_ns()
        rows = [place | row | {"ts_ns": now} for row in (*inputs, *outputs)]
        for row in rows[1:]:
            row.pop("stack", None)
        self.rows += rows

    def _forget(self, *tensors: Any) -> None:
        """Memory that is given out anew holds other values than those seen there before."""
        for storage in map(_storage_of, tensors):
            self._known.pop(storage, None)
            self._writers.pop(storage, None)

    def _row(self, tensor: Any, role: str) -> dict[str, Any]:
        storage, place = _storage_of(tensor), _place_of(tensor)
        seen = self._known.setdefault(storage, {})
        if place not in seen:
            seen[place] = statistics(tensor)
        row = {"role": role} | seen[place] | {"version": tensor._version}
        writer = self._writers.get(storage)
        if role == "input":
            if storage in self._names:
                row["name"] = self._names[storage]
            elif writer is not None:
                row["from"] = writer
        if tensor.is_cuda:
            row["device"] = tensor.device.index
        return row

    def _leave_module(self) -> None:
        if self._modules:
            self._modules.pop()


def _floating(values: Any) -> Iterator[Any]:
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            yield leaf


def _storage_of(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr()) if tensor.layout == torch.strided else id(tensor)


def _place_of(tensor: Any) -> tuple[Any, ...]:
    if tensor.layout != torch.strided:
        return (tensor._version,)
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor._version


def _own_frames() -> list[tuple[str, str, int]]:
    """The job's frames, outermost first, without those of libraries and of these recorders."""
    here = str(Path(__file__).parent)
    frames: list[tuple[str, str, int]] = []
    frame: Any = sys._getframe(1)
    while frame and len(frames) < _MAX_FRAMES:
        file = frame.f_code.co_filename
        library = f"{os.sep}lib{os.sep}python" in file or f"{os.sep}site-packages{os.sep}" in file
        if not library and not file.startswith((here, "<")):
            frames.append((frame.f_code.co_name, file, frame.f_lineno))
        frame = frame.f_back
    return frames[::-1]
