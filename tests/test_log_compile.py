from __future__ import annotations

import random
from pathlib import Path

from support import MemorySink, load

from forensics.formats import log

GLOG = "V1129 19:40:59.873000 8335 torch/_dynamo/guards.py:5396] "


def tagged(tag: str, compile_id: str, *lines: str, prefix: str = GLOG) -> str:
    return "".join(f"{prefix}[{compile_id}] [__{tag}] {line}\n" for line in lines)


RECOMPILE = (
    "Recompiling function f in /job/train.py:4",
    "    triggered by the following guard failure(s):",
    "    - 0/1: tensor 'x' size mismatch at index 0. expected 3, actual 4",
    "    - 0/0: tensor 'x' size mismatch at index 0. expected 2, actual 4",
)
BREAK = (
    "Graph break in user code at /job/train.py:13",
    "Graph Break Reason: Encountered graph break when attempting to trace CALL",
    "",
    "User code traceback:",
    '  File "/job/train.py", line 16, in <module>',
    "    g(torch.randn(4))",
    '  File "/job/train.py", line 13, in g',
    "    print('break')",
    "",
)
LIMIT = (
    "torch._dynamo hit config.recompile_limit (3)",
    "   function: 'f' (/job/train.py:4)",
    "   last reason: 0/2: tensor 'x' size mismatch at index 0. expected 4, actual 5",
    'To log all recompilation reasons, use TORCH_LOGS="recompiles".',
)


def loaded(tmp_path: Path, text: str) -> MemorySink:
    path = tmp_path / "stderr.log"
    path.write_text(text)
    return load(log, path)


def events(sink: MemorySink) -> list[tuple[str, str | None, str | None]]:
    return [(e["kind"], e["compile_id"], e["name"]) for e in sink.rows("compile_event")]


def test_recompilations_breaks_guards_and_limits_are_told_with_function_place_and_reason(tmp_path: Path) -> None:
    limit = "".join(f"W1129 19:40:59.904000 8335 torch/_dynamo/convert_frame.py:1994] [0/3] {line}\n" for line in LIMIT)
    guards = tagged(
        "guards", "0/0", "GUARDS:", "", "TREE_GUARD_MANAGER:", "+- RootGuardManager", "Guard eval latency = 39 us"
    )
    text = guards + tagged("recompiles", "0/2", *RECOMPILE) + limit + tagged("graph_breaks", "1/0", *BREAK)
    sink = loaded(tmp_path, text)
    assert events(sink) == [
        ("guards", "0/0", None),
        ("recompile", "0/2", "f"),
        ("limit", "0/3", "f"),
        ("graph-break", "1/0", "g"),
    ]
    reasons = [e["reason"] for e in sink.rows("compile_event")]
    assert reasons[1] == (
        "0/1: tensor 'x' size mismatch at index 0. expected 3, actual 4\n"
        "0/0: tensor 'x' size mismatch at index 0. expected 2, actual 4"
    )
    assert reasons[2] == "\n".join(LIMIT[:3])
    frames = {f["id"]: (f["function"], f["file"], f["line"]) for f in sink.rows("stack")}
    assert [frames.get(e["stack_id"]) for e in sink.rows("compile_event")] == [
        None,
        ("f", "/job/train.py", 4),
        ("f", "/job/train.py", 4),
        ("g", "/job/train.py", 13),
    ]
    assert [p["line"] for p in sink.rows("position") if p["table"] == "compile_event"] == [1, 6, 10, 14]
    cover = next(c for c in sink.coverage if c["capability"] == "compile_event")
    assert (cover["complete"], cover["n_kept"]) == (False, 4)


def test_messages_of_interleaved_ranks_and_compilations_are_put_together(tmp_path: Path) -> None:
    first = tagged("recompiles", "0/2", *RECOMPILE, prefix="[rank0]:" + GLOG).splitlines(keepends=True)
    second = tagged("recompiles", "0/2", *RECOMPILE, prefix="[rank1]:" + GLOG).splitlines(keepends=True)
    sink = loaded(tmp_path, "".join(line for pair in zip(first, second, strict=True) for line in pair))
    rows = sink.rows("compile_event")
    assert [row["reason"].count("mismatch") for row in rows] == [2, 2]
    assert [sink.procs[row["proc"]]["rank"] for row in rows] == [0, 1]


def test_logs_of_releases_up_to_2_2_name_the_log_before_the_level(tmp_path: Path) -> None:
    prefix = "[2023-11-02 10:11:12,345] [0/1] torch._dynamo.guards.__recompiles: [DEBUG] "
    sink = loaded(tmp_path, "".join(f"{prefix}{line}\n" for line in RECOMPILE[:3]))
    row = sink.rows("compile_event")[0]
    assert (row["kind"], row["name"], row["compile_id"]) == ("recompile", "f", "0/1")
    assert row["reason"] == "0/1: tensor 'x' size mismatch at index 0. expected 3, actual 4"
    assert row["ts_ns"] == 1_698_919_872_345_000_000


def test_skipped_cuda_graphs_are_told_whether_or_not_their_log_was_asked_for(tmp_path: Path) -> None:
    text = tagged("cudagraphs", "7/0", "skipping cudagraphs due to mutated inputs (1 instances). Found from :")
    text += "skipping cudagraphs due to cpu device (arg0_1)\n"
    sink = loaded(tmp_path, text)
    assert events(sink) == [("skip", "7/0", None), ("skip", None, None)]
    assert sink.rows("compile_event")[1]["reason"] == "skipping cudagraphs due to cpu device (arg0_1)"


def test_a_log_without_such_messages_has_no_rows_and_no_coverage(tmp_path: Path) -> None:
    sink = loaded(tmp_path, "step 1 loss 2.5\nRecompiling function f in /job/train.py:4\n" * 20)
    assert not sink.rows("compile_event")
    assert "compile_event" not in {c["capability"] for c in sink.coverage}


def test_more_bytes_never_give_fewer_messages(tmp_path: Path) -> None:
    parts = [tagged("recompiles", f"0/{n}", *RECOMPILE) + tagged("graph_breaks", f"{n}/0", *BREAK) for n in range(8)]
    data = "".join(parts)
    ends = [*sorted(random.Random(3).sample(range(1, len(data)), 200)), len(data)]
    counts = [len(loaded(tmp_path, data[:end]).rows("compile_event")) for end in ends]
    assert counts == sorted(counts)
    assert counts[-1] == 16


def test_hostile_messages_are_bounded(tmp_path: Path) -> None:
    endless = tagged("guards", "0/0", "GUARDS:") + tagged("guards", "0/0", "x" * 900) * 3000
    odd = tagged("recompiles", "0/0", "Recompiling function f in /a.py:99999999999") + tagged(
        "recompiles", "9/9", "    - x"
    )
    odd += "".join(tagged("recompiles", f"{n}/0", "Recompiling function f in /a.py:1") for n in range(600))
    sink = loaded(tmp_path, endless + odd)
    assert max(len(row["reason"] or "") for row in sink.rows("compile_event")) <= 4000
    assert len(sink.rows("compile_event")) == 602
