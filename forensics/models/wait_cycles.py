"""Circles in the wait-for graph: ranks each of which waits for another in a call of another group."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

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
    named = odd if 0 < len(odd) <= max(len(ranks) // 2, 1) else []
    found = []
    for node in (named or ranks.tolist())[: _MAX_NAMED if named else 1]:
        own = np.flatnonzero((m.node == node) & m.is_open)
        own = own[np.lexsort((c.key[c.at[own]], ~m.is_first[own]))]
        held = int(own[0])
        # Calls in which others of the circle wait for this rank: those it has not come to, else those it came to later.
        among = np.isin(m.node, ranks) & m.is_open & (m.node != node)
        wanted = np.flatnonzero(among & np.isin(m.number, _groups_lacking(m, c, node, among)))
        if not len(wanted):
            wanted = np.flatnonzero(among & np.isin(m.number, m.number[own[1:]]))
        if not len(wanted):
            continue
        call = int(Counter(c.at[wanted].tolist()).most_common(1)[0][0])
        peers = m.rank[wanted[c.at[wanted] == call]]
        number, sequence = int(c.number[call]), int(c.sequence[call])
        sure = bool(m.last_called[(m.node == node) & (m.number == number)].max() < sequence)
        rank = int(m.node_rank[node])
        own_call = int(c.number[c.at[held]]), int(c.sequence[c.at[held]])
        found.append(
            Culprit(
                int(m.node_attempt[node]),
                rank,
                "cycle",
                "strong" if sure else "indication",
                number,
                sequence,
                peers=peers.tolist(),
                n_peers=len(peers),
                called_ns=int(c.called_ns[call]),
                n_waiting=len(ranks) - 1,
                own_number=own_call[0],
                own_sequence=own_call[1],
                says=None if named else "unnamed",
                cited=[(*own_call, rank, None), *((number, sequence, int(peer), None) for peer in peers[:8])],
            )
        )
    return found


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
    kinds, column = np.unique(m.kind, return_inverse=True)
    progress = np.full((m.n_nodes, len(kinds)), np.nan)
    known = np.flatnonzero(m.is_known)
    progress[m.node[known], column.reshape(-1)[known]] = 0
    np.add.at(progress, (m.node[known], column.reshape(-1)[known]), m.last_called[known])
    heads: list[list[tuple[int, int]]] = [[] for _ in range(m.n_nodes)]
    opened = np.flatnonzero(m.is_open & (m.row >= 0))
    for place in opened[np.lexsort((m.row[opened], m.node[opened]))].tolist():
        heads[int(m.node[place])].append((int(m.kind[place]), int(m.first_open[place])))
    attempt = m.node_attempt[ranks[0]]
    ways: dict[tuple[bytes, tuple[tuple[int, int], ...]], list[int]] = {}
    for node in np.flatnonzero(m.node_attempt == attempt).tolist():
        ways.setdefault((progress[node].tobytes(), tuple(heads[node])), []).append(node)
    if len(ways) > _MAX_WAYS:
        return []
    odds = _odds([progress[nodes[0]] for nodes in ways.values()], [way[1] for way in ways], [*map(len, ways.values())])
    of_node = {node: odd for nodes, odd in zip(ways.values(), odds, strict=True) for node in nodes}
    most = max(of_node[node] for node in ranks.tolist())
    return [node for node in ranks.tolist() if of_node[node] == most] if most else []


def _odds(
    progress: list[npt.NDArray[np.float64]], heads: list[tuple[tuple[int, int], ...]], counts: list[int]
) -> list[int]:
    """With how many ranks each way is at odds."""
    total = [0] * len(counts)
    for a in range(len(counts)):
        for b in range(a):
            more, less = progress[a] > progress[b], progress[a] < progress[b]
            if (more.any() and less.any()) or _inverted(heads[a], heads[b]):
                total[a] += counts[b]
                total[b] += counts[a]
    return total


def _inverted(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> bool:
    places = {call: n for n, call in enumerate(other)}
    order = [places[call] for call in one if call in places]
    return order != sorted(order)
