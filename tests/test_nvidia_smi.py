from __future__ import annotations

from pathlib import Path

import pytest
from support import ARTIFACTS, SHARED, MemorySink, load, needs_artifacts

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import metrics_csv, nvidia_smi

# 410 to 525: narrow cells, one process column set; 550: wide cells, MIG line.
NARROW = """Fri Mar 22 11:04:09 2019
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 410.79       Driver Version: 410.79       CUDA Version: 10.0     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  Off  | 00000000:06:00.0 Off |                    2 |
| N/A   61C    P2   190W / 300W |  16107MiB / 16130MiB |     97%      Default |
+-------------------------------+----------------------+----------------------+
|   1  Tesla V100-SXM2...  On   | 00000000:07:00.0 Off |                 ERR! |
|ERR!  ERR!  ERR!   ERR! / ERR! |           Unknown Error |    ERR!      Default |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0     30211      C   python train.py                            13053MiB |
|    0     30212    C+G   /usr/bin/x                                  1011MiB |
|    1     30213      C   python                                          N/A |
+-----------------------------------------------------------------------------+
"""
WIDE = """$ nvidia-smi   # after the crash
Thu Aug 14 15:02:11 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0            115W /  700W |   40536MiB /  81559MiB |     98%      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|      Shared           |
|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|==================+==================================+===========+=======================|
|  0    7   0   0  |              11MiB /  9856MiB    | 16      0 |  1   0    0    0    0 |
+------------------+----------------------------------+-----------+-----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""
QUERY = """==============NVSMI LOG==============

Timestamp                                 : Thu Nov 14 05:34:15 2024
Driver Version                            : 535.154.05
CUDA Version                              : 12.2

Attached GPUs                             : 2
GPU 00000000:01:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    Fan Speed                             : N/A
    Clocks Throttle Reasons
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    FB Memory Usage
        Total                             : 81920 MiB
        Used                              : 6730 MiB
    BAR1 Memory Usage
        Total                             : 256 MiB
    ECC Errors
        Volatile
            SRAM Correctable              : 3
            SRAM Uncorrectable Parity     : 1
            DRAM Uncorrectable            : 0
        Aggregate
            Single Bit
                Device Memory             : 4
                Total                     : 5
            Double Bit
                Total                     : N/A
    Remapped Rows
        Uncorrectable Error               : 0
        Pending                           : Yes
        Bank Remap Availability Histogram
            Max                           : 192 bank(s)
    Temperature
        GPU Current Temp                  : 31 C
    GPU Power Readings
        Power Draw                        : 17.11 W
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 2010222
            Type                          : C
            Name                          : /usr/bin/python
            Used GPU Memory               : 6724 MiB
        Process ID                        : 2010223
            Name                          : b
            Used GPU Memory               : 6 MiB

GPU 00000000:21:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    FB Memory Usage
        Used                              : 1 MiB
    Processes                             : None
"""


def write(tmp_path: Path, text: str | bytes, name: str = "nvidia-smi.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def recognised(path: Path) -> int:
    return nvidia_smi.recognise(Source(path, path.name).head())


def values(sink: MemorySink) -> dict[tuple[int | None, str], float]:
    return {(row["device"], row["name"]): row["value"] for row in sink.rows("sample") if row["entity"] is None}


def facts(sink: MemorySink) -> dict[str, str]:
    return {fact["key"]: fact["value"] for fact in sink.facts}


def test_the_narrow_table_is_read_cell_by_cell(tmp_path: Path) -> None:
    path = write(tmp_path, NARROW)
    assert recognised(path) >= 80
    sink = load(nvidia_smi, path)
    found = values(sink)
    assert found[(0, "memory.used")] == 16107 * 2**20
    assert found[(0, "memory.total")] == 16130 * 2**20
    assert found[(0, "utilization.gpu")] == 97.0
    assert found[(0, "temperature.gpu")] == 61.0
    assert found[(0, "power.draw")] == 190.0
    assert found[(0, "ecc.volatile.total.uncorrectable")] == 2.0
    assert (0, "fan.speed") not in found
    assert {row["line"] for row in sink.rows("sample") if row["name"] == "memory.used"} == {9}
    assert {row["ts_ns"] for row in sink.rows("sample")} == {1553252649000000000}
    assert sink.clock_kind == "local"
    assert not sink.warnings


def test_processes_are_entities_of_their_device(tmp_path: Path) -> None:
    sink = load(nvidia_smi, write(tmp_path, NARROW))
    rows = [(r["device"], r["entity"], r["value"]) for r in sink.rows("sample") if r["name"] == "process.memory.used"]
    assert rows == [(0, "30211 python train.py", 13053 * 2**20), (0, "30212 /usr/bin/x", 1011 * 2**20)]
    assert facts(sink)["processes"] == "3"


def test_a_device_that_does_not_answer_is_said_to(tmp_path: Path) -> None:
    told = facts(load(nvidia_smi, write(tmp_path, NARROW)))
    assert told["gpu.1.unreadable.fan.speed"] == "ERR!"
    assert told["gpu.1.unreadable.memory.used"] == "Unknown Error"
    assert told["gpu.1.unreadable.utilization.gpu"] == "ERR!"
    assert told["driver_version"] == "410.79"
    assert told["cuda_version"] == "10.0"
    assert told["gpu.0.name"] == "Tesla V100-SXM2..."


def test_the_wide_table_and_its_slices_are_read(tmp_path: Path) -> None:
    sink = load(nvidia_smi, write(tmp_path, WIDE))
    assert values(sink)[(0, "memory.used")] == 40536 * 2**20
    assert values(sink)[(0, "power.limit")] == 700.0
    slices = [(row["entity"], row["name"], row["value"]) for row in sink.rows("sample") if row["entity"]]
    assert slices == [("MIG 7/0/0", "mig.memory.used", 11 * 2**20), ("MIG 7/0/0", "mig.memory.total", 9856 * 2**20)]
    assert facts(sink)["processes"] == "none"
    assert facts(sink)["note"] == "$ nvidia-smi   # after the crash"
    (line,) = [f["line"] for f in sink.facts if f["key"] == "processes"]
    assert "No running processes found" in WIDE.split("\n")[line - 1]


def test_a_loop_prints_one_table_after_another(tmp_path: Path) -> None:
    second = NARROW.replace("11:04:09", "11:04:14").replace("16107MiB", "    1MiB")
    sink = load(nvidia_smi, write(tmp_path, NARROW + second))
    used = [(row["ts_ns"], row["value"]) for row in sink.rows("sample") if row["name"] == "memory.used"]
    assert used == [(1553252649000000000, 16107.0 * 2**20), (1553252654000000000, 1.0 * 2**20)]
    assert [f["key"] for f in sink.facts].count("driver_version") == 1
    (device, _) = sink.coverage
    assert device["job"]
    assert (device["from_ns"], device["to_ns"]) == (1553252649000000000, 1553252654000000000)


def test_the_query_text_gives_the_same_names_as_the_table(tmp_path: Path) -> None:
    path = write(tmp_path, QUERY)
    assert recognised(path) >= 80
    sink = load(nvidia_smi, path)
    found = values(sink)
    assert found[(0, "memory.used")] == 6730 * 2**20
    assert found[(1, "memory.used")] == 2**20
    assert found[(0, "ecc.volatile.sram.correctable")] == 3.0
    assert found[(0, "ecc.volatile.sram.uncorrectable.parity")] == 1.0
    assert found[(0, "ecc.aggregate.device_memory.correctable")] == 4.0
    assert (0, "ecc.aggregate.total.uncorrectable") not in found
    assert found[(0, "remapped_rows.pending")] == 1.0
    assert found[(0, "clocks_event_reasons.sw_power_cap")] == 1.0
    assert found[(0, "clocks_event_reasons.hw_thermal_slowdown")] == 0.0
    assert found[(0, "temperature.gpu")] == 31.0
    entities = [(row["entity"], row["value"]) for row in sink.rows("sample") if row["entity"]]
    assert entities == [("2010222 /usr/bin/python", 6724.0 * 2**20), ("2010223 b", 6.0 * 2**20)]
    assert facts(sink)["gpu.1.processes"] == "none"
    assert facts(sink)["driver_version"] == "535.154.05"
    assert {row["ts_ns"] for row in sink.rows("sample")} == {1731562455000000000}
    assert not sink.warnings


def test_one_section_among_several_devices_has_no_number(tmp_path: Path) -> None:
    text = QUERY.partition("\nGPU 00000000:21")[0] + "\n"
    sink = load(nvidia_smi, write(tmp_path, text))
    assert {row["device"] for row in sink.rows("sample")} == {None}
    assert facts(sink)["name"] == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    "message",
    [
        "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:03:00.0: GPU is lost.  Reboot the system",
        "No devices were found",
        "Failed to initialize NVML: Driver/library version mismatch",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ],
)
def test_an_error_instead_of_a_table_is_a_fact(tmp_path: Path, message: str) -> None:
    path = write(tmp_path, f"$ nvidia-smi\n{message}\n")
    assert recognised(path) >= 60
    sink = load(nvidia_smi, path)
    assert [(f["key"], f["value"], f["scope"], f["line"]) for f in sink.facts if f["key"] == "error"] == [
        ("error", message, "device", 2)
    ]
    assert [c["capability"] for c in sink.coverage] == ["fact"]


def test_output_cut_anywhere_keeps_what_was_complete(tmp_path: Path) -> None:
    for text in (NARROW, WIDE, QUERY):
        whole = values(load(nvidia_smi, write(tmp_path, text)))
        for end in range(400, len(text), 97):
            try:
                sink = load(nvidia_smi, write(tmp_path, text[:end]))
            except ArtifactError:
                continue
            assert {key for key in values(sink) if key[0] is not None} <= set(whole)


def test_a_cut_table_is_not_complete(tmp_path: Path) -> None:
    sink = load(nvidia_smi, write(tmp_path, NARROW[: NARROW.index("30212")]))
    assert sink.warnings[0]["code"] == "truncated"
    assert sink.quality == "partial"
    sink = load(nvidia_smi, write(tmp_path, QUERY[: QUERY.index("    Temperature")]))
    assert sink.warnings[0]["code"] == "truncated"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "|" * 100_000,
        "| NVIDIA-SMI 1 Driver Version:\n" + "| 0 x On | 00000000:06:00.0 |\n" * 2000,
        "| NVIDIA-SMI 1 Driver Version: |\n|  99999 x On | 00000000:06:00.0 | 0 |\n|  | 9999999999999MiB / 1MiB | |\n",
        "GPU 00000000:01:00.0\n" + "    A" * 10_000 + "\n" + "".join(" " * n + "k\n" for n in range(200)),
        "GPU 00000000:01:00.0\n    FB Memory Usage\n        Used : " + "9" * 5000 + " MiB\n",
        b"\xff\xfe| \x00N",
        b"NVSMI LOG\x00\x00",
    ],
)
def test_hostile_output_raises_nothing_but_the_agreed_error(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path, text)
    recognised(path)
    try:
        sink = load(nvidia_smi, path)
    except ArtifactError:
        return
    assert len(sink.facts) < 1000


def test_a_log_with_a_table_in_it_stays_a_log(tmp_path: Path) -> None:
    assert recognised(write(tmp_path, "starting\n" * 20 + NARROW + "step 1\n" * 100)) == 0
    assert (
        recognised(write(tmp_path, NARROW + "Traceback (most recent call last):\n  File ...\nRuntimeError: x\n")) < 40
    )
    assert recognised(write(tmp_path, "step 1 loss 2\n" * 50)) == 0


@needs_artifacts
def test_real_output_is_read_without_a_warning() -> None:
    paths = sorted((SHARED / "cases" / "dev").glob("*/artifacts/**/nvidia-smi*"))
    paths += sorted((ARTIFACTS / "crash_log").glob("*nvidia-smi*"))
    assert len(paths) >= 7
    for path in paths:
        assert recognised(path) >= 70, path
        sink = load(nvidia_smi, path)
        assert not sink.warnings, path
        assert sink.rows("sample") or "error" in facts(sink)


@needs_artifacts
def test_a_real_query_has_all_eight_devices_and_their_processes() -> None:
    (path,) = (ARTIFACTS / "crash_log").glob("*nvidia-smi-query*")
    sink = load(nvidia_smi, path)
    assert {row["device"] for row in sink.rows("sample")} == set(range(8))
    lines = path.read_text().split("\n")
    processes = [row for row in sink.rows("sample") if row["name"] == "process.memory.used"]
    assert len(processes) == sum("Used GPU Memory" in line for line in lines)
    assert all("Used GPU Memory" in lines[row["line"] - 1] for row in processes)


def test_more_used_or_free_than_the_device_has_is_said(tmp_path: Path) -> None:
    text = (
        "index, memory.total [MiB], memory.used [MiB], memory.free [MiB]\n0, 80000, 100, 79900\n0, 80000, 100, 81900\n"
    )
    sink = load(metrics_csv, write(tmp_path, text))
    ((code, message),) = ((w["code"], w["message"]) for w in sink.warnings)
    assert code == "impossible-state" and "1 figures" in message and "line 3: memory.free" in message
    assert sink.quality == "partial"
