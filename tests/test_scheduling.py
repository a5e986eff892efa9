"""What `perf sched latency`, /proc and pidstat tell of waits for a processor."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import load

from forensics.artifact import Head
from forensics.errors import ArtifactError
from forensics.formats import scheduling

PERF = """
 ---------------------------------------------------------------------------------------------------
  Task                  |   Runtime ms  | Switches | Avg delay ms    | Max delay ms    | Max delay start |
 ---------------------------------------------------------------------------------------------------
  python3:(3)           |   1812.374 ms |      514 | avg:   4.580 ms | max:  20.048 ms | max start:  3524.437582 s
"""
SCHED = """python3 (4242, #threads: 8)
-------------------------------------------------------------------
se.exec_start                                :       3378201.161668
se.sum_exec_runtime                          :           719.876874
wait_sum                                     :          1384.520272
nr_switches                                  :                  206
nr_involuntary_switches                      :                  198
"""
PIDSTAT = """Linux 6.1.0 (node-0) \t11/30/26 \t_x86_64_\t(8 CPU)

07:00:01      UID       PID   cswch/s nvcswch/s  Command
07:00:02        0      4242      1.98   3012.00  python3
"""


def figures(text: str, tmp_path: Path, name: str = "waits.txt") -> dict[tuple[str, str], float]:
    path = tmp_path / name
    path.write_text(text)
    rows = load(scheduling, path).rows("sample")
    return {(row["entity"], row["name"]): row["value"] for row in rows}


def test_a_table_of_perf_gives_waits_and_switches_of_each_task(tmp_path: Path) -> None:
    found = figures(PERF, tmp_path)
    assert found["python3:3", "n_switches"] == 514
    assert found["python3:3", "run_delay_seconds"] == pytest.approx(514 * 0.00458)
    assert found["python3:3", "run_seconds"] == pytest.approx(1.812374)


def test_sched_of_proc_gives_them_of_one_task(tmp_path: Path) -> None:
    found = figures(SCHED, tmp_path)
    assert found["python3 4242", "run_delay_seconds"] == pytest.approx(1.38452)
    assert found["python3 4242", "n_switches"] == 206
    assert found["python3 4242", "n_involuntary_switches"] == 198


def test_of_several_looks_at_schedstat_the_differences_count(tmp_path: Path) -> None:
    path = tmp_path / "4242.schedstat"
    path.write_text("1000 500 7\n3000 900 10\n")
    rows = load(scheduling, path).rows("sample")
    assert [row["value"] for row in rows if row["name"] == "n_switches"] == [7, 3]
    assert [row["value"] for row in rows if row["name"] == "run_delay_seconds"] == [5e-7, 4e-7]


def test_pidstat_gives_switches_a_second(tmp_path: Path) -> None:
    assert figures(PIDSTAT, tmp_path)["python3 4242", "involuntary_switches_per_second"] == 3012


@pytest.mark.parametrize("text", ["1 2 3\n4 5\n", "step 1 loss 2\n", "", "1 2 3\n"])
def test_three_numbers_alone_are_no_schedstat_unless_the_file_says_so(text: str) -> None:
    assert scheduling.recognise(Head("logs/rank_0.txt", text.encode(), True)) == 0


@pytest.mark.parametrize("end", [40, 200, 330, len(PERF) - 60])
def test_a_cut_table_gives_what_is_whole_or_says_that_nothing_is(end: int, tmp_path: Path) -> None:
    try:
        found = figures(PERF[:end], tmp_path)
    except ArtifactError:
        found = {}
    assert set(found) <= set(figures(PERF, tmp_path))
