"""Circles in the wait-for graph: ranks each of which waits for another in a call of another group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from forensics.models.wait_graph import Calls, Culprit, Flags, Graph, Ints, Members

_MAX_WAYS = 1000
_MAX_NAMED = 8  # ranks of one circle; of more the groups are told by the first


def cycles_of(members: Members, calls: Calls, graph: Graph, left_out: Flags, without: Flags) -> list[Culprit]:
    """The ranks of each circle whose order of groups is not that of most, or its first rank, unnamed.

    Nodes in `left_out` and edges in `without` take part in none. What else a circle waits for does not matter: it
    cannot go on anyway.
    """
    inside = ~left_out[graph.source] & ~left_out[graph.target] & ~without
    if not inside.any():
        return []
    import networkx as nx

    waiting = nx.DiGraph(list(zip(graph.source[inside].tolist(), graph.target[inside].tolist(), strict=True)))
    found: list[Culprit] = []
    for ring in sorted(map(sorted, nx.strongly_connected_components(waiting))):
        ranks = np.asarray([node for node in ring if node < members.n_nodes], np.int64)
        if len(ranks) > 1:
            found += _told(members, calls, ranks)
    return found


def _told(m: Members, c: Calls, ranks: Ints) -> list[Culprit]:
    odd = _out_of_order(m, ranks)
    if not 0 < len(odd) <= max(len(ranks) // 2, 1):
        return [culprit for node in ranks.tolist() if (culprit := _waited_for(m, c, ranks, node, "unnamed"))][:1]
    return [culprit for node in odd[:_MAX_NAMED] if (culprit := _waited_for(m, c, ranks, node, None))]


def _waited_for(m: Members, c: Calls, ranks: Ints, node: int, says: str | None) -> Culprit | None:
    """One rank of a circle: the call in which it waits, and the one in which others of the circle wait for it."""
    held = _held(m, node)
    # Calls in which others of the circle wait for this rank: those it has not come to, else those it came to later.
    among = np.isin(m.node, ranks) & m.is_open & (m.node != node)
    wanted = np.flatnonzero(among & np.isin(m.number, _groups_lacking(m, c, node, among)))
    if not len(wanted):
        wanted = np.flatnonzero(among & np.isin(m.number, m.number[held[1:]]))
    if not len(held) or not len(wanted):
        return None
    call = int(Counter(c.at[wanted].tolist()).most_common(1)[0][0])
    peers = m.rank[wanted[c.at[wanted] == call]]
    number, sequence = int(c.number[call]), int(c.sequence[call])
    sure = bool(m.last_called[(m.node == node) & (m.number == number)].max() < sequence)
    rank, first = int(m.node_rank[node]), int(held[0])
    # A send or receive has no number that others know it by.
    own_sequence = None if _is_p2p_first(m, first) else int(c.sequence[c.at[first]])
    own_row = int(m.p2p_row[first]) if own_sequence is None else None
    return Culprit(
        int(m.node_attempt[node]), rank, "cycle", "strong" if sure else "indication", number, sequence,
        peers=peers.tolist(), n_peers=len(peers), called_ns=int(c.called_ns[call]), n_waiting=len(ranks) - 1,
        own_number=int(m.number[first]), own_sequence=own_sequence, says=says,
        cited=[
            (int(m.number[first]), own_sequence, rank, own_row),
            *((number, sequence, int(peer), None) for peer in peers[:8]),
        ],
    )  # fmt: skip


def _held(m: Members, node: int) -> Ints:
    """Memberships of a rank in which it waits, the one of its first call before the others."""
    own = np.flatnonzero((m.node == node) & (m.is_open | (m.p2p_row >= 0)))
    return own[np.lexsort((m.first_open[own], m.number[own], ~m.is_first[own]))]


def _is_p2p_first(m: Members, place: int) -> bool:
    """Whether of what a rank has not finished in a group a send or receive came first."""
    return bool(m.p2p_row[place] >= 0 and (not m.is_open[place] or 0 <= m.p2p_row[place] < m.row[place]))


def _groups_lacking(m: Members, c: Calls, node: int, among: Flags) -> Ints:
    """Groups of a rank in which one of `among` waits in a call that the rank has not made."""
    mine = np.flatnonzero((m.node == node) & m.is_known)
    asked = dict.fromkeys(m.number[mine].tolist(), -1)
    for number, call in zip(m.number[among].tolist(), c.at[among].tolist(), strict=True):
        if number in asked:
            asked[number] = max(asked[number], int(c.sequence[call]))
    lacking = [int(m.number[p]) for p in mine if asked[int(m.number[p])] > m.last_called[p]]
    return np.asarray(lacking, np.int64)


def _out_of_order(m: Members, ranks: Ints) -> list[int]:
    """Ranks whose way through the program contradicts those of most others.

    What ranks of one program have called are beginnings of one sequence: of two ranks the one that called more in one
    kind of group did not call less in another, and they called the same in the same order. Who took another way is at
    odds with many, those who keep to it with him alone. Few such ways are distinct, however many ranks there are.
    """
    attempt = m.node_attempt[ranks[0]]
    ways: dict[tuple[object, ...], list[int]] = {}
    distinct: list[_Way] = []
    for node, way in sorted(_ways(m, attempt).items()):
        nodes = ways.setdefault((tuple(sorted(way.counts.items())), tuple(way.heads)), [])
        if not nodes:
            distinct.append(way)
        nodes.append(node)
    if len(ways) > _MAX_WAYS:
        return []
    odds = _odds(distinct, [*map(len, ways.values())])
    of_node = {node: odd for nodes, odd in zip(ways.values(), odds, strict=True) for node in nodes}
    most = max(of_node.get(node, 0) for node in ranks.tolist())
    return [node for node in ranks.tolist() if of_node.get(node) == most] if most else []


class _Way:
    """How far a rank came: calls by kind of group, and those it waits in by (kind, number), in its order."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.heads: list[tuple[int, int]] = []

    def is_at_odds(self, other: _Way) -> bool:
        differences = [count - other.counts[kind] for kind, count in self.counts.items() if kind in other.counts]
        if any(d > 0 for d in differences) and any(d < 0 for d in differences):
            return True
        return _contradicts(self.heads, other) or _contradicts(other.heads, self)


def _ways(m: Members, attempt: int) -> dict[int, _Way]:
    """The way of each rank with a dump; sends and receives are kinds of their own, told by negative numbers."""
    found: dict[int, _Way] = {}
    waits: list[tuple[int, int, int, int]] = []  # node, row, kind, number
    for place in np.flatnonzero(m.has_dump & (m.node_attempt[m.node] == attempt)).tolist():
        node, kind, p2p_kind = int(m.node[place]), int(m.kind[place]), -int(m.p2p_kind[place])
        counts = found.setdefault(node, _Way()).counts
        if m.is_known[place]:
            counts[kind] = counts.get(kind, 0) + int(m.last_called[place])
        if m.last_p2p[place] >= 0:
            counts[p2p_kind] = counts.get(p2p_kind, 0) + int(m.last_p2p[place])
        if m.is_open[place] and m.row[place] >= 0:
            waits.append((node, int(m.row[place]), kind, int(m.first_open[place])))
        if m.p2p_row[place] >= 0 and m.first_p2p[place] >= 0:
            waits.append((node, int(m.p2p_row[place]), p2p_kind, int(m.first_p2p[place])))
    for node, _, kind, number in sorted(waits):
        found[node].heads.append((kind, number))
    return found


def _odds(ways: Sequence[_Way], counts: Sequence[int]) -> list[int]:
    """With how many ranks each way is at odds."""
    total = [0] * len(counts)
    for a in range(len(counts)):
        for b in range(a):
            if ways[a].is_at_odds(ways[b]):
                total[a] += counts[b]
                total[b] += counts[a]
    return total


def _contradicts(calls: Sequence[tuple[int, int]], way: _Way) -> bool:
    """Whether these calls came in another order there; what is not called there comes after all that is."""
    places: Mapping[tuple[int, int], int] = {call: n for n, call in enumerate(way.heads)}
    order = []
    for kind, number in calls:
        if (kind, number) in places:
            order.append(places[kind, number])
        elif way.counts.get(kind, number) < number:
            order.append(len(places))
    return order != sorted(order)
