"""Finds the lines of a block that are worth looking at, by words first: most lines repeat the words of others.

A pattern is searched once in each text without digits, in a weaker form, and in full only in the lines of those texts
that the weaker form finds. Many texts at a time are searched with RE2 (pyarrow), few with `re`: RE2 compiles anew at
each call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._log_catalogue import trie
from forensics.formats._log_lines import DIGITS, Block
from forensics.formats._log_quiet import Quiet, Sorted

_FEW = 300  # texts up to which `re` is the faster one
_KNOWN_WORDS = 50_000
_KNOWN_BYTES = 1024  # of words that are remembered
_NOTABLE, _COUNTING = pa.scalar(1, pa.uint8()), pa.scalar(2, pa.uint8())

_ATOM = re.compile(
    r"(?P<gone>(?:\\d|\[\d-\d\])(?:[+*?]|\{[\d,]+\})?|\\b)"
    r"|(?P<one>\\w|\[(?:\\.|[^\]\\])+\])(?P<times>[+*?]|\{[\d,]+\})?|\\."
)


def without_digits(pattern: str) -> str:
    """A pattern that matches a text without its digits wherever the given one matches the text itself.

    For patterns of `\\d`, `\\w`, `\\b`, classes, groups, alternatives and literals that hold no digits.
    """

    def weaker(m: re.Match[str]) -> str:
        if m["one"] is None or not any(re.fullmatch(m["one"], digit) for digit in DIGITS.decode()):
            return "" if m["gone"] else m[0]
        times = m["times"] or "?"
        return m["one"] + ("{0" + times[times.index(",") :] if times[0] == "{" else times.replace("+", "*"))

    return _ATOM.sub(weaker, pattern)


class Pattern:
    """A regular expression out of what RE2 and `re` have in common, to search in many lines."""

    def __init__(self, structure: str, literals: Sequence[str] = ()) -> None:
        no_digits = str.maketrans("", "", DIGITS.decode())
        plain = {literal.translate(no_digits) for literal in literals}
        self._source = "|".join([trie(literals), structure] if literals else [structure])
        self._weak_source = "|".join(
            [trie(plain), without_digits(structure)] if literals else [without_digits(structure)]
        )
        self._regex = re.compile(self._source.encode())
        self._weak_regex = re.compile(self._weak_source.encode())

    def weakly_matching(self, words: Sequence[bytes]) -> list[bool]:
        """Which texts without digits may belong to lines that match."""
        if len(words) <= _FEW:
            return [self._weak_regex.search(text) is not None for text in words]
        found: list[bool] = pc.match_substring_regex(pa.array(words, pa.binary()), self._weak_source).to_pylist()
        return found

    def matching(self, block: Block, indices: pa.Array) -> list[int]:
        """Which of a block's pieces match."""
        if len(indices) <= _FEW:
            return [index for index in indices.to_pylist() if self._regex.search(block.raw(index))]
        mask = pc.match_substring_regex(block.pieces.take(indices), self._source)
        found: list[int] = indices.filter(mask).to_pylist()
        return found


class Marks(NamedTuple):
    """Indices of pieces: those that are notable, and among those not to be taken the ones that may count."""

    notable: Sorted
    counting: pa.Array


class Scan:
    def __init__(self, notable: Pattern, counting: Pattern) -> None:
        self._notable = notable
        self._counting = counting
        self._known: dict[bytes, int] = {}

    def mark(self, block: Block, quiet: Quiet) -> Marks:
        flags = pa.array(self._flags(block.words), pa.uint8()).take(block.codes)
        suspects = pc.indices_nonzero(pc.bit_wise_and(flags, _NOTABLE))
        suspected = self._notable.matching(block, suspects) if len(suspects) else []
        found = quiet.sort(block, suspected)
        counting = bytearray(pc.bit_wise_and(flags, _COUNTING).buffers()[1])[: len(flags)]
        for index in found.taken:
            counting[index] = 0
        left = pa.Array.from_buffers(pa.uint8(), len(counting), [None, pa.py_buffer(counting)])
        return Marks(found, pc.indices_nonzero(left))

    def counting(self, block: Block, indices: pa.Array) -> list[int]:
        """Which of the pieces that may be lines of numbers are."""
        return self._counting.matching(block, indices)

    def _flags(self, words: Sequence[bytes]) -> list[int]:
        new = [text for text in words if text not in self._known]
        notable, counting = self._notable.weakly_matching(new), self._counting.weakly_matching(new)
        flags = {text: a + 2 * b for text, a, b in zip(new, notable, counting, strict=True)}
        found = [self._known[text] if text in self._known else flags[text] for text in words]
        if len(self._known) + len(flags) > _KNOWN_WORDS:
            self._known.clear()
        self._known.update((text, flag) for text, flag in flags.items() if len(text) <= _KNOWN_BYTES)
        return found
