"""What segments, blocks, events and settings of a memory snapshot become."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from memory_snapshots import (
    BASE,
    FRAMES,
    MIB,
    T0_US,
    block,
    codes,
    covered,
    event,
    loaded,
    mark,
    segment,
    snapshot,
)

from forensics.artifact import Place, Source
from forensics.formats import memory_snapshot


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


def test_a_row_is_its_own_place(tmp_path: Path) -> None:
    assert memory_snapshot.locate(Source(tmp_path, "x"), 7, None) == Place(row=7)
