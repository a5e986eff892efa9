"""Tells notable lines that say nothing, or only what has been said thousands of times, without taking them.

What a line hints at follows from its words, but whether it says so also from its digits: for the words of a line it
is worked out once which entries of the catalogue come into question, and each line is searched for these alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats import _log_judge as judge
from forensics.formats._log_blocks import CAUSE, DURING, FRAME, HEADER, bare_exception_line
from forensics.formats._log_catalogue import MATCHED_CHARACTERS, Catalogue, Signature
from forensics.formats._log_forms import forms_of, holds_identifier
from forensics.formats._log_lines import Block, joined
from forensics.formats._log_marks import Labels, Line
from forensics.formats._log_metrics import may_count
from forensics.formats._log_prefix import parse
from forensics.formats._log_processes import Processes
from forensics.formats._log_rows import EventRows
from forensics.formats._log_sequences import Run, Sequences
from forensics.formats._log_tables import starts_table

_NO_DIGITS = str.maketrans("", "", "0123456789")
_MAX_WORDS = 20_000
_LOOKS = ("(?!", "(?=", "(?<!", "(?<=")
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?<?[!=]|.", re.DOTALL)
_MANY_SEARCHED = 200
_SEARCHED_BYTES = 2000
# Bytes on which `re` and RE2 do not agree whether they are letters or spaces.
_OTHERWISE = re.compile(rb"[\x80-\xff\x0b\x1c-\x1f]")
# Entries with consequences beyond their row.
_TAKEN = {"fatal-python-error", "faulthandler-timeout", "anomaly-forward", "anomaly-induced", "nccl-init"}
# What the following of tracebacks, dumps and tests looks for.
_FOLLOWED = re.compile(
    r"NVIDIA-SMI |NVSMI LOG|(?:memory|temperature|utilization|power)\.(?:gpu|used|total|free|draw)\b|above exception"
    r"|\| +File \"|\| [\w.]+(?:Error|Group): "
    r"|Exception (?:ignored|in|Group)|Logging error|most recent call|Process [\w-]+:|Warning: "
    r"|\.py::|={3}|\.\.\.\s*$|(?:ok|PASSED|XFAIL|FAIL|ERROR|FAILED)\s*(?:\[ *\d+%\])?\s*$"
    r"|(?:^|\.\.\. ?|::\S+ )skipped\b|Thread [\da-fx]* \((?:active|idle|Thread |LWP|process )|TID \d*:"
)
# A prefix where none belongs: another process began its line there.
_CUT = re.compile(
    r"(?:\]|>): ?\[(?:rank\d|\d+,\d+\]<std)|\]: ?\[default\d|[^\]>\s:] ?\[(?:rank\d|default\d|\d+,\d+\]<std)"
)


class Hints(NamedTuple):
    """What lines of some words may say. `prefix` matches what stands before their text, `line` is one of them."""

    entries: tuple[Signature, ...]
    prefix: re.Pattern[str]
    line: Line
    named: bool  # they may name their process
    skippable: bool  # lines that say nothing need not even be counted to their process
    blind: bool  # what they say does not depend on values
    counting: bool  # they may say a step or metrics


class Flood(NamedTuple):
    """What a piece says of which no more rows are kept. `calm`: its process need not be told from the line."""

    key: tuple[int, tuple[str, ...]]  # process and kinds
    calm: bool


class Sorted(NamedTuple):
    """Pieces that have to be taken; those among them that only tell of a process that writes; those that say only what
    is not kept any more."""

    taken: list[int]
    quiet: set[int]
    flood: dict[int, Flood]
    runs: dict[int, Run]  # exceptions of the same kind, by their first pieces


class Quiet:
    def __init__(
        self, catalogue: Catalogue, labels: Labels, processes: Processes, events: EventRows, sequences: Sequences
    ) -> None:
        self._catalogue = catalogue
        self._labels = labels
        self._processes = processes
        self._events = events
        self._hints: dict[bytes, Hints | None] = {}
        self._said: dict[bytes, int] = {}
        self._meanings: dict[bytes, tuple[str, ...] | None] = {}
        self.sequences = sequences

    def sort(self, block: Block, notable: list[int]) -> Sorted:
        found = Sorted([], set(), {}, self.sequences.find(block, notable))
        passed = {index for run in found.runs.values() for index in run.pieces}
        for form, indices in self._alike(block, [index for index in notable if index not in passed]):
            hints = self._hints_of(block, indices[0], form)
            if hints is None or self._said.get(form) == self._events.n_full:
                found.taken.extend(indices)
                continue
            if not hints.named:
                self._processes.number(hints.line)
            self._sort_alike(block, found, form, hints, indices)
        of_runs = {index for run in found.runs.values() for index in run.pieces}
        found.quiet.update(of_runs.difference(notable))
        found.taken.extend(of_runs.difference(found.taken))
        found.taken.sort()
        return found

    def _alike(self, block: Block, notable: list[int]) -> Iterator[tuple[bytes, list[int]]]:
        """Pieces of one form, or of the same words where their values have a say in what they mean."""
        if not notable:
            return
        alike = forms_of(block.pieces.take(pa.array(notable, pa.int32())))
        of_form: list[list[int]] = [[] for _ in range(len(alike.dictionary))]
        for index, code in zip(notable, alike.indices.to_pylist(), strict=True):
            of_form[code].append(index)
        of_words: dict[bytes, list[int]] = {}
        for form, indices in zip(alike.dictionary.to_pylist(), of_form, strict=True):
            hints = self._hints_of(block, indices[0], form)
            if hints is not None and hints.blind:
                yield form, indices
            else:
                of_words.setdefault(block.words_of(indices[0]), []).extend(indices)
        yield from of_words.items()

    def _sort_alike(self, block: Block, found: Sorted, form: bytes, hints: Hints, indices: list[int]) -> None:
        known: dict[tuple[int, tuple[str, ...]], Flood] = {}
        for index, kinds in self._kinds(block, indices, hints, form):
            proc = self._proc_of(block, index, hints) if kinds and self._events.n_full else None
            if kinds is None or (kinds and not self._is_counted_only(block, index, proc, kinds)):
                found.taken.append(index)
                self._said[form] = self._events.n_full  # most likely the next ones say it, too
            elif kinds and proc is not None:
                calm = not hints.named and not hints.counting
                found.flood[index] = known.setdefault((proc, kinds), Flood((proc, kinds), calm))
            elif not hints.skippable:
                found.taken.append(index)
                found.quiet.add(index)

    def _kinds(
        self, block: Block, indices: list[int], hints: Hints, form: bytes
    ) -> Iterator[tuple[int, tuple[str, ...] | None]]:
        """What the pieces say: kinds of events. None where that is not known."""
        if hints.blind:
            if form not in self._meanings:
                self._meanings[form] = self._kinds_in(block.raw(indices[0]), hints)
            yield from zip(indices, repeat(self._meanings[form]))
            return
        found = self._search(block, indices, hints) if len(indices) >= _MANY_SEARCHED else None
        if found is not None:
            yield from found
            return
        for index in indices:
            yield index, self._kinds_in(block.raw(index), hints)

    def _search(
        self, block: Block, indices: list[int], hints: Hints
    ) -> Iterator[tuple[int, tuple[str, ...] | None]] | None:
        """What pieces say, searched with RE2 all at a time; None for texts in which `re` may find something else."""
        pieces = block.pieces.take(pa.array(indices, pa.int32()))
        if _OTHERWISE.search(joined(pieces)) or pc.max(pc.binary_length(pieces)).as_py() > _SEARCHED_BYTES:
            return None
        texts = pc.replace_substring_regex(pieces, f"^{hints.prefix.pattern}", "", max_replacements=1)
        meaning = pa.nulls(len(indices), pa.int64()).fill_null(0)
        for number, entry in enumerate(hints.entries):
            says = _matching(entry, texts)
            meaning = pc.bit_wise_or(meaning, pc.if_else(says, 1 << number, 0))
        kinds = {number: self._kinds_of(hints, number) for number in meaning.unique().to_pylist()}
        if not judge.may_be_error(hints.line.level, hints.line.text):
            kinds[0] = ()
        return (
            (index, self._kinds_in(block.raw(index), hints) if (said := kinds[number]) is None else said)
            for index, number in zip(indices, meaning.to_pylist(), strict=True)
        )

    def _kinds_of(self, hints: Hints, meaning: int) -> tuple[str, ...] | None:
        """The kinds by the entries that match, if these alone tell."""
        said = judge.said_by(self._catalogue.unrefined([e for n, e in enumerate(hints.entries) if meaning >> n & 1]))
        return None if not said or any(e.apart for e in said) else tuple(e.name for e in said)

    def _kinds_in(self, raw: bytes, hints: Hints) -> tuple[str, ...] | None:
        text = raw.decode("utf-8", "replace")
        before = hints.prefix.match(text)
        if before is None:
            return None
        text = text[before.end() :]
        matches = {e.name: m for e in hints.entries if (m := e.regex.search(text[:MATCHED_CHARACTERS]))}
        if matches:
            said = judge.said_by(self._catalogue.unrefined([e for e in hints.entries if e.name in matches]))
            return tuple(e.kind(matches[e.name]) for e in said)
        if judge.may_be_error(hints.line.level, text) and judge.looks_like_error(hints.line, text):
            return (judge.UNNAMED_ERROR,)
        return ()

    def _is_counted_only(self, block: Block, index: int, proc: int | None, kinds: tuple[str, ...]) -> bool:
        if proc is None or not self._events.full(proc).issuperset(kinds):
            return False
        return proc == 0 or not self.sequences.may_go_on(block, index + 1)

    def _proc_of(self, block: Block, index: int, hints: Hints) -> int | None:
        """The process of a piece, if it has been met."""
        line = parse(block[index].text, self._labels) if hints.named else hints.line
        return self._processes.find(line)

    def _hints_of(self, block: Block, index: int, form: bytes) -> Hints | None:
        if form not in self._hints:
            if len(self._hints) >= _MAX_WORDS:
                self._hints.clear()
                self._said.clear()
                self._meanings.clear()
            self._hints[form] = self._look_at(block[index].text)
        return self._hints[form]

    def _look_at(self, raw: str) -> Hints | None:
        line = parse(raw, self._labels)
        text = line.text
        prefix = raw[: len(raw) - len(text)]
        if line.partial or prefix[-1:].isdigit() or not raw.endswith(text) or not prefix.isascii():
            return None
        if not _is_ordinary(text) or _CUT.search(raw):
            return None
        entries = tuple(self._catalogue.hinted(text))
        if any(entry.name in _TAKEN for entry in entries):
            return None
        n_words = len(prefix.translate(_NO_DIGITS))
        pattern = re.compile(rf"(?:[0-9]*[^0-9]){{{n_words}}}", re.DOTALL)
        blind = not holds_identifier(prefix) and all(entry.is_blind for entry in entries)
        named = line.names_a_process or self._labels.by_digits
        counting = may_count(text)
        return Hints(entries, pattern, line, named, not named or counting, blind, counting)


def _matching(entry: Signature, texts: pa.Array) -> pa.Array:
    """Which texts an entry's pattern matches: RE2 tells those that may, `re` those that do where they differ."""
    pattern = without_looks(entry.pattern)
    try:
        may = pc.match_substring_regex(texts, pattern)
    except pa.ArrowInvalid:  # more repetitions than RE2 allows
        may = pa.repeat(pa.scalar(True), len(texts))
    else:
        if pattern == entry.pattern or not may.true_count:
            return may
    pairs = zip(may.to_pylist(), texts.to_pylist(), strict=True)
    return pa.array([said and entry.regex.search(text.decode()) is not None for said, text in pairs], pa.bool_())


@lru_cache(maxsize=4096)
def without_looks(pattern: str) -> str:
    """A pattern without its look-arounds, which RE2 does not know: it matches all that the given one does."""
    kept: list[str] = []
    depth, inside = 0, 0  # of brackets, and of those the one that opened a look-around
    for part in _PARTS.findall(pattern):
        opens = part.startswith("(")
        depth += opens - (part == ")")
        if not inside and part in _LOOKS:
            inside = depth
        elif not inside:
            kept.append(part)
        elif depth < inside:
            inside = 0
    return "".join(kept)


def _is_ordinary(text: str) -> bool:
    return not (
        HEADER in text
        or CAUSE in text
        or DURING in text
        or _FOLLOWED.search(text)
        or FRAME.match(text)
        or starts_table(text)
        or bare_exception_line(text.strip())
    )
