"""Blocks that keep free memory apart, by what freeing them would unlock."""

from __future__ import annotations

from pathlib import Path

import pytest
from allocator_records import truth_of
from support import ARTIFACTS, needs_artifacts

from forensics.investigation import Case
from forensics.models.allocator_held import HeldBlock, HeldSegment
from forensics.models.allocator_pins import Code, Frame, Pin, find_pins
from forensics.models.allocator_settings import MIB
from forensics.pipeline import analyze

HELPER: Frame = ("zeros", "model.py", 3)
STATISTIC: Frame = ("statistic", "model.py", 20)
OUTPUT: Frame = ("forward", "model.py", 40)
MAIN: Frame = ("main", "model.py", 90)
CODE = Code(
    {1: (HELPER, STATISTIC, MAIN), 2: (HELPER, OUTPUT, MAIN)},
    {HELPER: 900 * MIB, MAIN: 900 * MIB, STATISTIC: 6 * MIB, OUTPUT: 894 * MIB},
)


def segment(start: int, *blocks: tuple[int, int | None], expandable: bool = False) -> HeldSegment:
    """Blocks as MiB and stack; stack None for a free one."""
    at, held = start * MIB, []
    for row, (mib, stack) in enumerate(blocks):
        state = "inactive" if stack is None else "active_allocated"
        held.append(HeldBlock(1000 * start + row, at, mib * MIB, mib * MIB, state, stack or None))
        at += mib * MIB
    return HeldSegment(start * MIB, at - start * MIB, 0, "0.0", False, expandable, tuple(held))


def pins(*segments: HeldSegment, requested: int = 60, code: Code = CODE) -> list[Pin]:
    return find_pins(segments, requested * MIB, code, most=100)


def test_the_line_that_unlocks_most_for_what_it_holds_comes_first() -> None:
    found = pins(
        segment(0, (2, 1), (48, None)),
        segment(100, (2, 1), (48, None)),
        segment(200, (40, 2), (10, None)),
    )
    assert [(p.site.rank, p.site.frame, p.joined // MIB) for p in found] == [
        (1, STATISTIC, 48),
        (1, STATISTIC, 48),
        (2, OUTPUT, 10),
    ]
    assert (found[0].site.unlocked, found[0].site.held) == (96 * MIB, 4 * MIB)


def test_a_helper_that_everything_goes_through_is_not_named() -> None:
    """All blocks beside free ones came through it as well as through the line that matters."""
    assert {p.site.frame for p in pins(segment(0, (2, 1), (48, None)))} == {STATISTIC}


def test_a_block_that_joins_two_runs_to_the_request_unlocks_both() -> None:
    pin, *_ = pins(segment(0, (30, None), (2, 1), (30, None), (200, 2)))
    assert pin.site.frame == STATISTIC
    assert (pin.joined, pin.site.unlocked, pin.empties) == (60 * MIB, 60 * MIB, False)


def test_what_joins_to_less_than_the_request_unlocks_nothing() -> None:
    """Only all that lives in the segment together does: then it can be given back."""
    found = pins(segment(0, (20, None), (2, 1), (20, None), (200, 2)), requested=300)
    assert {p.site.held for p in found} == {202 * MIB}


def test_a_segment_that_would_be_empty_can_be_given_back_whatever_its_size() -> None:
    (pin,) = pins(segment(0, (2, 1), (18, None)), requested=300)
    assert (pin.empties, pin.site.unlocked) == (True, 18 * MIB)


def test_of_expandable_segments_whole_pages_count() -> None:
    """Freeing the block opens 45 MiB, which hold one page of 20 MiB beyond those that could be unmapped before."""
    pin, *_ = pins(segment(0, (5, 2), (15, None), (2, 1), (28, None), (50, 2), expandable=True), requested=300)
    assert pin.site.frame == STATISTIC
    assert pin.site.unlocked == 20 * MIB


def test_without_stacks_blocks_are_named_without_a_line() -> None:
    (pin,) = pins(segment(0, (2, 0), (48, None)), code=Code({}, {}))
    assert pin.site.frame is None


def test_a_run_that_holds_the_request_already_is_not_locked() -> None:
    assert pins(segment(0, (2, 1), (80, None))) == []


@needs_artifacts
@pytest.mark.parametrize("name", ["frag_pins_oom", "frag_pins_oom__torch2.6", "frag_varlen_oom__torch2.6"])
def test_the_line_that_really_pins_is_named_with_what_it_holds(name: str, tmp_path: Path) -> None:
    truth = truth_of(name)
    (pinning,) = (culprit for culprit in truth["culprits"] if culprit["role"] == "pins")
    analyze(ARTIFACTS / "allocator" / f"{name}.pickle", tmp_path)
    with Case(tmp_path) as case:
        first = "SELECT DISTINCT place, held_bytes FROM allocator_pin WHERE site_rank = 1"
        ((place, held),) = case.query(first).fetchall()
        (where,) = case.query(
            "SELECT facts ->> 'where_in_code' FROM finding WHERE rule = 'memory-fragmentation'"
        ).fetchall()
    assert place.startswith(f"{pinning['function']} (")
    assert where == (place,)
    assert held >= 0.9 * pinning["bytes"]
