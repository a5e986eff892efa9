"""Reads pickles of any size with little memory: items of chosen lists are handed over as soon as they are complete.

Between items it stands at an opcode boundary, so a run of items that look alike can be read as columns
(`_pickle_records`), many times faster than opcode by opcode. What was handed over is forgotten, apart from what later
opcodes may refer to: texts, and what the taker says to keep. A reference to a forgotten item gives `GONE`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple, Protocol

from forensics.errors import Untrusted
from forensics.formats._pickle_memo import GONE, Memo
from forensics.formats._pickle_records import Records, Window
from forensics.formats._pickle_walk import MAX_TEXT_BYTES, STEPS, Pickled, Walker

_CHUNK_BYTES = 4 << 20
_MAX_BUFFER_BYTES = MAX_TEXT_BYTES + 2 * _CHUNK_BYTES
_MAX_LIVE_CONTAINERS = 8_000_000  # that a pickle may need at one time; 64 to 250 bytes each
_BATCH = 1000  # items, as CPython batches them; others put all items of a list in one batch
_FEW_RECORDS = 64  # one by one these take as long as an attempt to read columns
_MAX_WAIT = 256
_FRAME = 0x95


class ListPlace(NamedTuple):
    """Which list items belong to: its key in the outermost dict (None: it is the outermost value), or, when that holds
    lists, the ordinal of the list in it."""

    key: str | None
    ordinal: int | None


class Taker(Protocol):
    def accepts(self, place: ListPlace, item: Any) -> bool:
        """Whether items such as this one, of the list at `place`, are to be handed over."""

    def take_items(self, place: ListPlace, items: list[Any]) -> None:
        """Takes complete items, in order."""

    def columns(self, place: ListPlace) -> Mapping[str, bool] | None:
        """Keys whose values `take_records` wants, and whether these are numbers; None: never read as columns."""

    def take_records(self, place: ListPlace, records: Records) -> None:
        """Takes a run of items as columns."""

    def kept(self, value: Any) -> Any:
        """What to remember of a list or dict within a taken item, for later references to it."""


class Opcodes:
    """The opcodes of a pickle without frame headers, which only say how far to read ahead."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._frame_left = 2  # the protocol stands before the first frame
        self._framed: bool | None = None
        self._ends: list[int] = []  # where frame headers were taken out
        self._n_given = 0
        self._n_raw = 0

    def read(self) -> bytes:
        """The next few megabytes; empty at the end."""
        raw = self._stream.read(_CHUNK_BYTES)
        if self._framed is None:
            self._framed = raw[:2] in (b"\x80\x04", b"\x80\x05")
        if not self._framed:
            self._n_raw += len(raw)
            self._n_given += len(raw)
            return raw
        parts = []
        at = 0
        while at < len(raw) and self._framed:
            if self._frame_left == 0:
                if raw[at] != _FRAME:  # a long text, or the end: frames behind it are left to the walker
                    self._framed = False
                    parts.append(raw[at:])
                    break
                raw += self._stream.read(max(at + 9 - len(raw), 0))
                self._frame_left = int.from_bytes(raw[at + 1 : at + 9], "little")
                self._ends.append(self._n_given + sum(map(len, parts)))
                at += 9
                continue
            part = raw[at : at + self._frame_left]
            parts.append(part)
            at += len(part)
            self._frame_left -= len(part)
        data = b"".join(parts)
        self._n_raw += len(raw)
        self._n_given += len(data)
        return data or (self.read() if raw else b"")

    def offset(self, at: int) -> int:
        """Offset in the pickle of a position in what `read` gave."""
        return at + 9 * bisect_right(self._ends, at)

    def drain(self) -> int:
        """Reads to the end; gives the size of all."""
        while raw := self._stream.read(_CHUNK_BYTES):
            self._n_raw += len(raw)
        return self._n_raw


class StreamWalker(Walker):
    def __init__(self, stream: BinaryIO, taker: Taker) -> None:
        super().__init__(b"")
        self.opcodes = Opcodes(stream)
        self.taker = taker
        self.memo: Memo = Memo()
        self.steps = _STREAM_STEPS
        self._base = 0  # position of data[0] among all opcodes
        self._ended = False
        self._salvaging = False
        self._heights_kept = 0
        self._first_value = len(self.memo.values)
        self._records_of: list[Any] | None = None  # the list whose items came as columns last
        self._window: Window | None = None
        self._wait = 0
        self._penalty = 1
        self._read(0)

    def read_on(self) -> bool:
        self.at = self.start
        return len(self.data) - self.start <= _MAX_BUFFER_BYTES and self._read(self.start)

    def offset(self, at: int) -> int:
        return self.opcodes.offset(self._base + at)

    def _read(self, first: int) -> bool:
        """Gets more data, forgetting what lies before index `first`."""
        more = b"" if self._ended else self.opcodes.read()
        self._ended = not more
        if self._ended:
            return False
        self.data = self.data[first:] + more
        self.at -= first
        self.start -= first
        self._base += first
        self._window = None
        self.containers_left = min(self.containers_left + len(more) // 6, _MAX_LIVE_CONTAINERS)
        self.memo_bound += len(more) // 4
        return True

    def remember(self, index: int) -> None:
        if index >= self.memo_bound:  # the memo is an array
            raise Untrusted("a memo index beyond what data of this size needs")
        super().remember(index)

    def place_items(self, items: list[Any], target: Any) -> None:
        if self._salvaging or not self._hand_over(items, self.levels, self.stack):
            super().place_items(items, target)

    def popped_mark(self) -> list[Any]:
        items = super().popped_mark()
        is_of_list = bool(self.stack and items) and type(self.stack[-1]) is list and type(items[0]) is dict
        return self._rest(items, self.levels, self.stack) if is_of_list else items

    def _rest(self, items: list[Any], levels: list[list[Any]], level: list[Any]) -> list[Any]:
        """Hands over the complete items that come first, whatever damage put behind them; gives the others."""
        n = next((i for i, item in enumerate(items) if type(item) is not dict or not item), len(items))
        return items[n:] if self._hand_over(items[:n], levels, level) else items

    def _hand_over(self, items: list[Any], levels: list[list[Any]], level: list[Any]) -> bool:
        """Gives items to the taker if it wants those of the list on top of `level`."""
        place = _place_of(levels, level) if items else None
        if place is None or not self.taker.accepts(place, items[0]):
            return False
        self.taker.take_items(place, items)
        self._forget(len(items))
        return True

    def _forget(self, n_items: int) -> None:
        """Lets go of what only taken items hold."""
        values, kept = self.memo.values, self.taker.kept
        alive = {}
        for number in range(self._first_value, len(values)):
            if type(values[number]) in (list, dict):
                values[number] = kept(values[number])
            if type(values[number]) in (list, dict, tuple):
                alive[id(values[number])] = values[number]
        n_new = len(self.heights) - self._heights_kept
        known = {k: h for k, h in (self.heights.popitem() for _ in range(n_new)) if k in alive}
        self.heights.update(known)
        self.kept.clear()
        self._heights_kept = len(self.heights)
        self._first_value = len(values)
        self.containers_left = min(self.containers_left + n_new + n_items - len(known), _MAX_LIVE_CONTAINERS)

    def open_dict(self) -> None:
        """A dict begins: perhaps the next item of a list whose items are handed over."""
        levels, stack = self.levels, self.stack
        if levels and len(levels) <= 3 and levels[-1] and type(levels[-1][-1]) is list and not self._wait_for_items():
            if stack and self._hand_over(stack, levels[:-1], levels[-1]):
                self._records_of = levels[-1][-1]
                stack.clear()
            if not stack and self._records_of is levels[-1][-1] and self._take_records():
                return
        self.push_new({})

    def _wait_for_items(self) -> bool:
        if self._wait and len(self.stack) < _BATCH:
            self._wait -= 1
            return True
        return False

    def _take_records(self) -> bool:
        """Reads items as columns from the current opcode on; False where that one cannot be read so."""
        place = _place_of(self.levels[:-1], self.levels[-1])
        names = self.taker.columns(place) if place is not None else None
        if place is None or names is None:
            self._wait = _BATCH
            return False
        n_taken = 0
        self.at = self.start
        while True:
            if len(self.data) - self.at < _CHUNK_BYTES // 4 and not self._ended:
                self._read(self.at)
            if self._window is None:
                self._window = Window(self.data, self.at, self.memo, names)
            records = self._window.run(self.at, self.memo_bound)
            if records is None:
                break
            n_taken += records.n
            self.at = records.end
            self._first_value = len(self.memo.values)
            self.taker.take_records(place, records)
        self._penalty = 1 if n_taken > _FEW_RECORDS else min(self._penalty * 2, _MAX_WAIT)
        self._wait = self._penalty
        if n_taken == 0:
            self.at += 1
        return n_taken > 0

    def salvage(self, error: Any) -> Pickled:
        """Hands over complete items first; of what is then left, the last is not whole."""
        stacks = [*self.levels, self.stack]
        for depth in range(1, len(stacks)):
            stacks[depth][:] = self._rest(stacks[depth], stacks[: depth - 1], stacks[depth - 1])
        self._salvaging = True
        return super().salvage(error)


def _place_of(levels: list[list[Any]], level: list[Any]) -> ListPlace | None:
    """Where the list on top of `level` lies; None for one that lies deeper than the two outermost containers."""
    ordinal: int | None = None
    if not level or type(level[-1]) is not list:
        return None
    if not levels and len(level) == 1:
        return ListPlace(None, None)
    if levels and levels[-1] and type(levels[-1][-1]) is list:  # one of several that wait to be placed in a list
        ordinal = len(levels[-1][-1]) + len(level) - 1
        levels, level = levels[:-1], levels[-1]
    elif len(level) > 1 and type(level[-2]) is list:
        ordinal = len(level[-2])
        level = level[:-1]
    # Keys and values wait above a mark, or a single pair lies on its dict.
    is_pair = (
        len(levels) == len(levels[0]) == 1 and type(levels[0][0]) is dict
        if levels
        else len(level) == 3 and type(level[0]) is dict
    )
    key = level[-2] if is_pair and len(level) > 1 else None
    return ListPlace(key, ordinal) if type(key) is str else None


_STREAM_STEPS: list[Callable[[Any], object]] = list(STEPS)
_STREAM_STEPS[ord("}")] = StreamWalker.open_dict

__all__ = ["GONE", "ListPlace", "Records", "StreamWalker", "Taker"]
