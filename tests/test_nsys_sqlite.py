"""SQLite exports of Nsight Systems: real ones of several years, and small ones in their layout."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from nsys_export import GLOBAL_TID, PID, TID, UTC_NS, Export, captured_job
from support import ARTIFACTS, ROOT, MemorySink, load, needs_artifacts

from forensics.artifact import Head, Source
from forensics.errors import ArtifactError
from forensics.formats import _nsys_database, formats, nsys_sqlite
from forensics.formats._nsys_database import Database

REAL = ARTIFACTS / "nsys"
_EVENTS = ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL")
_KINDS = {
    "kernel": "KERNEL", "memcpy": "MEMCPY", "memset": "MEMSET", "sync": "SYNCHRONIZATION",
}  # fmt: skip


@pytest.fixture
def healthy(tmp_path: Path) -> MemorySink:
    return load(nsys_sqlite, captured_job(tmp_path / "healthy.sqlite", broken=False))


@pytest.fixture
def broken(tmp_path: Path) -> MemorySink:
    return load(nsys_sqlite, captured_job(tmp_path / "broken.sqlite", broken=True))


def named(sink: MemorySink, name: str) -> list[dict[str, Any]]:
    return [row for row in sink.rows("slice") if row["name"] == name]


@needs_artifacts
@pytest.mark.parametrize("name", sorted(p.name for p in REAL.glob("*.sqlite")) if REAL.is_dir() else [])
def test_every_row_of_a_real_export_becomes_a_slice(name: str) -> None:
    counts = json.loads((ARTIFACTS / "oracle_counts.json").read_text())[f"nsys/{name}"]
    sink = load(nsys_sqlite, REAL / name)
    kinds = Counter(row["kind"] for row in sink.rows("slice"))
    for kind, table in _KINDS.items():
        assert kinds[kind] == counts.get(f"CUPTI_ACTIVITY_KIND_{table}", 0)
    assert kinds["runtime"] + kinds["driver"] == counts["CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert kinds["annotation"] + kinds["cpu_op"] == counts.get("NVTX_EVENTS", 0)
    assert kinds["os_call"] + kinds["instant"] == counts.get("OSRT_API", 0)
    assert kinds["overhead"] == counts.get("PROFILER_OVERHEAD", 0) + counts.get("CUPTI_ACTIVITY_KIND_OVERHEAD", 0)
    assert sink.quality == "complete"
    assert nsys_sqlite.recognise(Source(REAL / name, name).head()) == 95


@needs_artifacts
def test_launches_and_stacks_of_real_exports_are_found() -> None:
    rows = load(nsys_sqlite, REAL / "nsysai__h100_2gpu_1s.sqlite").rows("slice")
    # 1632 by a join of the export's own tables: the recording was cut to one second of a longer run.
    assert sum(row["launch_row"] is not None for row in rows if row["kind"] == "kernel") == 1632
    calls = {row["row"]: row for row in rows if row["kind"] in {"runtime", "driver"}}
    launched = [row for row in rows if row["launch_row"] is not None and row["kind"] == "kernel"]
    assert all(calls[row["launch_row"]]["correlation"] == row["correlation"] for row in launched)
    assert all(calls[row["launch_row"]]["proc"] == row["proc"] for row in launched)
    old = load(nsys_sqlite, REAL / "mordred__report1.sqlite")
    assert any(row["stack_id"] is not None for row in old.rows("slice") if row["kind"] == "os_call")
    assert old.clock_kind == "relative"  # exports of 2021 do not say when the session began


def test_times_are_absolute_where_the_session_start_is_known(healthy: MemorySink) -> None:
    assert healthy.clock_kind == "epoch"
    assert named(healthy, "cudaStreamBeginCapture")[0]["ts_ns"] == UTC_NS + 5000


def test_ids_are_unpacked_into_process_and_thread(healthy: MemorySink) -> None:
    assert healthy.procs[0]["pid"] == PID
    assert {row["thread"] for row in named(healthy, "cudaLaunchKernel")} == {TID}


def test_calls_keep_their_results_and_lose_their_version(broken: MemorySink) -> None:
    assert [row["return_code"] for row in named(broken, "cudaStreamSynchronize")] == [900]
    assert [c["complete"] for c in broken.coverage if c["capability"] == "slice.return_code"] == [True]


def test_kernels_name_their_launch_and_its_step(healthy: MemorySink) -> None:
    calls = {row["row"]: row for row in named(healthy, "cudaLaunchKernel")}
    assert [calls[row["launch_row"]]["ts_ns"] - UTC_NS for row in named(healthy, "sgemm")] == [1150, 2150, 3150]
    assert [row["step"] for row in named(healthy, "sgemm")] == [0, 1, 2]


def test_ranges_that_number_steps_become_steps(healthy: MemorySink) -> None:
    steps = [
        (row["step"], row["start_ns"] - UTC_NS, row["end_ns"] - UTC_NS, row["origin"]) for row in healthy.rows("step")
    ]
    assert steps == [(n, 1000 + n * 1000, 1900 + n * 1000, "annotation") for n in range(3)]


def test_operators_of_emit_nvtx_keep_sequence_and_shapes(healthy: MemorySink) -> None:
    operator = named(healthy, "aten::mm")[1]
    assert (operator["kind"], operator["sequence"], operator["shapes"]) == ("cpu_op", 1, "[[2, 3], [3, 4]]")


def test_a_call_lies_in_the_innermost_range_of_its_thread(healthy: MemorySink) -> None:
    rows = {row["row"]: row for row in healthy.rows("slice")}
    call = min(named(healthy, "cudaLaunchKernel"), key=lambda row: row["ts_ns"])
    operator = rows[call["parent_row"]]
    assert (operator["name"], rows[operator["parent_row"]]["name"]) == ("aten::mm", "iteration 0")
    assert rows[operator["parent_row"]]["parent_row"] is None


def test_a_range_that_was_never_closed_encloses_what_follows(broken: MemorySink) -> None:
    (capture,) = named(broken, "capture")
    assert capture["dur_ns"] is None
    assert named(broken, "cudaStreamEndCapture")[0]["parent_row"] == capture["row"]


def test_a_graph_launch_keeps_the_device_busy(healthy: MemorySink) -> None:
    (graph,) = [row for row in healthy.rows("slice") if row["kind"] == "graph"]
    assert (graph["dur_ns"], graph["graph_id"], graph["device"], graph["stream"]) == (4000, 2, 0, 7)
    assert graph["launch_row"] == named(healthy, "cudaGraphLaunch")[0]["row"]


def test_domains_marks_and_ranges_across_threads_are_kept(tmp_path: Path) -> None:
    export = Export(tmp_path / "x.sqlite")
    export.add("NVTX_EVENTS", start=1, eventType=75, text="NCCL", domainId=7, globalTid=GLOBAL_TID)
    export.push_pop(10, 20, "ncclAllReduce", domainId=7)
    export.push_pop(12, None, "saved", eventType=34)
    export.push_pop(15, 40, None, eventType=60, textId=export.text("prefetch, epoch 3"), endGlobalTid=GLOBAL_TID + 1)
    rows = load(nsys_sqlite, export.close()).rows("slice")
    assert [(row["name"], row["kind"], row["dur_ns"]) for row in rows] == [
        ("NCCL:ncclAllReduce", "annotation", 10),
        ("saved", "instant", None),
        ("prefetch, epoch 3", "annotation", 25),
    ]


def test_device_memory_and_metrics_become_events_and_samples(tmp_path: Path) -> None:
    export = Export(tmp_path / "x.sqlite")
    export.session()
    export.text("x")
    export.add("ENUM_CUDA_DEV_MEM_EVENT_OPER", id=0, name="CUDA_DEV_MEM_EVENT_OPER_DEALLOCATION")
    export.add("ENUM_CUDA_DEV_MEM_EVENT_OPER", id=1, name="CUDA_DEV_MEM_EVENT_OPER_ALLOCATION")
    usage = "CUDA_GPU_MEMORY_USAGE_EVENTS"
    export.add(usage, start=5, deviceId=1, address=-16, bytes=2 << 20, memKind=2, memoryOperationType=1)
    export.add(usage, start=6, deviceId=1, address=-16, bytes=2 << 20, memKind=2, memoryOperationType=0)
    export.add(
        "TARGET_INFO_GPU_METRICS", typeId=257, typeName="GPU 1", metricId=4, metricName="SMs Active [Throughput %]"
    )
    export.add("GPU_METRICS", timestamp=9, typeId=257, metricId=4, value=73)
    sink = load(nsys_sqlite, export.close())
    events = [(row["action"], row["device"], row["addr"], row["size_bytes"]) for row in sink.rows("memory_event")]
    assert events == [("segment_alloc", 1, 2**64 - 16, 2 << 20), ("segment_free", 1, 2**64 - 16, 2 << 20)]
    (sample,) = sink.rows("sample")
    assert (sample["name"], sample["value"], sample["device"], sample["unit"]) == (
        "SMs Active [Throughput %]",
        73,
        1,
        "%",
    )
    assert {c["capability"] for c in sink.coverage} == {"memory_event.driver", "sample", "fact"}


def test_rank_command_and_secrets_come_from_the_recorded_program(tmp_path: Path) -> None:
    export = Export(captured_job(tmp_path / "x.sqlite", broken=False))
    for name, value in (
        ("COMMAND", "python"), ("ARGUMENT_0", "train.py"),
        ("ENVIRONMENT_VARIABLE", 'RANK="3"'), ("ENVIRONMENT_VARIABLE", 'WORLD_SIZE="8"'),
        ("ENVIRONMENT_VARIABLE", 'HF_TOKEN="hf_abcdefghijklmnopqrstuvwxyz"'),
    ):  # fmt: skip
        export.add("META_DATA_CAPTURE", name=f"PROCESS_0:{name}", value=value)
    sink = load(nsys_sqlite, export.close())
    assert (sink.procs[0]["rank"], sink.procs[0]["world_size"]) == (3, 8)
    facts = {fact["key"]: fact["value"] for fact in sink.facts}
    assert facts["command"] == "python train.py"
    assert facts["HF_TOKEN"] == "***"


def test_what_nsys_says_it_lost_is_a_warning(tmp_path: Path) -> None:
    export = Export(captured_job(tmp_path / "x.sqlite", broken=False))
    said = "Not all CUDA events might have been collected."
    export.add("DIAGNOSTIC_EVENT", timestamp=1, timestampType=1, source=1, severity=3, text=said)
    said = "The target application returned non-zero exit code 134"
    export.add("DIAGNOSTIC_EVENT", timestamp=2, timestampType=1, source=1, severity=2, text=said)
    sink = load(nsys_sqlite, export.close())
    assert [w["code"] for w in sink.warnings] == ["nsys-diagnostic"]
    assert not any(c["complete"] for c in sink.coverage)
    assert sink.procs[0]["exit_code"] == 134


def test_a_row_is_found_again_in_its_table(tmp_path: Path) -> None:
    path = captured_job(tmp_path / "x.sqlite", broken=True)
    (call,) = named(load(nsys_sqlite, path), "cudaStreamSynchronize")
    place = nsys_sqlite.locate(Source(path, "x.sqlite"), call["row"], None)
    assert place is not None and place.text is not None
    assert place.text.startswith("CUPTI_ACTIVITY_KIND_RUNTIME row 6: start 5200, end 5210")
    assert "returnValue 900" in place.text


def test_a_compressed_export_is_read_in_place(tmp_path: Path, healthy: MemorySink) -> None:
    path = tmp_path / "x.sqlite.gz"
    path.write_bytes(gzip.compress((tmp_path / "healthy.sqlite").read_bytes()))
    assert load(nsys_sqlite, path).rows("slice") == healthy.rows("slice")


@pytest.mark.parametrize("has_json", [True, False])  # builds of SQLite before 3.38 may lack it
def test_values_of_the_wrong_type_lose_only_themselves(
    has_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nsys_database, "_has_json", lambda con: has_json)
    export = Export(tmp_path / "x.sqlite")
    export.call(1, "cudaMalloc_v3020")
    export.call(2, "cudaFree_v3020")
    export.add(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        start=3,
        end="never",
        eventClass=0,
        nameId=1,
        returnValue=b"\xff,\n",
        correlationId=1.5,
    )
    export.push_pop(5, 6, 'it\'s, a "line"\nbreak \udcff'.encode("utf-8", "surrogateescape").decode("latin-1"))
    sink = load(nsys_sqlite, export.close())
    rows = sink.rows("slice")
    assert [row["name"] for row in rows][1:] == ["cudaMalloc", "cudaFree", "cudaMalloc"]
    assert "break" in rows[0]["name"]
    assert rows[3]["dur_ns"] is None
    (said,) = (w["message"] for w in sink.warnings if w["code"] == "bad-values")
    assert all(f"RUNTIME.{name} (1)" in said for name in ("correlationId", "end", "returnValue"))
    assert sink.quality == "partial" and not any(c["complete"] for c in sink.coverage if c["capability"] == "slice")


def test_no_view_trigger_or_generated_column_of_the_file_runs(tmp_path: Path) -> None:
    path = captured_job(tmp_path / "x.sqlite", broken=False)
    con = sqlite3.connect(path)
    con.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO hidden")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n"
    con.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
    con.execute(
        "CREATE TABLE OSRT_API (start INTEGER, end INTEGER AS (zeroblob(900000000)), nameId INTEGER AS (abs(start)))"
    )
    con.execute("INSERT INTO OSRT_API (start) VALUES (7)")
    con.commit()
    con.close()
    sink = load(nsys_sqlite, path)
    kinds = Counter(row["kind"] for row in sink.rows("slice"))
    assert kinds["kernel"] == 0
    assert [row["name"] for row in sink.rows("slice") if row["kind"] == "os_call"] == ["system call"]


def test_a_database_of_something_else_is_left_unknown(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    con = sqlite3.connect(path)
    con.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    con.commit()
    con.close()
    sink = load(nsys_sqlite, path)
    assert (sink.quality, sink.tables) == ("unknown", {})


def test_text_that_only_begins_like_a_database_gives_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"StringIds OSRT_API" * 100)
    sink = load(nsys_sqlite, path)
    assert (sink.quality, sink.tables, len(sink.warnings)) == ("unknown", {}, 1)
    assert nsys_sqlite.recognise(Head("x.sqlite", b"SQLite", True)) == 0


def _many_steps(path: Path) -> Path:
    export = Export(path)
    export.session()
    for step in range(900):
        export.push_pop(step * 100, step * 100 + 90, f"iteration {step}")
        export.kernel(step * 100 + 20, f"kernel {step % 40}", export.call(step * 100 + 10, "cudaLaunchKernel_v7000"))
    return export.close()


def test_a_file_cut_anywhere_keeps_what_lies_before_the_cut(tmp_path: Path) -> None:
    data = _many_steps(tmp_path / "whole.sqlite").read_bytes()
    draw = random.Random(217)
    kept: list[int] = []
    for offset in sorted(draw.randrange(4096, len(data)) for _ in range(200)):
        path = tmp_path / "cut.sqlite"
        path.write_bytes(data[: offset - offset % 4096])  # what a load makes of a file that ends within a page
        try:
            database = Database(path)
        except ArtifactError:
            kept.append(0)
            continue
        rows = [table.num_rows for name in _EVENTS for table in database.read(name, ("start", "end", "nameId"))]
        kept.append(sum(rows))
        assert sum(rows) == 2700 or database.missing_bytes
        database.close()
    assert kept == sorted(kept)
    assert kept[-1] > 2400
    assert kept[len(kept) // 2] > 900


@pytest.mark.parametrize("part", [0.002, 0.05, 0.3, 0.62, 0.999])
def test_what_a_cut_file_lost_is_said(tmp_path: Path, part: float) -> None:
    data = _many_steps(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(data[: int(len(data) * part)])
    try:
        sink = load(nsys_sqlite, path)
    except ArtifactError as error:
        assert part < 0.05, error
        return
    assert sink.quality in {"partial", "unknown"}
    assert sink.warnings
    assert not any(c["complete"] for c in sink.coverage)
    if sink.quality == "partial":
        assert sink.bad_byte == int(len(data) * part)


def test_tables_listed_before_a_cut_are_read_although_the_list_itself_is_cut(tmp_path: Path) -> None:
    packed = ROOT / "fixtures" / "nsys-exports-healthy" / "artifacts" / "report.sqlite.gz"
    data = gzip.decompress(packed.read_bytes())  # its list of 65 tables takes 9 of the pages 1 to 120 of 129
    path = tmp_path / "cut.sqlite"
    path.write_bytes(data)
    whole = load(nsys_sqlite, path)
    path.write_bytes(data[: len(data) // 2])
    sink = load(nsys_sqlite, path)
    assert len(sink.rows("slice")) == len(whole.rows("slice")) > 100
    assert ("damaged-table", "tables that are listed there") in {(w["code"], w["hides"]) for w in sink.warnings}
    assert sink.quality == "partial" and not any(c["complete"] for c in sink.coverage)


def test_damaged_pages_cost_only_their_own_rows(tmp_path: Path) -> None:
    path = _many_steps(tmp_path / "x.sqlite")
    data = bytearray(path.read_bytes())
    for page in range(20, len(data) // 4096, 9):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    sink = load(nsys_sqlite, path)
    assert sink.quality == "partial"
    assert any(w["code"] == "damaged-table" for w in sink.warnings)
    assert 1500 < len(sink.rows("slice")) < 2700


def test_it_is_found_among_the_formats() -> None:
    assert formats()["nsys_sqlite"].TITLE == nsys_sqlite.TITLE
