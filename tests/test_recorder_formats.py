"""The files of the recorders, whole, cut and hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import MemorySink

from forensics.artifact import Source
from forensics.discovery import discover
from forensics.errors import ArtifactError
from forensics.formats import (
    device_map,
    formats,
    recorder_end,
    recorder_events,
    recorder_steps,
    references,
    tensor_stats,
)

WHO = {"rank": 1, "world_size": 2, "local_rank": 1, "host": "node-1", "pid": 77, "attempt": 2}
STEPS = [
    {"format": "forensics.steps/1", **WHO, "torch": "2.13.0"},
    {"step": 0, "time": 1795981130.464128, "step_seconds": 0.095, "loss": 0.635, "lr": 0.1, "rss_bytes": 8000},
    {"step": 1, "time": 1795981130.539706, "step_seconds": 0.075, "loss": float("nan"), "lr": 0.1},
]
EVENTS = [
    {"format": "forensics.events/1", **WHO},
    {"ts_ns": 1795981131412410118, "step": 1, "event": "nonfinite", "what": "loss", "recorded": "replayed"},
    {"ts_ns": 1795981131512410118, "step": 1, "event": "log", "global_step": 1, "logs": {"loss": 0.3, "epoch": 0.5}},
    {"ts_ns": 1795981131612410118, "step": 1, "event": "recorder_fault", "where": "memory", "what": "OSError: full"},
    {"ts_ns": 1795981139412410118, "step": 1, "event": "stall", "seconds": 600.2},
]
END: dict[str, Any] = {"format": "forensics.end/1", **WHO, "ts_ns": 1795981132043168762}
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 12, in main\n    step()\nValueError: bad label\n'
)


def loaded(module: Any, path: Path, content: Any) -> MemorySink:
    lines = content if isinstance(content, list) else [content]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sink = MemorySink()
    module.load(Source(path, path.name), sink)
    return sink


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("recorder_steps", STEPS),
        ("recorder_events", EVENTS),
        ("recorder_end", [END | {"how": "completed"}]),
        ("device_map", [{"format": "forensics.device_map/1", **WHO, "tensors": []}]),
        ("references", [{"format": "forensics.references/1", **WHO, "tensors": []}]),
    ],
)
def test_each_file_is_recognised_by_its_first_key(tmp_path: Path, name: str, content: list[Any]) -> None:
    (tmp_path / "x.txt").write_text("".join(json.dumps(line) + "\n" for line in content))
    (found,) = discover(tmp_path, tmp_path / "work")
    assert found.format == name
    assert name in formats()


def test_steps_become_samples_of_the_process_that_the_header_names(tmp_path: Path) -> None:
    sink = loaded(recorder_steps, tmp_path / "steps.jsonl", STEPS)
    rows = {(row["step"], row["name"]): row for row in sink.rows("sample")}
    assert rows[0, "loss"]["value"] == 0.635
    assert rows[1, "loss"]["value"] != rows[1, "loss"]["value"]
    assert rows[0, "learning_rate"]["ts_ns"] == 1795981130464128000
    assert (rows[0, "rss"]["unit"], rows[0, "rss"]["value"]) == ("bytes", 8000)
    assert sink.procs[0]["rank"] == 1
    assert (sink.procs[0]["attempt"], sink.procs[0]["host"]) == (2, "node-1")


def test_lines_that_the_recorder_lost_are_told(tmp_path: Path) -> None:
    sink = loaded(recorder_steps, tmp_path / "steps.jsonl", [*STEPS, {"recorder": "lines lost", "n": 3}])
    assert sink.warnings[0]["message"].startswith("3 lines could not be written")
    assert sink.quality == "partial"
    assert not sink.coverage[0]["complete"]


def test_events_become_rows_of_the_log_and_faults_become_warnings(tmp_path: Path) -> None:
    sink = loaded(recorder_events, tmp_path / "events.jsonl", EVENTS)
    rows = [(row["signature"], row["class"], row["role"], row["line"]) for row in sink.rows("log_event")]
    assert rows == [
        ("recorder-nonfinite", "numerics.nan", "evidence", 2),
        ("recorder-stall", "process.stalled", "symptom", 5),
    ]
    assert [row["name"] for row in sink.rows("sample")] == ["loss", "epoch"]
    assert [(w["code"], w["line"]) for w in sink.warnings] == [("recorder-fault", 4)]


def test_an_exception_at_the_end_is_what_a_log_would_say(tmp_path: Path) -> None:
    said = {"how": "exception", "exception": "ValueError", "message": "bad label", "traceback": TRACEBACK}
    sink = loaded(recorder_end, tmp_path / "end.json", END | said)
    (row,) = sink.rows("log_event")
    assert (row["exception"], row["message"], row["ts_ns"]) == ("ValueError", "bad label", END["ts_ns"])
    assert [frame["function"] for frame in sink.rows("stack")] == ["main"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"how": "completed", "step": 9}, "outcome.completed"),
        ({"how": "signal", "signal": 15, "name": "SIGTERM"}, "process.signal"),
        ({"how": "exit", "code": 3}, "process.exit"),
        ({"how": "exit", "code": None}, "process.exit"),
    ],
)
def test_other_ends_are_evidence(tmp_path: Path, said: dict[str, Any], expected: str) -> None:
    sink = loaded(recorder_end, tmp_path / "end.json", END | said)
    (row,) = sink.rows("log_event")
    assert (row["class"], row["role"]) == (expected, "evidence")
    assert sink.procs[0].get("exit_code") == said.get("code")
    assert sink.procs[0].get("signal") == said.get("signal")


def test_a_tensor_that_lies_elsewhere_than_declared_is_a_fact(tmp_path: Path) -> None:
    entry = {"role": "parameter", "shape": [2, 2], "dtype": "float32", "addr": 64}
    tensors = [
        entry | {"name": "a", "device": "cuda:1", "declared": "0"},
        entry | {"name": "b", "device": "cuda:0", "declared": "0"},
        entry | {"name": "c", "device": "meta", "declared": "disk"},
        entry | {"name": "d", "device": "cpu", "declared": None},
    ]
    found = {"format": "forensics.device_map/1", **WHO, "tensors": tensors}
    sink = loaded(device_map, tmp_path / "map.json", found)
    places = sink.rows("placement")
    assert [place["device"] for place in places] == [str(tensor["device"]) for tensor in tensors]
    assert [place["is_as_declared"] is False for place in places].count(True) == len(sink.facts)
    assert [(row["name"], row["device"]) for row in sink.rows("tensor")] == [("a", 1), ("b", 0), ("c", None), ("d", -1)]
    assert [fact["value"] for fact in sink.facts] == ["a lies on cuda:1, declared 0"]


def test_each_object_that_keeps_a_tensor_alive_is_a_row(tmp_path: Path) -> None:
    tensor = {"bytes": 4096, "shape": [32, 32], "dtype": "float32", "device": "cpu", "addr": 64}
    held = [tensor | {"chain": ["list[3] of 9", "attribute kept of m.C", "variable c of f (m.py:7)"]}]
    free = [tensor | {"chain": []}]  # what nothing was found to hold
    whole = loaded(references, tmp_path / "r", {"format": "forensics.references/1", **WHO, "tensors": held + free})
    rows = whole.rows("reference_link")
    assert [(row["tensor"], row["place"], row["holder"]) for row in rows] == [
        (0, 0, "list[3] of 9"), (0, 1, "attribute kept of m.C"), (0, 2, "variable c of f (m.py:7)")
    ]  # fmt: skip
    assert (rows[0]["size_bytes"], rows[0]["shape"], rows[0]["device"]) == (4096, "[32,32]", "cpu")
    assert whole.procs[0]["rank"] == 1 and whole.coverage[0]["complete"]
    cut = loaded(references, tmp_path / "s", {"format": "forensics.references/1", "tensors": [*held, {"bytes": 1}]})
    assert cut.quality == "partial" and not cut.coverage[0]["complete"]


def test_operators_carry_their_sequence_node_and_data_flow(tmp_path: Path) -> None:
    op = {"step": 3, "phase": "forward", "op": "aten::log", "module": "head", "n_nan": 0, "n_inf": 1}
    rows = [
        {"format": "forensics.tensor_stats/1", **WHO},
        op | {"order": 0, "role": "output", "sequence": 41},
        op | {"order": 1, "role": "input", "from": 0, "addr": 2**63 + 1, "version": 2, "sequence": 42},
        op | {"order": 2, "role": "input", "from": 9},  # from the future: no edge
        op | {"order": 3, "phase": "backward", "role": "output", "autograd": "LogBackward0", "sequence": 42},
        {"step": 3, "phase": "gradient", "role": "gradient", "name": "w", "missing": True},
        {"step": 3, "phase": "gradient", "role": "bucket", "name": "w", "n_nan": 4, "n_inf": 0},
        {"step": 3, "phase": "gradient", "role": "reduced-bucket", "name": "w", "n_nan": 4, "n_inf": 0},
    ]
    sink = loaded(tensor_stats, tmp_path / "operators.jsonl", rows)
    assert [(n["sequence"], n["autograd"]) for n in sink.rows("node")] == [
        (41, None), (42, None), (None, None), (42, "LogBackward0")
    ]  # fmt: skip
    assert [(e["from_node"], e["to_node"], e["tensor_row"]) for e in sink.rows("edge")] == [(0, 1, 1)]
    assert [t["role"] for t in sink.rows("tensor")][-3:] == ["missing-gradient", "bucket", "reduced-bucket"]
    assert (sink.rows("tensor")[1]["addr"], sink.rows("tensor")[1]["version"]) == (2**63 + 1, 2)


@pytest.mark.parametrize("module", [recorder_steps, recorder_events])
def test_more_bytes_never_give_fewer_rows(tmp_path: Path, module: Any) -> None:
    content = STEPS if module is recorder_steps else EVENTS
    data = "".join(json.dumps(line) + "\n" for line in content).encode()
    table = "sample" if module is recorder_steps else "log_event"
    kept = []
    for end in range(len(json.dumps(content[0])) + 1, len(data) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(data[:end])
        sink = MemorySink()
        module.load(Source(path, path.name), sink)
        kept.append(len(sink.rows(table)))
    assert kept == sorted(kept)
    assert kept[-1] > kept[0] == 0


@pytest.mark.parametrize("module", [recorder_steps, recorder_events, recorder_end, device_map, references])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "forensics.steps/9"}', '{"format": 1}', "\0\0", "{}"])
def test_what_is_none_of_it_is_a_clear_error(tmp_path: Path, module: Any, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(ArtifactError):
        module.load(Source(path, path.name), MemorySink())


@pytest.mark.parametrize("value", [None, [], {}, "x", -1, 2**70, 1e400, True, "\ud800"])
def test_hostile_values_are_left_out(tmp_path: Path, value: Any) -> None:
    line = dict.fromkeys(
        ("ts_ns", "step", "event", "what", "seconds", "name", "signal", "code", "how", "message"), value
    )
    loaded(recorder_events, tmp_path / "e", [EVENTS[0], line, EVENTS[1]])
    loaded(recorder_steps, tmp_path / "s", [STEPS[0], line, STEPS[1]])
    loaded(recorder_end, tmp_path / "n", END | line)
    entry = line | {"device": value, "shape": value, "dtype": value, "addr": value, "declared": value}
    loaded(device_map, tmp_path / "m", {"format": "forensics.device_map/1", "tensors": [entry, value]})
    held = {"bytes": value, "shape": [value], "dtype": value, "device": value, "chain": ["module m", value]}
    header = {"format": "forensics.references/1", "tensors": [held, {"chain": value}, value]}
    sink = loaded(references, tmp_path / "r", header)
    assert sink.rows("reference_link")[0]["holder"] == "module m"


def odd_values(sink: MemorySink) -> str:
    (said,) = (w["message"] for w in sink.warnings if w["code"] == "bad-values")
    assert sink.quality == "partial"
    assert not any(c["complete"] for c in sink.coverage)
    return str(said)


def test_steps_of_the_wrong_type_are_counted_with_the_first_of_them(tmp_path: Path) -> None:
    odd = [{"step": "two", "time": [], "loss": {"a": 1}}, {"step": "three", "time": 1795981131.0, "loss": 0.2}]
    sink = loaded(recorder_steps, tmp_path / "steps.jsonl", [STEPS[0] | {"rank": "first"}, *STEPS[1:], *odd])
    said = odd_values(sink)
    for expected in ("rank (1, first 'first')", "step (2, first 'two' in line 4)", "time (1, ", "loss (1, "):
        assert expected in said
    assert sink.procs[0].get("rank") is None
    assert sum(row["name"] == "loss" for row in sink.rows("sample")) == 3


def test_events_of_the_wrong_type_are_counted(tmp_path: Path) -> None:
    odd = [
        {"ts_ns": "soon", "step": 1, "event": "stall", "seconds": "long"},
        {"ts_ns": 1, "event": "log", "logs": 7},
        {"ts_ns": 1, "event": ["nonfinite"]},
        {"ts_ns": 1, "event": "of a later version"},
    ]
    sink = loaded(recorder_events, tmp_path / "events.jsonl", [*EVENTS, *odd])
    said = odd_values(sink)
    for expected in ("ts_ns (1,", "seconds (1,", "logs (1, first 7 in line 7)", "event (2,"):
        assert expected in said
    assert len(sink.rows("log_event")) == 3


def test_an_end_of_no_known_way_is_no_exit(tmp_path: Path) -> None:
    sink = loaded(recorder_end, tmp_path / "end.json", END | {"how": 5, "ts_ns": "x", "code": "one"})
    assert all(f"{key} (1," in odd_values(sink) for key in ("how", "ts_ns", "code"))
    assert not sink.tables


@pytest.mark.parametrize("module", [tensor_stats, device_map])
def test_tensors_of_the_wrong_type_are_counted(tmp_path: Path, module: Any) -> None:
    header = {"format": module.FORMAT, **WHO}
    if module is device_map:
        content: Any = [header | {"tensors": [{"name": "w", "shape": "2x2", "dtype": 3, "device": {}, "addr": -1}]}]
        keys = ["shape", "dtype", "device", "addr"]
    else:
        line = {"step": 1, "role": "output", "order": 0, "phase": "forward", "op": "aten::add", "ts_ns": "x"}
        content = [header, line | {"n_nan": "many", "absmax": [], "shape": [-1], "name": 5, "stack": [["f"]]}]
        keys = ["ts_ns", "n_nan", "absmax", "shape", "name", "stack"]
    said = odd_values(loaded(module, tmp_path / "x", content))
    assert all(f"{key} (1," in said for key in keys)
