from __future__ import annotations

import math
from pathlib import Path

import pytest
from support import MemorySink, load

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import metrics_csv

LIGHTNING = "epoch,step,train_loss,val_loss,lr-AdamW\n0,49,1.5,,0.001\n0,99,,nan,0.001\n1,149.0,inf,,0.001\n"
GPUS = (
    "timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu,"
    " power.draw [W], ecc.errors.uncorrected.volatile.total, clocks_throttle_reasons.hw_slowdown, driver_version\n"
    "2026/11/29 11:41:45.714, 0, NVIDIA H100, 98 %, 40536 MiB, 81559 MiB, 34, 115.30 W, 0, Not Active, 550.54\n"
    "2026/11/29 11:41:45.714, 1, NVIDIA H100, [N/A], [GPU requires reset], 81559 MiB, 35, [N/A], 2, Active, 550.54\n"
)


def write(tmp_path: Path, text: str | bytes, name: str = "metrics.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def recognised(path: Path) -> int:
    return metrics_csv.recognise(Source(path, path.name).head())


def values(sink: MemorySink, name: str) -> list[tuple[int | None, int, float]]:
    return [(row["step"], row["line"], row["value"]) for row in sink.rows("sample") if row["name"] == name]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_metrics_keep_step_and_line(tmp_path: Path, delimiter: str) -> None:
    path = write(tmp_path, LIGHTNING.replace(",", delimiter))
    assert recognised(path) >= 60
    sink = load(metrics_csv, path)
    assert values(sink, "loss") == [(49, 2, 1.5), (149, 4, math.inf)]
    assert math.isnan(values(sink, "val_loss")[0][2])
    assert [value for _, _, value in values(sink, "learning_rate")] == [0.001] * 3
    assert len(values(sink, "epoch")) == 3
    assert sink.coverage[0]["capability"] == "sample"
    assert not sink.warnings


def test_a_header_that_a_resumed_job_repeats_is_no_row(tmp_path: Path) -> None:
    sink = load(metrics_csv, write(tmp_path, LIGHTNING + LIGHTNING))
    assert len(values(sink, "epoch")) == 6
    assert not sink.warnings


def test_rows_of_another_width_are_warned_about(tmp_path: Path) -> None:
    sink = load(metrics_csv, write(tmp_path, LIGHTNING + "2,199,0.5\nWarning: x\n2,249,0.5,,0.1\n"))
    assert [warning["line"] for warning in sink.warnings] == [5, 6]
    assert values(sink, "loss")[-1] == (249, 7, 0.5)
    assert sink.quality == "partial"


def test_quoted_cells_and_data_frames_are_read(tmp_path: Path) -> None:
    text = ',step,loss,"note"\n0,1,0.5,"a, b"\n1,2,"0.25",c\n'
    path = write(tmp_path, text)
    sink = load(metrics_csv, path)
    assert values(sink, "loss") == [(1, 2, 0.5), (2, 3, 0.25)]
    assert [(f["key"], f["value"], f["line"]) for f in sink.facts] == [("note", "a, b", 2), ("note", "c", 3)]


def test_a_query_of_devices_gives_bytes_and_devices(tmp_path: Path) -> None:
    path = write(tmp_path, GPUS, "gpu.csv")
    assert recognised(path) >= 80
    sink = load(metrics_csv, path)
    rows = {(row["device"], row["name"]): (row["value"], row["unit"]) for row in sink.rows("sample")}
    assert rows[(0, "memory.used")] == (40536 * 2**20, "bytes")
    assert rows[(0, "utilization.gpu")] == (98.0, "%")
    assert rows[(0, "power.draw")] == (115.3, "W")
    assert rows[(1, "ecc.volatile.total.uncorrectable")] == (2.0, None)
    assert rows[(1, "clocks_event_reasons.hw_slowdown")] == (1.0, "bool")
    assert (1, "memory.used") not in rows
    assert {row["source"] for row in sink.rows("sample")} == {"nvidia-smi"}
    assert {row["ts_ns"] for row in sink.rows("sample")} == {1795952505714000000}
    assert sink.clock_kind == "local"
    assert sink.coverage[0]["capability"] == "sample.device"
    facts = {fact["key"]: fact["value"] for fact in sink.facts}
    assert facts == {
        "driver_version": "550.54",
        "gpu.0.name": "NVIDIA H100",
        "gpu.1.name": "NVIDIA H100",
        "gpu.1.unreadable.memory.used": "[GPU requires reset]",
    }


def test_units_come_from_the_header_where_cells_have_none(tmp_path: Path) -> None:
    sink = load(metrics_csv, write(tmp_path, "index, memory.used [MiB], power.draw [W]\n3, 100, 70.5\n"))
    rows = {row["name"]: (row["device"], row["value"], row["unit"]) for row in sink.rows("sample")}
    assert rows == {"memory.used": (3, 100 * 2**20, "bytes"), "power.draw": (3, 70.5, "W")}


def test_processes_of_devices_are_entities(tmp_path: Path) -> None:
    sink = load(metrics_csv, write(tmp_path, "pid, process_name, used_gpu_memory [MiB]\n123, python, 400 MiB\n"))
    (row,) = sink.rows("sample")
    assert (row["name"], row["entity"], row["value"]) == ("process.memory.used", "123 python", 400 * 2**20)


def test_a_file_cut_anywhere_keeps_its_complete_rows(tmp_path: Path) -> None:
    for text in (LIGHTNING, GPUS):
        for end in range(len(text.split("\n")[0]) + 2, len(text), 11):
            path = write(tmp_path, text[:end])
            try:
                sink = load(metrics_csv, path)
            except ArtifactError:
                continue
            assert {row["line"] for row in sink.rows("sample")} <= {2, 3, 4}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "step,loss\n",
        "step,loss\n" + "1," * 100_000,
        ",".join("abcdefgh") * 50_000 + "\n1\n",
        'step,loss\n1,"0.5\n2,0.5\n',
        "step,loss\n" + "9" * 10_000 + ",1\n-5,2\n",
        b"step,loss\n\xff\xfe,1\n",
        b"\x00,\x00\n1,2\n",
        "memory.used [MiB]\n" + "9" * 400 + "\n",
    ],
)
def test_hostile_files_raise_nothing_but_the_agreed_error(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path, text)
    recognised(path)
    try:
        load(metrics_csv, path)
    except ArtifactError:
        return


@pytest.mark.parametrize(
    "text",
    [
        "Time (%),Total Time (ns),Instances,Name\n12.0,3,4,foo\n5.0,3,4,bar\n",
        "a,b\nc,d\n",
        "2024-01-01 10:00:00, INFO, step\n2024-01-01 10:00:01, INFO, step\n",
        "Epoch: [1][0/5005]\tTime 0.41 (0.42)\tLoss 6.900\nEpoch: [1][1/5005]\tTime 0.41 (0.42)\tLoss 6.900\n",
        "name,age\nx,3\ny,4\n",
        '{"step": 1, "loss": 2}\n{"step": 2, "loss": 2}\n',
        "step loss\n1 2\n",
    ],
)
def test_other_tables_and_logs_are_not_claimed(tmp_path: Path, text: str) -> None:
    assert recognised(write(tmp_path, text)) == 0
