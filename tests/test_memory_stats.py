"""Counters of the CUDA allocator: memory_stats() as JSON, memory_summary() as text alone and in logs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import MemorySink, load

from forensics.artifact import Head
from forensics.discovery import discover
from forensics.errors import ArtifactError
from forensics.formats import log, memory_stats, memory_summary, metrics_jsonl

GIB = 1 << 30
MIB = 1 << 20
# As torch 2.13 prints it.
SUMMARY = """\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 3                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 2            |        cudaMalloc retries: 14        |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |  20480 MiB |  22528 MiB |    900 GiB |    880 GiB |
|       from large pool |  20479 MiB |  21504 MiB |    890 GiB |    870 GiB |
|       from small pool |      3 MiB |      4 MiB |     10 GiB |     10 GiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |  23552 MiB |  23552 MiB |  23552 MiB |      0 B   |
|       from large pool |  22528 MiB |  22528 MiB |  22528 MiB |      0 B   |
|       from small pool |     64 MiB |     64 MiB |     64 MiB |      0 B   |
|---------------------------------------------------------------------------|
| Allocations           |    1500    |    2100    |    9000 K  |    8998 K  |
|       from large pool |     700    |     900    |    2000 K  |    1999 K  |
|       from small pool |     800    |    1200    |    7000 K  |    6999 K  |
|---------------------------------------------------------------------------|
| Oversize allocations  |       0    |       0    |       0    |       0    |
|---------------------------------------------------------------------------|
| Oversize GPU segments |       0    |       0    |       0    |       0    |
|===========================================================================|
"""
STATS = {
    "allocated_bytes.all.current": 20 * GIB,
    "allocated_bytes.all.peak": 22 * GIB,
    "reserved_bytes.all.current": 23 * GIB,
    "allocation.all.current": 1500,
    "num_ooms": 2,
    "num_alloc_retries": 14,
    "max_split_size": -1,
}
NESTED = {"allocated_bytes": {"all": {"current": 20 * GIB, "peak": 22 * GIB}}, "num_ooms": 2}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def values(sink: MemorySink, **where: Any) -> dict[str, float]:
    rows = [r for r in sink.rows("sample") if all(r[k] == v for k, v in where.items())]
    return {r["name"]: r["value"] for r in rows}


def head(text: str) -> Head:
    return Head("x", text.encode(), True)


def test_counters_that_cannot_be_together_are_said(tmp_path: Path) -> None:
    stats = {"0": STATS, "1": {**STATS, "allocated_bytes.all.current": 24 * GIB, "allocated_bytes.all.peak": 24 * GIB}}
    table = SUMMARY.replace("|  20480 MiB |  22528 MiB |", "|  23480 MiB |  22528 MiB |")
    for module, name, text in (
        (memory_stats, "stats.json", json.dumps(stats)),
        (memory_summary, "summary.txt", table),
    ):
        sink = load(module, written(tmp_path, name, text))
        (warning,) = (w for w in sink.warnings if w["code"] == "impossible-state")
        assert "allocated_bytes.all.current" in warning["message"]
        assert sink.quality == "partial" and not any(c["complete"] for c in sink.coverage)


def test_rows_of_a_summary_are_bytes_and_counts_under_the_names_of_memory_stats(tmp_path: Path) -> None:
    sink = load(memory_summary, written(tmp_path, "s.txt", SUMMARY))
    found = values(sink)
    assert found["allocated_bytes.all.current"] == 20480 * MIB
    assert found["allocated_bytes.large_pool.peak"] == 21504 * MIB
    assert found["allocated_bytes.small_pool.freed"] == 10 * GIB
    assert found["reserved_bytes.all.freed"] == 0
    assert found["allocation.all.allocated"] == 9_000_000
    assert found["oversize_segments.peak"] == 0
    assert (found["num_ooms"], found["num_alloc_retries"]) == (2, 14)
    assert {r["device"] for r in sink.rows("sample")} == {3}
    units = {r["name"]: r["unit"] for r in sink.rows("sample")}
    assert (units["allocated_bytes.all.peak"], units["num_ooms"]) == ("bytes", "count")
    assert sink.rows("sample")[0]["line"] == 4
    assert sink.warnings == [] and sink.coverage[0]["complete"]


@pytest.mark.parametrize(
    "change", [lambda t: re.sub(r"(?m)^\|", "", t), lambda t: re.sub(r" +", " ", t), lambda t: t.replace("iB", "B")]
)
def test_a_summary_whose_box_or_units_differ_gives_the_same(change: Any, tmp_path: Path) -> None:
    plain = values(load(memory_summary, written(tmp_path, "s.txt", SUMMARY)))
    assert values(load(memory_summary, written(tmp_path, "t.txt", change(SUMMARY)))) == plain


def test_a_summary_alone_is_recognised_and_one_in_a_log_is_a_log() -> None:
    assert memory_summary.recognise(head(SUMMARY)) == 85
    assert memory_summary.recognise(head(SUMMARY * 3)) == 85
    assert memory_summary.recognise(head(SUMMARY + "Traceback (most recent call last):\n")) == 0
    in_log = "2026-01-01 10:00:00 INFO start\n" * 9 + SUMMARY
    assert memory_summary.recognise(head(in_log)) == 0
    assert log.recognise(head(in_log)) >= 10


@pytest.mark.parametrize("n_lines", range(5, 23))
def test_a_cut_summary_keeps_its_rows_and_says_so(n_lines: int, tmp_path: Path) -> None:
    cut = "".join(SUMMARY.splitlines(keepends=True)[:n_lines])
    sink = load(memory_summary, written(tmp_path, "s.txt", cut))
    assert values(sink).items() <= values(load(memory_summary, written(tmp_path, "w.txt", SUMMARY))).items()
    assert [w["code"] for w in sink.warnings] == (["truncated"] if n_lines < 22 else [])


def test_a_number_that_is_cut_is_not_taken_for_another(tmp_path: Path) -> None:
    whole = values(load(memory_summary, written(tmp_path, "w.txt", SUMMARY))).items()
    row = SUMMARY.index("\n", SUMMARY.index("from large pool")) + 1
    for end in range(row, SUMMARY.index("\n", row)):
        assert values(load(memory_summary, written(tmp_path, "s.txt", SUMMARY[:end]))).items() <= whole


def test_a_summary_without_rows_raises(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        load(memory_summary, written(tmp_path, "s.txt", "PyTorch CUDA memory summary, device ID 3\n"))


def test_a_log_hands_its_summaries_over_with_process_and_line(tmp_path: Path) -> None:
    prefixed = "".join(f"[rank2]: {line}\n" for line in SUMMARY.splitlines())
    text = "step 1 loss 2.5\n" + prefixed + SUMMARY.replace("ID 3", "ID 0") + "step 2 loss 2.25\n"
    sink = load(log, written(tmp_path, "train.log", text))
    rows = sink.rows("sample")
    of_device = {d: [r for r in rows if r["device"] == d] for d in (None, 0, 3)}
    assert [r["value"] for r in of_device[None]] == [2.5, 2.25]
    assert len(of_device[0]) == len(of_device[3]) == 46
    assert sorted(r["row"] for r in rows) == list(range(len(rows)))
    assert {sink.procs.get(r["proc"], {}).get("rank") for r in of_device[3]} == {2}
    assert of_device[3][0]["line"] == 5
    covered = [c for c in sink.coverage if c["capability"] == "sample.allocator"]
    assert len(covered) == 2 and all(c["complete"] for c in covered)


def test_a_summary_after_a_stamp_is_read_and_a_log_without_one_covers_nothing(tmp_path: Path) -> None:
    stamped = "2026-01-01 10:00:00,000 INFO train: memory\n2026-01-01 10:00:01,000 INFO train: " + SUMMARY
    sink = load(log, written(tmp_path, "a.log", stamped))
    assert values(sink)["allocated_bytes.all.current"] == 20480 * MIB
    none = load(log, written(tmp_path, "b.log", "step 1 loss 2.5\n"))
    assert all(c["capability"] != "sample.allocator" for c in none.coverage)


@pytest.mark.parametrize("content", [STATS, NESTED])
def test_flat_and_nested_statistics_give_the_same_names(content: dict[str, Any], tmp_path: Path) -> None:
    sink = load(memory_stats, written(tmp_path, "stats.json", json.dumps(content, indent=1)))
    found = values(sink)
    assert found["allocated_bytes.all.current"] == 20 * GIB
    assert found["num_ooms"] == 2
    assert {f["key"]: f["number"] for f in sink.facts}["num_ooms"] == 2
    assert sink.warnings == [] and sink.coverage == [
        {"capability": "sample.allocator", "proc": 0, "complete": True, "n_read": len(found), "n_kept": len(found)}
    ]


@pytest.mark.parametrize(
    "content",
    [[STATS, STATS], {"0": STATS, "1": NESTED}, {"cuda:0": NESTED, "cuda:1": STATS}, {"stats": [STATS, NESTED]}],
)
def test_the_place_in_a_list_and_a_bare_number_are_devices(content: Any, tmp_path: Path) -> None:
    sink = load(memory_stats, written(tmp_path, "stats.json", json.dumps(content)))
    assert values(sink, device=0)["num_ooms"] == values(sink, device=1)["num_ooms"] == 2


def test_ranks_are_processes_and_lines_have_steps(tmp_path: Path) -> None:
    by_rank = load(memory_stats, written(tmp_path, "a.json", json.dumps({"rank0": STATS, "rank7": NESTED})))
    assert [by_rank.procs[n]["rank"] for n in (0, 1)] == [0, 7]
    lines = [json.dumps(STATS | {"rank": 3, "device": "cuda:1", "step": n, "time": 1.7e9 + n}) for n in range(4)]
    sink = load(memory_stats, written(tmp_path, "b.jsonl", "\n".join(lines)))
    peaks = [r for r in sink.rows("sample") if r["name"] == "allocated_bytes.all.peak"]
    assert [(r["step"], r["line"], r["device"]) for r in peaks] == [(n, n + 1, 1) for n in range(4)]
    assert peaks[2]["ts_ns"] == 1_700_000_002 * 10**9
    assert sink.procs[0]["rank"] == 3


def test_private_pools_are_named_by_their_id(tmp_path: Path) -> None:
    content = STATS | {"reserved_bytes_by_private_pools": {"(0, 1)": {"all": {"current": 7}}}}
    found = values(load(memory_stats, written(tmp_path, "s.json", json.dumps(content))))
    assert found["reserved_bytes_by_private_pools.0_1.all.current"] == 7


def test_every_cut_keeps_what_came_before(tmp_path: Path) -> None:
    whole = json.dumps({"cuda:0": STATS, "cuda:1": NESTED})
    kept = []
    for cut in range(60, len(whole)):
        sink = load(memory_stats, written(tmp_path, "s.json", whole[:cut]))
        kept.append(len(sink.rows("sample")))
        assert sink.quality == "partial" and sink.warnings[0]["hides"]
    assert kept == sorted(kept) and kept[-1] == len(STATS) + 3


@pytest.mark.parametrize("content", ["{}", '{"a": 1}', '[{"allocated_bytes": []}]', "[[[[]]]]"])
def test_what_holds_no_counter_raises(content: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        load(memory_stats, written(tmp_path, "s.json", content))


def test_statistics_win_over_metrics_and_other_documents_are_not_taken(tmp_path: Path) -> None:
    line = json.dumps(STATS | {"step": 1})
    assert memory_stats.recognise(head(line + "\n" + line)) > metrics_jsonl.recognise(head(line + "\n" + line))
    for other in ('{"loss": 1, "step": 2}', '{"memory": {"allocated": 3}}', "text", ""):
        assert memory_stats.recognise(head(other)) == 0
    written(tmp_path, "stats.json", json.dumps(STATS))
    written(tmp_path, "summary.txt", SUMMARY)
    found = {item.source.own_name: item.format for item in discover(tmp_path, tmp_path / "work")}
    assert found["stats.json"] == "memory_stats" and found["summary.txt"] == "memory_summary"


def test_the_summary_of_the_installed_torch_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("torch.cuda.memory")
    stats: dict[str, int] = {"num_ooms": 1, "num_alloc_retries": 2}
    for metric in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes"):
        stats |= {f"{metric}.{p}.{c}": 3 << 40 for p in ("all", "large_pool", "small_pool") for c in _COLUMNS}
    for metric in ("allocation", "active", "segment", "inactive_split"):
        stats |= {f"{metric}.{p}.{c}": 7_000_000 for p in ("all", "large_pool", "small_pool") for c in _COLUMNS}
    stats |= {f"{m}.{c}": 5 for m in ("oversize_allocations", "oversize_segments") for c in _COLUMNS}
    monkeypatch.setattr(memory, "memory_stats", lambda device=None: stats)
    monkeypatch.setattr(memory, "_get_device_index", lambda *args, **more: 0)
    text = memory.memory_summary(0)
    assert values(load(memory_summary, written(tmp_path, "s.txt", text))) == stats
    short = memory.memory_summary(0, abbreviated=True)
    found = values(load(memory_summary, written(tmp_path, "t.txt", short)))
    assert found.items() <= stats.items() and len(found) == 2 + 9 * 4 + 2 * 4


_COLUMNS = ("current", "peak", "allocated", "freed")
