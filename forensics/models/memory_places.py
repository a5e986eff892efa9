"""Where in the code a set of allocations comes from: the frame that tells this set from all others.

The innermost frame of the job's own code is often a helper that everything goes through, the outermost one its main
function: neither says anything. The frame sought lies on the stacks of the set and on few others.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

from forensics.models.memory_lives import Lives

_EQUAL = 0.01  # of the score: below that the frame nearest to the allocation is named
_UNNAMED = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>"}  # the function around them is named

Key = tuple[str, str | None, int | None]  # function, file, line


class Place(NamedTuple):
    """A line of code; `caller` is the frame of the job's own code that called it."""

    function: str
    file: str | None
    line: int | None
    caller: str | None = None

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})" if self.file else self.function


class Frame(NamedTuple):
    function: str
    file: str | None
    line: int | None
    is_own: bool


@dataclass(frozen=True)
class Places:
    """The frames of each stack of a device's allocations, the innermost one first."""

    lives: Lives
    frames: list[tuple[Frame, ...]]

    @cached_property
    def _own(self) -> list[tuple[Key, ...]]:
        """The job's own frames of each stack; all frames where none is its own."""
        return [tuple(f[:3] for f in stack if f.is_own) or tuple(f[:3] for f in stack) for stack in self.frames]

    @cached_property
    def _bytes_by_frame(self) -> dict[Key, int]:
        return self._through(np.ones(len(self.lives.size), np.bool_))

    def _through(self, chosen: npt.NDArray[np.bool_]) -> dict[Key, int]:
        """Bytes of the chosen allocations whose stacks pass through each frame."""
        through: dict[Key, int] = defaultdict(int)
        for stack, size in self.bytes_by_stack(chosen).items():
            for frame in set(self._own[stack]):
                through[frame] += size
        return through

    def bytes_by_stack(self, chosen: npt.NDArray[np.bool_]) -> dict[int, int]:
        """Bytes of the chosen allocations by the index of their stack, the most first."""
        at = chosen & (self.lives.stack >= 0)
        sums = np.bincount(self.lives.stack[at], weights=self.lives.size[at], minlength=0)
        return {int(k): int(sums[k]) for k in np.argsort(-sums, kind="stable") if sums[k] > 0}

    def telling(self, chosen: npt.NDArray[np.bool_]) -> Place | None:
        """The frame that best tells the chosen allocations from all others of the history; None without stacks.

        Of frames whose recall and precision, in bytes, have equal harmonic means, the innermost counts.
        """
        through = self._through(chosen)
        total = sum(self.bytes_by_stack(chosen).values())
        if not total:
            return None
        everything = self._bytes_by_frame
        score = {frame: 2 * size / (total + everything[frame]) for frame, size in through.items()}
        best = max(score.values())
        good = {frame for frame, value in score.items() if value >= best - _EQUAL}
        for stack in self.bytes_by_stack(chosen):
            own = self._own[stack]
            for depth, frame in enumerate(own):
                if frame in good:
                    return _named(own, depth)
        return None

    def owners(
        self, categories: dict[str, npt.NDArray[np.bool_]]
    ) -> list[tuple[str, int, npt.NDArray[np.bool_], Place | None]]:
        """The allocations of each category by place: category, bytes, which they are, place; the most bytes first.

        The place of a stack is its frame that best tells it from the rest of these allocations.
        """
        nothing = np.zeros(len(self.lives.size), np.bool_)
        among = self._through(np.logical_or.reduce([nothing, *categories.values()]))
        found = []
        for category, chosen in categories.items():
            stacks_of: dict[Place, list[int]] = defaultdict(list)
            for stack, size in self.bytes_by_stack(chosen).items():
                score = [2 * size / (size + among[frame]) for frame in self._own[stack]]
                depth = next(d for d, value in enumerate(score) if value >= max(score) - _EQUAL)
                stacks_of[_named(self._own[stack], depth)].append(stack)
            groups: list[tuple[Place | None, npt.NDArray[np.bool_]]] = [(None, chosen & (self.lives.stack < 0))]
            groups += [(place, chosen & np.isin(self.lives.stack, stacks)) for place, stacks in stacks_of.items()]
            for place, those in groups:
                if those.any():
                    found.append((category, int(self.lives.size[those].sum()), those, place))
        return sorted(found, key=lambda owner: (-owner[1], owner[0], str(owner[3])))

    def entered(self, shared: list[Place], chosen: npt.NDArray[np.bool_]) -> Place | None:
        """Of nested functions (the outermost first) the innermost that the chosen allocations entered only through the
        one around it: a helper that others call too is none."""
        for depth in range(len(shared) - 1, 0, -1):
            inner, outer = shared[depth][:2], shared[depth - 1][:2]
            stacks = [{frame[:2] for frame in self._own[stack]} for stack in self.bytes_by_stack(chosen)]
            if all(outer in functions for functions in stacks if inner in functions):
                return shared[depth]
        return shared[0] if shared else None

    def passing(self, chosen: npt.NDArray[np.bool_], words: dict[str, tuple[str, ...]]) -> dict[str, int]:
        """Bytes of the chosen allocations by the first kind whose words a frame's file and function contain."""
        found: dict[str, int] = defaultdict(int)
        for stack, size in self.bytes_by_stack(chosen).items():
            texts = [f"{(f.file or '').replace(chr(92), '/')}:{f.function}" for f in self.frames[stack]]
            for kind, parts in words.items():
                if any(part in text for part in parts for text in texts):
                    found[kind] += size
                    break
        return found


def _named(own: tuple[Key, ...], depth: int) -> Place:
    while own[depth][0] in _UNNAMED and depth + 1 < len(own):
        depth += 1
    caller = own[depth + 1] if depth + 1 < len(own) else None
    return Place(*own[depth], str(Place(*caller)) if caller else None)


def read_places(con: duckdb.DuckDBPyConnection, lives: Lives) -> Places:
    """The frames of all stacks of a device's allocations."""
    rows = con.execute(
        """
        WITH RECURSIVE walk AS (
            SELECT k.id AS leaf, k.id, k.parent_id, k.user_stack_id FROM stack AS k
            WHERE k.id IN (SELECT unnest($leaves))
            UNION ALL
            SELECT w.leaf, k.id, k.parent_id, k.user_stack_id FROM walk AS w JOIN stack AS k ON k.id = w.parent_id
        )
        SELECT w.leaf, f.function, f.file, f.line, w.user_stack_id = w.id
        FROM walk AS w JOIN frame AS f ON f.id = w.id
        ORDER BY w.leaf, f.depth DESC
        """,
        {"leaves": lives.stacks},
    ).fetchall()
    by_leaf: dict[int, list[Frame]] = defaultdict(list)
    for leaf, function, file, line, is_own in rows:
        by_leaf[leaf].append(Frame(function, file, line, bool(is_own)))
    return Places(lives, [tuple(by_leaf[stack]) for stack in lives.stacks])
