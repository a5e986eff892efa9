"""The Kineto format on small traces that show one thing each."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from kineto_traces import BASE_NS, covered, head_of, many, names, op, reader, trace

from forensics.formats import kineto

read = reader


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents":[{"args":{"name":"0 CPU HIP API"},"ph":"M","pid":2,"name":"process_name"},'
        '{"ts":5,"dur":1,"pid":2,"tid":1,"name":"hipMalloc","args":{"BeginNs":"5"}}]}',
        '{"traceEvents": [{"ph": "X", "cat": "FEE", "name": "f"}], "viztracer_metadata": {"version": "0.16"}}',
        '{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[{"ph":"M","pid":1}]}',
        '{"schema": "1.0.2-chakra.0.0.4", "pid": 7, "nodes": [{"id": 2, "name": "aten::add"}]}',
        '[{"cols":[{"id":"time","label":"Time"}],"rows":[{"c":[{"v":0.1}]}]}]',
        '[{"name": "dynamo", "ph": "B", "cat": "dynamo_timed", "ts": 1, "pid": 0, "tid": 0}]',
        "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 7\n",
        "\0\5\26\7\0\2\0\0Mac OS X        ",
        "",
    ],
)
def test_look_alikes_are_not_taken(text: str) -> None:
    assert kineto.recognise(head_of(text.encode())) == 0


def test_times_are_exact_nanoseconds_since_the_epoch(read: Any) -> None:
    sink = read(trace([op("a", "5095123798479.830", "0.001"), op("b", "5095123798479.831", "12345.678")]))
    first, second = sink.rows("slice")
    assert first["ts_ns"] == BASE_NS + 5_095_123_798_479_830
    assert (second["ts_ns"] - first["ts_ns"], first["dur_ns"], second["dur_ns"]) == (1, 1, 12_345_678)
    assert sink.clock_kind == "epoch"


def test_absolute_microseconds_with_decimals_keep_all_digits(read: Any) -> None:
    sink = read(trace([op("a", "1700000000123456.789")], base=False))
    assert sink.rows("slice")[0]["ts_ns"] == 1_700_000_000_123_456_789
    assert sink.clock_kind == "epoch"


def test_a_base_time_after_the_events_counts(read: Any) -> None:
    sink = read(
        trace([op("a", "7.000")], base=False, tail=f',\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS}')
    )
    assert sink.rows("slice")[0]["ts_ns"] == BASE_NS + 7_000


def test_without_base_time_the_clock_is_relative(read: Any) -> None:
    sink = read(trace([op("a", "7.000")], base=False))
    assert sink.clock_kind == "relative"
    assert [w["code"] for w in sink.warnings] == ["no-base-time"]


def test_a_lost_base_time_is_found_through_the_name_of_the_file(read: Any) -> None:
    data = trace([op("a", "5095123798479.830")], base=False)
    written = BASE_NS + 5_095_123_798_479_830 + 3 * 10**9
    sink = read(data, f"node-3_812.{written}.pt.trace.json")
    assert sink.rows("slice")[0]["ts_ns"] == BASE_NS + 5_095_123_798_479_830
    assert sink.clock_kind == "epoch"
    assert sink.procs[0]["host"] == "node-3"
    assert [w["code"] for w in sink.warnings] == ["base-time-from-name"]


def test_device_work_is_linked_to_its_launch_and_belongs_to_the_launching_step(read: Any) -> None:
    events = [
        op("ProfilerStep#3", 100, 50, cat="user_annotation"),
        op("ProfilerStep#4", 150, 50, cat="user_annotation"),
        op("cudaLaunchKernel", 140, 5, cat="cuda_runtime", correlation=77, External_id=5),
        op("gemm", 160, 20, cat="kernel", tid=13, correlation=77, device=2, stream=13),
        op("Stream Sync", 170, 5, cat="cuda_sync", tid=13, stream=13, device=2, correlation=0),
        op("Memset (Device)", 175, 1, cat="gpu_memset", tid=13, stream=13, device=2, bytes=512, correlation=9),
    ]
    sink = read(trace(events))
    rows = sink.rows("slice")
    assert (rows[3]["launch_row"], rows[3]["step"], rows[3]["device"], rows[3]["stream"]) == (2, 3, 2, 13)
    assert rows[3]["thread"] is None
    assert rows[2]["parent_row"] == 0
    assert (rows[4]["launch_row"], rows[4]["correlation"], rows[4]["step"]) == (None, None, 4)
    assert (rows[5]["bytes"], rows[5]["launch_row"]) == (512, None)
    assert [(s["step"], s["start_ns"] - BASE_NS, s["end_ns"] - BASE_NS) for s in sink.rows("step")] == [
        (3, 100_000, 150_000),
        (4, 150_000, 200_000),
    ]
    assert covered(sink, "slice.device")["n_kept"] == 2
    assert sink.procs[0]["device"] == 2


def test_forward_operators_are_found_by_sequence_number_where_there_are_no_flows(read: Any) -> None:
    node = {"Sequence_number": 4, "Fwd_thread_id": 1}
    events = [
        op("aten::linear", 10, 20, Sequence_number=4, Fwd_thread_id=0),
        op("aten::addmm", 12, 10, Sequence_number=4, Fwd_thread_id=0),
        op("aten::mul", 40, 5, Sequence_number=4, Fwd_thread_id=0, tid=9),
        op("autograd::engine::evaluate_function: AddmmBackward0", 50, 9, tid=9, **node),
        op("AddmmBackward0", 51, 7, tid=9, **node),
        op("aten::sub", 60, 5, Sequence_number=9, Fwd_thread_id=0),
        op("SubBackward0", 70, 5, tid=9, Sequence_number=9, Fwd_thread_id=1),
    ]
    assert [row["forward_row"] for row in read(trace(events)).rows("slice")] == [None, None, None, 1, 1, None, 5]


def test_enclosing_slices_are_found_although_microseconds_are_cut(read: Any) -> None:
    events = [
        op("outer", 1700000000000100, 10),
        op("inner", 1700000000000104, 7),  # ends a microsecond after the outer one
        op("innermost", 1700000000000105, 2),
        op("other thread", 1700000000000105, 2, tid=8),
        op("next", 1700000000000111, 2),
    ]
    assert [row["parent_row"] for row in read(trace(events, base=False)).rows("slice")] == [None, 0, 1, None, None]


def test_unknown_categories_and_phases_are_data(read: Any) -> None:
    events = [
        op("x", 1, cat="brand_new_activity", device=3, stream=4),
        '{"ph": "X", "name": "no category", "ts": 2, "dur": 1, "pid": 1, "tid": 1}',
        '{"ph": "Z", "name": "no such phase", "ts": 2, "pid": 1, "tid": 1}',
        op("y", 3, cat="xpu_runtime"),
        "{}",
    ]
    rows = read(trace(events)).rows("slice")
    assert [(r["kind"], r["device"]) for r in rows] == [
        ("brand_new_activity", 3),
        ("uncategorised", None),
        ("instant", None),
        ("runtime", None),
    ]


def test_counters_are_samples_named_after_their_event(read: Any) -> None:
    events = [
        op("a", 1),
        '{"ph": "C", "cat": "hardware_counters", "name": "sm_active", "pid": 0, "ts": 5.000, "args": {"": 0.5}}',
        '{"ph": "C", "name": "queue", "pid": 0, "ts": 6.000, "args": {"depth": 3, "note": "x"}}',
    ]
    samples = read(trace(events)).rows("sample")
    assert [(s["row"], s["name"], s["value"], s["ts_ns"] - BASE_NS) for s in samples] == [
        (1, "sm_active", 0.5, 5000),
        (2, "queue.depth", 3.0, 6000),
    ]


def test_memory_instants_are_allocator_events_with_totals(read: Any) -> None:
    def memory(ts: int, **args: Any) -> str:
        return json.dumps(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 4,
                "tid": 7,
                "ts": ts,
                "args": args,
            }
        )

    device = {"Device Type": 1, "Device Id": 2, "Total Allocated": 100, "Total Reserved": 300}
    host = {"Device Type": 0, "Device Id": -1, "Total Allocated": 64, "Total Reserved": 0}
    events = [
        memory(1, Addr=0xFF00_0000_0000_1000, Bytes=512, **device),
        op("Memcpy DtoH", 2, cat="gpu_memcpy", bytes=99, device=2, stream=7),
        memory(3, Addr=0xFF00_0000_0000_1000, Bytes=-512, **device),
        memory(4, Addr=64, Bytes=64, **host),
    ]
    sink = read(trace(events))
    assert [(m["row"], m["action"], m["device"], m["size_bytes"], m["addr"]) for m in sink.rows("memory_event")] == [
        (0, "alloc", 2, 512, 0xFF00_0000_0000_1000),
        (2, "free_completed", 2, 512, 0xFF00_0000_0000_1000),
        (3, "alloc", -1, 64, 64),
    ]
    assert Counter((s["name"], s["device"]) for s in sink.rows("sample")) == {
        ("Total Allocated", 2): 2,
        ("Total Reserved", 2): 2,
        ("Total Allocated", -1): 1,
    }
    assert [(r["row"], r["bytes"]) for r in sink.rows("slice")] == [(1, 99)]
    assert covered(sink, "memory_event.profiler")["n_kept"] == 3


def test_the_header_tells_rank_groups_devices_and_options(read: Any) -> None:
    info = {
        "backend": "nccl",
        "rank": 5,
        "world_size": 8,
        "nccl_version": "2.27.3",
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8, "ranks": []},
            {"pg_name": "1", "pg_desc": "tp", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [4, 5]},
            {"pg_name": "2", "backend_config": "cuda:nccl", "pg_size": 9, "ranks": "[0, 1, 2...]"},
        ],
    }
    head = '  "host_name": "node-1",\n  "with_stack": 1,\n  "hf_token": "hf_abcdefghijklmnopqrstuvwx",\n'
    head += f'  "distributedInfo": {json.dumps(info)},\n'
    sink = read(trace([op("a", 1)], head=head, tail=',\n  "ERROR": ["ERROR: gpuGetDeviceCount failed with code 35"]'))
    assert {k: sink.procs[0][k] for k in ("rank", "rank_origin", "world_size", "host", "pid")} == {
        "rank": 5,
        "rank_origin": "content",
        "world_size": 8,
        "host": "node-1",
        "pid": 41,
    }
    assert [(g["name"], g["ranks"]) for g in sink.rows("process_group")] == [
        ("0", "0-7"),
        ("1", "4,5"),
        ("2", None),
    ]
    facts = {(f["scope"], f["key"]): f["value"] for f in sink.facts}
    assert facts["version", "nccl_version"] == "2.27.3"
    assert facts["device", "device.0.name"] == "NVIDIA H100"
    assert facts["profiler", "with_stack"] == "1"
    assert facts["profiler", "ERROR"].endswith("code 35")
    assert "abcdefghij" not in facts["note", "hf_token"]


def test_a_bare_list_is_a_trace(read: Any) -> None:
    data = ("[" + ",".join(many(3)) + "]").encode()
    assert kineto.recognise(head_of(data)) >= 80
    assert names(read(data)) == ["aten::op0", "aten::op1", "aten::op2"]


def test_events_of_the_legacy_profiler_are_operators_and_kernels(read: Any) -> None:
    events = [
        {"name": "aten::add", "ph": "X", "ts": 1.5, "dur": 2.5, "tid": 1, "pid": "CPU functions", "args": {}},
        {"name": "add_kernel", "ph": "X", "ts": 3.0, "dur": 1.0, "tid": 0, "pid": "CUDA functions", "args": {}},
    ]
    data = json.dumps(events).encode()
    assert kineto.recognise(head_of(data)) > 0
    assert [row["kind"] for row in read(data).rows("slice")] == ["cpu_op", "kernel"]


def test_begins_and_ends_of_merged_traces_make_slices(read: Any) -> None:
    events = [
        f'{{"ph": "{phase}", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 1, "ts": {ts}}}'
        for phase, name, ts in (
            ("B", "outer", 10),
            ("B", "inner", 20),
            ("E", "inner", 30),
            ("E", "outer", 50),
            ("B", "open", 60),
        )
    ]
    rows = read(trace(events)).rows("slice")
    assert [(r["name"], r["dur_ns"], r["parent_row"]) for r in rows] == [
        ("outer", 40_000, None),
        ("inner", 10_000, 0),
        ("open", None, None),
    ]


def comms(name: str, ts: int, external: int, *, cat: str = "cpu_op", **more: Any) -> str:
    args = {"Collective name": name, "dtype": "BFloat16", "In msg nelems": 8, "Out msg nelems": 32, **more}
    kernel = {"device": 0, "stream": 20, "correlation": external} if cat == "kernel" else {}
    group = {"Process Group Name": "7", "Process Group Ranks": "[0, 2]", "External id": external}
    event = {"ph": "X", "cat": cat, "name": "record_param_comms", "pid": 41, "tid": 7, "ts": ts, "dur": 5}
    return json.dumps({**event, "args": {**args, **kernel, **group}})


def test_collectives_have_group_sizes_and_the_times_of_their_kernel(read: Any) -> None:
    events = [
        comms("_allgather_base", 10, 3, Seq=4),
        comms("wait", 16, 4),
        comms("_allgather_base", 40, 3, cat="kernel"),
        comms("send", 50, 9, **{"Dst Rank": 2}),
        op("nccl:all_gather", 11, 2, cat="user_annotation"),
    ]
    sink = read(trace(events))
    gathered, sent = sink.rows("collective")
    assert {k: gathered[k] for k in ("row", "operation", "dtype", "in_bytes", "out_bytes", "sequence", "state")} == {
        "row": 0,
        "operation": "all_gather",
        "dtype": "BFloat16",
        "in_bytes": 16,
        "out_bytes": 64,
        "sequence": 4,
        "state": "completed",
    }
    assert (gathered["started_ns"] - BASE_NS, gathered["completed_ns"] - BASE_NS) == (40_000, 45_000)
    assert (sent["operation"], sent["is_p2p"], sent["peer_rank"], sent["started_ns"]) == ("send", True, 2, None)
    assert [(g["id"], g["name"], g["ranks"]) for g in sink.rows("process_group")] == [(0, "7", "0,2")]
    assert gathered["group_id"] == sent["group_id"] == 0
    assert covered(sink, "collective.profiler")["n_kept"] == 2


def test_kernels_of_collectives_count_where_devices_alone_were_traced(read: Any) -> None:
    (row,) = read(trace([comms("allreduce", 10, 3, cat="kernel")])).rows("collective")
    assert (row["operation"], row["row"], row["state"]) == ("all_reduce", 0, "completed")


def test_annotations_name_collectives_where_no_metadata_was_recorded(read: Any) -> None:
    events = [
        op("gloo:all_reduce", 10, cat="user_annotation"),
        op("nccl:_all_gather_base", 20, cat="user_annotation"),
        op("nccl: not one", 30, cat="user_annotation"),
    ]
    assert [row["operation"] for row in read(trace(events)).rows("collective")] == ["all_reduce", "all_gather"]


def test_steps_are_those_between_optimizer_calls_where_the_profiler_marks_none(read: Any) -> None:
    def call(ts: int, name: str = "AdamW") -> str:
        return op(f"Optimizer.step#{name}.step", ts, 10, cat="user_annotation")

    events = [op("aten::mm", 5), call(50), call(62, "EMA"), op("aten::mm", 70), call(100), op("aten::mm", 200)]
    sink = read(trace(events))
    assert [(s["step"], s["start_ns"] - BASE_NS, s["end_ns"] - BASE_NS, s["origin"]) for s in sink.rows("step")] == [
        (0, 5_000, 60_000, "annotation"),
        (1, 60_000, 110_000, "annotation"),
    ]
    assert [row["step"] for row in sink.rows("slice")] == [0, 0, 1, 1, 1, None]


def test_names_of_threads_are_facts(read: Any) -> None:
    named = '{"ph": "M", "name": "thread_name", "pid": 41, "tid": 7, "args": {"name": "thread 7 (pt_autograd_0)"}}'
    sink = read(trace([named, op("a", 1)]))
    assert ("thread.7", "thread 7 (pt_autograd_0)") in [(fact["key"], fact["value"]) for fact in sink.facts]


def test_launches_that_are_not_in_the_trace_are_counted(read: Any) -> None:
    events = [
        op("cudaLaunchKernel", 1, cat="cuda_runtime", correlation=5),
        op("gemm", 2, cat="kernel", device=0, stream=7, correlation=5),
        op("gemm", 3, cat="kernel", device=0, stream=7, correlation=4),
    ]
    (warning,) = read(trace(events)).warnings
    assert (warning["code"], warning["message"][:6]) == ("launches-missing", "1 of 2")
