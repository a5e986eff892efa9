"""The critical path: stretches that touch, from the end of the last work to the first launch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from test_device_time import call, filled, work

from forensics.models.critical_path import Stretch, Walk, Work


def kernel(row: int, from_ns: int, to_ns: int, launched: tuple[int, int] | None, **more: Any) -> Work:
    begin, end = launched or (None, None)
    fields = {"stream": 7, "kind": "compute", "name_id": row, "launch_row": None if launched is None else row + 100}
    return Work(row, from_ns, to_ns, launched_ns=begin, returned_ns=end, **{**fields, **more})


def kinds(path: list[Stretch]) -> list[tuple[str, int, int]]:
    """Kind, begin and end of each stretch, the first in time first."""
    return [(one.kind, one.from_ns, one.to_ns) for one in reversed(path)]


def test_the_host_decides_up_to_a_launch_and_work_that_was_queued_follows_the_work_before_it() -> None:
    first, queued = kernel(0, 30, 100, (10, 20)), kernel(1, 105, 200, (20, 30))
    late = kernel(2, 420, 500, (400, 405))  # the host waited for the second, then did other things
    assert kinds(list(Walk([first, queued, late], [(50, 210)]).back())) == [
        ("launch", 10, 30), ("compute", 30, 100), ("queue", 100, 105), ("compute", 105, 200), ("return", 200, 210),
        ("host", 210, 400), ("launch", 400, 420), ("compute", 420, 500),
    ]  # fmt: skip


def test_work_that_starts_as_another_stream_ends_had_waited_for_it() -> None:
    copy = kernel(0, 10_000, 90_000, (0, 5), stream=8, kind="copy")
    waited, ready = kernel(1, 91_000, 95_000, (20, 30)), kernel(1, 91_000, 95_000, (85_000, 85_010))
    assert [k for k, _, _ in kinds(list(Walk([copy, waited], []).back()))] == ["launch", "copy", "queue", "compute"]
    # What was launched a moment before may have started at once.
    assert [k for k, _, _ in kinds(list(Walk([copy, ready], []).back()))] == ["host", "launch", "compute"]


def test_a_launch_that_returns_after_its_own_work_is_a_wait() -> None:
    pageable, after = kernel(0, 30, 100, (10, 110), kind="copy"), kernel(1, 130, 140, (120, 125))
    assert [k for k, _, _ in kinds(list(Walk([pageable, after], []).back()))] == [
        "launch", "copy", "return", "host", "launch", "compute",
    ]  # fmt: skip


def test_without_launches_the_way_goes_from_work_to_work() -> None:
    path = kinds(list(Walk([kernel(0, 0, 10, None), kernel(1, 50, 60, None)], []).back()))
    assert path == [("compute", 0, 10), ("unknown", 10, 50), ("compute", 50, 60)]


_TIMES = st.tuples(st.integers(0, 300), st.integers(1, 80), st.integers(0, 60), st.integers(0, 90), st.integers(0, 2))


@given(
    st.lists(_TIMES, min_size=1, max_size=25), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 99)), max_size=8)
)
def test_stretches_touch_and_add_up_whatever_overlaps(
    times: list[tuple[int, ...]], waits: list[tuple[int, int]]
) -> None:
    given_work = sorted((a, a + d, max(a - b, 0), c, stream) for a, d, b, c, stream in times)
    made = [
        kernel(n, a, b, None if stream == 2 and n % 3 == 0 else (launched, launched + c), stream=stream)
        for n, (a, b, launched, c, stream) in enumerate(given_work)
    ]
    path = list(Walk(made, [(a, a + d) for a, d in waits]).back())
    assert path[0].to_ns == max(one.to_ns for one in made)
    assert all(later.from_ns == earlier.to_ns for later, earlier in pairwise(path))
    assert all(one.to_ns > one.from_ns for one in path)


def test_a_case_has_the_path_of_each_device_with_input_told_apart() -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    con = filled([
        call(0, "cudaLaunchKernel", 0, 5), work(1, "compute", 10, 90, launch_row=0),
        call(2, "cudaStreamSynchronize", 6, 100), call(3, loader, 110, 60),
        call(4, "cudaLaunchKernel", 200, 5), work(5, "communication", 210, 40, launch_row=4),
    ])  # fmt: skip
    rows = con.execute("SELECT kind, row, n_stretches, total_ns FROM critical_path ORDER BY kind").fetchall()
    assert rows == [
        ("communication", 5, 1, 40), ("compute", 1, 1, 90), ("host", 4, 1, 34), ("input", 4, 1, 60),
        ("launch", 0, 2, 20), ("return", 4, 1, 6),
    ]  # fmt: skip
