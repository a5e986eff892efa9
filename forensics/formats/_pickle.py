"""Reads pickles of plain data (None, booleans, numbers, texts, lists, dicts, tuples) and nothing else.

No opcode that looks up, imports or calls anything is ever executed. Two readers give the same value:

* Undamaged pickles of protocol 2 and later whose every opcode passes a scan of the bytes go to the C unpickler with all
  look-ups closed. Some streams without any look-up still harm it, so the scan also refuses memo indices beyond what
  the size allows (it allocates up to the index), sizes beyond the end, and all tuples but pairs of integers and pairs
  of texts or references that nothing can refer to (hashing a deep or doubled tuple as a key overflows the stack or
  never ends).
* Everything else is walked in Python, about ten times slower, and what was built before damage is kept.

Values can share parts: a list of lists of lists can denote far more than fits in memory. Never walk a value
recursively; `shown` renders one safely.
"""

from __future__ import annotations

import gc
import io
import json
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn

from forensics.errors import Untrusted
from forensics.formats._pickle_walk import MAX_TEXT_BYTES, Pickled, container_bound, memo_bound, walk_pickle

__all__ = ["Pickled", "gc_paused", "read_pickle", "shown", "walk_pickle"]


def read_pickle(data: bytes) -> Pickled:
    """Value of the first pickle in `data`, as far as it can be read.

    When nothing was built before reading had to stop, raises Untrusted for a refused opcode or an exceeded bound,
    Truncated for an early end and ArtifactError for other damage, each with its byte; else that error is in the result.
    """
    with gc_paused():
        end = _scan(data)
        if end is None:
            return walk_pickle(data)
        try:
            # The buffer matters: without `peek` the C unpickler calls `read` for every opcode outside frames.
            return Pickled(_Sealed(io.BufferedReader(io.BytesIO(data), 1 << 20)).load(), end)
        except Exception:  # whatever is wrong with it: the walker says what and where, and keeps the rest
            return walk_pickle(data)


@contextmanager
def gc_paused() -> Iterator[None]:
    """While millions of containers are made, none of them garbage: looking for garbage triples the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def shown(value: Any, limit: int = 1000) -> str:
    """Text of a value out of a pickle, at most `limit` characters: JSON, with parts below the first level cut."""
    if isinstance(value, str):
        return value[:limit]
    if type(value) is dict:
        value = {str(k)[:100]: _flat(v) for k, v in list(value.items())[:limit]}
    elif type(value) in (list, tuple):
        value = [_flat(v) for v in value[:limit]]
    else:
        value = _flat(value)
    return json.dumps(value)[:limit]


def _flat(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float):
        return value
    return value[:1000] if isinstance(value, str) else f"<{type(value).__name__} of {len(value)}>"


class _Sealed(pickle.Unpickler):
    """The C unpickler with every look-up closed: a second wall behind the scan."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise Untrusted(f"global {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise Untrusted("persistent id")


def _scan(data: bytes) -> int | None:
    """Offset behind STOP when the C unpickler can be trusted with `data`, else None."""
    if not data.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        return None
    if data.count(b"]") + data.count(b"}") > container_bound(len(data)):
        return None
    grammar = _grammar(min(memo_bound(len(data)) >> 16, 0xFFFF), newer=data[1] >= 4)
    at = 2
    while True:
        match = grammar.match(data, at)
        if match is not None:
            at = match.end()
        opcode = data[at : at + 1]
        if opcode == b".":
            return at + 1
        size = int.from_bytes(data[at + 1 : at + 5], "little")
        if opcode == b"X" and 256 <= size <= MAX_TEXT_BYTES:
            at += 5 + size
        elif match is None:
            return None


@lru_cache(maxsize=8)
def _grammar(memo_high: int, newer: bool) -> re.Pattern[bytes]:
    """Whole opcodes that need no context to be harmless; memo indices up to about `memo_high` << 16.

    Every alternative is a sequence of whole opcodes, so that any match is the one way to read the bytes. `newer`: with
    the opcodes of protocol 4, a third slower.
    """
    frame = rb"(?:\x95...\0{5})?" if newer else b""  # a frame may begin between any two opcodes
    # Up to 64 bits: of wider integers, any number with equal hashes can be chosen as keys.
    long = rb"\x8a(?:\x08.{8}|\x06.{6}|\x07.{7}|\x05.{5}|\x09.{8}\x00|\x04.{4}|\x03.{3}|\x02..|\x01.|\x00)"
    integer = rb"(?:K.|M..|J....|" + long + rb")"
    pair = rb"(?:" + frame + integer + frame + rb"\x86)?"  # TUPLE2 of the integer before and this one
    integers = rb"K." + pair + rb"|M.." + pair + rb"|J...." + pair + rb"|" + long + pair
    index = rb".." + _byte_range(0, min(memo_high, 255)) + _byte_range(0, memo_high >> 8)
    memoize = rb"|\x94" if newer else b""
    put = rb"(?:" + frame + rb"(?:q.|r" + index + memoize + rb"))?"
    text = _sized(rb"X", b"\0\0\0") + (rb"|" + _sized(rb"\x8c", b"") if newer else b"")
    text = rb"(?:" + text + rb")"
    # TUPLE2 of the reference or text before and this one. It is not memoised, so no tuple holds it: what a reference
    # gives is no such tuple.
    tuple_of_two = frame + rb"\x86(?!" + frame + rb"[q\x94r])"
    named = rb"(?:" + frame + rb"(?:h.|j....|" + text + put + rb")" + tuple_of_two + rb")?"
    # A mark, items and APPENDS or SETITEMS; without items these do nothing, whatever lies below, and would let a tuple
    # be memoised behind them.
    mark = rb"\((?!" + frame + rb"[eu])"
    empty = rb"[\]}]" + put + frame + rb"\(" + frame + rb"[eu]"
    # Nearly all opcodes are references, most of them keys with values behind them: runs of these are faster.
    value = rb"[N\x88\x89]|\]" + mark + rb"(?:\]" + mark + rb")?|" + integers + rb"|" + text + put + tuple_of_two
    opcodes = [  # the commonest first
        rb"h.(?:" + value + rb"|(?:h.)++(?:" + tuple_of_two + rb"|" + value + rb")?)?",
        rb"[eu]++",
        rb"[\]}]?" + mark,
        empty,
        rb"[as\]}N\x88\x89)" + memoize[1:] + rb"]",
        integers,
        rb"q.",
        rb"j...." + named,
        rb"r" + index,
        text + put + named,
        rb"G.{8}",
        *([rb"\x95...\0{5}"] if newer else []),  # a frame; sizes beyond what picklers write would be allocated at once
    ]
    return re.compile(rb"(?:" + rb"|".join(opcodes) + rb"){1,4096}+", re.DOTALL)


def _byte_range(low: int, high: int) -> bytes:
    return b"[%s-%s]" % (re.escape(bytes([low])), re.escape(bytes([high])))


def _sized(opcode: bytes, size_rest: bytes) -> bytes:
    """Pattern of a text with a one-byte size; in groups, so that no size takes more than 32 comparisons."""
    groups = []
    for low in range(0, 256, 16):
        sizes = [re.escape(bytes([n])) + size_rest + (b".{%d}" % n if n else b"") for n in range(low, low + 16)]
        groups.append(b"(?=%s)(?:%s)" % (_byte_range(low, low + 15), b"|".join(sizes)))
    return opcode + b"(?:" + b"|".join(groups) + b")"
