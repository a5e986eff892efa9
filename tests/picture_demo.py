"""Pictures as an analysis would fill them, for testing their drawings. Not shipped."""

from __future__ import annotations

from dataclasses import replace

from forensics.pictures import (
    capture_windows,
    gradient_norms,
    grids,
    memory_timeline,
    segment_map,
    step_times,
    wait_graph,
)
from forensics.report import pictures as p

MIB = 1 << 20
NAN = float("nan")


def provenance(name: str = "aten::log") -> p.Provenance:
    operations = (
        p.Operation(0, "aten::softmax", "healthy", "forward", values="largest 1"),
        p.Operation(1, name, "birth", "forward", "loss", "5 inf of 48", (0,)),
        p.Operation(2, "aten::mul", "path", "forward", "loss", "4 NaN of 48", (1,)),
        p.Operation(3, "aten::sum", "path", "forward", "loss", "1 NaN of 1", (2,)),
        p.Operation(4, "LogBackward0", "victim", "backward", "", "48 NaN of 48", (1, 3)),
    )
    return p.Provenance("stats.jsonl", "rank 1", 217, "it took the logarithm of zero", operations, 40, True)


def memory(name: str = "serve (job.py:42)") -> p.MemoryTimeline:
    points = tuple((i, i * MIB, (i // 10 + 1) * 12 * MIB) for i in range(100))
    return p.MemoryTimeline(
        "snapshot.pickle",
        "",
        0,
        points,
        100,
        steps=((0, 0), (50, 1)),
        failures=(p.Failure(99, 64 * MIB, name),),
        levels=(
            p.Level("most the process could get", 150 * MIB, "limit"),
            p.Level(f"{name}: peak, 9 MiB to spare", 110 * MIB, "fits"),
        ),
        owners=(p.Owner("kept", name, 3, 70 * MIB),),
        owned_at="failure",
    )


def segments(name: str = "serve (job.py:42)") -> p.SegmentMap:
    blocks = (
        p.Block(0, 0, 4 * MIB, "inactive"),
        p.Block(1, 4 * MIB, MIB, "active_allocated", name, 7 * MIB),
        p.Block(2, 5 * MIB, 3 * MIB, "inactive"),
        p.Block(3, 8 * MIB, 2 * MIB, "active_pending_free"),
    )
    both = (
        p.Segment(0, 10 * MIB, "0.0", 0, "large", False, blocks),
        p.Segment(1, 2 * MIB, "0.1", 7, "small", True, ()),
    )
    return p.SegmentMap("snapshot.pickle", "", 0, both, 0, 6 * MIB, 4 * MIB, 7 * MIB, 12 * MIB, name, 7 * MIB)


def capture(name: str = "cudaStreamSynchronize") -> p.CaptureWindow:
    calls = (
        p.Call(10, "cudaStreamBeginCapture", "thread 1", 0, 900, "begin"),
        p.Call(11, "cudaLaunchKernel", "thread 1", 2_000, 900, "call", 0),
        p.Call(12, name, "thread 2", 5_000, 4_000, "offence", 900),
        p.Call(13, "cudaStreamEndCapture", "thread 1", 12_000, 900, "end", 901),
        p.Call(14, "gemm", "stream 7", 3_000, 2_000, "work"),
    )
    return p.CaptureWindow("trace.json", "", 10, False, 12_000, calls, 5, "it waited for a stream", "forward > item")


def waits(name: str = "default_pg") -> p.WaitGraph:
    members = (
        p.WaitMember(2, 37, None, "", "absent"),
        p.WaitMember(0, 38, 38, "all_reduce"),
        p.WaitMember(1, None, None, "", has_dump=False),
    )
    return p.WaitGraph((p.WaitGroup(name, "gloo", members),), 0, 1)


def grid(name: str = "rank 0") -> p.GridView:
    return p.GridView("Step time", "seconds", "rank", (name, "rank 1"), (3, 4, 5), ((0.1, 0.1, 9.0), (0.1, None, NAN)))


def board(name: str = "free bytes / requested bytes") -> p.ThresholdBoard:
    limits = (("healthy", 0.6), ("bad", 0.85))
    return p.ThresholdBoard(
        (
            p.Gauge("Enough memory was cached", name, 3.96, (("threshold", 1.0),), "rank 0", "below 1 it was full"),
            p.Gauge("The job", "zero / all elements of the gradients", 0.9, limits, "median of 3 steps"),
            p.Gauge("The job", "longest / all", 0.5, (("healthy", 0.85), ("bad", 0.4))),
        )
    )


def topology(name: str = "0-31") -> p.DeviceTopology:
    paths = (("", "NV12", "SYS"), ("NV12", "", "SYS"), ("SYS", "SYS", ""))
    return p.DeviceTopology("topo.txt", ("GPU0", "GPU1", "GPU2"), paths, (name, "0-31", ""), 1)


def references(name: str = "variable evaluator of main (job.py:50)") -> p.ReferenceChains:
    kept = p.Keeper(20, 320 * MIB, "[8192,512] float32 cpu", ("list of 36", "attribute scores of Evaluator", name))
    far = p.Keeper(1, MIB, "[64] float32 cpu", (name, "list of 2", "a", "b", "c", "d", "module job"))
    return p.ReferenceChains("references.json", "", (kept, far), 3)


def devices(name: str = "layers.3.weight") -> p.DeviceMap:
    both = (
        p.Stretch("layers.0.weight", "layers.2.weight", 3, "cuda:0", "0", False, 3 * MIB),
        p.Stretch(name, name, 1, "meta", "cuda:1", True),
    )
    return p.DeviceMap("device_map.json", "rank 0", both)


def steps(name: str = "RuntimeError: nan") -> p.LastSteps:
    rows = tuple(p.LastStep("rank 0", i, (f"{i}.5", ""), (name,) if i == 9 else ()) for i in range(10))
    return p.LastSteps(("loss", "my_metric"), rows)


def every(name: str = "x") -> tuple[p.Picture, ...]:
    drawings = (provenance, memory, segments, capture, waits, grid, devices, topology, references, steps, board)
    return tuple(drawing(name) for drawing in drawings)


def fullest() -> tuple[p.Picture, ...]:
    """Every picture as large as `forensics.pictures` lets it become, as often as it may come."""
    long = memory("serve (job.py:42)")
    points = tuple((i, (i * 7919) % 900 * MIB, 1000 * MIB) for i in range(4 * memory_timeline.MAX_POINTS))
    state = ("inactive", "active_allocated", "active_pending_free")
    n = segment_map.MAX_BLOCKS // segment_map.MAX_SEGMENTS
    held = tuple(p.Block(i, i * MIB, MIB, state[i % 3], f"layer_{i} (model.py:{i})", i * MIB) for i in range(n))
    many = tuple(replace(segments().segments[0], row=i, total_bytes=n * MIB, blocks=held) for i in range(40))
    kinds = ("call", "work")
    calls = tuple(
        p.Call(i, f"kernel_{i}", f"stream {i % 9}", i * 1000, 900, kinds[i % 2])
        for i in range(capture_windows.MAX_CALLS)
    )
    columns, cells = tuple(range(grids.MAX_COLUMNS)), tuple(0.1 + i / 7 for i in range(grids.MAX_COLUMNS))
    ranks = tuple(f"rank {i}" for i in range(step_times.MAX_RANKS))
    names = tuple(f"model.layers.{i}.attention.weight" for i in range(gradient_norms.MAX_PARAMETERS))
    members = tuple(p.WaitMember(i, i, i + 1, "all_reduce") for i in range(wait_graph.MAX_MEMBERS))
    groups = tuple(p.WaitGroup(f"group {i}", "nccl", members) for i in range(wait_graph.MAX_GROUPS))
    last = tuple(
        p.LastStep(f"rank {rank}", step, ("0.123456",) * 6, ("RuntimeError: " + "x" * 140,) * 3)
        for step in range(10)
        for rank in range(8)
    )
    chain = (provenance().operations[0], provenance().operations[1])
    spread = tuple(p.Operation(i, "aten::mul", "path", "forward", sources=(i - 1,)) for i in range(2, 120))
    return (
        replace(provenance(), operations=chain + spread),
        *(replace(capture(), calls=calls) for _ in range(capture_windows.MAX_DRAWN)),
        p.WaitGraph(groups, 9, 9),
        *(p.DeviceMap("map.json", "", devices().stretches * 30) for _ in range(2)),
        *(replace(long, points=points, n_events=9 * len(points)) for _ in range(memory_timeline.MAX_DRAWN)),
        *(replace(segments(), segments=many) for _ in range(segment_map.MAX_DRAWN)),
        *(p.ReferenceChains("r.json", "", references().keepers * 5) for _ in range(2)),
        p.LastSteps(("loss", "grad_norm", "lr", "scale", "a", "b"), last),
        p.GridView("Step time", "seconds", "rank", ranks, columns, (cells,) * len(ranks), log=True),
        p.GridView("Gradient norm", "", "parameter", names, columns, (cells,) * len(names), log=True),
        p.ThresholdBoard(board().gauges * 10),
    )
