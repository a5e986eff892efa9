"""Reads the ends of the wait-for graph: what all that waits waits for in the end, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import duckdb
import numpy as np

from forensics.models.wait_graph import UNKNOWN, Calls, Culprit, Flags, Graph, Ints, Members, Pair

_MANY = 64  # culprits whose waiting ranks are counted through the graph; of more, those that wait for them directly
_STRENGTHS = ("strong", "indication")

_KINDS = """
SELECT n.rank, n.row, n.operation, n.operation || concat(' ', n.dtype, ' ', n.in_bytes) AS kind, n.sequence
FROM wait_noted AS n
WHERE n.number = ? AND n.sequence BETWEEN ? - 1 AND ? + 1 AND NOT n.is_p2p
ORDER BY n.sequence, n.rank, n.row
"""
# What ranks of groups with the same purpose called under the same number.
_ALIKE = """
SELECT n.operation || concat(' ', n.dtype, ' ', n.in_bytes) AS kind, count(*) AS n
FROM wait_group AS g
JOIN wait_group AS o ON o.attempt = g.attempt AND o.description = g.description AND o.n_members = g.n_members
JOIN wait_noted AS n ON n.number = o.number AND n.sequence = ? AND NOT n.is_p2p
WHERE g.number = ? AND o.number <> g.number
GROUP BY kind
"""


class Causes:
    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        members: Members,
        calls: Calls,
        differing: Sequence[tuple[int, int]],
        pairs: Sequence[Pair],
    ) -> None:
        self.con, self.m, self.c, self.pairs = con, members, calls, pairs
        m, c = members, calls
        self.differs = np.isin(c.key, np.array([n << 40 | s for n, s in differing], np.int64))
        self.open = np.flatnonzero(m.is_open)
        self.has_open = m.node_flag(m.is_open)
        for waiting, *_ in pairs:
            self.has_open[waiting] = True
        self.absent, self.unseen = self._lacking()
        self.graph = self._graph()
        self.behind = self._behind()

    def _lacking(self) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """(call, member) of members that called less, and of those of which nothing is known."""
        m, c = self.m, self.c
        closed = np.flatnonzero(m.is_known)
        awaited = c.after(m.number[closed], m.last_called[closed])
        mute = np.flatnonzero(~m.is_known & ~m.is_open)
        unsure = c.after(m.number[mute], np.full(len(mute), UNKNOWN))
        called, silent = awaited >= 0, unsure >= 0
        return (awaited[called], closed[called]), (unsure[silent], mute[silent])

    def _graph(self) -> Graph:
        m, c = self.m, self.c
        base, pair_base = m.n_nodes, m.n_nodes + c.count
        none = np.zeros(0, np.int64)
        at = c.at[self.open]
        held = self.open[~m.is_first[self.open]]
        higher = np.flatnonzero(~c.is_lowest)
        # A rank without a dump is taken to wait where its peers wait for somebody else.
        undumped = ~m.has_dump[self.unseen[1]]
        waits = [(np.asarray([p[0] for p in self.pairs], np.int64), pair_base + np.arange(len(self.pairs)))]
        awaited = [(pair_base + n, p[1]) for n, p in enumerate(self.pairs) if p[1] != UNKNOWN]
        from_calls = [
            (base + self.absent[0], m.node[self.absent[1]]),
            (base + self.unseen[0], m.node[self.unseen[1]]),
            (base + c.at[held], m.node[held]),
            (base + higher, base + higher - 1),
        ]
        ends = np.append(self.differs, False)  # what differs cannot be finished, whoever else comes
        kept = [
            (s[~ends[np.minimum(s - base, c.count)]], t[~ends[np.minimum(s - base, c.count)]]) for s, t in from_calls
        ]
        edges = [
            (m.node[self.open], base + at),
            *kept,
            (m.node[self.unseen[1]][undumped], base + self.unseen[0][undumped]),
            *waits,
            tuple(np.asarray(list(x), np.int64) for x in zip(*awaited, strict=True)) if awaited else (none, none),
        ]
        return Graph(pair_base + len(self.pairs), [(s, t) for s, t in edges])

    def _behind(self) -> Ints:
        """Members whose first open call of all was finished by others, which they could not have without its data."""
        m, c = self.m, self.c
        done = c.needs_all & (c.n_done > 0)
        return np.asarray(self.open[done[c.at[self.open]] & m.is_first[self.open]])

    def ranked(self) -> list[Culprit]:
        found = [*self._mismatched(), *self._absent(), *self._late(), *self._unstarted()]
        explained = self.graph.reaching(self._nodes(found))
        circles = self._cycles(explained)
        found += circles
        explained = self.graph.reaching(self._nodes(circles), explained)
        found += self._unseen(explained)
        self._count(found)
        found.sort(key=lambda f: (f.attempt, _STRENGTHS.index(f.strength), -f.n_waiting, f.called_ns, f.rank or 0))
        places: Counter[int] = Counter()
        for culprit in found:
            places[culprit.attempt] += 1
            culprit.place = places[culprit.attempt]
        return found

    def _nodes(self, found: Sequence[Culprit]) -> Ints:
        """Where walks for culprits begin: at the call of those that called something else, else at the rank."""
        keys = [f.number << 40 | (f.sequence or 0) for f in found if f.reason == "mismatch"]
        ranks = [(f.attempt << 32) | f.rank for f in found if f.reason != "mismatch" and f.rank is not None]
        nodes = np.searchsorted(self.m.node_attempt << 32 | self.m.node_rank, np.asarray(ranks, np.int64))
        return np.concatenate([nodes, self.m.n_nodes + np.searchsorted(self.c.key, np.asarray(keys, np.int64))])

    def _count(self, found: Sequence[Culprit]) -> None:
        for culprit in found:
            culprit.n_waiting = max(culprit.n_waiting, culprit.n_peers)
            if len(found) <= _MANY:
                start = self._nodes([culprit])
                others = self.graph.reaching(start)[: self.m.n_nodes].sum() - (culprit.reason != "mismatch")
                culprit.n_waiting = max(int(others), culprit.n_waiting)

    def _named(self, place: int, call: int, reason: str, strength: str) -> Culprit:
        """A culprit by the place of its member and of the call in which others wait for it."""
        m, c = self.m, self.c
        peers = self.open[c.at[self.open] == call]
        peers = peers[m.node[peers] != m.node[place]]
        number, sequence = int(c.number[call]), int(c.sequence[call])
        return Culprit(
            int(m.node_attempt[m.node[place]]), int(m.rank[place]), reason, strength, number, sequence,
            peers=m.rank[peers].tolist(), n_peers=len(peers), called_ns=int(c.called_ns[call]),
            cited=[(number, sequence, int(rank), None) for rank in m.rank[peers[:9]]],
        )  # fmt: skip

    def _first_by_node(self, calls: Ints, places: Ints) -> list[tuple[int, int, int]]:
        """(member, call, number of groups) of each rank: the call that was called first."""
        order = np.lexsort((self.c.key[calls], self.c.called_ns[calls], self.m.node[places]))
        calls, places = calls[order], places[order]
        _, first, counts = np.unique(self.m.node[places], return_index=True, return_counts=True)
        return [(int(places[i]), int(calls[i]), int(n)) for i, n in zip(first, counts, strict=True)]

    def _absent(self) -> list[Culprit]:
        m, c = self.m, self.c
        calls, places = self.absent
        idle = ~self.has_open[m.node[places]]
        calls, places = calls[idle], places[idle]
        alone = self._alone(calls)
        found = []
        for call in np.unique(calls[alone[calls]]).tolist():
            place = int(self.open[c.at[self.open] == call][0])
            culprit = self._named(place, call, "alone", "indication")
            culprit.peers = m.rank[places[calls == call]].tolist()
            culprit.n_peers = len(culprit.peers)
            culprit.cited = [(culprit.number, culprit.sequence, int(m.rank[place]), None)]
            found.append(culprit)
        kept = ~alone[calls]
        for place, call, n_groups in self._first_by_node(calls[kept], places[kept]):
            culprit = self._named(place, call, "absent", "strong")
            culprit.n_groups = n_groups
            found.append(culprit)
        return found + self._absent_from_pairs({(f.attempt, f.rank) for f in found})

    def _alone(self, calls: Ints) -> Flags:
        """Calls that one rank of three or more made, and the others, who wait for nobody, did not."""
        c = self.c
        n_absent = np.bincount(calls, minlength=c.count)
        sizes = np.bincount(self.m.number, minlength=int(c.number.max(initial=0)) + 1)[c.number]
        return np.asarray((c.n_at == 1) & (n_absent == sizes - 1) & (sizes > 2))

    def _absent_from_pairs(self, known: set[tuple[int, int | None]]) -> list[Culprit]:
        """Ranks without an open call whose dump holds entries, none of them the counterpart of a send or receive."""
        m = self.m
        records = m.node_flag(m.has_entries)
        found: dict[int, Culprit] = {}
        for waiting, awaited, number, row, is_called, _ in self.pairs:
            if is_called or self.has_open[awaited] or not records[awaited]:
                continue
            attempt, rank = int(m.node_attempt[awaited]), int(m.node_rank[awaited])
            if (attempt, rank) in known:
                continue
            culprit = found.setdefault(awaited, Culprit(attempt, rank, "absent", "indication", number, None))
            culprit.peers.append(int(m.node_rank[waiting]))
            culprit.n_peers += 1
            culprit.cited.append((number, None, int(m.node_rank[waiting]), row))
        return list(found.values())

    def _late(self) -> list[Culprit]:
        """Only in a job that stands still is being behind more than being late."""
        m, c = self.m, self.c
        awaited = [places[c.n_done[calls] == 0] for calls, places in (self.absent, self.unseen)]
        awaited[1] = awaited[1][~m.has_dump[awaited[1]]]
        stands = set(m.node_attempt[m.node[np.concatenate(awaited)]].tolist())
        done = c.needs_all & (c.n_done > 0)
        all_behind = self.open[done[c.at[self.open]]]
        n_groups = np.bincount(m.node[all_behind], minlength=m.n_nodes)
        found = []
        for place, call, _ in self._first_by_node(c.at[self.behind], self.behind):
            if int(m.node_attempt[m.node[place]]) in stands:
                culprit = self._named(place, call, "behind", "strong")
                beyond = (m.number == c.number[call]) & (m.is_known | m.is_open) & (m.ahead > c.sequence[call])
                culprit.peers = m.rank[beyond].tolist()
                culprit.n_peers = len(culprit.peers)
                culprit.n_groups = int(n_groups[m.node[place]])
                culprit.cited = [(culprit.number, culprit.sequence, int(m.rank[place]), None)]
                found.append(culprit)
        return found

    def _unstarted(self) -> list[Culprit]:
        """Members whose device has not come to a call that all have called and the devices of most have begun."""
        m, c = self.m, self.c
        whole = c.is_lowest & (c.n_done == 0) & ~self.differs
        whole[self.absent[0]] = whole[self.unseen[0]] = False
        began = np.bincount(c.at[self.open], weights=m.is_started[self.open], minlength=c.count)
        late = self.open[~m.is_started[self.open]]
        some = (began > 0) & (np.bincount(c.at[late], minlength=c.count) * 2 <= c.n_at) & whole
        late = late[some[c.at[late]] & m.is_first[late]]
        return [
            self._named(place, call, "not-started", "indication")
            for place, call, _ in self._first_by_node(c.at[late], late)
        ]

    def _unseen(self, explained: Flags) -> list[Culprit]:
        m = self.m
        calls, places = self.unseen
        dumped = m.node_flag(m.has_dump)[m.node[places]]
        named = ~dumped & ~explained[m.node[places]] & ~explained[m.n_nodes + calls]
        found = []
        for place, call, n_groups in self._first_by_node(calls[named], places[named]):
            culprit = self._named(place, call, "no-dump", "indication")
            culprit.n_groups = n_groups
            found.append(culprit)
        return found

    def _mismatched(self) -> list[Culprit]:
        return [self._odd_call(int(call)) for call in np.flatnonzero(self.differs)]

    def _odd_call(self, call: int) -> Culprit:
        number, sequence = int(self.c.number[call]), int(self.c.sequence[call])
        noted: dict[int, dict[int, str]] = {}  # sequence → rank → what it called
        for rank, _, _, kind, at in self.con.execute(_KINDS, [number, sequence, sequence]).fetchall():
            noted.setdefault(at, {}).setdefault(rank, kind)
        here = noted[sequence]
        votes, own = Counter(here.values()), Counter(here.values())
        if len(set(own.values())) == 1:  # a tie, that groups with the same purpose may decide
            votes.update(dict(self.con.execute(_ALIKE, [sequence, number]).fetchall()))
        usual = max(sorted(own), key=lambda kind: votes[kind])
        decided = all(votes[kind] < votes[usual] for kind in own if kind != usual)
        rank = min((r for r, kind in here.items() if kind != usual), key=lambda r: (votes[here[r]], r))
        if not decided:
            rank = min(here)
        peer = min(r for r, kind in here.items() if kind != here[rank])
        others = [r for r, kind in here.items() if kind == here[peer]]
        attempt = int(self.m.node_attempt[self.m.node[self.m.number == number][0]])
        return Culprit(
            attempt, rank if decided else None, "mismatch", "strong", number, sequence,
            peers=others, n_peers=len(others), called_ns=int(self.c.called_ns[call]),
            says=_shift(noted, sequence, rank, peer),
            cited=[(number, sequence, rank, None), (number, sequence, peer, None)],
        )  # fmt: skip

    def _cycles(self, explained: Flags) -> list[Culprit]:
        from forensics.models.wait_cycles import cycles_of

        left_out = explained.copy()
        left_out[: self.m.n_nodes] |= ~self.m.node_flag(self.m.has_dump)
        # Sends and receives that both sides called may run at once, in whichever order they were called.
        left_out[self.m.n_nodes + self.c.count :] |= np.array([pair.is_called for pair in self.pairs], bool)
        # A device runs calls in order: it is in the first one.
        later = np.zeros(len(self.graph.source), bool)
        later[: len(self.open)] = ~self.m.is_first[self.open]
        pair = self.graph.target - (self.m.n_nodes + self.c.count)
        later[pair >= 0] = ~np.array([p.is_first for p in self.pairs], bool)[pair[pair >= 0]]
        return cycles_of(self.m, self.c, self.graph, left_out, later)


def _shift(noted: dict[int, dict[int, str]], sequence: int, rank: int, peer: int) -> str | None:
    """What the neighbouring numbers show: calls left out, put in, or swapped."""
    own, others = noted[sequence].get(rank), noted[sequence].get(peer)
    own_next, others_next = noted.get(sequence + 1, {}).get(rank), noted.get(sequence + 1, {}).get(peer)
    if own == others_next and own_next == others:
        return "swapped"
    if own == others_next:
        return "skipped"
    return "extra" if own_next == others else None
