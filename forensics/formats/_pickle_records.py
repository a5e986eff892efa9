"""Reads runs of dicts that look alike out of a pickle as columns, without making the dicts.

Allocator events are most of a snapshot, and picklers write each of them alike: a dict of references to memoised keys,
each with an integer, a reference, a pair of integers or a list of references. All dicts in a window of the data are
parsed at once, field by field, by array operations. Where one begins is guessed from its first bytes; that is safe,
because a guess counts only if the dict before it, from a known opcode boundary on, ends exactly there. Whatever has
another form ends the run and is left to the walker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forensics.formats._pickle_memo import GONE, GONE_CODE, Array, Memo

_PAD = 64  # bytes that may be looked at behind the data
_MAX_FIELDS = 24
_MAX_LIST_ITEMS = 512
_H, _J, _U, _E, _MEMOIZE = (ord(c) for c in "hjue\x94")
_APPENDS_MARK = int.from_bytes(b"e(", "little")
_LONG_MASK = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
_ABSENT, _INT, _REF, _PAIR, _LIST = range(5)


@dataclass(frozen=True)
class Records:
    """A run of items. A column of numbers has its values and which of them are there; any other, numbers of values of
    the memo, 0 where absent."""

    n: int
    end: int  # index behind the last of them
    others: set[str]  # keys that were not asked for
    numbers: dict[str, tuple[Array, Array]]
    codes: dict[str, Array]


class Window:
    """All dicts in `data` from index `at` on. `columns`: key → whether its values are numbers."""

    def __init__(self, data: bytes, at: int, memo: Memo, columns: Mapping[str, bool]) -> None:
        self.data, self.first, self.memo = data, at, memo
        self.names = list(columns)
        self.wanted = {name: number for number, name in enumerate(columns)}
        self.is_number = list(columns.values())
        size = len(data) - at
        padded = np.zeros(size + _PAD, np.uint8)
        padded[:size] = np.frombuffer(data, np.uint8, size, at)
        self.u8 = padded
        self.u16, self.u32, self.u64 = (
            np.ndarray((size + _PAD - 8,), kind, padded, 0, (1,)) for kind in ("<u2", "<u4", "<u8")
        )
        self.size = size
        self.starts = self._candidates()
        n = len(self.starts)
        self.ends = np.full(n, -1, np.int64)
        self.n_puts = np.zeros(n, np.uint8)  # by MEMOIZE
        self.numbers = [np.zeros(n, np.uint64) for _ in columns]
        self.kinds = [np.zeros(n, np.uint8) for _ in columns]
        self.offsets: dict[int, Array] = {}  # column → MEMOIZEs of the record before the one of its value, or -1
        self.explicit: list[tuple[Array, Array, int]] = []  # records, memo indices, column or -1
        self.others: list[tuple[str, Array]] = []  # keys that are not wanted, and which records have them
        self._key_columns: dict[int, int] = {}
        if n:
            self._parse()
        trailer = self.u16[np.maximum(self.ends, 0)] == _APPENDS_MARK
        self.ends[(self.ends >= 0) & trailer] += 2
        self.ends[self.ends > size] = -1
        goes_on = (self.ends[:-1] == self.starts[1:]) & (self.ends[1:] >= 0)
        self.stops = np.append(np.flatnonzero(~goes_on), n - 1)

    def _candidates(self) -> Array:
        """Indices at which a dict of the form of the first may begin."""
        u8, size = self.u8, self.size
        form = bytes(u8[:7])
        if form[:1] != b"}":
            return np.zeros(0, np.int64)
        begins = u8[:size] == form[0]
        mark = {_MEMOIZE: 2, ord("q"): 3, ord("r"): 6}.get(form[1], 1)
        begins &= u8[mark : mark + size] == ord("(")
        if mark > 1:
            begins &= u8[1 : 1 + size] == form[1]
        self.form = mark
        return np.flatnonzero(begins)

    def _parse(self) -> None:
        starts = self.starts
        live = np.arange(len(starts))
        self.p = starts + self.form + 1
        if self.form == 2:
            self.n_puts += 1
        elif self.form == 3:
            self.explicit.append((live, self.u8[starts + 2].astype(np.int64), -1))
        elif self.form == 6:
            self.explicit.append((live, self.u32[starts + 2].astype(np.int64), -1))
        for _ in range(_MAX_FIELDS):
            live = self._field(live)
            if not len(live):
                return

    def _field(self, live: Array) -> Array:
        """Parses the next key and value of each record; gives the records that go on."""
        p = np.minimum(self.p[live], self.size)
        op = self.u8[p]
        done = op == _U
        if done.any():
            self._finish(live[done], p[done] + 1)
            live, p, op = live[~done], p[~done], op[~done]
        short = op == _H
        if short.all():
            index, p = self.u8[p + 1].astype(np.int64), p + 2
        else:
            long = op == _J
            index = np.where(short, self.u8[p + 1], self.u32[p + 1]).astype(np.int64)
            p = p + np.where(short, 2, 5)
            both = short | long
            live, p, index = live[both], p[both], index[both]
        if not len(live):
            return live
        if (index == index[0]).all():
            return self._value(live, p, int(index[0]))
        rest = []
        for one in np.unique(index).tolist()[:64]:
            mine = index == one
            rest.append(self._value(live[mine], p[mine], one))
        return np.concatenate(rest)

    def _column(self, index: int) -> int:
        """Number of the column whose key has this memo index; -1 for a key whose values are not wanted, -2 for none."""
        column = self._key_columns.get(index)
        if column is None:
            known = index in self.memo and type(self.memo[index]) is str and self.memo[index] is not GONE
            column = self.wanted.get(self.memo[index], -1) if known else -2
            self._key_columns[index] = column
        return column

    def _finish(self, live: Array, p: Array) -> None:
        op = self.u8[p]
        for code, width, view in ((ord("q"), 2, self.u8), (ord("r"), 5, self.u32)):
            puts = op == code
            if puts.any():
                self.explicit.append((live[puts], view[p[puts] + 1].astype(np.int64), -1))
                p = np.where(puts, p + width, p)
        self.ends[live] = p

    def _value(self, live: Array, p: Array, key: int) -> Array:
        """Parses one value of each record, of the key with this memo index."""
        column = self._column(key)
        if column == -2:
            return live[:0]
        if column == -1:
            self.others.append((self.memo[key], live))
        op = self.u8[p]
        rest = []
        for code in np.flatnonzero(np.bincount(op)).tolist():
            if len(op) == 1 or (op == code).all():
                mine, at = live, p
            else:
                chosen = op == code
                mine, at = live[chosen], p[chosen]
            rest.append(self._value_of(code, mine, at, column))
        return np.concatenate(rest) if len(rest) != 1 else rest[0]

    def _value_of(self, op: int, live: Array, p: Array, column: int) -> Array:
        is_number = column >= 0 and self.is_number[column]
        number: Array | None = None
        kind = _INT
        if op == _H:
            kind, number, p = _REF, self.u8[p + 1], p + 2
        elif op == _J:
            kind, number, p = _REF, self.u32[p + 1], p + 5
        elif op == ord("]"):
            return self._list(live, p, column)
        elif chr(op) in "N\x88\x89":
            kind, p = _ABSENT, p + 1
            if op != ord("N") and column >= 0:
                return live[:0]
        else:
            live, number, p = self._integer(op, live, p)
            if number is not None and column >= 0 and not is_number:
                live, number, p = self._pair(live, number, p, column)
                kind = _PAIR
        if number is None and kind:
            return live[:0]
        if kind == _REF and is_number:
            return live[:0]
        if column >= 0 and number is not None:
            self.numbers[column][live] = number
            self.kinds[column][live] = kind
        self.p[live] = p
        return live

    def _integer(self, op: int, live: Array, p: Array) -> tuple[Array, Array | None, Array]:
        """Integers that begin with this opcode; negative and wide ones are left out."""
        if op == ord("K"):
            return live, self.u8[p + 1], p + 2
        if op == ord("M"):
            return live, self.u16[p + 1], p + 3
        if op == ord("J"):
            number = self.u32[p + 1]
            fits = number < 1 << 31
            if fits.all():
                return live, number, p + 5
            return live[fits], number[fits], p[fits] + 5
        if op != 0x8A:
            return live, None, p
        size = self.u8[p + 1]
        fits = (size <= 8) | ((size == 9) & (self.u8[np.minimum(p + 10, self.size)] == 0))
        fits &= (size == 9) | (size == 0) | (self.u8[np.minimum(p + 1 + size, self.size)] < 0x80)  # the sign
        if not fits.all():
            live, p, size = live[fits], p[fits], size[fits]
        p = np.minimum(p, self.size)
        return live, self.u64[p + 2] & _LONG_MASK[np.minimum(size, 8)], p + 2 + size

    def _pair(self, live: Array, first: Array, p: Array, column: int) -> tuple[Array, Array | None, Array]:
        """Tuples of two integers below 2**32, the first of which has been read."""
        p = np.minimum(p, self.size)
        op = self.u8[p]
        commonest = int(np.bincount(op).argmax()) if len(op) else 0  # records with another are left to the walker
        mine = np.flatnonzero(op == commonest)
        mine, second, p = self._integer(commonest, mine, p[mine])
        if second is None:
            return live[:0], None, p[:0]
        p = np.minimum(p, self.size)
        live, first, second = live[mine], first[mine].astype(np.uint64), second.astype(np.uint64)
        whole = (self.u8[p] == 0x86) & (first < 1 << 32) & (second < 1 << 32)
        live, first, second, p = live[whole], first[whole], second[whole], p[whole]
        return live, first << np.uint64(32) | second, self._put(live, p + 1, column)

    def _put(self, live: Array, p: Array, column: int) -> Array:
        """Notes where values are memoised, if they are; gives the indices behind that."""
        op = self.u8[np.minimum(p, self.size)]
        memoized = op == _MEMOIZE
        if memoized.any():
            mine = live[memoized]
            if column >= 0:
                offsets = self.offsets.setdefault(column, np.full(len(self.starts), -1, np.int16))
                offsets[mine] = self.n_puts[mine]
            self.n_puts[mine] += 1
            p = p + memoized
        for code, width, view in ((ord("q"), 2, self.u8), (ord("r"), 5, self.u32)):
            puts = op == code
            if puts.any():
                self.explicit.append((live[puts], view[p[puts] + 1].astype(np.int64), column))
                p = np.where(puts, p + width, p)
        return p

    def _list(self, live: Array, p: Array, column: int) -> Array:
        """Lists of references."""
        if column >= 0 and self.is_number[column]:
            return live[:0]
        p = np.minimum(self._put(live, p + 1, column), self.size)
        marked = self.u8[p] == ord("(")
        p = p + marked
        low = p
        op = self.u8[p]
        step = _ITEM_BYTES[op]
        # Without a mark: no item, or one that APPEND follows.
        single = ~marked & (step > 0) & (self.u8[np.minimum(p + step, self.size)] == ord("a"))
        going = marked.copy()
        for _ in range(_MAX_LIST_ITEMS):
            step = _ITEM_BYTES[self.u8[p]] * going
            if not step.any():
                break
            p = np.minimum(p + step, self.size)
        closed = self.u8[p] == _E
        high = np.where(single, p + _ITEM_BYTES[op], p)
        p = np.where(marked, p + 1, np.where(single, high + 1, p))
        fits = ~marked | closed
        live, low, high, p = live[fits], low[fits], high[fits], p[fits]
        # Behind the items, where other writers memoise a list; CPython does before, so that is not asked for twice.
        op = self.u8[np.minimum(p, self.size)]
        if ((op == ord("q")) | (op == ord("r"))).any():
            p = self._put(live, p, column)
        if column >= 0:
            self.numbers[column][live] = low.astype(np.uint64) << np.uint64(32) | high.astype(np.uint64)
            self.kinds[column][live] = _LIST
        self.p[live] = p
        return live

    def run(self, at: int, memo_bound: int) -> Records | None:
        """The run of records from index `at` of the data on; their values are in the memo then."""
        at -= self.first
        i = int(np.searchsorted(self.starts, at))
        if i >= len(self.starts) or self.starts[i] != at or self.ends[i] < 0:
            return None
        last = int(self.stops[np.searchsorted(self.stops, i)])
        return self._resolved(i, last + 1, memo_bound)

    def _resolved(self, i: int, stop: int, memo_bound: int) -> Records | None:
        memo = self.memo
        n_before = len(memo)
        ends = n_before + np.cumsum(self.n_puts[i:stop], dtype=np.int64)  # of each record's part of the memo
        explicit = [
            (records[mine] - i, indices[mine], column)
            for records, indices, column in self.explicit
            if (mine := (records >= i) & (records < stop)).any()
        ]
        highest = max((int(indices.max()) for _, indices, _ in explicit), default=0)
        if max(int(ends[-1]), highest) >= memo_bound:
            return None
        memo.extend(int(ends[-1]) - n_before)
        codes: dict[str, Array] = {}
        known = np.ones(stop - i, np.bool_)
        wanted = [(c, name) for c, name in enumerate(self.names) if not self.is_number[c]]
        for column, name in wanted:
            codes[name] = self._new_values(column, i, stop, known)
            if column in self.offsets:
                offset = self.offsets[column][i:stop].astype(np.int64)
                mine = offset >= 0
                memo.codes[(ends - self.n_puts[i:stop] + offset)[mine]] = codes[name][mine]
        for records, indices, column in explicit:
            is_wanted = column >= 0 and not self.is_number[column]
            memo.put(indices, codes[self.names[column]][records] if is_wanted else GONE_CODE)
        for column, name in wanted:
            self._look_up(column, i, stop, codes[name], known)
        if not known.all():
            memo.shrink(n_before)
            good = int(np.argmin(known))
            return self._resolved(i, i + good, memo_bound) if good else None
        numbers = {
            name: (self.numbers[c][i:stop], self.kinds[c][i:stop] == _INT)
            for c, name in enumerate(self.names)
            if self.is_number[c]
        }
        others = {key for key, records in self.others if ((records >= i) & (records < stop)).any()}
        return Records(stop - i, int(self.ends[stop - 1]) + self.first, others, numbers, codes)

    def _new_values(self, column: int, i: int, stop: int, known: Array) -> Array:
        """Numbers of the values that records i to stop hold themselves; clears `known` where one cannot be made."""
        kinds, numbers = self.kinds[column][i:stop], self.numbers[column][i:stop]
        codes = np.zeros(stop - i, np.int32)
        pairs = kinds == _PAIR
        if pairs.any():
            of_pairs = numbers[pairs]
            if (of_pairs == of_pairs[0]).all():
                codes[pairs] = self._pair_code(int(of_pairs[0]))
            else:
                distinct, which = np.unique(of_pairs, return_inverse=True)
                codes[pairs] = np.array([self._pair_code(n) for n in distinct.tolist()], np.int32)[which]
        lists = np.flatnonzero(kinds == _LIST)
        if len(lists):
            places = numbers[lists].tolist()
            data, first, of = self.data, self.first, self.memo.lists
            texts = [data[first + (n >> 32) : first + (n & 0xFFFFFFFF)] for n in places]
            of.update((text, code) for text in set(texts).difference(of) if (code := self._list_code(text)))
            codes[lists] = [of.get(text, 0) for text in texts]
            known[lists[codes[lists] == 0]] = False
        return codes

    def _pair_code(self, number: int) -> int:
        pairs = self.memo.pairs
        if number not in pairs:
            pairs[number] = self.memo.add((number >> 32, number & 0xFFFFFFFF))
        return pairs[number]

    def _list_code(self, items: bytes) -> int:
        """Number of the list with items of these opcodes; 0 where they refer to nothing."""
        found: list[Any] = []
        at = 0
        while at < len(items):
            width = 1 if items[at] == _H else 4
            index = int.from_bytes(items[at + 1 : at + 1 + width], "little")
            if index not in self.memo:
                return 0
            found.append(self.memo[index])
            at += 1 + width
        return self.memo.add(found)

    def _look_up(self, column: int, i: int, stop: int, codes: Array, known: Array) -> None:
        """Adds the numbers of values that are references; clears `known` where they refer to nothing that was kept."""
        refs = np.flatnonzero(self.kinds[column][i:stop] == _REF)
        if not len(refs):
            return
        indices = self.numbers[column][i:stop][refs]
        inside = indices < len(self.memo.codes)
        found = self.memo.codes[np.where(inside, indices, 0).astype(np.int64)]
        codes[refs] = found
        known[refs[~inside | (found <= GONE_CODE)]] = False


_ITEM_BYTES = np.zeros(256, np.int64)
_ITEM_BYTES[_H], _ITEM_BYTES[_J] = 2, 5
