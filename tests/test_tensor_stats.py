from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support import MemorySink, load

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import tensor_stats

HEADER = {"format": tensor_stats.FORMAT, "rank": 1, "world_size": 4, "host": "node-3", "pid": 42, "torch": "2.6.0"}
OUTPUT = {
    "step": 12, "phase": "forward", "order": 57, "op": "aten::softmax", "module": "layers.3.attn", "role": "output",
    "shape": [2, 8], "dtype": "float16", "n": 16, "n_nan": 0, "n_inf": 3, "absmax": 65504.0, "norm": math.inf,
    "ts_ns": 1795952507123456789, "stack": [["main", "train.py", 3], ["forward", "model.py", 9]],
}  # fmt: skip
INPUT = {**OUTPUT, "role": "input", "norm": "nan", "n_inf": 0, "ts_ns": 1795952507123456000}
GRADIENT = {"step": 12, "phase": "gradient", "module": "layers.3.attn.weight", "role": "gradient", "n_nan": 16}
BACKWARD = {"step": 12, "phase": "backward", "order": 58, "op": "SoftmaxBackward0", "role": "output", "n_nan": 16}


def text_of(*lines: object) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "stats.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def recognised(path: Path) -> int:
    return tensor_stats.recognise(Source(path, path.name).head())


def loaded(tmp_path: Path, *lines: object) -> MemorySink:
    return load(tensor_stats, write(tmp_path, text_of(*lines)))


def test_lines_become_tensors_and_one_node_per_operator(tmp_path: Path) -> None:
    assert recognised(write(tmp_path, text_of(HEADER, OUTPUT))) >= 90
    sink = loaded(tmp_path, HEADER, INPUT, OUTPUT, BACKWARD, GRADIENT)
    nodes = [(n["graph_id"], n["node_id"], n["phase"], n["op"], n["module"]) for n in sink.rows("node")]
    assert nodes == [
        (12, 57, "forward", "aten::softmax", "layers.3.attn"),
        (12, 58, "backward", "SoftmaxBackward0", None),
    ]
    tensors = [(t["role"], t["name"], t["node_id"], t["n_nan"], t["n_inf"]) for t in sink.rows("tensor")]
    assert tensors == [
        ("input", "layers.3.attn", 57, 0, 0),
        ("output", "layers.3.attn", 57, 0, 3),
        ("output", None, 58, 16, None),
        ("gradient", "layers.3.attn.weight", None, 16, None),
    ]
    assert math.isnan(sink.rows("tensor")[0]["norm"])
    assert sink.rows("tensor")[1]["norm"] == math.inf
    assert sink.rows("tensor")[1]["shape"] == "[2,8]"
    assert [frame["function"] for frame in sink.rows("stack")] == ["main", "forward"]
    assert not sink.warnings


def test_the_header_describes_the_process(tmp_path: Path) -> None:
    sink = loaded(tmp_path, {**HEADER, "hub_token": "hf_x", "seed": 3}, OUTPUT)
    assert sink.procs[0] == {"rank": 1, "rank_origin": "content", "world_size": 4, "host": "node-3", "pid": 42}
    assert [(f["key"], f["value"], f["scope"]) for f in sink.facts] == [
        ("torch", "2.6.0", "version"),
        ("hub_token", "***", "option"),
        ("seed", "3", "option"),
    ]
    span = {(c["capability"], c["from_ns"], c["to_ns"]) for c in sink.coverage}
    assert span == {(name, 1795952507123456789, 1795952507123456789) for name in ("tensor", "node")}
    assert sink.clock_kind == "epoch"


def test_equal_orders_of_other_steps_are_other_nodes(tmp_path: Path) -> None:
    sink = loaded(tmp_path, HEADER, OUTPUT, {**OUTPUT, "step": 13})
    assert [(n["graph_id"], n["row"]) for n in sink.rows("node")] == [(12, 0), (13, 1)]


def test_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path, text_of({**HEADER, "format": "forensics.tensor_stats/2"}, OUTPUT))
    assert recognised(path) >= 90
    with pytest.raises(ArtifactError, match=r"forensics\.tensor_stats/2; expected forensics\.tensor_stats/1; use"):
        load(tensor_stats, path)


def test_bad_lines_cost_only_themselves(tmp_path: Path) -> None:
    text = text_of(HEADER, OUTPUT) + "garbage\n[1]\n" + text_of({"step": 1}, {"role": "input"}, GRADIENT)
    sink = load(tensor_stats, write(tmp_path, text))
    assert [warning["line"] for warning in sink.warnings] == [3, 4, 5, 6]
    assert len(sink.rows("tensor")) == 2
    assert sink.quality == "partial"
    assert not any(c["complete"] for c in sink.coverage)


def test_a_file_cut_anywhere_keeps_its_complete_lines(tmp_path: Path) -> None:
    text = text_of(HEADER, INPUT, OUTPUT, BACKWARD, GRADIENT)
    for end in range(len(text_of(HEADER)), len(text), 29):
        sink = load(tensor_stats, write(tmp_path, text[:end]))
        assert len(sink.rows("tensor")) == text[:end].count("}") - 1
    with pytest.raises(ArtifactError):
        load(tensor_stats, write(tmp_path, text[:20]))


@pytest.mark.parametrize(
    "line",
    [
        {"step": 2**70, "role": "input"},
        {"step": -1, "role": "input"},
        {"step": 1, "role": ["input"]},
        {"step": 1, "role": "input", "shape": "x", "n_nan": -5, "absmax": [], "checksum": -1, "device": 10**9},
        {"step": 1, "role": "input", "shape": [[1]], "stack": [[1, 2, 3], "x", ["f", None, 2**40]]},
        {"step": 1, "role": "input", "op": "x", "order": 2**80, "phase": "forward", "norm": 10**400},
        {"step": 1, "role": "input", "module": "\ud800\0" * 10, "dtype": {}},
    ],
)
def test_hostile_values_raise_nothing(tmp_path: Path, line: object) -> None:
    loaded(tmp_path, HEADER, line, OUTPUT)


@pytest.mark.parametrize("text", ["", "{}", "[]", "\0" * 100, b"\xff\xfe\x00", '{"format": 5}\n', '{"format": "x"}\n'])
def test_other_files_are_neither_claimed_nor_loaded(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path, text)
    assert recognised(path) == 0
    with pytest.raises(ArtifactError):
        load(tensor_stats, path)
