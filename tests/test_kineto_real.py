"""The Kineto format on real traces of every era."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from kineto_traces import covered
from support import ARTIFACTS, load, needs_artifacts

from forensics.artifact import Source
from forensics.formats import _json_events, kineto
from forensics.formats._json_events import EventStream
from forensics.formats._kineto_rows import EventReader
from forensics.formats._kineto_typing import Events

TRACES = ARTIFACTS / "chrome_trace"


ORACLE = json.loads((ARTIFACTS / "oracle_counts.json").read_text()) if ARTIFACTS.is_dir() else {}


NOT_KINETO = {
    "kineto__profile_Cloud-TPU_10.240.1.50.overview_page.json",
    "tracelens__._huvideo_traces_rank_0_step_3.json",
}


# The profiler started after these launches, or somebody removed them.
LAUNCHES_MISSING = ("trace_compare", "resnet50", "kineto__traces_after_fix", "kineto__traces_before_fix")


REAL = sorted(k.removeprefix("chrome_trace/") for k in ORACLE if k.startswith("chrome_trace/"))


KINETO = [name for name in REAL if name not in NOT_KINETO]


@needs_artifacts
@pytest.mark.parametrize("name", KINETO)
def test_every_event_of_a_real_trace_is_read_in_order(name: str) -> None:
    expected = ORACLE[f"chrome_trace/{name}"]
    source = Source(TRACES / name, name)
    with source.open() as stream, EventReader(EventStream(stream), 2, lambda parsed: parsed) as reader:
        slices = list(reader.results())
    assert all(parsed.damage.first_byte is None for parsed in slices)
    rows: list[tuple[str | None, str | None, int, bool]] = []
    for parsed in slices:
        events = Events(parsed.events, parsed.document)
        columns = (parsed.events.column(name).to_pylist() for name in ("ph", "cat"))
        rows += zip(*columns, events.ts_ns.tolist(), events.has_ts.tolist(), strict=True)
    assert len(rows) == expected["n"]
    assert Counter(phase or "null" for phase, *_ in rows) == expected["ph"]
    assert Counter(category or "null" for _, category, *_ in rows) == expected["cat"]
    times = [ts_ns for *_, ts_ns, known in rows if known]
    assert [min(times), max(times)] == [int(Decimal(str(expected[key])) * 1000) for key in ("tsmin", "tsmax")]


@needs_artifacts
@pytest.mark.parametrize("name", KINETO)
def test_a_real_trace_is_recognised_and_loads_without_warning(name: str) -> None:
    assert kineto.recognise(Source(TRACES / name, name).head()) >= 80
    sink = load(kineto, TRACES / name)
    cover = covered(sink)
    assert cover["n_read"] == cover["n_kept"] == ORACLE[f"chrome_trace/{name}"]["n"]
    assert cover["complete"]
    assert sink.quality == "complete"
    known = {"large_integer": "no-base-time", **dict.fromkeys(LAUNCHES_MISSING, "launches-missing")}
    assert [w["code"] for w in sink.warnings] == [code for part, code in known.items() if part in name]
    rows = [row["row"] for row in sink.rows("slice")]
    assert rows == sorted(set(rows))
    known = set(rows)
    for row in sink.rows("slice"):
        for link in ("parent_row", "launch_row", "forward_row"):
            assert row[link] is None or row[link] in known


@needs_artifacts
@pytest.mark.parametrize("name", sorted(NOT_KINETO))
def test_other_files_among_real_traces_are_not_taken(name: str) -> None:
    assert kineto.recognise(Source(TRACES / name, name).head()) == 0


@needs_artifacts
@pytest.mark.parametrize(
    "folder", ["other", "flight_recorder", "memory_snapshot", "torch_trace_log", "crash_log", "nsys"]
)
def test_artifacts_of_other_kinds_are_not_taken(folder: str) -> None:
    for path in sorted((ARTIFACTS / folder).rglob("*")):
        if path.is_file():
            assert kineto.recognise(Source(path, path.name).head()) == 0, path


@needs_artifacts
def test_python_frames_nest_as_their_parent_ids_say() -> None:
    name = "tracelens__h100_gaunernst_bert-small-uncased__1016001.json.gz"
    events = json.loads(gzip.decompress((TRACES / name).read_bytes()))["traceEvents"]
    slices = {row["row"]: row for row in load(kineto, TRACES / name).rows("slice")}
    frames = {(e["tid"], e["args"]["Python id"]): n for n, e in enumerate(events) if e.get("cat") == "python_function"}
    for (tid, _), row in frames.items():
        outer = slices[row]["parent_row"]
        while outer is not None and slices[outer]["kind"] != "python_function":
            outer = slices[outer]["parent_row"]
        assert outer == frames.get((tid, events[row]["args"]["Python parent id"]))


@needs_artifacts
def test_memory_events_and_operators_have_the_python_stack_they_were_called_from() -> None:
    sink = load(kineto, TRACES / "tracelens__h100_gaunernst_bert-small-uncased__1016001.json.gz")
    stacks = {row["id"]: row for row in sink.rows("stack")}
    memory = sink.rows("memory_event")
    assert Counter(row["action"] for row in memory) == {"alloc": 118, "free_completed": 118}
    assert all(row["stack_id"] in stacks for row in memory)
    assert all(row["size_bytes"] > 0 for row in memory)
    operator = next(row for row in sink.rows("slice") if row["name"] == "aten::embedding")
    frame = stacks[operator["stack_id"]]
    functions = []
    while frame:
        functions.append(frame["function"])
        frame = stacks.get(frame["parent_id"])
    assert "nn.Module: Embedding_0" in functions
    assert not any(" at 0x" in function for function in functions)


@needs_artifacts
def test_backward_operators_know_their_forward_operator() -> None:
    name = "hta__nccl_parser_config_nccl_data.json.gz"
    events = json.loads(gzip.decompress((TRACES / name).read_bytes()))["traceEvents"]
    slices = {row["row"]: row for row in load(kineto, TRACES / name).rows("slice")}
    starts: dict[Any, list[int]] = {}
    for number, event in enumerate(events):
        if event.get("cat") == "cpu_op":
            starts.setdefault((event["pid"], event["tid"], event["ts"]), []).append(number)
    flows = {
        phase: {e["id"]: (e["pid"], e["tid"], e["ts"]) for e in events if e.get("cat") == "fwdbwd" and e["ph"] == phase}
        for phase in "sf"
    }
    assert len(flows["f"]) == 543
    for flow, end in flows["f"].items():
        assert any(slices[row]["forward_row"] in starts[flows["s"][flow]] for row in starts[end])


@needs_artifacts
def test_small_slices_give_the_same_rows_as_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    path = TRACES / "hta__critical_path_alexnet_benchmark_result_2869224_1695835535_trace.json.gz"
    whole = load(kineto, path)
    monkeypatch.setattr(_json_events, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(_json_events, "PIECE_BYTES", 3_000)
    parts = load(kineto, path)
    assert parts.rows("slice") == whole.rows("slice")
    assert parts.facts == whole.facts
    positions = parts.rows("position")
    assert len(positions) > 50
    source = Source(path, path.name)
    data = gzip.decompress(path.read_bytes())
    events = json.loads(data)["traceEvents"]
    for known in positions:
        assert data[known["byte"] :].lstrip().startswith(b"{")
        place = kineto.locate(source, known["row"] + 5, (known["row"], known["byte"]))
        if known["row"] + 5 < len(events):
            assert place is not None
            assert (
                json.loads(data[place.byte : _json_events.event_end(data, place.byte, len(data))])
                == events[known["row"] + 5]
            )


@needs_artifacts
def test_collectives_of_a_real_trace_agree_with_its_kernels() -> None:
    name = "hta__nccl_parser_config_nccl_data.json.gz"
    events = json.loads(gzip.decompress((TRACES / name).read_bytes()))["traceEvents"]
    rows = load(kineto, TRACES / name).rows("collective")
    assert Counter(row["operation"] for row in rows) == {"all_reduce": 15, "broadcast": 6}
    for row in rows:
        assert events[row["row"]]["name"] == "record_param_comms"
        assert (
            row["in_bytes"]
            == events[row["row"]]["args"]["In msg nelems"] * {"Float": 4, "Byte": 1, "Long": 8}[row["dtype"]]
        )
        assert row["ts_ns"] <= row["started_ns"] < row["completed_ns"]
