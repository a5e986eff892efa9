"""Process groups of a flight recorder dump: members from `pg_config`, progress from `pg_status`, joined.

`pg_config` is keyed by the group's name, which all ranks share; `pg_status` by a number that each process counts for
itself. Entries carry both. Where they leave groups open, order joins them: both numbers grow as groups are made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

from forensics.formats._columns import Columns, clean_text
from forensics.formats._flight_calls import Call, Called
from forensics.formats._lenient_json import as_int
from forensics.formats._rank_ranges import ranges_of

MAX_GROUPS = 10_000
MAX_RANKS = 1 << 20
_MAX_ALL_RANKS = 1 << 22  # of all groups together
_RANK_LIST = re.compile(r"\s*\[[\d,\s]{0,8000000}\]\s*")
_PROGRESS = ("last_enqueued", "last_started", "last_completed")


@dataclass
class Group:
    id: int
    name: str
    description: str | None = None
    backend: str | None = None
    ranks: list[int] | None = None
    members: str | None = None  # the ranks as text
    progress: dict[str, int | None] = field(default_factory=dict)


class Groups:
    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.by_name: dict[str, Group] = {}
        self.pg_ids: dict[int, str] = {}  # process-local number → name
        self._calls: list[Call] = []
        self._ranks_left = _MAX_ALL_RANKS
        self.n_unjoined = 0
        self.n_dropped = 0

    def read(self, config: Any, calls: list[Call], status: Any) -> None:
        """`calls`: those of the entries, in their order, each once."""
        for name, details in _configured(config):
            group = self._at(name)
            if group is not None:
                group.description = self._text("pg_config.desc", details.get("desc")) or group.description
                ranks, members = self._ranks(details.get("ranks"))
                if ranks:
                    group.ranks, group.members = ranks, members
        self._calls = calls
        for call in calls:
            self._read_call(call)
        if type(status) is dict:
            self._join(status)

    def of(self, call: Call) -> Group | None:
        return self.by_name.get(call.group[0] or "")

    def called(self, call: Call) -> Called:
        peer, group = call.operation.peer, self.of(call)
        ranks = None if group is None else group.ranks
        rank = ranks[peer] if ranks is not None and peer is not None and peer < len(ranks) else None
        return Called(None if group is None else group.id, call.operation.name, peer is not None, rank)

    def candidates(self) -> set[int] | None:
        """Global ranks that the dumping process can have: it is a member of all its groups, and its sends say which."""
        found: set[int] | None = None
        for group in self.by_name.values():
            if group.ranks:
                found = set(group.ranks) if found is None else found & set(group.ranks)
        for call in self._calls:
            own = call.operation.own
            ranks = None if own is None or not found else getattr(self.of(call), "ranks", None)
            if found and ranks and own is not None and own < len(ranks):
                found = found & {ranks[own]}
        return found

    def table(self) -> pa.Table:
        groups = list(self.by_name.values())
        columns: dict[str, Any] = {"id": pa.array([g.id for g in groups], pa.int32())}
        for name in ("name", "description", "backend"):
            columns[name] = pa.array([getattr(g, name) for g in groups], pa.string())
        columns["ranks"] = pa.array([g.members for g in groups], pa.string())
        for name in _PROGRESS:
            columns[name] = pa.array([g.progress.get(name) for g in groups], pa.int64())
        return pa.table(columns)

    def _at(self, name: str) -> Group | None:
        if name not in self.by_name:
            if len(self.by_name) >= MAX_GROUPS:
                self.n_dropped += 1
                return None
            self.by_name[name] = Group(len(self.by_name), name)
        return self.by_name[name]

    def _read_call(self, call: Call) -> None:
        name, description = call.group
        group = self._at(name) if name is not None else None
        if group is None or name is None:
            return
        group.description = group.description or description
        group.backend = group.backend or call.operation.backend
        if call.number is not None and len(self.pg_ids) < MAX_GROUPS:
            self.pg_ids.setdefault(call.number, name)

    def _join(self, status: dict[Any, Any]) -> None:
        numbers = {as_int(key, 0): value for key, value in list(status.items())[:MAX_GROUPS]}
        numbers.pop(None, None)
        by_order = self._by_order({n for n in numbers if n is not None})
        for number, value in numbers.items():
            name = self.pg_ids.get(number) if number is not None else None
            name = name or by_order.get(number)
            if name is None or type(value) is not dict:
                self.n_unjoined += 1
                continue
            group = self._at(name)
            if group is not None:
                for key in _PROGRESS:
                    found = as_int(value.get(f"{key}_collective"), -1)
                    group.progress[key] = None if found is None or found < 0 else found

    def _by_order(self, numbers: set[int]) -> dict[int | None, str]:
        """Number → name by order, unless names are no numbers, counts differ or the entries say otherwise."""
        names = [name for name in self.by_name if name.isascii() and name.isdigit() and len(name) < 10]
        if len(names) != len(self.by_name) or len(names) != len(numbers):
            return {}
        paired: dict[int | None, str] = dict(zip(sorted(numbers), sorted(names, key=int), strict=True))
        agrees = all(paired.get(number) == name for number, name in self.pg_ids.items() if number in paired)
        return paired if agrees else {}

    def _text(self, what: str, value: Any) -> str | None:
        text = self.columns.text(what, value)
        return text[:200] if text else None

    def _ranks(self, value: Any) -> tuple[list[int] | None, str | None]:
        ranks, members = _read_ranks(value) if isinstance(value, str) else _checked_ranks(value)
        if ranks is None or len(ranks) > self._ranks_left:
            self.columns.bad["pg_config.ranks"] += value is not None
            return None, None
        self._ranks_left -= len(ranks)
        return ranks, members


@lru_cache(maxsize=256)
def _read_ranks(text: str) -> tuple[list[int] | None, str | None]:
    """Every rank's dump repeats the text of the group of all ranks."""
    if not _RANK_LIST.fullmatch(text):
        return None, None
    try:
        return _checked_ranks(orjson.loads(re.sub(r",\s*\]", "]", text)))
    except orjson.JSONDecodeError:
        return None, None


def _checked_ranks(value: Any) -> tuple[list[int] | None, str | None]:
    if type(value) not in (list, tuple) or len(value) > MAX_RANKS:
        return None, None
    if any(type(rank) is not int or not 0 <= rank < 1 << 31 for rank in value):
        return None, None
    return list(value), ranges_of(value)


def _configured(config: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, details) of each configured group; merged dumps nest them once more, by rank."""
    found: list[tuple[str, dict[str, Any]]] = []
    for key, value in list(config.items())[:MAX_GROUPS] if type(config) is dict else ():
        if type(value) is not dict or len(found) >= MAX_GROUPS:
            continue
        if value and all(type(inner) is dict for inner in list(value.values())[:10]):
            found += [(clean_text(str(k), 200), v) for k, v in list(value.items())[:MAX_GROUPS] if type(v) is dict]
        else:
            name = value.get("name")
            found.append((clean_text(name if isinstance(name, str) and name else str(key), 200), value))
    return [(name, details) for name, details in found[:MAX_GROUPS] if name]  # gloo writes one without a name
