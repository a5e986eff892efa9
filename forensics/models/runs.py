"""Tells runs of one program apart that lie in folders beside each other: eager/ and inductor/, before/ and after/.

Folders hold runs of their own where each claims the same rank of the same attempt, and

* recorders name other processes (host and pid) for it, or
* files of one name in them count the same steps anew, at times that do not overlap, or
* files of one name that a job has only one of hold other values for the same steps.

A run that goes on where an earlier one had come to is a restart and stays one. Everything else that lies in folders
(ranks, hosts, epochs, checkpoints, what training and evaluation wrote) is part of one job.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import isnan

from forensics.models.processes import Mention

_MAX_FOLDERS = 200  # that share something: each is compared with each other one
_LEAST_DIFFERENT = 2  # values: a single one may have been written twice, before a restart and after
# Counters may start over in these, one after the other, within one life of one job.
_PART = re.compile(
    r"(?:(?:global_?)?step|iter(?:ation)?|epoch|ep|checkpoint|ckpt|shard|part|(?:local_?)?rank|host|node|worker|gpu|device"
    r"|proc(?:ess)?|attempt|restart)s?[-_.=]?\d+|train(?:ing)?|eval(?:uation)?|val(?:id(?:ation)?)?|test(?:ing)?",
    re.IGNORECASE,
)

_Rank = tuple[int | None, int | None]  # attempt, rank


@dataclass(frozen=True)
class Series:
    """Steps and times (ns, of one clock) between which a file counts steps."""

    first_step: int
    last_step: int
    from_ns: int
    to_ns: int
    clock: str

    def begins_anew_after(self, other: Series) -> bool | None:
        """Whether it counts anew what the other had counted, or goes on; None where their times do not tell."""
        if self.clock != other.clock or self.from_ns <= other.to_ns:
            return None
        return self.first_step <= other.first_step


@dataclass(frozen=True)
class Lying:
    """Where an artifact lies: path, format, what it says of its processes, and its series of steps.

    `series`: asked for only where folders have to be compared; None where a file cannot have one.
    `values`: of a file that a job has only one of, by step and name; empty for others.
    """

    path: str
    format: str | None
    mentions: Sequence[Mention]
    series: Callable[[], Series | None] | None = None
    values: Mapping[tuple[int, int], float] = field(default_factory=dict)


@dataclass
class _Folder:
    path: str
    artifacts: list[int] = field(default_factory=list)
    processes: dict[_Rank, set[tuple[str | None, int]]] = field(default_factory=lambda: defaultdict(set))
    series: dict[tuple[str, str | None, _Rank], Callable[[], Series | None]] = field(default_factory=dict)
    values: dict[str, Mapping[tuple[int, int], float]] = field(default_factory=dict)


def tell_runs_apart(lying: Sequence[Lying]) -> tuple[list[Mention], dict[int, str]]:
    """All mentions, those of a run with an attempt of its own, and of each artifact of a run the run's folder.

    Artifacts are numbered by their place. Runs are numbered in the order of their times, else of their names.
    """
    runs = _in_order(list(_run_folders(dict(enumerate(lying)), 0)))
    run_of = {artifact: number for number, run in enumerate(runs) for artifact in run.artifacts}
    numbers = _attempt_numbers(lying, run_of)
    mentions = []
    for artifact, item in enumerate(lying):
        for mention in item.mentions:
            run = run_of.get(artifact)
            if run is None:
                mentions.append(mention)
                continue
            known = {"attempt": numbers[run, _life(mention)], "attempt_origin": "run"}
            mentions.append(Mention(mention.artifact_id, mention.number, {**mention.known, **known}))
    return mentions, {artifact: runs[number].path for artifact, number in run_of.items()}


def _life(mention: Mention) -> int | None:
    """The attempt within its run. A name that numbers runs tells none."""
    return None if mention.known.get("attempt_origin") == "run" else mention.known.get("attempt")


def _attempt_numbers(lying: Sequence[Lying], run_of: Mapping[int, int]) -> dict[tuple[int, int | None], int]:
    """Attempts of each run, from 0 over all of them; what names none belongs to the first of its run."""
    lives: dict[int, set[int]] = defaultdict(set)
    for artifact, run in run_of.items():
        lives[run] |= {life for mention in lying[artifact].mentions if (life := _life(mention)) is not None}
    numbers: dict[tuple[int, int | None], int] = {}
    for run in sorted(set(run_of.values())):
        first = len(set(numbers.values()))
        for place, life in enumerate(sorted(lives[run]) or [0]):
            numbers[run, life] = first + place
        numbers[run, None] = first
    return numbers


def _run_folders(items: Mapping[int, Lying], depth: int) -> Iterator[_Folder]:
    """The topmost folders that hold runs of their own."""
    folders: dict[str, _Folder] = {}
    for artifact, item in items.items():
        parts = re.split(r"[/!]", item.path)
        if len(parts) > depth + 1:
            path = item.path[: sum(len(part) + 1 for part in parts[: depth + 1]) - 1]
            folder = folders.setdefault(path, _Folder(path))
            folder.artifacts.append(artifact)
            _describe(folder, item, "/".join(parts[depth + 1 :]))
    runs = _told_apart(list(folders.values()))
    if runs:
        yield from (folder for folder in folders.values() if folder.path in runs)
        return
    for folder in folders.values():
        yield from _run_folders({artifact: items[artifact] for artifact in folder.artifacts}, depth + 1)


def _describe(folder: _Folder, item: Lying, name: str) -> None:
    ranks: set[_Rank] = set()
    for mention in item.mentions:
        known = mention.known
        rank = known.get("rank")
        ranks.add((_life(mention), rank))
        # Recorders alone tell the attempt with rank and pid; what else names pids may do so from another namespace.
        if known.get("attempt_origin") == known.get("rank_origin") == "content" and known.get("pid") is not None:
            folder.processes[known.get("attempt"), rank].add((known.get("host"), known["pid"]))
    if item.values:
        folder.values[name] = item.values
    if item.series is not None and len(ranks) <= 1:
        folder.series[name, item.format, next(iter(ranks), (None, None))] = item.series


def _told_apart(folders: Sequence[_Folder]) -> set[str]:
    found: set[str] = set()
    for one, other in _pairs(folders):
        if one.path in found and other.path in found:
            continue
        anew = {
            _anew(series(), other.series[key]()) for key, series in one.series.items() if key in other.series
        }  # None: nothing tells; False: one goes on where the other had come to
        other_process = any(
            known.isdisjoint(other.processes[rank]) for rank, known in one.processes.items() if rank in other.processes
        )
        counts_anew = True in anew or any(
            _differ(v, other.values[n]) for n, v in one.values.items() if n in other.values
        )
        if False not in anew and (other_process or (counts_anew and not _is_part(one) and not _is_part(other))):
            found |= {one.path, other.path}
    return found


def _differ(one: Mapping[tuple[int, int], float], other: Mapping[tuple[int, int], float]) -> bool:
    """One that went on in another folder begins with what it had written before."""
    both = ((value, other[key]) for key, value in one.items() if key in other)
    return sum(a != b and not (isnan(a) and isnan(b)) for a, b in both) >= _LEAST_DIFFERENT


def _pairs(folders: Sequence[_Folder]) -> Iterable[tuple[_Folder, _Folder]]:
    """Folders that claim one rank or hold files of one name: thousands of ranks make no pair."""
    sharing: dict[object, list[int]] = defaultdict(list)
    for number, folder in enumerate(folders):
        for key in (*folder.processes, *folder.series, *folder.values):
            sharing[key].append(number)
    pairs = {pair for numbers in sharing.values() for pair in combinations(numbers[:_MAX_FOLDERS], 2)}
    return [(folders[one], folders[other]) for one, other in sorted(pairs)]


def _anew(one: Series | None, other: Series | None) -> bool | None:
    if one is None or other is None:
        return None
    first, second = sorted((one, other), key=lambda series: series.from_ns)
    return second.begins_anew_after(first)


def _is_part(folder: _Folder) -> bool:
    return _PART.fullmatch(re.split(r"[/!]", folder.path)[-1]) is not None


def _in_order(runs: Sequence[_Folder]) -> list[_Folder]:
    begins = {}
    for run in runs:
        known = (series() for series in run.series.values())
        begins[run.path] = min((one.from_ns for one in known if one is not None), default=None)
    named = sorted(runs, key=lambda run: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", run.path)])
    if any(begin is None for begin in begins.values()):
        return named
    return sorted(named, key=lambda run: begins[run.path] or 0)
