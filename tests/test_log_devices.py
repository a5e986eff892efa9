"""What nvidia-smi printed into a log comes out as samples of devices, beside the log's own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import ARTIFACTS, MemorySink, load, needs_artifacts

from forensics.discovery import discover
from forensics.formats import log, nvidia_smi

TABLE = """\
Sun Mar  1 10:00:00 2026
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.154.05             Driver Version: 535.154.05   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|=========================================+======================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0             115W / 400W |  80536MiB / 81920MiB |     98%      Default |
+-----------------------------------------+----------------------+----------------------+

+---------------------------------------------------------------------------------------+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|=======================================================================================|
|    0   N/A  N/A     12345      C   python                                    80526MiB |
+---------------------------------------------------------------------------------------+
"""
BEFORE = "step 1 loss 2.5\n"
AFTER = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
"""


def read(tmp_path: Path, text: str, module: Any = log) -> MemorySink:
    path = tmp_path / "x.log"
    path.write_text(text, encoding="utf-8")
    return load(module, path)


def samples(sink: MemorySink, shift: int = 0) -> list[tuple[Any, ...]]:
    rows = [row for row in sink.rows("sample") if row["source"] == "nvidia-smi"]
    names = ("name", "value", "device", "entity", "unit", "ts_ns")
    return [(row["line"] - shift, *(row[name] for name in names)) for row in rows]


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "3: "])
def test_a_table_in_a_log_gives_the_samples_that_it_gives_alone(tmp_path: Path, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in (BEFORE + TABLE + AFTER).splitlines())
    found, alone = read(tmp_path, text), read(tmp_path, TABLE, nvidia_smi)
    without_time = [row[:-1] for row in samples(alone)]
    assert [row[:-1] for row in samples(found, shift=1)] == without_time and len(without_time) > 6
    assert [row["signature"] for row in found.rows("log_event")] == ["cuda-oom"]
    assert {fact["key"] for fact in found.facts} >= {"driver_version", "gpu.0.pci.bus_id"}


def test_the_time_above_a_table_is_that_of_its_samples(tmp_path: Path) -> None:
    found, alone = read(tmp_path, BEFORE + TABLE + AFTER), read(tmp_path, TABLE, nvidia_smi)
    assert samples(found, shift=1) == samples(alone)


def test_samples_of_devices_are_numbered_after_those_of_the_log(tmp_path: Path) -> None:
    rows = read(tmp_path, BEFORE + TABLE + BEFORE + TABLE + AFTER).rows("sample")
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert [row["source"] for row in rows[:3]] == ["log", "log", "nvidia-smi"]


def test_other_tables_and_what_tells_of_failures_are_no_output_of_devices(tmp_path: Path) -> None:
    text = (
        "| Name | Value |\n+------+-------+\n| loss | 98%   |\nNVIDIA-SMI has failed because it couldn't communicate\n"
    )
    assert not samples(read(tmp_path, text))


@needs_artifacts
def test_a_real_query_in_a_log_gives_the_samples_that_it_gives_alone(tmp_path: Path) -> None:
    text = (ARTIFACTS / "crash_log/gpud__nvidia_query_nvidia-smi-query.535.154.05.out.0.valid.4090").read_text().strip(
        "\n"
    ) + "\n"
    found, alone = read(tmp_path, BEFORE + text + AFTER), read(tmp_path, text, nvidia_smi)
    n_devices = len({row[3] for row in samples(alone)})
    assert samples(found, shift=1) == samples(alone) and n_devices >= 1
    assert [row["signature"] for row in found.rows("log_event")] == ["cuda-oom"]


LOOP = """\
[2026-11-29 12:00:00] INFO starting
timestamp, index, utilization.gpu [%], memory.used [MiB]
2026/11/29 12:00:01.123, 0, 91 %, 70123 MiB
2026/11/29 12:00:01.125, 1, 92 %, 70125 MiB
step 1 loss 0.5
2026/11/29 12:00:06.123, 0, 93 %, 71123 MiB
[2026-11-29 12:00:07] INFO step 2, loss 0.4, 93 %, 12 MiB
2026/11/29 12:00:06.125, 1, [N/A], 71125 MiB
[2026-11-29 12:00:10] ERROR something bad
2026/11/29 12:00:11.123, 0, 0 %, 81123 MiB
a, b, c, d
"""


def test_rows_of_a_loop_between_other_lines_are_read_and_the_lines_kept(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOOP)
    (found,) = discover(tmp_path, tmp_path / "work")
    assert found.format == "log"
    sink = load(log, path)
    used = [(r["line"], r["device"], r["value"] / 2**20) for r in sink.rows("sample") if r["name"] == "memory.used"]
    assert used == [(3, 0, 70123), (4, 1, 70125), (6, 0, 71123), (8, 1, 71125), (10, 0, 81123)]
    times = {r["line"]: r["ts_ns"] for r in sink.rows("sample") if r["name"] == "memory.used"}
    assert (times[10] - times[3]) == 10 * 10**9
    assert [(r["line"], r["message"]) for r in sink.rows("log_event")] == [(9, "something bad")]


def test_a_loop_with_few_other_lines_stays_a_table(tmp_path: Path) -> None:
    rows = "".join(f"2026/11/29 12:00:{n:02d}.1, {n % 2}, 91 %, 70123 MiB\n" for n in range(40))
    text = LOOP.splitlines(keepends=True)[1] + rows + "Unable to determine the device handle for GPU0: GPU is lost.\n"
    (tmp_path / "smi.csv").write_text(text)
    (found,) = discover(tmp_path, tmp_path / "work")
    assert found.format == "metrics_csv"
