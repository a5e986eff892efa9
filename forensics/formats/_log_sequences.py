"""Passes over whole exceptions, tracebacks above all, that say only what is not kept any more.

Thousands of processes fail alike: what the lines of one traceback are to each other holds for all that follow each
other in one process with the same words. An exception is known by the words of its lines, and of the line after it,
which ended it; what its message says is still asked of each, where digits have a say in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats import _log_judge as judge
from forensics.formats._log_blocks import CHECKED_EVERY, HEADER, QUIET_LINES, exception_line
from forensics.formats._log_blocks import Block as Message
from forensics.formats._log_catalogue import Catalogue
from forensics.formats._log_lines import Block
from forensics.formats._log_marks import Labels
from forensics.formats._log_prefix import parse
from forensics.formats._log_processes import Processes
from forensics.formats._log_rows import EventRows

MAX_LINES = 200  # of an exception that is passed over
_MANY = 48  # beginnings in one block, for which it pays
_MAX_KNOWN = 2_000
_MAX_WORDS = 4_000  # different ones in a block
_MAX_PREFIXES = 200_000
_MAX_PREFIX = 200  # characters that are no digits
_NO_DIGITS = str.maketrans("", "", "0123456789")


@dataclass
class Known:
    """An exception of which some came before. `message`: one of them; `decisive`: which line names its type.

    `kinds`: what it is counted under; None where that depends on digits. `follows`: words of lines that ended it.
    """

    message: Message
    decisive: int
    kinds: tuple[str, ...] | None
    follows: set[bytes]


class Run(NamedTuple):
    """The pieces of an exception of a process."""

    proc: int
    kinds: tuple[str, ...]
    pieces: list[int]
    decisive: int
    message: Message


class _Beginning(NamedTuple):
    """How lines of some words begin. `text`: what follows the prefix in one of them."""

    n_prefix: int  # characters of the prefix that are no digits
    text: str
    named: bool
    bare: bool  # without a logger's prefix
    marked: bool  # with the mark of a writer


class Sequences:
    def __init__(self, catalogue: Catalogue, labels: Labels, processes: Processes, events: EventRows) -> None:
        self._catalogue = catalogue
        self._labels = labels
        self._processes = processes
        self._events = events
        self._known: dict[tuple[bytes, ...], Known] = {}
        self._beginnings: dict[bytes, _Beginning | None] = {}
        self._procs: dict[tuple[bytes, bytes], int | None] = {}

    def learn(self, message: Message, text: str, kinds: list[str]) -> None:
        """Takes note of an exception that was only counted."""
        words, decisive, next_words = tuple(message.words), message.decisive, message.next_words
        if decisive is None or not message.is_plain or len(words) > MAX_LINES or b"" in words:
            return
        if decisive and HEADER.encode() not in words[0]:
            return  # its beginning is lost
        known = self._known.get(words)
        if known is not None:
            known.follows |= {next_words} - {b""}
            return
        is_blind = all(entry.is_blind for entry in self._catalogue.hinted(text))
        if len(self._known) < _MAX_KNOWN and (is_blind or decisive == len(words) - 1):
            self._known[words] = Known(message, decisive, tuple(kinds) if is_blind else None, {next_words} - {b""})

    def ends(self, message: Message, words: bytes) -> bool:
        """Whether a line ends an exception, as one of its words ended one like it."""
        known = self._known.get(tuple(message.words))
        return known is not None and message.is_plain and words in known.follows

    def may_go_on(self, block: Block, index: int) -> bool:
        """Whether a piece may be the next line of what another process wrote directly above it."""
        beginning = self._beginning(block, index) if index < len(block) else None
        return beginning is None or self._is_loose(beginning)

    def _is_loose(self, beginning: _Beginning) -> bool:
        """Whether such a line may go on with what another process wrote."""
        return beginning.bare and (not beginning.marked or self._labels.nested)

    def find(self, block: Block, notable: list[int]) -> dict[int, Run]:
        """Exceptions among the pieces of a block, by their first pieces."""
        if not self._known or len(block.words) > _MAX_WORDS:
            return {}
        code_of = {words: code for code, words in enumerate(block.words)}
        known: dict[int, dict[tuple[int, ...], Known]] = {}
        for words, item in self._known.items():
            codes = tuple(code_of.get(text, -1) for text in words)
            if -1 not in codes:
                known.setdefault(codes[0], {})[codes] = item
        starts = [index for index in notable if block.codes_view[index] in known]
        beginnings = [self._beginning(block, words) for words in self._examples(block)] if len(starts) >= _MANY else []
        if not beginnings or any(beginning is None for beginning in beginnings):
            return {}
        return self._find(block, starts, known, [beginning for beginning in beginnings if beginning is not None])

    def _find(
        self, block: Block, starts: list[int], known: dict[int, dict[tuple[int, ...], Known]], begin: list[_Beginning]
    ) -> dict[int, Run]:
        codes = block.codes_view
        procs = self._procs_of(block, begin)
        of_proc: dict[int | None, list[int]] = {}
        place = [0] * len(block)
        for index, proc in enumerate(procs):
            pieces = of_proc.setdefault(proc, [])
            place[index] = len(pieces)
            pieces.append(index)
        loose = {code for code, beginning in enumerate(begin) if self._is_loose(beginning)}
        lengths = {code: sorted({len(sequence) for sequence in found}) for code, found in known.items()}
        runs: dict[int, Run] = {}
        for start in starts:
            proc = procs[start]
            if proc is None or not (full := self._events.full(proc)):
                continue
            at, of_same = place[start], of_proc[proc]
            for length in lengths[codes[start]]:
                pieces = of_same[at : at + length]
                item = known[codes[start]].get(tuple([codes[piece] for piece in pieces]))
                if item is None or not _holds_together(pieces, item.decisive):
                    continue
                if not _is_ended(block, pieces[-1], of_same[at + length : at + length + 1], item.follows):
                    continue
                if proc and loose and any(codes[piece + 1] in loose for piece in pieces):
                    continue
                decisive = pieces[item.decisive]
                kinds = item.kinds or self._kinds(block, decisive, begin[codes[decisive]], item, full)
                if kinds is not None and full.issuperset(kinds):
                    runs[start] = Run(proc, kinds, pieces, decisive, item.message)
        return runs

    def _kinds(
        self, block: Block, index: int, begin: _Beginning, known: Known, full: frozenset[str] | set[str]
    ) -> tuple[str, ...] | None:
        """What an exception is counted under, by its decisive line; None for one of another type."""
        text = block.raw(index).decode("utf-8", "replace")
        before = _prefix(begin.n_prefix).match(text)
        found = exception_line(text[before.end() :].strip()) if before else None
        if found is None or found[0] != known.message.exception:
            return None
        matches = self._catalogue.match(f"{found[0]}: {found[1]}", full)
        return tuple(judge.kinds(known.message, matches, self._events.exception_kind))

    def _examples(self, block: Block) -> list[int]:
        """The first piece of each words."""
        examples: list[int] = []
        for index, code in enumerate(block.codes_view[: len(block)]):
            if code == len(examples):
                examples.append(index)
        return examples

    def _beginning(self, block: Block, index: int) -> _Beginning | None:
        words = block.words_of(index)
        if words not in self._beginnings:
            if len(self._beginnings) >= _MAX_PREFIXES:
                self._beginnings.clear()
            self._beginnings[words] = self._look_at(block.raw(index).decode("utf-8", "replace"))
        return self._beginnings[words]

    def _look_at(self, raw: str) -> _Beginning | None:
        line = parse(raw, self._labels)
        prefix = raw[: len(raw) - len(line.text)]
        n_prefix = len(prefix.translate(_NO_DIGITS))
        if line.partial or prefix[-1:].isdigit() or not raw.endswith(line.text) or not prefix.isascii():
            return None
        named = line.names_a_process or self._labels.by_digits
        bare = not line.prefixed and line.level is None
        return None if n_prefix > _MAX_PREFIX else _Beginning(n_prefix, line.text, named, bare, bool(line.marks))

    def _procs_of(self, block: Block, begin: list[_Beginning]) -> list[int | None]:
        """The process of each piece; None where it was not met yet."""
        procs: list[int | None] = [0] * len(block)
        widths: dict[int, list[int]] = {}
        for code, beginning in enumerate(begin):
            if beginning.named:
                widths.setdefault(beginning.n_prefix, []).append(code)
        for width, codes in widths.items():
            indices = pc.indices_nonzero(pc.is_in(block.codes, pa.array(codes, block.codes.type)))
            pattern = f"^(?P<prefix>(?:[0-9]*[^0-9]){{{width}}})"
            found = pc.struct_field(pc.extract_regex(block.pieces.take(indices), pattern), "prefix").dictionary_encode()
            prefixes = found.dictionary.to_pylist()
            known: dict[tuple[int, int], int | None] = {}
            pairs = zip(block.codes.take(indices).to_pylist(), found.indices.to_pylist(), strict=True)
            for index, pair in zip(indices.to_pylist(), pairs, strict=True):
                if pair not in known:
                    code, prefix = pair
                    begins = prefixes[prefix] if prefix is not None else None
                    known[pair] = None if begins is None else self._proc(block.words[code], begins, begin[code])
                procs[index] = known[pair]
        return procs

    def _proc(self, words: bytes, prefix: bytes, begin: _Beginning) -> int | None:
        key = words, prefix
        proc = self._procs.get(key)
        if proc is None:
            proc = self._processes.find(parse(prefix.decode() + begin.text, self._labels))
            if len(self._procs) >= _MAX_PREFIXES:
                self._procs.clear()
            self._procs[key] = proc
        return proc


def _holds_together(pieces: list[int], decisive: int) -> bool:
    """Whether no line comes so late that what it belongs to would be over."""
    gaps = enumerate(b - a for a, b in pairwise(pieces))
    return all(gap <= QUIET_LINES["frames" if n < decisive else "message"] for n, gap in gaps)


def _is_ended(block: Block, last: int, following: list[int], follows: set[bytes]) -> bool:
    """Whether nothing more comes of an exception. `following`: the next piece of its process, if there is one."""
    if following and block.words_of(following[0]) in follows:
        return True
    until = block.number(following[0] if following else len(block) - 1)
    return until - block.number(last) > QUIET_LINES["message"] + CHECKED_EVERY


@lru_cache(maxsize=256)
def _prefix(n_characters: int) -> re.Pattern[str]:
    """What matches a prefix of so many characters that are no digits, and digits before each of them."""
    return re.compile(rf"(?:[0-9]*[^0-9]){{{n_characters}}}", re.DOTALL)
