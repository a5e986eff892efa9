"""Turns of a training loop as an allocator's history shows them: by marks of steps, else by what comes back.

A turn is a span of moments (ordinals of events, see memory_lives). Without marks the loop is found by its rhythm: in a
loop of N turns most places allocate N times or a multiple of it, at even distances.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from forensics.models.memory_lives import Array, Lives

_MIN_TURNS = 4
_MAX_SIGNATURES = 2000  # the most frequent ones
# Coefficient of variation of the distances, counted in allocations. Loops whose shapes vary stay below a half, places
# that many kinds of work share are well above.
_MAX_VARIATION = 0.5
_MIN_SHARE = 0.2  # of the votes of the most frequent rhythm: a slower one with as many is the loop around it
_MIN_SPAN = 0.5  # of all allocations lie between the first and the last turn


@dataclass(frozen=True)
class Turns:
    """`starts`: moments at which turns begin, in order. `numbers`: step numbers of the marks, else ordinals."""

    starts: Array
    numbers: Array
    origin: str  # annotation | periodicity | none

    def of(self, moments: Array) -> Array:
        """Index of the turn in which each moment lies; -1 before the first."""
        return np.searchsorted(self.starts, moments, side="right").astype(np.int64) - 1

    def __len__(self) -> int:
        return len(self.starts)


NO_TURNS = Turns(np.zeros(0, np.int64), np.zeros(0, np.int64), "none")


def find_turns(lives: Lives) -> Turns:
    """The turns of the history, by the best evidence; none where neither marks nor a rhythm show at least four."""
    marked = marked_turns(lives)
    return marked if len(marked) >= _MIN_TURNS else _rhythmic(lives)


def marked_turns(lives: Lives) -> Turns:
    """Turns by the marks of steps alone."""
    seen = np.flatnonzero(lives.steps >= 0)
    steps = lives.steps[seen]
    if not len(steps):
        return NO_TURNS
    changes = np.append(True, steps[1:] != steps[:-1])
    return Turns(seen[changes].astype(np.int64), steps[changes], "annotation")


def _rhythmic(lives: Lives) -> Turns:
    own = np.flatnonzero(lives.begin >= 0)
    if len(own) < 2 * _MIN_TURNS:
        return NO_TURNS
    # Where stacks were not recorded, equal sizes stand for equal places.
    signature = np.where(lives.stack[own] >= 0, lives.stack[own], -2 - lives.size[own])
    # A passage from one place to another tells a turn from the layers within it, which have more of them.
    _, codes = np.unique(signature, return_inverse=True)
    passage = np.append(-1, codes[:-1]) * (int(codes.max()) + 1) + codes
    passage[codes == np.append(-1, codes[:-1])] = -1
    _, index, counts = np.unique(passage, return_inverse=True, return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[:_MAX_SIGNATURES]
    found = [np.flatnonzero(index == k) for k in frequent.tolist() if counts[k] >= _MIN_TURNS]
    passages = [at for at in found if passage[at[0]] >= 0 and at[-1] - at[0] >= _MIN_SPAN * len(own) and _is_even(at)]
    votes = Counter(len(at) for at in passages)
    if not votes:
        return NO_TURNS
    n_turns = min(n for n, count in votes.items() if count >= _MIN_SHARE * max(votes.values()))
    anchor = min((at for at in passages if len(at) == n_turns), key=lambda at: int(at[0]))
    starts = lives.begin[own[anchor]]
    return Turns(starts, np.arange(len(starts), dtype=np.int64), "periodicity")


def _is_even(places: Array) -> bool:
    distances = np.diff(places[1:] if len(places) > _MIN_TURNS else places)  # the first turn also sets things up
    return bool(distances.std() <= _MAX_VARIATION * distances.mean())
