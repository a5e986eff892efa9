"""The wait-for graph of one case: nodes are ranks and calls, an edge leads from what waits to what it waits for.

A rank waits in the first call of each group that it has not finished. A call waits for the members that have not come
to it: they called less, an earlier call of theirs in another group holds them up, or nothing is known of them. Calls of
one group run in order, so a later one waits for the earlier. Edges number as the members of groups, no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
UNKNOWN = -1

_MEMBERS = """
SELECT m.number, g.attempt, m.rank,
    coalesce(m.last_called, -1) AS last_called,
    coalesce(m.first_open, -1) AS first_open,
    coalesce(m.is_first, FALSE) AS is_first,
    coalesce(m.is_started, FALSE) AS is_started,
    m.artifact_id IS NOT NULL AS has_dump,
    dense_rank() OVER (ORDER BY g.attempt, coalesce(g.description, ''), g.n_members) AS kind,
    coalesce(m.has_entries, FALSE) AS has_entries,
    coalesce(m.called_ns, 0) AS called_ns,
    coalesce(m.row, -1) AS row,
    -- Of a broadcast, a reduce, a gather and a scatter some members are done before others take part.
    coalesce(m.operation LIKE 'all\\_%' ESCAPE '\\' OR m.operation LIKE 'reduce\\_scatter%' ESCAPE '\\'
        OR m.operation = 'barrier', FALSE) AS needs_all,
    -- Ranks at one place in groups of one purpose, such as one stage of pipelines, send and receive alike.
    dense_rank() OVER (ORDER BY g.attempt, coalesce(g.description, ''), g.n_members, m.place) AS p2p_kind,
    coalesce(k.last_p2p, -1) AS last_p2p,
    coalesce(k.first_p2p, -1) AS first_p2p,
    coalesce(k.p2p_row, -1) AS p2p_row
FROM (SELECT *, row_number() OVER (PARTITION BY number ORDER BY rank) AS place FROM wait_member) AS m
JOIN wait_group AS g ON g.number = m.number
LEFT JOIN wait_known AS k ON k.number = m.number AND k.rank = m.rank
ORDER BY m.number, m.rank
"""


class Pair(NamedTuple):
    """Sends or receives of one rank with another that are not finished."""

    waiting: int  # nodes
    awaited: int  # UNKNOWN where both are in it
    number: int
    row: int
    is_called: bool  # by the other side too
    is_first: bool  # of all that the waiting rank has not finished


@dataclass
class Culprit:
    """A rank that others wait for in the end, and in which call; `cited`: (group, sequence, rank, row or None)."""

    attempt: int
    rank: int | None
    reason: str
    strength: str
    number: int
    sequence: int | None
    peers: list[int] = field(default_factory=list)
    n_peers: int = 0
    n_groups: int = 1
    n_waiting: int = 0
    called_ns: int = 0
    own_number: int | None = None
    own_sequence: int | None = None
    says: str | None = None
    cited: list[tuple[int, int | None, int, int | None]] = field(default_factory=list)
    place: int = 0


class Members:
    """Members of groups, ordered by group and rank; `node` numbers ranks of attempts from 0."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        columns = con.execute(_MEMBERS).fetchnumpy()
        whole = {name: np.asarray(column).astype(np.int64) for name, column in columns.items()}
        self.number, self.rank = whole["number"], whole["rank"]
        self.last_called, self.first_open = whole["last_called"], whole["first_open"]
        self.called_ns, self.row = whole["called_ns"], whole["row"]
        self.kind = whole["kind"]  # groups of one purpose and size have one
        self.p2p_kind, self.last_p2p = whole["p2p_kind"], whole["last_p2p"]
        self.first_p2p, self.p2p_row = whole["first_p2p"], whole["p2p_row"]
        self.is_first, self.is_started, self.has_dump, self.has_entries, self.needs_all = (
            whole[name].astype(bool) for name in ("is_first", "is_started", "has_dump", "has_entries", "needs_all")
        )
        known, self.node = np.unique(whole["attempt"] << 32 | self.rank, return_inverse=True)
        self.node = self.node.reshape(-1)
        self.node_attempt, self.node_rank = known >> 32, known & 0xFFFFFFFF
        self.n_nodes = len(known)
        self.is_open = self.first_open >= 0
        self.ahead = np.where(self.is_open, self.first_open, self.last_called + 1)  # first that is not finished
        self.is_known = self.has_dump & (self.last_called >= 0)

    def node_flag(self, flags: Flags) -> Flags:
        """Whether any row of each rank has the flag."""
        return np.bincount(self.node, weights=flags, minlength=self.n_nodes) > 0


class Calls:
    """The calls in which members wait, ordered by group and sequence; `at`: of each open member, its call."""

    def __init__(self, members: Members) -> None:
        m = members
        key = _key(m.number, np.maximum(m.first_open, 0))
        self.key, inverse = np.unique(key[m.is_open], return_inverse=True)
        self.at = np.full(len(m.number), UNKNOWN, np.int64)
        self.at[m.is_open] = inverse.reshape(-1)
        self.count = len(self.key)
        self.number, self.sequence = self.key >> 40, self.key & (1 << 40) - 1
        self.needs_all = np.bincount(self.at[m.is_open], weights=m.needs_all[m.is_open], minlength=self.count) > 0
        self.n_at = np.bincount(self.at[m.is_open], minlength=self.count)
        # Members that are beyond a call have finished it.
        beyond = np.sort(_key(m.number, m.ahead)[m.is_known | m.is_open])
        group_end = np.searchsorted(beyond, _key(self.number + 1, np.zeros_like(self.number)))
        self.n_done = group_end - np.searchsorted(beyond, self.key, side="right")
        self.is_lowest = np.ones(self.count, bool)
        self.is_lowest[1:] = self.number[1:] != self.number[:-1]
        # What all members have to join, and one finished, all have joined, whatever their dumps know.
        self.lacks = ~(self.needs_all & (self.n_done > 0))
        self.called_ns = np.full(self.count, np.iinfo(np.int64).max)
        timed = m.is_open & (m.called_ns > 0)
        np.minimum.at(self.called_ns, self.at[timed], m.called_ns[timed])

    def after(self, number: Ints, sequence: Ints) -> Ints:
        """The first call beyond `sequence` of each group that still lacks members; UNKNOWN where there is none."""
        places = np.flatnonzero(self.lacks)
        found = np.searchsorted(self.key[places], _key(number, np.maximum(sequence, -1) + 1))
        padded = np.append(places, UNKNOWN)[found]
        same = (padded >= 0) & (np.append(self.number, UNKNOWN)[padded] == number)
        return np.where(same, padded, UNKNOWN)


def _key(number: Ints, sequence: Ints) -> Ints:
    return number << 40 | sequence


class Graph:
    """Edges between nodes; `reaching` walks them backwards."""

    def __init__(self, n_nodes: int, edges: Iterable[tuple[Ints, Ints]]) -> None:
        pairs = list(edges)
        self.source = np.concatenate([source for source, _ in pairs])
        self.target = np.concatenate([target for _, target in pairs])
        self.n_nodes = n_nodes
        order = np.argsort(self.target, kind="stable")
        self._sources = self.source[order]
        self._first = np.searchsorted(self.target[order], np.arange(n_nodes + 1))

    def reaching(self, starts: Ints, seen: Flags | None = None) -> Flags:
        """Nodes from which one of `starts` is reached, themselves included; those in `seen` are not entered."""
        reached = np.zeros(self.n_nodes, bool)
        reached[starts] = True
        frontier = np.unique(starts)
        while len(frontier):
            counts = self._first[frontier + 1] - self._first[frontier]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            found = np.unique(self._sources[np.repeat(self._first[frontier], counts) + within])
            frontier = found[~reached[found]] if seen is None else found[~reached[found] & ~seen[found]]
            reached[frontier] = True
        return reached if seen is None else np.asarray(reached | seen)


def pairs_of(members: Members, pairs: Sequence[tuple[Any, ...]]) -> list[Pair]:
    """Who waits for whom in sends and receives."""
    places = (
        {(int(n), int(r)): int(k) for n, r, k in zip(members.number, members.rank, members.node, strict=True)}
        if pairs
        else {}
    )
    others = {(number, rank, peer, is_recv): (n, is_first) for number, rank, peer, is_recv, n, _, is_first in pairs}
    found: list[Pair] = []
    for number, rank, peer, is_recv, n, row, is_first in pairs:
        waiting, awaited = places.get((number, rank)), places.get((number, peer))
        if waiting is not None and awaited is not None:
            count, is_there = others.get((number, peer, rank, not is_recv), (0, False))
            # Called, the other side may still be held up by an earlier call.
            target = UNKNOWN if count >= n and is_there else awaited
            found.append(Pair(waiting, target, int(number), int(row), count >= n, bool(is_first)))
    return found


def find_culprits(
    con: duckdb.DuckDBPyConnection, differing: Sequence[tuple[int, int]], pairs: Sequence[tuple[Any, ...]]
) -> list[Culprit]:
    """Ranks that explain why others wait, the most telling first. `differing`: calls that members made differently."""
    from forensics.models.wait_causes import Causes

    members = Members(con)
    calls = Calls(members)
    causes = Causes(con, members, calls, differing, pairs_of(members, pairs))
    return causes.ranked()
