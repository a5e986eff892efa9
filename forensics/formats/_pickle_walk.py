"""Walks the opcodes of a pickle in Python, within bounds, and keeps what was built before damage.

A container that was placed in another one is closed: nothing can be added to it. So there are no cycles, and its height
is known when it is placed. Picklers never need it otherwise for plain data.
"""

from __future__ import annotations

import codecs
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forensics.errors import ArtifactError, Truncated, Untrusted

MAX_DEPTH = 20  # snapshots and flight-recorder dumps need 8
MAX_TEXT_BYTES = 1 << 24
_MAX_MARKS = 4 * MAX_DEPTH
_MAX_DIGITS = 40
_MAX_INTEGER_BYTES = 255
_CONTAINERS = frozenset({list, dict, tuple})
_U32 = struct.Struct("<I").unpack_from
_I32 = struct.Struct("<i").unpack_from


@dataclass(frozen=True)
class Pickled:
    """The value of a pickle. `error` says why and where reading stopped early; None when it was read to its end."""

    value: Any
    end: int  # offset behind the last opcode that was read
    error: ArtifactError | None = None


def container_bound(n_bytes: int) -> int:
    """Lists, dicts and tuples that a pickle may hold: an empty one takes 1 byte there, 64 here; real files have 20."""
    return 100_000 + n_bytes // 6


def memo_bound(n_bytes: int) -> int:
    """Memo entries that a pickle may hold; picklers number them from 0, so also the bound of an index."""
    return 100_000 + n_bytes // 4


def walk_pickle(data: bytes) -> Pickled:
    """Value of the first pickle in `data`; raises as `read_pickle` does. `data` may be the beginning of a pickle."""
    return Walker(data).run()


class Walker:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = self.start = 0  # indices of the next byte and of the current opcode
        self.steps = STEPS
        self.stack: list[Any] = []
        self.levels: list[list[Any]] = []  # the stacks below open marks, outermost first
        self.memo: Any = {}  # index → value
        self.heights: dict[int, int] = {}  # of closed containers, by id
        self.kept: list[Any] = []  # values taken off again, so that no id is used twice
        self.containers_left = container_bound(len(data))
        self.memo_bound = memo_bound(len(data))

    def run(self) -> Pickled:
        while True:
            try:
                while True:
                    self.start = self.at
                    opcode = self.data[self.start]
                    self.at += 1
                    if opcode == 0x2E:  # STOP
                        return self.whole()
                    self.steps[opcode](self)
            except (IndexError, struct.error):
                if not self.read_on():
                    return self.salvage(Truncated("the pickle ends early", byte=self.offset(self.start)))
            except ArtifactError as error:
                if not isinstance(error, Truncated) or not self.read_on():
                    error.byte = self.offset(self.start)
                    return self.salvage(error)
            except (KeyError, ValueError, OverflowError, TypeError, MemoryError) as error:
                opcode = self.data[self.start]
                what = f"opcode {opcode:#04x} cannot be read ({type(error).__name__}: {str(error)[:100]})"
                return self.salvage(ArtifactError(what, byte=self.offset(self.start)))

    def whole(self) -> Pickled:
        if self.levels or len(self.stack) > 1:
            raise ArtifactError("the end of the pickle amid a value")
        return Pickled(self.pop(), self.offset(self.at))

    def read_on(self) -> bool:
        """Gets more data for the opcode at `start`, which then is read again; False at the end of the data."""
        return False

    def offset(self, at: int) -> int:
        return at  # in the artifact, of an index of `data`

    def take(self, n: int) -> bytes:
        if not 0 <= n <= MAX_TEXT_BYTES:
            raise Untrusted(f"a text of {n} bytes; expected at most {MAX_TEXT_BYTES}")
        end = self.at + n
        if end > len(self.data):
            raise Truncated(f"the pickle ends early, inside {n} bytes of one value")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at, self.at + MAX_TEXT_BYTES)
        if end < 0:
            raise Truncated("the pickle ends early, inside a line")
        found = self.data[self.at : end]
        self.at = end + 1
        return found

    def pop(self) -> Any:
        if not self.stack:
            raise ArtifactError("an opcode without its operand")
        return self.stack.pop()

    def popped_mark(self) -> list[Any]:
        if not self.levels:
            raise ArtifactError("an opcode without its mark")
        items = self.stack
        self.stack = self.levels.pop()
        return items

    def popped(self, n: int) -> list[Any]:
        if len(self.stack) < n:
            raise ArtifactError("an opcode without its operands")
        items = self.stack[-n:]
        del self.stack[-n:]
        return items

    def target(self) -> Any:
        if not self.stack:
            raise ArtifactError("items without a container")
        return self.stack[-1]

    def push_new(self, container: Any) -> Any:
        self.containers_left -= 1
        if self.containers_left < 0:
            raise Untrusted("more containers than data of this size has")
        self.stack.append(container)
        return container

    def remember(self, index: int) -> None:
        if len(self.memo) >= self.memo_bound:
            raise Untrusted("more memo entries than data of this size has")
        value = self.target()
        if index in self.memo:
            self.kept.append(self.memo[index])
        self.memo[index] = value

    def close(self, value: Any) -> None:
        """Measures a value that is being placed in a container; from then on it cannot grow."""
        heights = self.heights
        if id(value) in heights:
            return
        parts = value.values() if type(value) is dict else value
        height = 1 + max((heights.get(id(p), 1) for p in parts if type(p) in _CONTAINERS), default=0)
        if height >= MAX_DEPTH:
            raise Untrusted(f"containers nested deeper than {MAX_DEPTH}")
        heights[id(value)] = height

    def place_items(self, items: list[Any], target: Any) -> None:
        if type(target) is not list or id(target) in self.heights:
            raise ArtifactError(f"items for a {type(target).__name__}; expected a list that is not yet part of another")
        for item in items:
            if type(item) in _CONTAINERS:
                self.close(item)
        if id(target) in self.heights:
            raise Untrusted("a list that contains itself")
        target.extend(items)

    def place_pairs(self, flat: list[Any], target: Any) -> None:
        if type(target) is not dict or id(target) in self.heights:
            raise ArtifactError(f"pairs for a {type(target).__name__}; expected a dict that is not yet part of another")
        for key, value in zip(flat[::2], flat[1::2], strict=False):
            # Hashing a tuple walks all of it; wide integers can be chosen to have equal hashes.
            if type(key) is not str and not (type(key) is int and -(1 << 63) <= key < 1 << 63):
                raise Untrusted("a dict key that is neither a text nor a small number")
            if type(value) in _CONTAINERS:
                self.close(value)
            if key in target:
                self.kept.append(target[key])
            target[key] = value
        if id(target) in self.heights:
            target.clear()
            raise Untrusted("a dict that contains itself")

    def push_tuple(self, items: list[Any]) -> None:
        for item in items:
            if type(item) in _CONTAINERS:
                self.close(item)
        self.push_new(tuple(items))

    def salvage(self, error: ArtifactError) -> Pickled:
        """What was built before the error: unfinished containers are placed where they were about to go."""
        levels = [*self.levels, self.stack]
        owners = [type(level[-1]) if level else None for level in ([], *self.levels)]
        while self.stack and type(self.stack[-1]) is int and owners[-1] is not list:
            self.stack.pop()  # perhaps of a tuple that is not whole
        inner: list[Any] = []
        for level, owner in zip(reversed(levels), reversed(owners), strict=True):
            if level and inner:
                self._place_what_fits(level[-1], inner)
            self._fold(level, owner)
            inner = level
        if not inner or error.byte is None:
            raise error
        return Pickled(inner[0], error.byte, error)

    def _fold(self, level: list[Any], owner: type | None) -> None:
        """Places what lies on top of the unfinished value of a level into that value.

        Which value is unfinished follows from its owner: a dict takes key, value, key, value; a list takes items that
        are taken to be of one type.
        """
        first = 0
        if owner is dict:
            while first + 2 < len(level) and type(level[first + 2]) is str:
                first += 2
            first += 1
        elif owner is list:
            while first + 1 < len(level) and type(level[first + 1]) is type(level[0]):
                first += 1
        unfinished = [i for i in range(first, len(level)) if type(level[i]) in (list, dict)]
        if len(unfinished) > MAX_DEPTH:
            del level[unfinished[MAX_DEPTH] :]
        while len(level) - first > 1:
            is_pair = len(level) - first > 2 and type(level[-2]) is str and type(level[-3]) is dict
            items = level[-2:] if is_pair else level[-1:]
            del level[-len(items) :]
            self._place_what_fits(level[-1], items)

    def _place_what_fits(self, target: Any, items: list[Any]) -> None:
        try:
            if type(target) is list:
                self.place_items(items, target)
            elif type(target) is dict:
                self.place_pairs(items, target)
        except ArtifactError:
            self.kept.append(items)


def _integer_line(walker: Walker) -> None:
    text = walker.line()
    if text in (b"00", b"01"):
        walker.stack.append(text == b"01")
    elif len(text) > _MAX_DIGITS:
        raise Untrusted(f"an integer of {len(text)} digits")
    else:
        walker.stack.append(int(text.removesuffix(b"L")))


def _float_line(walker: Walker) -> None:
    walker.stack.append(float(walker.line()[:64]))


def _long(walker: Walker, n: int) -> None:
    if not 0 <= n <= _MAX_INTEGER_BYTES:
        raise Untrusted(f"an integer of {n} bytes")
    walker.stack.append(int.from_bytes(walker.take(n), "little", signed=True))


def _int32(walker: Walker) -> int:
    return int.from_bytes(walker.take(4), "little", signed=True)


def _text(walker: Walker, n: int) -> None:
    walker.stack.append(walker.take(n).decode("utf-8", "replace"))


def _quoted_line(walker: Walker) -> None:
    text = walker.line()
    if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
        raise ArtifactError("a text without its quotes")
    walker.stack.append(codecs.escape_decode(text[1:-1])[0].decode("utf-8", "replace"))


def _mark(walker: Walker) -> None:
    if len(walker.levels) >= _MAX_MARKS:
        raise Untrusted(f"more than {_MAX_MARKS} open marks")
    walker.levels.append(walker.stack)
    walker.stack = []


def _pop(walker: Walker) -> None:
    if walker.stack:
        walker.kept.append(walker.stack.pop())
    else:
        walker.popped_mark()


def _refuse(walker: Walker) -> None:
    code = walker.data[walker.at - 1]
    known = pickletools.code2op.get(chr(code))  # type: ignore[attr-defined]
    if known is None:
        raise ArtifactError(f"byte {code:#04x} where an opcode was expected")
    raise Untrusted(
        f"refused: untrusted opcode {known.name}{_asked_for(walker, known.name)}; expected data that imports and calls"
        " nothing"
    )


def _asked_for(walker: Walker, opcode: str) -> str:
    """What a refused opcode would import, where it says so."""
    names: list[Any] = []
    if opcode in ("GLOBAL", "INST"):
        names = [part.decode("utf-8", "replace") for part in walker.data[walker.at :][:200].split(b"\n")[:2]]
    elif opcode == "STACK_GLOBAL":
        names = walker.stack[-2:]
    said = ".".join(name for name in names if type(name) is str)[:100]
    return f" ({said})" if said.isprintable() and said else ""


def _memoize(walker: Walker) -> None:
    walker.remember(len(walker.memo))


def _binget(walker: Walker) -> None:
    at = walker.at
    walker.stack.append(walker.memo[walker.data[at]])
    walker.at = at + 1


def _long_binget(walker: Walker) -> None:
    at = walker.at
    walker.stack.append(walker.memo[_U32(walker.data, at)[0]])
    walker.at = at + 4


def _binint(walker: Walker) -> None:
    at = walker.at
    walker.stack.append(_I32(walker.data, at)[0])
    walker.at = at + 4


def _binint1(walker: Walker) -> None:
    at = walker.at
    walker.stack.append(walker.data[at])
    walker.at = at + 1


def _short_text(walker: Walker) -> None:
    start = walker.at + 1
    end = start + walker.data[start - 1]
    if end > len(walker.data):
        raise Truncated("the pickle ends early, inside a text")
    walker.stack.append(walker.data[start:end].decode("utf-8", "replace"))
    walker.at = end


def _protocol(walker: Walker) -> None:
    if (protocol := walker.number(1)) > 5:
        raise ArtifactError(f"pickle protocol {protocol}; expected 0 to 5")


STEPS: list[Callable[[Walker], object]] = [_refuse] * 256
for _opcode, _step in {
    b"\x80": _protocol,
    b"\x95": lambda w: w.take(8),  # a frame: only how far to read ahead
    b"(": _mark,
    b"\x94": _memoize,
    b"p": lambda w: w.remember(int(w.line()[:_MAX_DIGITS])),
    b"q": lambda w: w.remember(w.number(1)),
    b"r": lambda w: w.remember(w.number(4)),
    b"g": lambda w: w.stack.append(w.memo[int(w.line()[:_MAX_DIGITS])]),
    b"h": _binget,
    b"j": _long_binget,
    b"0": _pop,
    b"1": lambda w: w.kept.extend(w.popped_mark()),
    b"2": lambda w: w.stack.append(w.target()),
    b"N": lambda w: w.stack.append(None),
    b"\x88": lambda w: w.stack.append(True),
    b"\x89": lambda w: w.stack.append(False),
    b"I": _integer_line,
    b"L": _integer_line,
    b"F": _float_line,
    b"J": _binint,
    b"K": _binint1,
    b"M": lambda w: w.stack.append(w.number(2)),
    b"\x8a": lambda w: _long(w, w.number(1)),
    b"\x8b": lambda w: _long(w, _int32(w)),
    b"G": lambda w: w.stack.append(struct.unpack(">d", w.take(8))[0]),
    b"V": lambda w: w.stack.append(w.line().decode("raw-unicode-escape", "replace")),
    b"\x8c": _short_text,
    b"X": lambda w: _text(w, w.number(4)),
    b"\x8d": lambda w: _text(w, w.number(8)),
    b"S": _quoted_line,
    b"T": lambda w: _text(w, _int32(w)),
    b"U": lambda w: _text(w, w.number(1)),
    b"C": lambda w: w.stack.append(w.take(w.number(1))),
    b"B": lambda w: w.stack.append(w.take(w.number(4))),
    b"]": lambda w: w.push_new([]),
    b"l": lambda w: w.place_items(w.popped_mark(), w.push_new([])),
    b"a": lambda w: w.place_items(w.popped(1), w.target()),
    b"e": lambda w: w.place_items(w.popped_mark(), w.target()),
    b"}": lambda w: w.push_new({}),
    b"d": lambda w: w.place_pairs(w.popped_mark(), w.push_new({})),
    b"s": lambda w: w.place_pairs(w.popped(2), w.target()),
    b"u": lambda w: w.place_pairs(w.popped_mark(), w.target()),
    b")": lambda w: w.stack.append(()),
    b"t": lambda w: w.push_tuple(w.popped_mark()),
    b"\x85": lambda w: w.push_tuple(w.popped(1)),
    b"\x86": lambda w: w.push_tuple(w.popped(2)),
    b"\x87": lambda w: w.push_tuple(w.popped(3)),
}.items():
    STEPS[_opcode[0]] = _step
