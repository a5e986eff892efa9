from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import ARTIFACTS, MemorySink, load, needs_artifacts

from forensics.artifact import HEAD_BYTES, Head, Place, Source
from forensics.errors import ArtifactError, Truncated, Untrusted
from forensics.formats import memory_snapshot

MIB = 1 << 20
BASE = 0x7F00_0000_0000
T0_US = 1_700_000_000_000_000
FRAMES = [
    {"name": "forward", "filename": "/job/model.py", "line": 7},
    {"name": "torch::autograd", "filename": "??", "line": 0},
    {"name": "main", "filename": "/job/train.py", "line": 3},
]
# Those whose history is truly absent, late or cut; every other real one loads without a warning.
TRUE_WARNINGS = {
    "empty_process": ["nothing-recorded"],
    "history_off": ["history-off"],
    "history_off__torch2.6": ["history-off"],
    "history_started_late": ["history-late"],
    "wrapped_history": ["history-wrapped"],
    "bcrafton_cs336__memory_snapshot": ["history-late"],
    "magma27_cs336__memory_snapshot": ["history-late"],
    "mosaic__output": ["history-late", "size-mismatch"],  # random numbers
    "yiyi_llm__oom_snapshot": ["history-wrapped"],  # a ring of one event
}


def event(action: str, addr: int, size: int, at_us: int, **more: Any) -> dict[str, Any]:
    where = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": T0_US + at_us, "pool_id": (0, 0)}
    return where | {"frames": FRAMES} | more


def block(addr: int, size: int, state: str, **more: Any) -> dict[str, Any]:
    return {"address": addr, "size": size, "requested_size": size - 12, "state": state, "frames": []} | more


def segment(addr: int, total: int, blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    sizes = Counter[str]()
    for part in blocks:
        sizes[part["state"]] += part["size"]
    allocated = sizes["active_allocated"]
    return {
        "device": 0,
        "address": addr,
        "total_size": total,
        "allocated_size": allocated,
        "active_size": allocated + sizes["active_pending_free"],
        "requested_size": allocated - 12,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    } | more


def mark(name: str, stage: str, at_us: int) -> dict[str, Any]:
    return {"stage": stage, "name": name, "device": 0, "time_us": T0_US + at_us}


def snapshot() -> dict[str, Any]:
    """One segment of 20 MiB: a live block, one that waits for a stream, a free one; a failed allocation at the end."""
    blocks = [
        block(BASE, 4 * MIB, "active_allocated", frames=FRAMES),
        block(BASE + 4 * MIB, 6 * MIB, "active_pending_free"),
        block(BASE + 10 * MIB, 10 * MIB, "inactive", requested_size=0),
    ]
    oom = {"action": "oom", "device_free": 5 * MIB, "size": 64 * MIB, "stream": 0, "time_us": T0_US + 90}
    events = [
        event("segment_alloc", BASE, 20 * MIB, 1),
        event("alloc", BASE, 4 * MIB - 12, 2),
        event("alloc", BASE + 4 * MIB, 6 * MIB - 12, 13),
        event("alloc", BASE + 10 * MIB, 8 * MIB, 14, frames=list(FRAMES)),
        event("free_requested", BASE + 10 * MIB, 8 * MIB, 25),
        event("free_completed", BASE + 10 * MIB, 8 * MIB, 25),
        event("free_requested", BASE + 4 * MIB, 6 * MIB - 12, 40),
        oom | {"pool_id": (0, 1), "frames": FRAMES},
    ]
    return {
        "segments": [segment(BASE, 20 * MIB, blocks)],
        "device_traces": [events],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False", "max_split_size": -1}
        | {"expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 4}},
        "external_annotations": [
            *(mark("ProfilerStep#3", "START", 0), mark("ProfilerStep#3", "END", 10)),
            *(mark("ProfilerStep#4", "START", 12), mark("ProfilerStep#4", "END", 30)),
            mark("ProfilerStep#5", "START", 35),
        ],
    }


def loaded(tmp_path: Path, content: Any, protocol: int = 4) -> MemorySink:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return load(memory_snapshot, path)


def recognised(content: Any, protocol: int = 4) -> int:
    data = content if isinstance(content, bytes) else pickle.dumps(content, protocol)
    return memory_snapshot.recognise(Head("x", data[:HEAD_BYTES], len(data) <= HEAD_BYTES))


def codes(sink: MemorySink) -> list[str]:
    return [w["code"] for w in sink.warnings]


def covered(sink: MemorySink) -> dict[str, bool]:
    return {c["capability"]: c.get("complete", True) for c in sink.coverage}


@pytest.mark.parametrize("protocol", range(6))
def test_segments_and_blocks_become_rows(tmp_path: Path, protocol: int) -> None:
    sink = loaded(tmp_path, snapshot(), protocol)
    assert sink.warnings == []
    (row,) = sink.rows("memory_segment")
    assert row == {
        "row": 0,
        "proc": 0,
        "device": 0,
        "addr": BASE,
        "total_bytes": 20 * MIB,
        "allocated_bytes": 4 * MIB,
        "active_bytes": 10 * MIB,
        "requested_bytes": 4 * MIB - 12,
        "stream": 0,
        "pool_id": "0.0",
        "size_class": "large",
        "expandable": False,
    }
    blocks = sink.rows("memory_block")
    assert [(b["row"], b["segment_addr"], b["addr"] - BASE, b["size_bytes"]) for b in blocks] == [
        (0, BASE, 0, 4 * MIB),
        (1, BASE, 4 * MIB, 6 * MIB),
        (2, BASE, 10 * MIB, 10 * MIB),
    ]
    assert [b["state"] for b in blocks] == ["active_allocated", "active_pending_free", "inactive"]
    assert [b["requested_bytes"] for b in blocks] == [4 * MIB - 12, 6 * MIB - 12, 0]


def test_the_time_of_a_block_is_that_of_the_last_allocation_at_its_address(tmp_path: Path) -> None:
    blocks = loaded(tmp_path, snapshot()).rows("memory_block")
    assert [b["allocated_ns"] for b in blocks] == [(T0_US + 2) * 1000, (T0_US + 13) * 1000, None]
    assert blocks[1]["stack_id"] == blocks[0]["stack_id"]  # it has none of its own: the event's


def test_events_become_rows_in_recorded_order(tmp_path: Path) -> None:
    events = loaded(tmp_path, snapshot()).rows("memory_event")
    assert [e["row"] for e in events] == list(range(8))
    assert events[1]["ts_ns"] == (T0_US + 2) * 1000
    assert events[1] | {"stack_id": 0, "step": 0} == {
        "row": 1,
        "proc": 0,
        "step": 0,
        "ts_ns": (T0_US + 2) * 1000,
        "device": 0,
        "stream": 0,
        "pool_id": "0.0",
        "action": "alloc",
        "addr": BASE,
        "size_bytes": 4 * MIB - 12,
        "device_free_bytes": None,
        "category": None,
        "metadata": None,
        "compile_id": None,
        "stack_id": 0,
    }
    oom = events[-1]
    assert (oom["action"], oom["addr"], oom["size_bytes"], oom["device_free_bytes"]) == ("oom", None, 64 * MIB, 5 * MIB)
    assert oom["pool_id"] == "0.1"


def test_stacks_are_outermost_first_and_equal_for_equal_frames(tmp_path: Path) -> None:
    sink = loaded(tmp_path, snapshot())
    stacks = {s["id"]: s for s in sink.rows("stack")}
    ids = {e["stack_id"] for e in sink.rows("memory_event")}
    assert len(ids) == 1
    inner = stacks[ids.pop()]
    assert (inner["function"], inner["file"], inner["line"], inner["depth"]) == ("forward", "/job/model.py", 7, 2)
    middle = stacks[inner["parent_id"]]
    assert (middle["function"], middle["file"], middle["line"]) == ("torch::autograd", None, None)
    assert stacks[middle["parent_id"]]["function"] == "main"


def test_profiler_steps_are_steps_of_the_events(tmp_path: Path) -> None:
    sink = loaded(tmp_path, snapshot())
    assert [e["step"] for e in sink.rows("memory_event")] == [3, 3, 4, 4, 4, 4, 5, 5]
    steps = [(s["step"], s["start_ns"], s["end_ns"], s["origin"]) for s in sink.rows("step")]
    assert steps[0] == (3, T0_US * 1000, (T0_US + 10) * 1000, "profiler")
    assert steps[2] == (5, (T0_US + 35) * 1000, None, "profiler")


def test_marks_named_like_steps_are_steps_when_the_profiler_has_none(tmp_path: Path) -> None:
    content = snapshot()
    content["external_annotations"] = [
        *(mark("step 8", stage, at) for stage, at in (("START", 1), ("START", 2), ("END", 13), ("END", 14))),
        {"stage": "END", "name": "step 8", "device": 0, "time_us": 0},
        mark("Optimizer.step#AdamW.step", "START", 5),
        mark("iteration_9", "START", 20),
    ]
    sink = loaded(tmp_path, content)
    assert [(s["step"], s["origin"]) for s in sink.rows("step")] == [(8, "annotation"), (9, "annotation")]
    assert [e["step"] for e in sink.rows("memory_event")] == [8, 8, 8, 8, 9, 9, 9, 9]


def test_settings_are_facts_of_the_allocator(tmp_path: Path) -> None:
    facts = {f["key"]: f for f in loaded(tmp_path, snapshot()).facts}
    assert facts["PYTORCH_CUDA_ALLOC_CONF"]["value"] == "expandable_segments:False"
    assert (facts["max_split_size"]["value"], facts["max_split_size"]["number"]) == ("-1", -1.0)
    assert (facts["expandable_segments"]["value"], facts["expandable_segments"]["number"]) == ("False", None)
    assert json.loads(facts["roundup_power2_divisions"]["value"]) == {"1": 0, "2": 4}
    assert {f["scope"] for f in facts.values()} == {"allocator"}


def test_the_process_is_described_by_what_the_content_says(tmp_path: Path) -> None:
    sink = loaded(tmp_path, snapshot())
    assert sink.procs == {0: {"device": 0, "start_ns": (T0_US + 1) * 1000, "end_ns": (T0_US + 90) * 1000}}
    assert sink.clock_kind == "epoch"
    assert covered(sink) == dict.fromkeys(
        ("memory_segment", "fact", "memory_event", "memory_event.complete", "memory_event.oom"), True
    )


def test_a_bare_list_of_segments_is_a_snapshot_without_history(tmp_path: Path) -> None:
    sink = loaded(tmp_path, snapshot()["segments"])
    assert len(sink.rows("memory_block")) == 3
    assert codes(sink) == ["history-off"]
    assert covered(sink) == {"memory_segment": True}


def test_old_blocks_take_address_and_stack_from_their_order_and_history(tmp_path: Path) -> None:
    old = [
        {"size": MIB, "state": "active_allocated", "history": [{"addr": BASE, "real_size": 1000, "frames": FRAMES}]},
        {"size": MIB, "state": "active_awaiting_free"},
        {"size": 2 * MIB, "state": "inactive"},
    ]
    named = {"device": 0, "address": BASE, "total_size": 4 * MIB, "stream": 0, "segment_type": "small", "blocks": old}
    sink = loaded(tmp_path, {"segments": [named], "device_traces": [[]]})
    blocks = sink.rows("memory_block")
    assert [b["addr"] - BASE for b in blocks] == [0, MIB, 2 * MIB]
    assert [b["requested_bytes"] for b in blocks] == [1000, None, None]
    assert [b["state"] for b in blocks] == ["active_allocated", "active_pending_free", "inactive"]
    assert blocks[0]["stack_id"] is not None
    (row,) = sink.rows("memory_segment")
    assert (row["allocated_bytes"], row["active_bytes"], row["requested_bytes"]) == (MIB, 2 * MIB, None)
    assert (row["pool_id"], row["expandable"], row["size_class"]) == ("0.0", False, "small")


def test_rows_count_over_all_devices_and_host_memory_is_device_minus_one(tmp_path: Path) -> None:
    content = snapshot()
    first = content["device_traces"][0]
    content["device_traces"] = [first, [], [event("segment_alloc", BASE, MIB, 3), event("alloc", BASE, MIB, 4)]]
    content["host_traces"] = [event("segment_alloc", 4096, 512, 5), event("alloc", 4096, 512, 6)]
    content["host_segments"] = [segment(4096, 512, [block(4096, 512, "active_allocated")], device=-1)]
    content["segments"].append(segment(BASE, MIB, [block(BASE, MIB, "active_allocated")], device=2))
    sink = loaded(tmp_path, content)
    events = sink.rows("memory_event")
    assert [(e["row"], e["device"]) for e in events[7:]] == [(7, 0), (8, 2), (9, 2), (10, -1), (11, -1)]
    assert [(s["row"], s["device"]) for s in sink.rows("memory_segment")] == [(0, 0), (1, 2), (2, -1)]
    assert [b["allocated_ns"] for b in sink.rows("memory_block")][-2:] == [(T0_US + 4) * 1000, (T0_US + 6) * 1000]
    assert "device" not in sink.procs[0]
    assert sink.warnings == []


def test_pools_that_went_through_json_and_categories_of_the_profiler_are_kept(tmp_path: Path) -> None:
    content = snapshot()
    content["segments"][0]["segment_pool_id"] = [3, 0]
    content["segments"][0]["blocks"][0]["category"] = "OPTIMIZER_STATE"
    content["device_traces"][0][2] |= {"category": "activation", "pool_id": [3, 0]}
    sink = loaded(tmp_path, content)
    assert sink.rows("memory_segment")[0]["pool_id"] == "3.0"
    assert sink.rows("memory_event")[2]["pool_id"] == "3.0"
    assert [b["category"] for b in sink.rows("memory_block")] == ["optimizer", "activation", None]


def test_a_history_without_its_beginning_is_said_and_not_complete(tmp_path: Path) -> None:
    late = snapshot()
    late["device_traces"][0] = late["device_traces"][0][2:]
    sink = loaded(tmp_path, late)
    assert codes(sink) == ["history-late"]
    assert "1 of 2 live blocks, 1 of 1 segments" in sink.warnings[0]["message"]
    assert covered(sink)["memory_event"] and "memory_event.complete" not in covered(sink)

    wrapped = snapshot()
    actions = ("alloc", "free_requested", "free_completed")
    churn = [event(a, BASE + 10 * MIB, MIB, 50) for _ in range(331) for a in actions]
    wrapped["device_traces"][0] = churn[:300]
    assert codes(loaded(tmp_path, wrapped)) == ["history-wrapped"]

    suspect = snapshot()
    suspect["device_traces"][0] += churn[:992]
    assert codes(loaded(tmp_path, suspect)) == ["history-full"]


def test_freed_segments_and_blocks_from_before_the_history_show(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"][0] += [
        event("free_completed", BASE + 500 * MIB, MIB, 91),
        event("segment_free", BASE + 500 * MIB, MIB, 92),
    ]
    sink = loaded(tmp_path, content)
    assert codes(sink) == ["history-late"]
    assert "what 2 events free" in sink.warnings[0]["message"]


def test_expandable_segments_begin_where_something_was_mapped(tmp_path: Path) -> None:
    content = snapshot()
    content["segments"][0]["is_expandable"] = True
    trace = content["device_traces"][0]
    trace[:1] = [event("segment_map", BASE - 2 * MIB, 12 * MIB, 0), event("segment_map", BASE + 10 * MIB, 10 * MIB, 1)]
    sink = loaded(tmp_path, content)
    assert sink.warnings == []
    assert sink.rows("memory_segment")[0]["expandable"]


def test_sizes_that_do_not_add_up_unknown_keys_and_rest_are_said(tmp_path: Path) -> None:
    content = snapshot()
    content["segments"][0]["total_size"] += MIB
    content["segments"][0]["blocks"][0]["colour"] = 1
    content["device_traces"][0][0]["flavour"] = 1
    content["weather"] = 1
    sink = loaded(tmp_path, pickle.dumps(content) + b"rest")
    assert codes(sink) == ["size-mismatch", "unknown-keys", "unknown-keys", "unknown-keys", "trailing-bytes"]
    assert all(w["hides"] for w in sink.warnings)
    assert [w["message"].split(": ")[-1] for w in sink.warnings[1:4]] == ["weather", "colour", "flavour"]


def test_compressed_snapshots_load_and_cut_ones_keep_their_beginning(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"][0] += [event("alloc", BASE + i, i, i) for i in range(40_000)]
    data = gzip.compress(pickle.dumps(content), 1)
    assert len(loaded(tmp_path, data).rows("memory_event")) == 40_008
    sink = loaded(tmp_path, data[:-200])
    assert codes(sink) == ["truncated"]
    assert "compressed" in sink.warnings[0]["message"]
    assert len(sink.rows("memory_segment")) == 1
    assert len(sink.rows("memory_event")) > 10_000


@pytest.mark.parametrize("protocol", range(6))
def test_a_cut_snapshot_keeps_its_segments_and_the_events_before_the_cut(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps(snapshot(), protocol)
    seen = []
    for cut in range(60, len(data), 29):
        sink = loaded(tmp_path, data[:cut])
        assert codes(sink) == ["truncated"]
        assert sink.quality == "partial" and sink.bad_byte is not None and sink.bad_byte <= cut
        assert "memory_event.complete" not in covered(sink)
        assert not covered(sink)["memory_segment"]
        assert not covered(sink).get("memory_event")
        seen.append((len(sink.rows("memory_block")), len(sink.rows("memory_event"))))
    assert seen == sorted(seen)
    assert seen[-1] == (3, 8)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 12])
def test_a_file_with_nothing_in_it_raises(tmp_path: Path, size: int) -> None:
    with pytest.raises(Truncated, match=r"snapshot\.pickle: "):
        loaded(tmp_path, pickle.dumps(snapshot())[:size])


def test_other_pickles_raise_and_are_not_recognised(tmp_path: Path) -> None:
    recorder = {"version": "2.10", "entries": [{"frames": [], "pg_id": 0}], "pg_config": {}, "segments": []}
    others = (recorder, [{"record_id": 0, "frames": []}], {"segments": [{"start": 0.0, "end": 1.0, "text": "hi"}]})
    for other in (*others, {"segments": 5}, {"segments": []}, [], 5, "segments", {"a": b"segments device_traces"}):
        assert recognised(other) == 0
        with pytest.raises(ArtifactError):
            loaded(tmp_path, other)


@pytest.mark.parametrize("protocol", range(6))
def test_snapshots_are_recognised_by_their_beginning(protocol: int) -> None:
    content = snapshot()
    assert recognised(content, protocol) == 95
    assert recognised(content["segments"], protocol) == 95
    swapped = {"device_traces": [content["device_traces"][0] * 2000], "segments": content["segments"]}
    assert recognised(swapped, protocol) == 95
    assert recognised(pickle.dumps(content, protocol)[:200]) == 95


def test_text_is_not_recognised() -> None:
    for text in (b'{"segments": []}', b"(segments device_traces total_size)\n", b"}segments", b"", b"\x80segments"):
        assert recognised(text) == 0


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/should-not-exist-forensics",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_snapshot_with_a_call_is_recognised_refused_and_kept_up_to_it(tmp_path: Path, protocol: int) -> None:
    content = snapshot()
    content["allocator_settings"] = Evil()
    assert recognised(content, protocol) == 95
    sink = MemorySink()
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(Untrusted) as caught:
        memory_snapshot.load(Source(path, "x.pickle"), sink)
    assert caught.value.byte == sink.bad_byte is not None
    assert len(sink.rows("memory_event")) == 8
    assert not Path("/tmp/should-not-exist-forensics").exists()
    assert recognised(pickle.dumps(Evil(), 2) + b"device_traces") == 30


WRONG: tuple[Any, ...] = (
    *("text", -5, 1 << 70, 1.5, True, None, b"bytes", [], {}, (1, 2, 3), [[["deep"]]], {"a": {"b": 1}}),
    *("\ud800", (1, "2"), (-1, 0), (1 << 80, 0), [None] * 3, float("nan")),
)


def every_place(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for k, v in items for p in every_place(v, (*path, k)))]


def test_values_of_any_kind_in_any_place_raise_no_traceback(tmp_path: Path) -> None:
    places = every_place(snapshot())
    for number, place in enumerate(places[1:]):
        for wrong in WRONG[number % 6 :: 6]:
            content = copy.deepcopy(snapshot())
            holder: Any = content
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = wrong
            sink = MemorySink()
            path = tmp_path / "x.pickle"
            path.write_bytes(pickle.dumps(content))
            try:
                memory_snapshot.load(Source(path, "x.pickle"), sink)
            except ArtifactError:
                assert place[0] == "segments"
            needed = {"memory_event": "action", "memory_segment": "addr", "memory_block": "size_bytes"}
            for table, column in needed.items():
                assert all(r[column] is not None for r in sink.rows(table))


def test_wrong_values_are_counted_by_field(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"][0][1]["addr"] = "0x7f"
    content["device_traces"][0][2]["size"] = -1
    content["device_traces"][0].append({"action": "explode"})
    content["segments"][0]["blocks"][1]["size"] = -4
    content["segments"].append(7)
    sink = loaded(tmp_path, content)
    (text,) = [w["message"] for w in sink.warnings if w["code"] == "bad-values"]
    for field in ("block (1)", "block.size (1)", "event.action (1)", "event.addr (1)", "event.size (1)", "segment (1)"):
        assert field in text
    assert [e["row"] for e in sink.rows("memory_event")] == list(range(8))
    assert not covered(sink)["memory_event"] and not covered(sink)["memory_segment"]


def test_content_that_denotes_more_than_fits_takes_no_time(tmp_path: Path) -> None:
    laughs: list[Any] = ["ha"]
    for _ in range(9):
        laughs = [laughs] * 10
    content = snapshot()
    content["segments"][0]["frames"] = content["segments"][0]["blocks"][0]["frames"] = laughs
    content["device_traces"][0][0]["frames"] = laughs
    content["device_traces"][0][1]["pool_id"] = laughs
    content["allocator_settings"]["x"] = laughs
    content["external_annotations"] += laughs
    start = time.process_time()
    for protocol in (0, 2, 4):
        loaded(tmp_path, content, protocol)
    assert time.process_time() - start < 3


def test_a_row_is_its_own_place(tmp_path: Path) -> None:
    assert memory_snapshot.locate(Source(tmp_path, "x"), 7, None) == Place(row=7)


def real(*patterns: str) -> list[Path]:
    return sorted(p for pattern in patterns for p in ARTIFACTS.glob(pattern))


@needs_artifacts
@pytest.mark.parametrize("path", real("memory_snapshot/*", "allocator/*"), ids=lambda p: p.stem)
def test_real_snapshots_load_with_true_warnings_only(path: Path) -> None:
    assert memory_snapshot.recognise(Source(path, path.name).head()) == 95
    sink = load(memory_snapshot, path)
    assert codes(sink) == TRUE_WARNINGS.get(path.stem, [])
    assert sink.quality == "complete"
    complete = not sink.warnings
    assert ("memory_event.complete" in covered(sink)) == complete
    blocks = sink.rows("memory_block")
    if complete:
        assert all((b["allocated_ns"] is None) == (b["state"] == "inactive") for b in blocks)


@needs_artifacts
def test_counts_and_sums_agree_with_the_oracle() -> None:
    oracle = json.loads((ARTIFACTS / "oracle_counts.json").read_text())
    for path in real("memory_snapshot/*"):
        expected, sink = oracle[f"memory_snapshot/{path.name}"], load(memory_snapshot, path)
        segments, blocks = sink.rows("memory_segment"), sink.rows("memory_block")
        assert (len(segments), len(blocks)) == (expected["segments"], expected["blocks"])
        assert sum(s["total_bytes"] for s in segments) == expected["reserved"]
        assert sum(s["allocated_bytes"] for s in segments) == expected["allocated"]
        assert sum(s["active_bytes"] for s in segments) == expected["active"]
        assert Counter(e["action"] for e in sink.rows("memory_event")) == expected["traces"][0]


def of_device(rows: list[dict[str, Any]], device: int) -> list[dict[str, Any]]:
    return [r for r in rows if r["device"] == device]


@needs_artifacts
@pytest.mark.parametrize("path", real("truth/allocator/*.json"), ids=lambda p: p.stem)
def test_sums_and_failed_requests_agree_with_the_allocator(path: Path) -> None:
    truth = json.loads(path.read_text())
    sink = load(memory_snapshot, ARTIFACTS / "allocator" / f"{path.stem}.pickle")
    segments, blocks, events = (sink.rows(t) for t in ("memory_segment", "memory_block", "memory_event"))
    for device, stats in truth["at_dump"].items():
        mine, held = of_device(segments, int(device)), of_device(blocks, int(device))
        assert sum(s["total_bytes"] for s in mine) == stats["reserved"]
        assert sum(s["allocated_bytes"] for s in mine) == stats["allocated"]
        assert sum(s["active_bytes"] for s in mine) == stats["active"]
        live = [b for b in held if b["state"] == "active_allocated"]
        assert sum(b["size_bytes"] for b in live) == stats["allocated"]
        assert sum(not s["expandable"] for s in mine) == stats["segments"]  # torch counts no expandable ones
    recorded = Counter(e["action"] for e in events if e["device"] >= 0)
    assert recorded == truth["events"]
    ooms = [(e["device"], e["size_bytes"], e["device_free_bytes"]) for e in events if e["action"] == "oom"]
    expected = [(o["device"], o["event_size"], o["device_free"]) for o in truth["ooms"]]
    assert ooms == expected[-len(ooms) :] if ooms else not truth["oom"] or truth["recording"]["enabled"] is None
    assert ("memory_event.oom" in covered(sink)) == bool(ooms)
