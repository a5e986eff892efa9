"""What live allocations are for, by how they live: parameter, gradient, optimizer, activation, workspace, kept …

A profiler's own word counts first, then what frames of PyTorch say, then the pattern of a training loop: parameters are
there before the first turn; in a turn activations pile up until the backward pass begins (the moment at which they are
most) and are gone at its end; gradients have the sizes of parameters and come while activations go; what comes with
such sizes when all activations are gone, and stays, is the optimizer's. What else lives on for turns is "kept".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forensics.models.memory_lives import Array, Lives
from forensics.models.memory_places import Places
from forensics.models.memory_turns import Turns

CATEGORIES = ("parameter", "gradient", "optimizer", "activation", "input", "workspace", "kept", "unknown")
_RECORDED = {"temporary": "workspace", "autograd_detail": "activation"}
_GONE = 0.05  # of the most activations of a turn: below that its backward pass is over
_KEPT_TURNS = 2  # a tensor of one turn may live into the next: a loss, a prefetched batch
_LEAST = 1 << 16  # bytes; sizes below are shared by all kinds

# The innermost frame that says something counts, so those of an optimizer's step come before those of its caller.
_WORDS = {
    "input": ("torch/utils/data/", ":pin_memory", ":default_collate"),
    "state": ("torch/optim/",),
    "backward": ("torch/autograd/", "torch/_tensor.py:backward"),
    "parameter": ("torch/nn/modules/module.py:_apply", ":register_buffer", ":reset_parameters", ":load_state_dict"),
    "activation": ("torch/nn/",),
}
# Frames of torch/nn/modules/module.py on the way to anything.
_SILENT = {"<lambda>", "cuda", "to", "_call_impl", "_wrapped_call_impl"}
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Turn:
    """Moments of one turn: when it began, when activations were most, when they were gone."""

    start: int
    turned: int
    over: int


def categorize(lives: Lives, turns: Turns, places: Places, moment: int) -> dict[str, Mask]:
    """Which allocations that live at `moment` are of which category."""
    alive = lives.alive_at(moment)
    start = int(turns.starts[0]) if len(turns) else _first_freed(lives)
    sizes = np.unique(lives.size[(lives.begin < start) & (lives.end >= min(moment, lives.n_events - 1))])
    words = _word_of_stack(places)
    born = turns.of(lives.begin) if len(turns) else np.where(lives.begin < start, -1, 0)
    phases = {t: _phases(lives, turns, born, sizes, t, moment) for t in np.unique(born[alive]).tolist() if t >= 0}
    found: dict[str, list[int]] = {name: [] for name in CATEGORIES}
    now = int(turns.of(np.array([moment]))[0]) if len(turns) else 0
    for k in np.flatnonzero(alive).tolist():
        category = _category(lives, k, words, phases.get(int(born[k])), sizes)
        if category in ("activation", "workspace") and lives.begin[k] >= 0 and 0 <= born[k] <= now - _KEPT_TURNS:
            category = "kept"
        # Where nothing was freed and no turn is known, all that was made looks the same.
        found["unknown" if start >= lives.n_events and category == "parameter" else category].append(k)
    _settle_by_stack(lives, found)
    masks = {name: np.zeros(len(alive), np.bool_) for name in CATEGORIES}
    for name, chosen in found.items():
        masks[name][chosen] = True
    return {name: mask for name, mask in masks.items() if mask.any()}


def _category(lives: Lives, k: int, words: list[str], phase: _Turn | None, sizes: Array) -> str:
    if recorded := lives.category[k]:
        recorded = _RECORDED.get(recorded, recorded)
        return recorded if recorded in CATEGORIES else "unknown"
    word = words[lives.stack[k]] if lives.stack[k] >= 0 else ""
    size, begin = int(lives.size[k]), int(lives.begin[k])
    like_parameter = size >= _LEAST and bool(np.isin(size, sizes))
    stays = bool(lives.end[k] >= lives.n_events)
    if word == "state":
        category = "optimizer" if phase is None or stays else "workspace"
    elif word == "backward":
        category = "gradient" if like_parameter else "workspace"
    elif word or phase is None:
        # Of what was there when the history began nothing is known.
        category = word or ("parameter" if begin >= 0 else "unknown")
    elif begin <= phase.turned:
        category = "activation"
    else:
        category = _after_forward(size, sizes, like_parameter and begin <= phase.over, stays and begin > phase.over)
    return category


def _after_forward(size: int, sizes: Array, is_gradient: bool, is_late: bool) -> str:
    # State of half or double precision is half or twice as large as its parameter.
    fits = size >= _LEAST and bool(np.isin([size // 2, size, size * 2], sizes).any())
    return "gradient" if is_gradient else "optimizer" if is_late and fits else "workspace"


def _settle_by_stack(lives: Lives, found: dict[str, list[int]]) -> None:
    """One line of code makes gradients or optimizer state, not both: the more bytes decide."""
    sums: dict[int, dict[str, int]] = defaultdict(lambda: {"gradient": 0, "optimizer": 0})
    for name in ("gradient", "optimizer"):
        for k in found[name]:
            sums[int(lives.stack[k])][name] += int(lives.size[k])
    both = [k for name in ("gradient", "optimizer") for k in found[name]]
    found["gradient"], found["optimizer"] = [], []
    for k in sorted(both):
        by_name = sums[int(lives.stack[k])]
        found["gradient" if by_name["gradient"] >= by_name["optimizer"] else "optimizer"].append(k)


def _word_of_stack(places: Places) -> list[str]:
    """What the innermost telling frame of each stack says; "" for nothing."""
    words = []
    for frames in places.frames:
        word = ""
        for frame in frames:
            text = f"{(frame.file or '').replace(chr(92), '/')}:{frame.function}"
            if "torch/nn/modules/module.py" in text and frame.function in _SILENT:
                continue
            word = next((name for name, parts in _WORDS.items() if any(p in text for p in parts)), "")
            if word:
                break
        words.append(word)
    return words


def _first_freed(lives: Lives) -> int:
    """Beginning of the first allocation that was freed: until then only what stays was made."""
    freed = lives.begin[(lives.end < lives.n_events) & (lives.begin >= 0)]
    return int(freed.min()) if len(freed) else lives.n_events


def _phases(lives: Lives, turns: Turns, born: Array, sizes: Array, turn: int, moment: int) -> _Turn:
    start = int(turns.starts[turn]) if len(turns) else _first_freed(lives)
    stop = int(turns.starts[turn + 1]) if turn + 1 < len(turns) else lives.n_events
    stop = max(start + 1, min(stop, moment + 1))
    own = (born == turn) & ~np.isin(lives.size, sizes)
    change = np.zeros(stop - start + 1, np.int64)
    np.add.at(change, np.clip(lives.begin[own], start, stop) - start, lives.size[own])
    np.subtract.at(change, np.clip(lives.end[own], start, stop) - start, lives.size[own])
    live = np.cumsum(change)[:-1]
    turned = int(live.argmax())
    few = np.flatnonzero(live[turned:] <= _GONE * live[turned])
    over = start + turned + int(few[0]) if len(few) and live[turned] > 0 else stop
    return _Turn(start, start + turned, over)
