"""The signature catalogue: `signatures/*.toml` read once, searched fast, entry by entry only where a hint occurs.

Keys of an entry, whose table name is the signature's name:

* `pattern`: Python `re`, searched in one message with its line breaks; named groups become fields, typed by the
  suffix of their names (`_log_fields`). Bounded quantifiers only: messages are hostile.
* `hints`: literals of which one is in every text that the pattern matches; they decide the speed of reading.
* `class`, `role`, `source`, `level`: columns of log_event. `refines`: entries that a match of this one replaces.
* `parts`: further fields, each with a pattern of one group, or `{ pattern, combine = "first | last | sum | count" }`.
* `cases`: `{ when = FIELD, is = [VALUES] }` or `{ when = FIELD, matches = PATTERN }` with other columns or fields.
* `apart`: captured fields whose values tell kinds apart, so that a flood of one hides none of another.
* `constants`: fields of every match. `example`, `examples`, `near_miss`: texts that must and must not match.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from forensics.formats._log_fields import Value, combine, own_process_bytes, typed

FOLDER = Path(__file__).resolve().parent / "signatures"
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))
_WITHOUT_VALUES = re.compile(r"\{\d+(?:,\d*)?\}|\\d|0-9|\(\?P<\w+>")
_KNOWN_TEXTS = 8192
_KNOWN_CHARACTERS = 1024
MATCHED_CHARACTERS = 16 * 1024  # of a message; bounds the cost of patterns on hostile lines


_Named = TypeVar("_Named", "Match", "Signature")


@dataclass(frozen=True)
class Case:
    """Another role, class or level, or a further field, where a captured field has some value."""

    when: str
    values: frozenset[str]
    matches: str | None
    changes: dict[str, str]

    def holds(self, value: Value | None) -> bool:
        if value is None:
            return False
        return str(value) in self.values or (
            self.matches is not None and re.search(self.matches, str(value)) is not None
        )


@dataclass(frozen=True)
class Match:
    name: str
    source: str
    level: str | None
    cls: str
    role: str
    fields: dict[str, Value]
    kind: str  # the name, with what tells apart events that are counted each for itself


@dataclass
class Signature:
    name: str
    family: str
    pattern: str
    hints: tuple[str, ...]
    cls: str
    role: str
    source: str
    level: str | None
    refines: frozenset[str]
    parts: dict[str, tuple[str, str]]
    cases: tuple[Case, ...]
    examples: tuple[str, ...]
    near_misses: tuple[str, ...]
    constants: dict[str, Value] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def part_regexes(self) -> list[tuple[str, re.Pattern[str], str]]:
        return [(name, re.compile(pattern), how) for name, (pattern, how) in self.parts.items()]

    @cached_property
    def is_blind(self) -> bool:
        """Whether what the entry says does not depend on the values of digits."""
        return not self.apart and re.search(r"\d", _WITHOUT_VALUES.sub("", self.pattern)) is None

    def kind(self, found: re.Match[str]) -> str:
        """What events are counted under."""
        return ":".join((self.name, *(found[name] or "" for name in self.apart))) if self.apart else self.name

    def match(self, text: str, counted: Set[str] = frozenset()) -> Match | None:
        """What the entry says of a text; without fields and cases where it is of a kind that is only counted."""
        found = self.regex.search(text)
        if found is None:
            return None
        kind = self.kind(found)
        if kind in counted:
            return Match(self.name, self.source, self.level, self.cls, self.role, {}, kind)
        fields = dict(self.constants)
        for name, captured in found.groupdict().items():
            if captured is not None and (value := typed(name, captured)) is not None:
                fields[name] = value
        for name, regex, how in self.part_regexes:
            texts = [m[1] for m in _bounded(regex.finditer(text))]
            if texts and (value := combine(name, texts, how)) is not None:
                fields[name] = value
        if "allocated_bytes" in fields:
            self._settle_processes(text, fields)
        return self.settle(fields, kind)

    def settle(self, fields: dict[str, Value], kind: str = "") -> Match:
        """What the entry says of captured fields, cases applied."""
        said: dict[str, Any] = {"class": self.cls, "role": self.role, "level": self.level}
        for case in self.cases:
            if case.holds(fields.get(case.when)):
                said.update(case.changes)
        more = {key: value for key, value in said.items() if key not in {"class", "role", "level"}}
        return Match(
            self.name, self.source, said["level"], said["class"], said["role"], {**fields, **more}, kind or self.name
        )

    def _settle_processes(self, text: str, fields: dict[str, Value]) -> None:
        if "process_bytes" in fields or "other_bytes" not in fields:
            return
        entries = [typed("entry_bytes", m[1]) for m in _bounded(_PROCESS_ENTRY.finditer(text))]
        sizes = [size for size in entries if isinstance(size, int)]
        allocated, unallocated = fields.get("allocated_bytes"), fields.get("reserved_unallocated_bytes", 0)
        if isinstance(allocated, int) and isinstance(unallocated, int):
            own = own_process_bytes(sizes, allocated, unallocated)
            if own is not None:
                fields["process_bytes"] = own
                fields["other_bytes"] = sum(sizes) - own


_PROCESS_ENTRY = re.compile(r"Process \d+ has ([\d.]+ \w+) memory in use")


def _bounded(matches: Iterator[re.Match[str]], limit: int = 256) -> Iterator[re.Match[str]]:
    for _, match in zip(range(limit), matches, strict=False):
        yield match


class Catalogue:
    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures = {signature.name: signature for signature in signatures}
        self._by_hint: dict[str, list[Signature]] = {}
        for signature in self.signatures.values():
            for hint in signature.hints:
                self._by_hint.setdefault(hint, []).append(signature)
        # Texts that differ in digits only have the same hints, so hints are looked for without digits. A hint found
        # implies those that are part of it: the scan reports the longest one at each position.
        plain: dict[str, list[Signature]] = {}
        for hint, signatures_of in self._by_hint.items():
            plain.setdefault(hint.translate(_NO_DIGITS), []).extend(signatures_of)
        self._to_try = {
            hint: {s.name: s for part, found in plain.items() if part in hint for s in found} for hint in plain
        }
        self._known: dict[str, list[Signature]] = {}

    @property
    def hints(self) -> list[str]:
        return sorted(self._by_hint)

    @cached_property
    def _scan(self) -> re.Pattern[str]:
        return re.compile(f"(?=({trie(self._to_try)}))")

    def match(self, text: str, counted: Set[str] = frozenset()) -> list[Match]:
        """Every entry that the text matches, without those that a matching entry refines; in catalogue order.

        `counted`: kinds of which matches are only counted.
        """
        text = text[:MATCHED_CHARACTERS]
        tried = ((s.name, s.match(text, counted)) for s in self.hinted(text))
        matches = {name: match for name, match in tried if match is not None}
        return self.unrefined(list(matches.values()))

    def unrefined(self, matches: list[_Named]) -> list[_Named]:
        """Matches or entries without those that another one refines."""
        if len(matches) < 2:
            return matches
        refined = {other for match in matches for other in self.signatures[match.name].refines}
        return [match for match in matches if match.name not in refined]

    def hinted(self, text: str) -> list[Signature]:
        """The entries of which a hint is in the text, but for its digits."""
        key = text.translate(_NO_DIGITS)
        known = self._known.get(key)
        if known is None:
            tried: dict[str, Signature] = {}
            for hint in set(self._scan.findall(key)):
                tried.update(self._to_try[hint])
            known = [tried[name] for name in sorted(tried)]
            if len(key) < _KNOWN_CHARACTERS:
                if len(self._known) >= _KNOWN_TEXTS:
                    self._known.clear()
                self._known[key] = known
        return known


def trie(words: Iterable[str]) -> str:
    """A regular expression that matches the longest of the words, without trying one after the other."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _branch(root)


def _branch(node: dict[str, Any]) -> str:
    ends = "" in node
    branches = [re.escape(letter) + _branch(node[letter]) for letter in sorted(node) if letter]
    if not branches:
        return ""
    if len(branches) == 1 and not ends:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if ends else ''}"


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The whole catalogue."""
    return Catalogue(read_signatures(FOLDER))


@lru_cache(maxsize=1)
def catalogue_edition() -> str:
    """Digest of the catalogue's files: rows of formats that use it change with it."""
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(FOLDER.glob("*.toml")):
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def read_signatures(folder: Path) -> list[Signature]:
    """Entries of a folder of TOML files. Raises ValueError for a name that two files use."""
    signatures: dict[str, Signature] = {}
    for path in sorted(folder.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if name in signatures:
                raise ValueError(f"{path.name}: {name} is also in {signatures[name].family}.toml; names are unique")
            signatures[name] = _signature(name, path.stem, entry)
    return list(signatures.values())


def _signature(name: str, family: str, entry: dict[str, Any]) -> Signature:
    parts = {
        key: (part, "first") if isinstance(part, str) else (part["pattern"], part["combine"])
        for key, part in entry.get("parts", {}).items()
    }
    cases = tuple(
        Case(
            case["when"],
            frozenset(str(value) for value in case.get("is", ())),
            case.get("matches"),
            {key: value for key, value in case.items() if key not in {"when", "is", "matches"}},
        )
        for case in entry.get("cases", ())
    )
    return Signature(
        name=name,
        family=family,
        pattern=entry["pattern"],
        hints=tuple(entry.get("hints", ())),
        cls=entry["class"],
        role=entry["role"],
        source=entry["source"],
        level=entry.get("level"),
        refines=frozenset(entry.get("refines", ())),
        parts=parts,
        cases=cases,
        examples=(entry["example"], *entry.get("examples", ())),
        near_misses=tuple(_texts(entry["near_miss"])),
        constants=dict(entry.get("constants", {})),
        apart=tuple(entry.get("apart", ())),
    )


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
