"""Which slice encloses which, held against a walk from slice to slice with the open ones on a stack."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.formats._kineto_nesting import enclosing


def _walked(thread_key: np.ndarray, ts_ns: np.ndarray, end_ns: np.ndarray, slack_ns: int) -> list[int]:
    found: list[int] = []
    opened: list[tuple[int, int]] = []
    for place, (start, end) in enumerate(zip(ts_ns.tolist(), end_ns.tolist(), strict=True)):
        if place and thread_key[place] != thread_key[place - 1]:
            opened = []
        while opened and (opened[-1][1] <= start or opened[-1][1] + slack_ns < end):
            opened.pop()
        found.append(opened[-1][0] if opened else -1)
        opened.append((place, end))
    return found


@pytest.mark.parametrize("slack_ns", [0, 1000])
def test_slices_of_random_lengths_are_enclosed_as_a_walk_finds_it(slack_ns: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(0, 60))
        thread_key = np.sort(rng.integers(0, 3, n)).astype(np.uint64) << np.uint64(62)
        ts_ns = rng.integers(0, 40, n) * rng.choice([1, 1000])
        end_ns = ts_ns + rng.integers(0, 30, n) * rng.choice([1, 100, 1000])
        order = np.lexsort((-end_ns, ts_ns, thread_key))
        given = thread_key[order], ts_ns[order], end_ns[order], slack_ns
        assert enclosing(*given).tolist() == _walked(*given)


@pytest.mark.parametrize("shape", ["one in the other", "many in each other, then one after the other", "staggered"])
def test_thousands_of_slices_in_each_other_or_in_a_row(shape: str) -> None:
    n = 20_000
    places = np.arange(n)
    half = places[: n // 2]
    ts_ns, end_ns = {
        "one in the other": (places, 4 * n - places),
        "many in each other, then one after the other": (
            np.concatenate([half, 2 * n + half]),
            np.concatenate([2 * n - half, 2 * n + half + 1]),
        ),
        "staggered": (places, places + 1000),
    }[shape]
    given = np.zeros(n, np.uint64), ts_ns, end_ns, 0
    assert enclosing(*given).tolist() == _walked(*given)
