"""Growth of live memory from turn to turn of the loop, and the allocations that stay.

Of each turn the floor counts, the least that was live during it: what rises and falls within a turn does not show
there. The slope is that of least squares over the floors; its interval is the 95 % one of Student's t, which takes the
turns' deviations as independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forensics.models.memory_lives import Array, Lives
from forensics.models.memory_places import Places
from forensics.models.memory_turns import Turns

_MIN_TURNS = 6
_SETTLING = 2  # turns in which gradients, optimizer state and workspaces appear for the first time
_MIN_TIMES = 4  # turns from which the same place left something behind
_LATE = 0.75  # the last of them lies in the last quarter
_MIN_LATER = 0.25  # growth of the second half over that of the first: less is a cache that fills up
_MIN_OPERATORS = 3  # places of one pass that left something behind

# What frames of PyTorch say of the code that allocates; the first kind that fits counts.
_KINDS = {
    "loader": ("torch/utils/data/", ":pin_memory", ":collate", ":default_collate"),
    "backward": ("torch/autograd/", "torch/_tensor.py:backward"),
    "optimizer": ("torch/optim/",),
    "module-state": (":register_buffer", ":register_parameter", ":load_state_dict", ":_apply"),
    "forward": ("torch/nn/",),
}


@dataclass(frozen=True)
class Growth:
    """`kept`: the allocations that stay, turn after turn. Bytes a turn; `low` and `high` bound the slope."""

    turns: Turns
    first: int  # index of the first turn that counts
    floors: Array
    slope: float
    low: float
    high: float
    kept: npt.NDArray[np.bool_]
    n_times: int
    source: str  # retained-graph | gradient | module-state | loader | optimizer | unknown


def find_growth(lives: Lives, turns: Turns, places: Places) -> Growth | None:
    """The growth of a device's live memory; None where turns are too few, or the floor does not keep rising."""
    if len(turns) < _MIN_TURNS:
        return None
    live = lives.live()
    floors = np.array([int(part.min()) for part in np.split(live, turns.starts)[1:]], np.int64)
    first = _SETTLING if len(floors) >= _MIN_TURNS + _SETTLING else 1
    # The last turn may be cut short.
    counted = floors[first:-1]
    slope, low, high = _slope(counted)
    if low <= 0 or not _keeps_rising(counted):
        return None
    kept, n_times = _kept(lives, turns, first)
    if not kept.any():
        return None
    return Growth(turns, first, floors, slope, low, high, kept, n_times, _source(lives, turns, places, kept))


def _slope(values: Array) -> tuple[float, float, float]:
    """Slope of least squares a turn, and its 95 % interval."""
    n = len(values)
    x = np.arange(n) - (n - 1) / 2
    spread = float((x**2).sum())
    slope = float((x * values).sum()) / spread
    rest = values - values.mean() - slope * x
    df = n - 2
    error = float(np.sqrt((rest**2).sum() / df / spread)) if df > 0 else float("inf")
    # Cornish-Fisher expansion of Student's t about the normal quantile (Abramowitz and Stegun 26.7.5).
    z = 1.959964
    t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2) if df > 0 else 0.0
    return slope, slope - t * error, slope + t * error


def _keeps_rising(floors: Array) -> bool:
    """A staircase: what the last third never falls to, the first third never reached; and it has not levelled off."""
    third, half = max(1, len(floors) // 3), len(floors) // 2
    apart = floors[-third:].min() > floors[:third].max()
    earlier, later = floors[half] - floors[0], floors[-1] - floors[half]
    return bool(apart and later >= _MIN_LATER * earlier)


def _kept(lives: Lives, turns: Turns, first: int) -> tuple[npt.NDArray[np.bool_], int]:
    """Allocations of places that left something behind in several turns up to the last, and in how many at most."""
    born = turns.of(lives.begin)
    n = len(turns)
    stays = (lives.end >= lives.n_events) & (born >= first) & (born < n - 1)
    # Where stacks were not recorded, equal sizes stand for equal places.
    place = np.where(lives.stack >= 0, lives.stack, -2 - lives.size)
    kept, most = np.zeros(len(stays), np.bool_), 0
    for key in np.unique(place[stays]):
        here = stays & (place == key)
        times = np.unique(born[here])
        if len(times) >= _MIN_TIMES and times[-1] >= first + _LATE * (n - 1 - first) - 1:
            kept |= here
            most = max(most, len(times))
    return kept, most


def _source(lives: Lives, turns: Turns, places: Places, kept: npt.NDArray[np.bool_]) -> str:
    """What kind of code left it behind, as far as frames of PyTorch tell."""
    by_kind = places.passing(kept, _KINDS)
    total = int(lives.size[kept].sum())
    kind = max(by_kind, key=lambda k: by_kind[k], default="")
    if not kind or 2 * by_kind[kind] < total:
        return "unknown"
    if kind == "forward":
        operators = {_operator(places, stack) for stack in places.bytes_by_stack(kept)}
        return "retained-graph" if len(operators) >= _MIN_OPERATORS else "unknown"
    return {"backward": "gradient"}.get(kind, kind)


def _operator(places: Places, stack: int) -> tuple[str, str | None, int | None]:
    return places.frames[stack][0][:3]
