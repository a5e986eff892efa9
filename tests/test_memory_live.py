"""Turns, growth, places and categories out of the lives of allocations."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.models.memory_categories import categorize
from forensics.models.memory_growth import Growth, find_growth
from forensics.models.memory_lives import Lives
from forensics.models.memory_places import Frame, Places
from forensics.models.memory_turns import NO_TURNS, Turns, find_turns

MIB = 1 << 20
TORCH = "/usr/lib/python3/site-packages/torch"


class Recording:
    """Writes down allocations as an allocator's history would; stacks by name, the innermost frame first."""

    def __init__(self) -> None:
        self.now = 0
        self.begin: list[int] = []
        self.end: list[int] = []
        self.size: list[int] = []
        self.stack: list[int] = []
        self.stacks: dict[tuple[Frame, ...], int] = {}
        self.marks: list[tuple[int, int]] = []

    def alloc(self, size: int, *frames: str) -> int:
        key = tuple(frame(text) for text in frames)
        self.begin.append(self.now)
        self.end.append(-1)
        self.size.append(size)
        self.stack.append(self.stacks.setdefault(key, len(self.stacks)) if key else -1)
        self.now += 1
        return len(self.begin) - 1

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self.end[block] = self.now
            self.now += 1

    def step(self, number: int) -> None:
        self.marks.append((self.now, number))

    def lives(self) -> Lives:
        n = self.now
        end = np.array([n if e < 0 else e for e in self.end], np.int64)
        steps = np.full(n, -1, np.int64)
        for start, number in self.marks:
            steps[start:] = number
        nothing = np.zeros(n, np.int64)
        return Lives(
            n,
            np.array(self.begin, np.int64),
            end,
            end,
            np.array(self.size, np.int64),
            np.arange(len(self.size), dtype=np.uint64),
            np.array(self.stack, np.int64),
            [None] * len(self.size),
            np.arange(n, dtype=np.int64),
            nothing,
            steps,
            nothing,
            np.zeros(0, np.int64),
            list(range(len(self.stacks))),
        )

    def places(self) -> Places:
        return Places(self.lives(), list(self.stacks))

    def growth(self) -> Growth | None:
        lives = self.lives()
        return find_growth(lives, find_turns(lives), self.places())


def frame(text: str) -> Frame:
    file, function, line = text.split(":")
    return Frame(function, file, int(line), not file.startswith(TORCH))


def staircase(turns: int, *kept: str, marked: bool = True, size: int = MIB) -> Recording:
    """A loop that allocates scratch memory and leaves one block behind in each turn."""
    recording = Recording()
    for _ in range(4):
        recording.alloc(8 * MIB, "job.py:load:1", "job.py:main:90")
    for turn in range(turns):
        if marked:
            recording.step(turn)
        scratch = [
            recording.alloc(4 * MIB, "job.py:helper:5", f"job.py:work:{20 + k}", "job.py:main:91") for k in (0, 1)
        ]
        recording.alloc(size, *kept)
        recording.free(*scratch)
    return recording


KEEP = ("job.py:helper:5", "job.py:keep:30", "job.py:main:92")


@pytest.mark.parametrize("marked", [True, False])
def test_a_staircase_has_a_slope_with_its_interval_and_the_line_that_leaves_blocks_behind(marked: bool) -> None:
    recording = staircase(20, *KEEP, marked=marked)
    growth = recording.growth()
    assert growth is not None
    assert growth.turns.origin == ("annotation" if marked else "periodicity")
    assert growth.low <= growth.slope <= growth.high
    assert growth.slope == pytest.approx(MIB)
    # Not the helper, through which everything is allocated.
    assert str(recording.places().telling(growth.kept)) == "keep (job.py:30)"


def test_memory_that_rises_and_falls_within_each_turn_does_not_grow() -> None:
    recording = Recording()
    for turn in range(20):
        recording.step(turn)
        recording.free(*[recording.alloc((turn % 7 + k) * MIB, "job.py:work:20") for k in range(1, 9)])
    assert recording.growth() is None


def test_a_cache_that_is_full_before_the_end_does_not_grow() -> None:
    recording = staircase(8, *KEEP)
    for turn in range(8, 40):
        recording.step(turn)
        recording.free(recording.alloc(4 * MIB, "job.py:work:20"))
    assert recording.growth() is None


def test_a_sliding_window_of_blocks_does_not_grow() -> None:
    recording = Recording()
    window: list[int] = []
    for turn in range(30):
        recording.step(turn)
        window.append(recording.alloc(MIB, *KEEP))
        if len(window) > 3:
            recording.free(window.pop(0))
        recording.free(recording.alloc(4 * MIB, "job.py:work:20"))
    assert recording.growth() is None


def test_a_sawtooth_over_many_turns_does_not_grow() -> None:
    recording = Recording()
    held: list[int] = []
    for turn in range(40):
        recording.step(turn)
        held.append(recording.alloc(MIB, *KEEP))
        if turn % 10 == 9:
            recording.free(*held)
            held = []
    assert recording.growth() is None


@pytest.mark.parametrize(
    ("inner", "source"),
    [
        (f"{TORCH}/nn/modules/module.py:register_buffer:500", "module-state"),
        (f"{TORCH}/utils/data/_utils/pin_memory.py:_pin_memory_loop:30", "loader"),
        (f"{TORCH}/autograd/graph.py:_engine_run_backward:800", "gradient"),
        (f"{TORCH}/nn/functional.py:linear:10", "unknown"),  # outputs of one operator alone are no graph
        ("job.py:helper:5", "unknown"),
    ],
)
def test_the_source_of_what_stays_is_told_by_frames_of_pytorch(inner: str, source: str) -> None:
    growth = staircase(20, inner, "job.py:keep:30", "job.py:main:92").growth()
    assert growth is not None
    assert growth.source == source


def test_results_of_several_operators_of_each_pass_are_a_graph() -> None:
    recording = Recording()
    for turn in range(20):
        recording.step(turn)
        for operator in ("linear", "gelu", "layer_norm"):
            recording.alloc(MIB, f"{TORCH}/nn/functional.py:{operator}:10", "job.py:train:7")
        recording.free(recording.alloc(MIB, "job.py:batch:3"))
    growth = recording.growth()
    assert growth is not None
    assert growth.source == "retained-graph"
    assert str(recording.places().telling(growth.kept)) == "train (job.py:7)"


def test_layers_within_a_turn_are_no_turns() -> None:
    recording = Recording()
    for _ in range(12):
        blocks = [recording.alloc(MIB, f"job.py:{name}:1") for _ in range(6) for name in ("attention", "mlp")]
        recording.free(*blocks)
        recording.free(recording.alloc(MIB, "job.py:optimizer:1"))
    assert len(find_turns(recording.lives())) in (11, 12)


def test_what_has_no_rhythm_has_no_turns() -> None:
    draw = np.random.default_rng(3)
    recording = Recording()
    for place in draw.integers(0, 40, 400).tolist():
        recording.free(recording.alloc(MIB, f"job.py:request_{place}:1"))
    assert find_turns(recording.lives()).origin == "none"


def trained(steps: int, *, until: str = "end") -> Recording:
    """Plain training without annotations or frames that say anything: parameters, activations, gradients, states."""
    recording = Recording()
    parameters = [recording.alloc(size * MIB, "job.py:mem:1", "job.py:build:2") for size in (8, 16)]
    states: list[int] = []
    for _ in range(steps):
        activations = [recording.alloc(5 * MIB, "job.py:mem:1", "job.py:forward:3") for _ in range(4)]
        if until == "forward":
            return recording
        gradients = []
        for size in (16, 8):
            recording.free(activations.pop(), activations.pop())
            gradients.append(recording.alloc(size * MIB, "job.py:mem:1", "job.py:backward:4"))
        if not states:
            states = [recording.alloc(size * MIB, "job.py:mem:1", "job.py:update:5") for size in (8, 8, 16, 16)]
        if until == "update":
            return recording
        recording.free(*gradients)
    assert parameters
    return recording


def bytes_at(recording: Recording, moment: int, turns: Turns = NO_TURNS) -> dict[str, int]:
    lives = recording.lives()
    found = categorize(lives, turns, recording.places(), moment)
    return {name: int(lives.size[mask].sum()) // MIB for name, mask in found.items()}


def test_the_live_set_of_a_first_step_is_told_by_how_its_blocks_live() -> None:
    recording = trained(1, until="update")
    assert bytes_at(recording, recording.now - 1) == {"parameter": 24, "gradient": 24, "optimizer": 48}


def test_activations_are_what_piles_up_until_the_backward_pass() -> None:
    recording = trained(6)
    lives = recording.lives()
    assert bytes_at(recording, int(lives.live().argmax()), find_turns(lives))["parameter"] == 24
    forward = int(lives.begin[lives.stack == list(recording.stacks).index(key("job.py:mem:1", "job.py:forward:3"))][3])
    assert bytes_at(recording, forward) == {"parameter": 24, "activation": 20}


def test_nothing_is_told_of_a_history_in_which_nothing_was_freed() -> None:
    recording = trained(1, until="forward")
    assert bytes_at(recording, recording.now - 1) == {"unknown": 44}


def test_owners_are_the_callers_of_a_helper_that_all_go_through() -> None:
    recording = trained(1, until="update")
    lives = recording.lives()
    owners = recording.places().owners(categorize(lives, NO_TURNS, recording.places(), recording.now - 1))
    assert [(category, str(place)) for category, _, _, place in owners] == [
        ("optimizer", "update (job.py:5)"),
        ("gradient", "backward (job.py:4)"),
        ("parameter", "build (job.py:2)"),
    ]


def key(*frames: str) -> tuple[Frame, ...]:
    return tuple(frame(text) for text in frames)
