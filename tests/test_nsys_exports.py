"""One real recording in all the clothes that Nsight Systems exports, and raw reports."""

from __future__ import annotations

import csv
import gzip
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow.parquet as pq
import pytest
from nsys_export import GLOBAL_PID, GLOBAL_TID, captured_job
from support import ARTIFACTS, ROOT, MemorySink, needs_artifacts

from forensics.artifact import Head, Source
from forensics.assembly import assemble_case
from forensics.discovery import discover
from forensics.errors import ArtifactError, Unavailable
from forensics.formats import formats, nsys_jsonlines, nsys_rep
from forensics.ingest import ingest
from forensics.pipeline import analyze

RECORDED = ROOT / "fixtures" / "nsys-exports-healthy" / "artifacts"
_LINKS = {"row", "parent_row", "launch_row"}


def load_all(path: Path, work: Path) -> dict[str, MemorySink]:
    sinks = {}
    for found in discover(path, work):
        sinks[found.source.own_name] = sink = MemorySink()
        assert found.format is not None, found.source.name
        formats()[found.format].load(found.source, sink)
    return sinks


def slices_of(path: Path, work: Path) -> list[dict[str, Any]]:
    return [row for sink in load_all(path, work).values() for row in sink.rows("slice")]


def without_links(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str({k: v for k, v in row.items() if k not in _LINKS | {"stack_id"}}) for row in rows)


@pytest.mark.parametrize("name", ["report_pqtdir", "report_arwdir", "report.arrow.gz"])
def test_every_export_of_a_recording_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    expected = slices_of(RECORDED / "report.sqlite.gz", tmp_path)
    rows = slices_of(RECORDED / name, tmp_path)
    kinds = {"annotation", "cpu_op", "instant", "os_call"}  # the others' tables were not exported here
    assert without_links(rows) == without_links([row for row in expected if row["kind"] in kinds])
    parents = {row["row"]: row["name"] for row in rows}
    assert {parents.get(row["parent_row"]) for row in rows if row["name"] == "optimizer"} == {
        f"iteration {step}" for step in range(12)
    }


def test_times_are_those_that_the_program_printed(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in slices_of(RECORDED / "report.sqlite.gz", tmp_path)}
    for line in (RECORDED / "stdout.log").read_text().splitlines():
        words = line.split()
        if words[:1] == ["step"]:
            step = rows[f"iteration {words[1]}"]
            assert 0 < int(words[5]) - step["ts_ns"] - step["dur_ns"] < 1_000_000


def test_one_file_loads_a_folder_and_the_others_are_its_parts(tmp_path: Path) -> None:
    sinks = load_all(RECORDED / "report_pqtdir", tmp_path)
    assert {name for name, sink in sinks.items() if sink.tables} == {"NVTX_EVENTS.parquet"}
    assert all(sink.quality == "complete" and not sink.warnings for sink in sinks.values())


def test_a_folder_in_an_archive_is_one_export_too(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "folder"), "zip", RECORDED, "report_pqtdir")
    rows = slices_of(Path(archive), tmp_path / "work")
    assert without_links(rows) == without_links(slices_of(RECORDED / "report_pqtdir", tmp_path))


def test_a_table_alone_loads_and_says_that_names_are_missing(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "report_pqtdir" / "OSRT_API.parquet", tmp_path)
    (sink,) = load_all(tmp_path, tmp_path / "work").values()
    assert sink.rows("slice")
    assert {w["code"] for w in sink.warnings} == {"no-strings", "unknown-strings"}
    assert sink.clock_kind == "relative"


@pytest.mark.parametrize(("folder", "table"), [("report_pqtdir", "OSRT_API"), ("report_arwdir", "NVTX_EVENTS")])
def test_a_damaged_table_costs_only_itself(folder: str, table: str, tmp_path: Path) -> None:
    shutil.copytree(RECORDED / folder, tmp_path / folder)
    (path,) = (tmp_path / folder).glob(f"{table}.*")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    sinks = load_all(tmp_path / folder, tmp_path / "work")
    damaged = {name: sink.quality for name, sink in sinks.items() if sink.quality != "complete"}
    assert damaged == {path.name: "failed" if path.suffix == ".parquet" else "partial"}
    (leading,) = (sink for sink in sinks.values() if sink.tables)
    assert [w["code"] for w in leading.warnings] == ["damaged-table"]
    assert leading.rows("slice")
    assert [w["code"] for w in sinks[path.name].warnings] == ["damaged-table"]


def test_an_arrow_file_cut_anywhere_keeps_whole_tables(tmp_path: Path) -> None:
    data = gzip.decompress((RECORDED / "report.arrow.gz").read_bytes())
    path = tmp_path / "x.arrow"
    kept = []
    for part in range(1, 40):
        path.write_bytes(data[: len(data) * part // 40])
        try:
            kept.append(len(slices_of(path, tmp_path / "work")))
        except ArtifactError:
            kept.append(0)
    assert kept == sorted(kept)
    assert kept[-1] > 0


def test_a_row_of_a_folder_is_found_again(tmp_path: Path) -> None:
    for found in discover(RECORDED / "report_pqtdir", tmp_path):
        module, sink = formats()[found.format or ""], MemorySink()
        module.load(found.source, sink)
        for row in sink.rows("slice")[-1:]:
            place = module.locate(found.source, row["row"], None)  # type: ignore[attr-defined]
            assert place.text.startswith("OSRT_API row ")


def test_a_parquet_file_of_another_kind_is_no_export(tmp_path: Path) -> None:
    pq.write_table(pq.read_table(RECORDED / "report_pqtdir" / "OSRT_API.parquet"), tmp_path / "train.parquet")
    (found,) = discover(tmp_path, tmp_path / "work")
    assert found.format == "parquet_table"


@needs_artifacts
def test_a_raw_report_names_the_command_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = discover(ARTIFACTS / "nsys" / "jaxtoolbox__pdl_2p2c.nsys-rep", tmp_path / "work")
    for _ in range(2):
        (loaded,) = ingest(found, tmp_path / "cache")
        (warning,) = loaded.meta["warnings"]
        command = "nsys export --type sqlite --output jaxtoolbox__pdl_2p2c.sqlite jaxtoolbox__pdl_2p2c.nsys-rep"
        assert warning["message"].endswith(f"run: {command}")
        assert (loaded.meta["quality"], loaded.meta["facts"][0]["value"]) == ("partial", "2025.5.1.121")
        assert not loaded.reused


def test_a_raw_report_is_exported_where_nsys_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured_job(tmp_path / "exported", broken=True)
    nsys = tmp_path / "nsys"
    nsys.write_text(f'#!/bin/sh\n/bin/cp "{tmp_path}/exported" "$5"\n')
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "job's report.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 2025@5@1@121-255136380782v0.\n" + bytes(100))
    sink = MemorySink()
    nsys_rep.load(Source(report, report.name), sink)
    assert any(row["return_code"] == 900 for row in sink.rows("slice"))
    nsys.write_text("#!/bin/sh\necho no such report >&2\nexit 3\n")
    with pytest.raises(Unavailable, match="exit code 3: no such report") as error:
        nsys_rep.load(Source(report, report.name), MemorySink())
    assert str(error.value).endswith(shlex.quote(report.name))


def test_a_stream_that_was_never_imported_is_named() -> None:
    assert nsys_rep.recognise(Head("report.qdstrm", b"\x01\0\0\0", False)) == 90
    assert nsys_rep.recognise(Head("notes.txt", b"NVIDIA", True)) == 0


@pytest.mark.parametrize("broken", [True, False])
def test_a_broken_capture_is_proven_by_the_results_of_calls(broken: bool, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    captured_job(tmp_path / "job" / "report.sqlite", broken=broken)
    analyze(tmp_path / "job", tmp_path / "out")
    findings = json.loads((tmp_path / "out" / "report.json").read_bytes())["findings"]
    assert [f["rule"] for f in findings if f["rule"].startswith("capture")] == (["capture-abort"] if broken else [])
    if broken:
        (finding,) = [f for f in findings if f["rule"] == "capture-abort"]
        assert (finding["variant"], finding["strength"]) == ("result", "proof")
        assert "cudaStreamSynchronize, which returned 900" in finding["message"]
        assert "returnValue 900" in finding["evidence"][0]["text"]


def test_statistics_give_samples_and_traces_give_slices(tmp_path: Path) -> None:
    for name in ("report_osrt_sum.csv", "stats.csv", "stats.txt"):
        (sink,) = load_all(RECORDED / name, tmp_path).values()
        samples = {(row["name"], row["entity"]): row["value"] for row in sink.rows("sample")}
        assert samples["osrt_sum.count", "sem_wait"] == 13, name
        assert samples["osrt_sum.total", "sem_wait"] > 40_000_000
        assert not any(c["complete"] for c in sink.coverage)
        assert (sink.quality, sink.warnings) == ("complete", [])
    (sink,) = load_all(RECORDED / "report_nvtx_pushpop_trace.csv", tmp_path).values()
    rows = {row["name"]: row for row in sink.rows("slice")}
    exported = {row["name"]: row for row in slices_of(RECORDED / "report.sqlite.gz", tmp_path)}
    for step in range(12):
        assert rows[f"iteration {step}"]["dur_ns"] == exported[f"iteration {step}"]["dur_ns"]
    assert {row["line"] for row in sink.rows("position")} == set(range(2, 2 + len(sink.rows("slice"))))


def test_results_of_a_recipe_are_samples_by_rank(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "nvtx_sum-1", tmp_path / "job" / "nvtx_sum-1")
    sinks = load_all(tmp_path / "job", tmp_path / "work")
    samples = {(row["name"], row["entity"]): row["value"] for row in sinks["rank_stats.parquet"].rows("sample")}
    assert samples["nvtx_sum.count", "next batch"] == 12
    assert sinks["rank_stats.parquet"].procs[0]["rank"] == 0
    facts = {fact["key"]: fact["value"] for sink in sinks.values() for fact in sink.facts}
    assert (facts["nsys-recipe.RecipeName"], facts["nsys-recipe.file"]) == ("nvtx_sum", "report")


def test_results_of_calls_in_a_trace_report_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "report_cuda_api_trace.csv"
    path.write_text(
        "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name\n"
        "100,20,cudaMalloc_v3020,2,7,41,42,20,python\n150,5,cudaFree,0,8,41,42\n"
    )
    (sink,) = load_all(path, tmp_path / "work").values()
    (call,) = sink.rows("slice")
    assert (call["kind"], call["name"], call["return_code"], call["correlation"]) == ("runtime", "cudaMalloc", 2, 7)
    assert [(w["code"], w["line"]) for w in sink.warnings] == [("odd-rows", 3)]


@needs_artifacts
def test_a_real_recipe_folder_is_loaded_whole(tmp_path: Path) -> None:
    sinks = load_all(ARTIFACTS / "nsys" / "jaxtoolbox__pax_recipe_proc0", tmp_path)
    assert len(sinks["trace.parquet"].rows("slice")) == 14_305 - sum(
        row is None
        for row in pq.read_table(ARTIFACTS / "nsys/jaxtoolbox__pax_recipe_proc0/nvtx_gpu_proj_trace/trace.parquet")[
            "Projected Start"
        ].to_pylist()
    )
    assert len(sinks["report_nvtx_pushpop_trace.csv.xz"].rows("slice")) > 10_000
    facts = {fact["key"]: fact["value"] for sink in sinks.values() for fact in sink.facts}
    assert facts["gpu0.name"] == "NVIDIA A100-SXM4-40GB"
    assert {sink.quality for sink in sinks.values()} == {"complete"}


def test_the_json_export_gives_the_same_rows_relative_to_the_session(tmp_path: Path) -> None:
    exported = slices_of(RECORDED / "report.sqlite.gz", tmp_path)
    (found,) = discover(RECORDED / "report.json.gz", tmp_path)
    sink = MemorySink()
    nsys_jsonlines.load(found.source, sink)
    rows = sink.rows("slice")
    begin = min(row["ts_ns"] for row in exported) - min(row["ts_ns"] for row in rows)
    assert without_links([{**row, "ts_ns": row["ts_ns"] + begin} for row in rows]) == without_links(exported)
    assert (found.format, sink.clock_kind, sink.quality) == ("nsys_jsonlines", "relative", "complete")
    place = nsys_jsonlines.locate(found.source, rows[-1]["row"], None)
    assert place is not None and place.line and str(rows[-1]["ts_ns"]) in (place.text or "")


def test_calls_and_kernels_of_a_json_export_are_linked_and_bad_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    call = {"globalTid": str(GLOBAL_TID), "returnValue": 700}
    launch = {"startNs": "10", "endNs": "20", "correlationId": 5, "eventClass": 0, "name": "2", **call}
    driver = {"startNs": "30", "endNs": "40", "correlationId": 6, "eventClass": 1, "name": "4", **call}
    kernel = {"startNs": "15", "endNs": "25", "correlationId": 5, "deviceId": 0, "streamId": 7}
    lines = [
        {"data": ["[Unknown]", "[kernel.kallsyms]", "cudaLaunchKernel_v7000", "sgemm", "cuMemAlloc_v2"]},
        {"Type": 48, "TraceProcessEvent": launch},
        {"Type": 48, "TraceProcessEvent": driver},
        {"Type": 79, "CudaEvent": {**kernel, "globalPid": str(GLOBAL_PID), "kernel": {"shortName": "3"}}},
    ]
    path.write_bytes(b"\n".join([*map(orjson.dumps, lines), b'{"Type": 48, "TraceProc']))
    (sink,) = load_all(path, tmp_path / "work").values()
    rows = {row["name"]: row for row in sink.rows("slice")}
    assert (rows["cudaLaunchKernel"]["return_code"], rows["cuMemAlloc_v2"]["kind"]) == (700, "driver")
    assert rows["sgemm"]["launch_row"] == rows["cudaLaunchKernel"]["row"]
    assert [(w["code"], w["line"]) for w in sink.warnings] == [("bad-json", 5)]


def test_every_form_of_a_recording_is_analyzed_from_one_folder(tmp_path: Path) -> None:
    analyze(RECORDED, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert {a["quality"] for a in report["artifacts"]} == {"complete"}
    assert {f"nsys_{kind}" for kind in ("sqlite", "parquetdir", "arrowdir", "jsonlines", "stats", "recipe")} <= {
        a["format"] for a in report["artifacts"]
    }
    assert not report["findings"]


def test_sums_of_a_case_are_those_of_nsys_stats_over_the_same_recording(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    shutil.copy(RECORDED / "report.sqlite.gz", tmp_path / "job")
    assemble_case(ingest(discover(tmp_path / "job", tmp_path / "work"), tmp_path / "cache"), tmp_path / "case.duckdb")
    figures = "n, total_ns, mean_ns, median_ns, min_ns, max_ns, stddev_ns, 100 * share_ratio"
    with duckdb.connect(str(tmp_path / "case.duckdb"), read_only=True) as con:
        rows = con.execute(f"SELECT kind, name, {figures} FROM slice_summary").fetchall()
    ours = {(row[0] == "os_call", row[1]): row[2:] for row in rows}
    n_compared = 0
    for report, is_call, count in (("osrt_sum", True, "Num Calls"), ("nvtx_sum", False, "Instances")):
        with (RECORDED / f"report_{report}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                name = row["Name"] if is_call else row["Range"]
                if name.startswith("aten::"):  # nsys takes each number and shape for a range of its own
                    continue
                columns = [count, *(f"{one} (ns)" for one in ("Total Time", "Avg", "Med", "Min", "Max", "StdDev"))]
                told = [float(row[column]) for column in columns]
                assert ours[is_call, name][:7] == pytest.approx(told, abs=0.051), name
                # Shares of ranges: nsys counts operators among them.
                assert not is_call or ours[True, name][7] == pytest.approx(float(row["Time (%)"]), abs=0.051)
                n_compared += 1
    assert n_compared >= 20
