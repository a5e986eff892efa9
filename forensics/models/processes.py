"""Which process of the job each artifact speaks of: joins what contents, names and folders say.

A rank is one process per attempt. What carries no rank is one process per host and attempt, and that process is rank 0
where the job may have just that one: no other rank is named, nothing tells of more processes, and the host is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FIELDS = ("host", "rank", "local_rank", "world_size", "pid", "device", "start_ns", "end_ns", "exit_code", "signal")
ORIGINS = ("content", "prefix", "environment", "file-name", "folder", "run", "inferred", "none")
_WITH_ORIGIN = ("rank", "local_rank", "host", "attempt")


@dataclass(frozen=True)
class Node:
    """What the environment of a host says of its place in the job: torchrun's group rank and ranks per node."""

    group_rank: int
    n_local: int


@dataclass(frozen=True)
class Mention:
    """What one artifact says of one of its processes. `job_wide`: it has none, its rows belong to the job."""

    artifact_id: int
    number: int
    known: Mapping[str, Any]


@dataclass
class Processes:
    """Rows of `proc` and, for each (artifact, number), the id of its process."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    ids: dict[tuple[int, int], int] = field(default_factory=dict)


def identify_processes(
    mentions: Sequence[Mention], nodes: Mapping[str, Node] | None = None, *, n_told: int = 1
) -> Processes:
    """Ids are dense from 0 in the order of attempt, rank, host, pid.

    `nodes`: by host; `n_told`: of how many processes of the job settings and commands tell at least.
    """
    n_hosts = len({m.known["host"] for m in mentions if m.known.get("host")})
    by_local = _rank_by_local(mentions)
    mentions = [_completed(m, by_local, nodes or {}, n_hosts) for m in mentions]
    # What names no attempt belongs to the first one that anything names.
    first = min((m.known["attempt"] for m in mentions if m.known.get("attempt") is not None), default=0)
    hosts = {m.known["host"] for m in mentions if m.known.get("host")}
    if len(hosts) == 1:  # what names no host ran on the only one there is
        only = {"host": min(hosts), "host_origin": "inferred"}
        mentions = [
            m if m.known.get("host") else Mention(m.artifact_id, m.number, {**m.known, **only}) for m in mentions
        ]
    places = _places_of_the_only_rank(mentions, n_told)
    groups: dict[tuple[Any, ...], list[Mention]] = {}
    for mention in mentions:
        groups.setdefault(_key(mention.known, places, first), []).append(mention)
    unranked = {m.known["pid"] for m in mentions if m.known.get("rank") is None and m.known.get("pid") is not None}
    whole, groups = groups, {}
    for key, members in whole.items():
        for part, found in _split_by_pid(key, members, several=len(unranked) > 1).items():
            groups.setdefault(part, []).extend(found)
    processes = Processes()
    for key in sorted(groups, key=lambda k: tuple((x is None, x) for x in k)):
        number = len(processes.rows)
        processes.rows.append(_row(number, key, groups[key]))
        processes.ids.update({(m.artifact_id, m.number): number for m in groups[key]})
    return processes


def _places_of_the_only_rank(mentions: Sequence[Mention], n_told: int) -> frozenset[str] | None:
    """Hosts of rank 0 where the job may have that process alone, else None. Rank 3 has three others at least."""
    ranked = [m.known for m in mentions if m.known.get("rank") is not None]
    worlds = [m.known["world_size"] for m in mentions if m.known.get("world_size")]
    if {known["rank"] for known in ranked} != {0} or max([n_told, *worlds]) > 1:
        return None
    return frozenset(_machine(known["host"]) for known in ranked if known.get("host"))


def _machine(host: str) -> str:
    return host.partition(".")[0].lower()


def _split_by_pid(
    key: tuple[Any, ...], mentions: list[Mention], *, several: bool
) -> dict[tuple[Any, ...], list[Mention]]:
    """A process has one pid: dumps of workers and children are processes of their own beside the one of the logs.

    A pid that comes with the rank in the content is the rank's; where none does and several differ, none is.
    """
    pids = {m.known["pid"] for m in mentions if m.known.get("pid") is not None}
    ranked = {m.known["pid"] for m in mentions if m.known.get("rank") is not None and m.known.get("pid") is not None}
    if (len(pids) <= 1 and not several) or ranked == pids:
        return {key: mentions}
    split: dict[tuple[Any, ...], list[Mention]] = {}
    for mention in mentions:
        pid = mention.known.get("pid")
        alone = pid is not None and pid not in ranked
        split.setdefault((key[0], None, mention.known.get("host"), pid, None) if alone else key, []).append(mention)
    return split


def _rank_by_local(mentions: Sequence[Mention]) -> dict[tuple[Any, int], int]:
    """Global rank of (host, local rank) where some artifact says both, for artifacts that say only the local one."""
    return {
        (m.known.get("host"), m.known["local_rank"]): m.known["rank"]
        for m in mentions
        if m.known.get("rank") is not None and m.known.get("local_rank") is not None
    }


def _completed(
    mention: Mention, by_local: Mapping[tuple[Any, int], int], nodes: Mapping[str, Node], n_hosts: int
) -> Mention:
    """Adds the rank that follows from the local one: equal on the only node, else by what some artifact says."""
    known = dict(mention.known)
    local = known.get("local_rank")
    if known.get("rank") is None and local is not None:
        rank = by_local.get((known.get("host"), local))
        if rank is None and (node := nodes.get(known.get("host") or "")) is not None:
            rank = node.group_rank * node.n_local + local
        if rank is None and n_hosts <= 1:
            candidates = {rank for (_, other), rank in by_local.items() if other == local}
            rank = candidates.pop() if len(candidates) == 1 else None if by_local else local
        if rank is not None:
            known["rank"], known["rank_origin"] = rank, "inferred"
    return Mention(mention.artifact_id, mention.number, known)


def _key(known: Mapping[str, Any], places: frozenset[str] | None, first: int) -> tuple[Any, ...]:
    attempt, rank = known.get("attempt"), known.get("rank")
    if attempt is None:
        attempt = first
    if rank is None and places is not None:
        host = known.get("host")
        rank = 0 if not host or not places or _machine(host) in places else None
    if rank is not None:
        return (attempt, rank, None, None, None)
    separate = known.get("separate")  # a process that shares a file with others and is known by its pid alone
    return (attempt, None, known.get("host"), known.get("pid") if separate else None, known.get("local_rank"))


def _row(number: int, key: tuple[Any, ...], mentions: Sequence[Mention]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": number, "attempt": key[0], **dict.fromkeys(FIELDS), "rank_origin": "none"}
    for name in FIELDS:
        # What the content says counts more than what names and folders say; of equals the first.
        said = [(_origin(m, name), m.known[name]) for m in mentions if m.known.get(name) is not None]
        if not said:
            continue
        values = [value for _, value in said]
        best = min(said, key=lambda pair: ORIGINS.index(pair[0]))
        row[name] = min(values) if name == "start_ns" else max(values) if name == "end_ns" else best[1]
        if name in _WITH_ORIGIN:
            row[f"{name}_origin"] = best[0]
    attempts = [_origin(m, "attempt") for m in mentions if m.known.get("attempt") is not None]
    row["attempt_origin"] = min(attempts, key=ORIGINS.index, default=None)
    if key[1] is not None:
        row["rank"] = key[1]
    return row


def _origin(mention: Mention, name: str) -> str:
    origin: str = mention.known.get(f"{name}_origin") or "none"
    return origin
