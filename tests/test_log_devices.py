"""What nvidia-smi printed into a log comes out as samples of devices, beside the log's own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import ARTIFACTS, MemorySink, load, needs_artifacts

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
