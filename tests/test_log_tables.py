"""The tables in which launchers say which rank failed first, in their releases, repeated and cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_texts import events, read, traceback_of

TORCHRUN = """\
E1129 14:24:54.828000 22 torch/distributed/run.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 27) of binary: python
Traceback (most recent call last):
  File "/opt/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:24:54
  host      : n1
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 26)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 26
[2]:
  time      : 2026-11-29_14:24:54
  host      : n1
  rank      : 10 (local_rank: 2)
  exitcode  : 1 (pid: 28)
  error_file: /tmp/a/error.json
  traceback : Traceback (most recent call last):
    File "train.py", line 9, in main
      step()
             ^^^^
  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 2 has a total capacity of 8.00 GiB

------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:24:50
  host      : n1
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 27)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 27
============================================================
after the table
"""

OLD_TABLE = """\
*****************************************
            train.py FAILED
=========================================
Root Cause:
[0]:
  time: 2021-08-01_12:00:00
  rank: 1 (local_rank: 1)
  exitcode: 1 (pid: 1234)
  error_file: <N/A>
  msg: "Process failed with exitcode 1"
=========================================
Other Failures:
  <NO_OTHER_FAILURES>
*****************************************
"""


def test_torchruns_table_gives_the_first_failure_and_the_others(tmp_path: Path) -> None:
    sink = read(tmp_path, TORCHRUN)
    rows = [row for row in events(tmp_path, TORCHRUN) if row["signature"] and row["signature"].startswith("torchrun-")]
    assert [(row["signature"], row["role"], row["fields"].get("rank")) for row in rows] == [
        ("torchrun-worker-failed", "primary", None),
        ("torchrun-child-failed", "secondary", None),
        ("torchrun-failure", "secondary", 8),
        ("torchrun-failure", "evidence", 10),
        ("torchrun-root-cause", "primary", 9),
    ]
    root = rows[-1]
    assert root["fields"] == {
        "rank": 9, "local_rank": 1, "exit_code": -9, "pid": 27, "host": "n1", "error_time": "2026-11-29_14:24:50",
    }  # fmt: skip
    assert rows[0]["ts_ns"] is not None and root["ts_ns"] == rows[2]["ts_ns"] - 4 * 10**9
    assert {known.get("rank"): known.get("signal") for known in sink.procs.values() if "rank" in known} == {
        8: 15, 9: 9, 10: None,
    }  # fmt: skip
    oom = next(row for row in events(tmp_path, TORCHRUN) if row["signature"] == "cuda-oom")
    assert (oom["exception"], oom["fields"]["via"], oom["role"]) == ("torch.OutOfMemoryError", "torchrun", "primary")


def test_the_table_of_older_releases_is_read_too(tmp_path: Path) -> None:
    (row,) = events(tmp_path, OLD_TABLE)
    assert (row["signature"], row["fields"]["rank"], row["fields"]["exit_code"]) == ("torchrun-root-cause", 1, 1)


def test_what_the_table_repeats_is_evidence_only(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 2 has a total capacity"
    rows = events(tmp_path, traceback_of(error, "main", indent="[rank10]: ") + TORCHRUN)
    assert [row["role"] for row in rows if row["signature"] == "cuda-oom"] == ["primary", "evidence"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(TORCHRUN)), st.integers(0, 60))
def test_a_cut_or_spliced_table_is_read(tmp_path_factory: pytest.TempPathFactory, cut: int, skip: int) -> None:
    read(tmp_path_factory.mktemp("t"), TORCHRUN[:cut] + TORCHRUN[cut + skip :])
