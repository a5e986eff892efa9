"""Reads pickles that rebuild tensors without importing or calling anything: what they name becomes inert records.

A name out of `_REBUILT` is known to give a tensor or a container, and is read as one. Any other name becomes an
`Opaque` with what was to be given to it. Names that checkpoints of tensors do not need are told in `foreign`: such a
pickle is refused by `torch.load(weights_only=True)`, and without that it runs the code behind the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forensics.errors import ArtifactError, Untrusted
from forensics.formats._pickle_walk import STEPS, Pickled, Walker

_MAX_NAME = 300
_MAX_FOREIGN = 100


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle looks up."""

    module: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Storage:
    """Where the data of tensors lies: `key` names it in the file; `n_elements` of `dtype`."""

    dtype: str | None
    key: str
    location: str
    n_elements: int


@dataclass(eq=False, slots=True)
class Tensor:
    """`storage` None: a tensor of the meta device, which has no data. `offset` and `stride` in elements."""

    storage: Storage | None
    offset: int
    shape: Any
    stride: Any
    dtype: str | None = None


@dataclass(eq=False, slots=True)
class Opaque:
    """Something of a name that is not looked up: what it was to be made of, and its state."""

    name: str
    arguments: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)


def walk_symbolically(
    data: bytes, known: Mapping[str, Tensor | Storage] | None = None
) -> tuple[Pickled, dict[str, int]]:
    """Value of the first pickle in `data`, as `walk_pickle` gives it, and the foreign names with the byte of each.

    `known`: what persistent ids stand for, where they are keys; else they tell storages themselves.
    """
    walker = SymbolicWalker(data, known)
    return walker.run(), walker.foreign


class SymbolicWalker(Walker):
    def __init__(self, data: bytes, known: Mapping[str, Tensor | Storage] | None = None) -> None:
        super().__init__(data)
        self.steps = _STEPS
        self.known = known
        self.foreign: dict[str, int] = {}

    def place_pairs(self, flat: list[Any], target: Any) -> None:
        if type(target) is Opaque:
            target.items.extend(zip(flat[::2], flat[1::2], strict=False))
            return
        for place in range(0, len(flat) - 1, 2):
            if type(flat[place]) is Opaque and type(target) is dict and id(target) not in self.heights:
                # Records are keys by their identity: nothing is compared.
                target[flat[place]] = flat[place + 1]
                flat[place : place + 2] = [_KEY, None]
            elif type(flat[place]) not in {str, int}:
                flat[place] = f"<{type(flat[place]).__name__} {len(target)}>"
        super().place_pairs(flat, target)
        if type(target) is dict:
            target.pop(_KEY, None)

    def place_items(self, items: list[Any], target: Any) -> None:
        if type(target) is Opaque:
            target.items.extend(items)
        else:
            super().place_items(items, target)

    def push_global(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str) or len(module) + len(name) > _MAX_NAME:
            raise Untrusted("a name that is no text or too long")
        found = Global(module, name)
        if not is_expected(found) and len(self.foreign) < _MAX_FOREIGN:
            self.foreign.setdefault(found.path, self.offset(self.start))
        self.stack.append(found)

    def push_record(self, record: Any) -> None:
        self.containers_left -= 1
        if self.containers_left < 0:
            raise Untrusted("more records than data of this size has")
        self.stack.append(record)


_KEY = "\0record"


def is_expected(name: Global) -> bool:
    """Whether checkpoints of tensors name it; all others say what else would be imported."""
    if name.module == "torch":
        return name.name.endswith("Storage") or name.name in _TORCH_NAMES
    return (
        name.path in _REBUILT or name.path in _PLAIN or name.module.startswith("torch.distributed.checkpoint.metadata")
    )


def dtype_of_storage(name: str) -> str | None:
    """float32 of FloatStorage; None of an untyped one."""
    return _STORAGES.get(name.removesuffix("Storage"))


_STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
    "QInt8": "qint8",
    "QUInt8": "quint8",
    "QInt32": "qint32",
}
_TORCH_NAMES = {
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16"),
    *(
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "complex32",
        "qint8",
        "quint8",
        "qint32",
        "Size",
        "device",
        "Tensor",
    ),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "strided", "sparse_coo"),
    *("per_tensor_affine", "per_channel_affine", "contiguous_format", "preserve_format"),
}
# Names that plain Python values need. They are kept as records, or as what they stand for.
_PLAIN = {
    "collections.Counter",
    "collections.deque",
    "builtins.set",
    "builtins.frozenset",
    "builtins.slice",
    "builtins.complex",
    "__builtin__.set",
    "_codecs.encode",
    "argparse.Namespace",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.WindowsPath",
    "datetime.timedelta",
    "datetime.datetime",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "torch.serialization._get_layout",
    "torch.storage.UntypedStorage",
    "torch.nn.parameter.Parameter",
}


def _tensor(a: tuple[Any, ...]) -> Any:
    return Tensor(a[0], a[1], a[2], a[3], a[0].dtype)


def _typed_tensor(a: tuple[Any, ...]) -> Any:
    return Tensor(a[0], a[1], a[2], a[3], _dtype_name(a[6]) or a[0].dtype)


def _meta_tensor(a: tuple[Any, ...]) -> Any:
    return Tensor(None, 0, a[1], a[2], _dtype_name(a[0]))


def _dtype_name(value: Any) -> str | None:
    return value.name if isinstance(value, Global) else None


# What gives a value that can be read without the name behind it.
_REBUILT: Mapping[str, Callable[[tuple[Any, ...]], Any]] = {
    "collections.OrderedDict": lambda a: {},
    "collections.defaultdict": lambda a: {},
    "builtins.dict": lambda a: {},
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_qtensor": _tensor,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta_tensor,
    "torch._utils._rebuild_parameter": lambda a: a[0],
    "torch._utils._rebuild_parameter_with_state": lambda a: a[0],
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": lambda a: a[0],
    "torch._tensor._rebuild_from_type_v2": lambda a: _call(a[0], a[2]),
    "torch.Size": lambda a: a[0],
    "torch.device": lambda a: ":".join(str(part)[:40] for part in a),
}


def _call(function: Any, arguments: Any) -> Any:
    """What calling would give, as far as it can be told without calling."""
    if not isinstance(function, Global) or type(arguments) is not tuple:
        return Opaque("unknown", ())
    rebuild = _REBUILT.get(function.path)
    if rebuild is not None:
        try:
            made = rebuild(arguments)
        except (IndexError, AttributeError, TypeError) as error:
            raise ArtifactError(f"{function.path} with arguments that it does not take") from error
        if type(made) is not Tensor or made.storage is None or type(made.storage) is Storage:
            return made
    return Opaque(function.path, arguments)


def _reduce(walker: Walker) -> None:
    arguments, function = walker.pop(), walker.pop()
    made = _call(function, arguments)
    if type(made) is dict:
        walker.push_new(made)
    else:
        _symbolic(walker).push_record(made)


def _new_object(walker: Walker, n: int) -> None:
    parts = walker.popped(n)
    name = parts[0].path if isinstance(parts[0], Global) else "unknown"
    made = _call(parts[0], parts[1]) if name in _REBUILT else Opaque(name, parts[1])
    _symbolic(walker).push_record(made)


def _from_mark(walker: Walker) -> None:
    parts = walker.popped_mark()
    name = parts[0].path if parts and isinstance(parts[0], Global) else "unknown"
    _symbolic(walker).push_record(Opaque(name, tuple(parts[1:])))


def _build(walker: Walker) -> None:
    state, target = walker.pop(), walker.target()
    walker.kept.append(state)  # so that no id is used twice
    if type(target) is Opaque:
        target.state = state


def _persistent(walker: Walker) -> None:
    told = walker.pop()
    known = _symbolic(walker).known
    if known is not None:
        # A module comes as a tuple of its class and its source.
        of_class = told[0].path if type(told) is tuple and told and isinstance(told[0], Global) else None
        made = Opaque(of_class) if of_class else known.get(str(told)) if type(told) in {str, int} else None
        if made is None:
            raise ArtifactError("a persistent id that names nothing in the file")
        _symbolic(walker).push_record(made)
        return
    if type(told) is not tuple or len(told) < 5 or told[0] != "storage" or type(told[4]) is not int:
        raise ArtifactError("a persistent id that is no storage")
    kind = told[1].name if isinstance(told[1], Global) else ""
    _symbolic(walker).push_record(Storage(dtype_of_storage(kind), str(told[2])[:200], str(told[3])[:40], told[4]))


def _global_lines(walker: Walker) -> None:
    module, name = (walker.line().decode("utf-8", "replace") for _ in range(2))
    _symbolic(walker).push_global(module, name)


def _instance_lines(walker: Walker) -> None:
    module, name = (walker.line().decode("utf-8", "replace") for _ in range(2))
    arguments = tuple(walker.popped_mark())
    _symbolic(walker).push_global(module, name)
    walker.pop()
    _symbolic(walker).push_record(Opaque(f"{module}.{name}", arguments))


def _stack_global(walker: Walker) -> None:
    name, module = walker.pop(), walker.pop()
    _symbolic(walker).push_global(module, name)


def _symbolic(walker: Walker) -> SymbolicWalker:
    assert isinstance(walker, SymbolicWalker)
    return walker


_STEPS: list[Callable[[Walker], object]] = list(STEPS)
for _opcode, _step in {
    b"c": _global_lines,
    b"i": _instance_lines,
    b"o": _from_mark,
    b"\x93": _stack_global,
    b"R": _reduce,
    b"\x81": lambda w: _new_object(w, 2),
    b"\x92": lambda w: _new_object(w, 3),
    b"b": _build,
    b"Q": _persistent,
    b"\x8f": lambda w: w.push_new([]),
    b"\x90": lambda w: w.place_items(w.popped_mark(), w.target()),
    b"\x91": lambda w: w.push_tuple(w.popped_mark()),
    b"\x8e": lambda w: w.stack.append(w.take(w.number(8))),
    b"\x96": lambda w: w.stack.append(w.take(w.number(8))),
}.items():
    _STEPS[_opcode[0]] = _step
