from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support import ARTIFACTS, MemorySink, load, needs_artifacts

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import formats, torch_trace

LOGS = ARTIFACTS / "torch_trace_log"
# 18 November 2026, 11:41:39.5 in a zone two hours east of Greenwich.
EPOCH_US = 1_794_994_899_500_000
PREFIX = "V1118 11:41:39.500000 4242 torch/_dynamo/utils.py:2350] "


def record(payload: str | None = None, prefix: str = PREFIX, **fields: Any) -> str:
    if payload is None:
        return f"{prefix}{json.dumps(fields)}\n"
    fields["has_payload"] = hashlib.md5(payload.encode()).hexdigest()
    return f"{prefix}{json.dumps(fields)}\n" + "".join(f"\t{line}\n" for line in payload.split("\n"))


def phase(ph: str, name: str, us: float = 0, **other: Any) -> str:
    event = {"name": name, "ts": EPOCH_US + us, "ph": ph, "cat": "dynamo_timed", "pid": 0, "tid": 0}
    return record(json.dumps(event, indent=0), chromium_event={}, **other)


ID = {"frame_id": 0, "frame_compile_id": 1, "attempt": 0}
STRINGS = record(str=["/job/train.py", 0])
START = record(
    dynamo_start={"stack": [{"line": 9, "name": "main", "filename": 0}, {"line": 4, "name": "f", "filename": 0}]}, **ID
)
METRICS = {"co_name": "f", "co_filename": "/job/train.py", "co_firstlineno": 4, "entire_frame_compile_time_s": 0.25}


def loaded(tmp_path: Path, text: str, name: str = "dedicated_log_torch_trace_x.log") -> MemorySink:
    path = tmp_path / name
    path.write_text(text)
    return load(torch_trace, path)


def events(sink: MemorySink) -> list[tuple[str, str | None, str | None]]:
    return [(e["kind"], e["name"], e["reason"]) for e in sink.rows("compile_event")]


def counted(sink: MemorySink) -> dict[str, int]:
    facts = {f["key"].removeprefix("torch_trace."): int(f["number"]) for f in sink.facts}
    return {key: n for key, n in facts.items() if not key.startswith("artifact.")}


def test_a_compilation_has_its_function_duration_stack_and_time(tmp_path: Path) -> None:
    sink = loaded(tmp_path, phase("B", "dynamo") + STRINGS + START + record(compilation_metrics=METRICS, rank=3, **ID))
    row = sink.rows("compile_event")[0]
    assert (row["kind"], row["compile_id"], row["name"], row["dur_ns"]) == ("compile", "0/1", "f", 250_000_000)
    assert row["ts_ns"] == EPOCH_US * 1000
    frames = [(f["function"], f["file"], f["line"]) for f in sink.rows("stack")]
    assert frames == [("main", "/job/train.py", 9), ("f", "/job/train.py", 4)]
    assert sink.procs[0] == {
        "rank": 3, "rank_origin": "content", "pid": 4242, "start_ns": EPOCH_US * 1000, "end_ns": EPOCH_US * 1000,
    }  # fmt: skip
    assert sink.clock_kind == "epoch"
    assert not sink.warnings


def test_a_compilation_that_never_ended_is_unfinished(tmp_path: Path) -> None:
    other = {**ID, "frame_id": 1}
    done = record(dynamo_start={"stack": []}, **other) + record(compilation_metrics={}, **other)
    sink = loaded(tmp_path, STRINGS + done + START)
    assert [e[0] for e in events(sink)] == ["compile", "unfinished"]
    # Without any metrics, which older releases do not write, only the last one may have been running.
    sink = loaded(tmp_path, STRINGS + record(dynamo_start={"stack": []}, **other) + START)
    assert [e[0] for e in events(sink)] == ["compile", "unfinished"]


def test_failures_limits_restarts_and_skips_come_with_their_reasons(tmp_path: Path) -> None:
    failed = {**METRICS, "fail_type": "Unsupported", "fail_reason": "call to print", "fail_user_frame_lineno": 7}
    failed["fail_user_frame_filename"] = "/job/model.py"
    limited = {**METRICS, "fail_type": "Unsupported", "fail_reason": "Dynamo recompile limit exceeded\n  Hint"}
    restarted = {**METRICS, "restart_reasons": ["a", "b"], "cudagraph_skip_reason": "skipping cudagraphs due to cpu"}
    text = "".join(record(compilation_metrics=m, **ID) for m in (failed, limited, restarted))
    sink = loaded(tmp_path, STRINGS + START + text)
    assert events(sink) == [
        ("failure", "f", "Unsupported: call to print"),
        ("limit", "f", "Unsupported: Dynamo recompile limit exceeded\n  Hint"),
        ("compile", "f", None),
        ("restart", "f", "a"),
        ("restart", "f", "b"),
        ("skip", "f", "skipping cudagraphs due to cpu"),
    ]
    place = next(f for f in sink.rows("stack") if f["id"] == sink.rows("compile_event")[0]["stack_id"])
    assert (place["file"], place["line"]) == ("/job/model.py", 7)


def test_artifacts_tell_recompilations_graph_breaks_and_cache_misses(tmp_path: Path) -> None:
    broken = (
        "Graph break in user code at /job/train.py:13\nGraph Break Reason: print\n\nUser code traceback:\n"
        '  File "/job/train.py", line 16, in <module>\n    g(x)\n  File "/job/train.py", line 13, in g\n    print()\n'
        '\nTraceback (most recent call last):\n  File "/torch/exc.py", line 1, in unimplemented'
    )
    parts = [
        record('[\n"0/0: size mismatch",\n"0/1: other"\n]', artifact={"name": "recompile_reasons"}, **ID),
        record(broken, artifact={"name": "dynamo_graph_break_reason"}, **ID),
        record('{"key": "abc"}', artifact={"name": "fx_graph_cache_miss"}, **ID),
        record("code", artifact={"name": "fx_graph_runnable"}, **ID),
        record('[{"code": "L[x] is None"}]', dynamo_guards={}, **ID),
        record(symbolic_shape_specialization={"symbol": "s0", "value": "3", "reason": "guard"}, **ID),
        record(missing_fake_kernel={"op": "my::op"}),
        record(guard_added={"expr": "Eq(s0, 3)", "user_stack": [{"line": 1, "name": "go", "filename": "/job/a.py"}]}),
    ]
    sink = loaded(tmp_path, "".join(parts))
    assert [(kind, reason) for kind, _, reason in events(sink)] == [
        ("recompile", "0/0: size mismatch\n0/1: other"),
        ("graph-break", broken),
        ("cache-miss", 'fx_graph_cache_miss: {"key": "abc"}'),
        ("guards", "L[x] is None"),
        ("specialization", "s0 = 3: guard"),
        ("fake-kernel", "missing fake kernel: my::op"),
        ("guard", "Eq(s0, 3)"),
    ]
    frames = {f["id"]: (f["function"], f["line"]) for f in sink.rows("stack")}
    assert [frames.get(e["stack_id"]) for e in sink.rows("compile_event")][1] == ("g", 13)
    assert counted(sink) == {
        "artifact": 4, "dynamo_guards": 1, "guard_added": 1, "missing_fake_kernel": 1, "payloads": 5,
        "symbolic_shape_specialization": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"frame_id": 0, "frame_compile_id": 1}, "0/1"),
        ({"frame_id": 0, "frame_compile_id": 1, "attempt": 2}, "0/1_2"),
        ({"frame_id": 3, "frame_compile_id": 1, "compiled_autograd_id": 2, "attempt": 0}, "!2/3/1"),
        ({"compiled_autograd_id": 2}, "!2"),
        ({}, None),
    ],
)
def test_compile_ids_are_written_as_torch_prints_them(
    tmp_path: Path, fields: dict[str, int], expected: str | None
) -> None:
    sink = loaded(tmp_path, record(guard_added={"expr": "x"}, **fields))
    assert sink.rows("compile_event")[0]["compile_id"] == expected


def test_phases_become_nested_slices_and_those_without_an_end_stay_open(tmp_path: Path) -> None:
    text = phase("B", "dynamo") + phase("B", "backend", 1.5) + phase("i", "mark", 2) + phase("E", "backend", 9.25)
    sink = loaded(tmp_path, text + phase("B", "codegen", 10) + phase("E", "nothing", 11))
    rows = sorted(sink.rows("slice"), key=lambda row: row["row"])
    assert [(r["name"], r["ts_ns"] - EPOCH_US * 1000, r["dur_ns"], r["parent_row"]) for r in rows] == [
        ("dynamo", 0, None, None),
        ("backend", 1500, 7750, 0),
        ("mark", 2000, 0, 1),
        ("codegen", 10_000, None, 0),
    ]


def test_a_log_over_new_year_knows_both_years(tmp_path: Path) -> None:
    late = {"name": "x", "ts": 1_798_761_599_000_000, "ph": "B", "pid": 0, "tid": 0}  # 2026-12-31 23:59:59 UTC
    text = record(json.dumps(late), "V1231 23:59:59.000000 7 a.py:1] ", chromium_event={})
    text += record(guard_added={"expr": "x"}, prefix="V0101 00:00:01.000000 7 a.py:1] ")
    assert loaded(tmp_path, text).rows("compile_event")[0]["ts_ns"] == 1_798_761_601_000_000_000


def test_interleaved_ranks_become_processes_of_their_own(tmp_path: Path) -> None:
    other = PREFIX.replace("4242", "4343")
    text = STRINGS + record(prefix=other, str=["/other.py", 0]) + START
    text += record(prefix=other, dynamo_start={"stack": [{"line": 1, "name": "g", "filename": 0}]}, rank=1, **ID)
    text += record(compilation_metrics=METRICS, rank=0, **ID)
    sink = loaded(tmp_path, text, "torch_trace_rank_0.log")
    assert {n: (p.get("rank"), p["pid"]) for n, p in sink.procs.items()} == {0: (0, 4242), 1: (1, 4343)}
    assert [(e["proc"], e["kind"]) for e in sink.rows("compile_event")] == [(0, "compile"), (1, "unfinished")]
    assert {f["file"] for f in sink.rows("stack") if f["function"] == "g"} == {"/other.py"}
    assert [w["code"] for w in sink.warnings] == ["no-year", "rank-mismatch"]


def test_damage_costs_only_the_record_that_has_it(tmp_path: Path) -> None:
    bad = PREFIX + '{"guard_added": {"expr": "x"\n'
    whole = record("one\ntwo", artifact={"name": "recompile_reasons"}, **ID)
    interrupted = whole.replace("\ttwo", "Warning: from another writer\n\ttwo")
    mixed = whole.replace("\ttwo", "\tTWO")
    sink = loaded(tmp_path, bad + interrupted + "\n" + mixed + START)
    assert [e["reason"] for e in sink.rows("compile_event")][:2] == ["one\ntwo", "one\nTWO"]
    assert [(w["code"], w["line"]) for w in sink.warnings if "line" in w] == [
        ("bad-record", 1),
        ("bad-record", 4),
        ("payload-md5", 7),
    ]
    assert sink.quality == "partial"
    assert not sink.coverage[0]["complete"]


def kept(path: Path) -> int:
    sink = MemorySink()
    try:
        torch_trace.load(Source(path, path.name), sink)
    except ArtifactError:
        return 0
    return len(sink.rows("compile_event")) + len(sink.rows("slice"))


def check_monotone(data: bytes, path: Path) -> None:
    ends = [*sorted(random.Random(7).sample(range(1, len(data)), 200)), len(data)]
    counts = []
    for end in ends:
        path.write_bytes(data[:end])
        counts.append(kept(path))
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_more_bytes_never_give_fewer_rows(tmp_path: Path) -> None:
    parts = [STRINGS, START, phase("B", "x"), record("a\nb", artifact={"name": "recompile_reasons"}, **ID)]
    metrics = record(compilation_metrics={**METRICS, "restart_reasons": ["r"]}, **ID)
    check_monotone("".join([*parts, phase("E", "x", 5), metrics] * 3).encode(), tmp_path / "x.log")


@pytest.mark.parametrize(
    "value", [None, [], {}, "x", 2**80, -1, [[1]], {"stack": 5}, {"stack": [[], {"name": 1}]}, "\ud800\0", [1, "x"]]
)
@pytest.mark.parametrize(
    "kind", ["str", "chromium_event", "dynamo_start", "compilation_metrics", "artifact", "guard_added", "odd", "rank"]
)
def test_hostile_records_raise_nothing(tmp_path: Path, kind: str, value: object) -> None:
    fields = {kind: value, "frame_id": value, "attempt": value}
    sink = loaded(tmp_path, START + record(**fields) + record("[" * 5000, **{kind: value}))
    assert len(sink.rows("compile_event")) >= 1


@pytest.mark.parametrize("text", ["", "{}\n", "\tx\n" * 50, "V1118 11:41:39.500000 4242 a.py:1] GUARDS:\n", "\0" * 99])
def test_other_files_are_neither_claimed_nor_loaded(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(text)
    assert torch_trace.recognise(Source(path, path.name).head()) == 0
    with pytest.raises(ArtifactError):
        load(torch_trace, path)


# What tlparse 0.4.3 prints for each log: records read, and payloads whose MD5 differs.
TLPARSE = {
    "ezyang_tlparse__artifacts.log": (7, 0),
    "ezyang_tlparse__chromium_events.log": (13, 0),
    "ezyang_tlparse__comp_metrics.log": (12, 0),
    "ezyang_tlparse__links.log": (9, 0),
    "ezyang_tlparse__simple.log": (64, 0),
    "meta_tlparse__export_guard_added.log": (3, 1),
    "meta_tlparse__multi_rank_schedule_dedicated_log_torch_trace_rank_0_6u3fubwl.log": (159, 0),
    "meta_tlparse__multi_rank_schedule_dedicated_log_torch_trace_rank_1_n8zycf07.log": (159, 1),
    "meta_tlparse__simple_corrupted_json.log": (64, 1),
}


@needs_artifacts
@pytest.mark.parametrize("name", TLPARSE)
def test_real_logs_have_as_many_records_as_tlparse_counts(name: str) -> None:
    head = Source(LOGS / name, name).head()
    assert max(formats(), key=lambda format_: formats()[format_].recognise(head)) == "torch_trace"
    sink = load(torch_trace, LOGS / name)
    kinds = counted(sink)
    n_records = sum(kinds.values()) - kinds["payloads"] - kinds["str"]  # tlparse leaves out the interned texts
    n_broken = sum(w["code"] == "payload-md5" for w in sink.warnings)
    assert (n_records, n_broken) == TLPARSE[name]
    assert len(TLPARSE) + 1 == len(list(LOGS.iterdir()))  # one log is empty


@needs_artifacts
def test_real_logs_cut_anywhere_keep_what_came_before(tmp_path: Path) -> None:
    for name in ("ezyang_tlparse__comp_metrics.log", "ezyang_tlparse__chromium_events.log"):
        check_monotone((LOGS / name).read_bytes(), tmp_path / "x.log")
