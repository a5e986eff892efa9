from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support import ARTIFACTS, MemorySink, load, needs_artifacts

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import _execution_nodes, execution_trace, formats

REAL = ARTIFACTS / "other" / "chakra__1.0.2-chakra.0.0.4.tgz"
A, B, C, GRAD = ([n, 100 + n, 0, 6, 4, "cuda:1"] for n in (5, 6, 7, 8))
WEIGHT = [9, 100, 0, 6, 4, "cpu"]


def node(
    number: int,
    name: str,
    caller: int = 2,
    inputs: list[Any] | None = None,
    outputs: list[Any] | None = None,
    **attrs: Any,
) -> dict[str, Any]:
    def side(tensors: list[Any]) -> dict[str, Any]:
        return {"values": tensors, "shapes": [[2, 3]] * len(tensors), "types": ["Tensor(float)"] * len(tensors)}

    told = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, **attrs}
    return {
        "id": number, "name": name, "ctrl_deps": caller, "inputs": side(inputs or []), "outputs": side(outputs or []),
        "attrs": [{"name": key, "type": "int64", "value": value} for key, value in told.items()],
    }  # fmt: skip


# As the observer writes them: a node comes when its operator ends, so callers come after what they call.
NODES = [
    node(4, "aten::addmm", 3, [A, WEIGHT], [B], seq_id=7),
    node(3, "aten::linear", 2, [A, WEIGHT], [B]),
    node(5, "aten::relu_", 2, [B], [B], seq_id=8),
    node(7, "ReluBackward0", 6, [B], [GRAD], scope=1, seq_id=8),
    node(6, "autograd::engine::evaluate_function: ReluBackward0"),
    node(9, "aten::add_", 8, [WEIGHT, GRAD], [WEIGHT]),
    node(8, "Optimizer.step#AdamW.step", scope=7),
    node(2, "[pytorch|profiler|execution_trace|thread]", 1, scope=7),
]


def trace(nodes: list[dict[str, Any]], **other: Any) -> str:
    """In the layout of torch: top-level keys on one line, a node on several."""
    top = {"schema": "1.1.1-chakra.0.0.4", "pid": 12749, "time": "2026-11-29 20:00:32", "start_ts": 1, **other}
    head = json.dumps(top)[:-1] + ',\n  "nodes": [\n'
    return head + ",\n".join(json.dumps(one, indent=2) for one in nodes) + '\n  ],\n  "finish_ts": 9\n}'


def write(tmp_path: Path, text: str, name: str = "et.json") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def loaded(tmp_path: Path, nodes: list[dict[str, Any]], name: str = "et.json") -> MemorySink:
    return load(execution_trace, write(tmp_path, trace(nodes), name))


def flows(sink: MemorySink, kind: str) -> set[tuple[int, int]]:
    return {(e["from_node"], e["to_node"]) for e in sink.rows("edge") if e["kind"] == kind}


def test_operators_have_their_phase_sequence_and_tensors(tmp_path: Path) -> None:
    path = write(tmp_path, trace(NODES))
    assert {n: s for n, m in formats().items() if (s := m.recognise(Source(path, path.name).head()))} == {
        "execution_trace": 95
    }
    sink = load(execution_trace, path)
    told = {n["node_id"]: (n["op"], n["phase"], n["sequence"]) for n in sink.rows("node")}
    assert told[3] == ("aten::linear", "forward", None)
    assert told[4] == ("aten::addmm", "forward", 7)
    assert told[7] == ("ReluBackward0", "backward", 8)
    assert told[9] == ("aten::add_", "optimizer", None)
    first = sink.rows("tensor")[0]
    assert first == {
        **dict.fromkeys(first), "row": 0, "proc": 0, "role": "input", "node_id": 4, "dtype": "float", "shape": "[2,3]",
        "device": 1, "tensor_id": 5, "storage_id": 105, "size_bytes": 24,
    }  # fmt: skip
    assert sink.rows("tensor")[1]["device"] is None
    assert [(f["key"], f["value"]) for f in sink.facts] == [
        ("execution-trace-schema", "1.1.1-chakra.0.0.4"),
        ("execution-trace.finish_ts", "9"),
        ("execution-trace.start_ts", "1"),
        ("execution-trace.time", "2026-11-29 20:00:32"),
    ]
    assert sink.procs[0] == {"pid": 12749, "rank_origin": "none"}
    assert not sink.warnings


def test_data_flows_from_the_last_operator_before_that_made_the_tensor(tmp_path: Path) -> None:
    sink = loaded(tmp_path, NODES)
    assert flows(sink, "data") == {(4, 5), (5, 7), (7, 9)}
    assert flows(sink, "control") == {(3, 4), (2, 3), (2, 5), (6, 7), (2, 6), (8, 9), (2, 8), (1, 2)}
    rows = {(e["from_node"], e["to_node"]): e["tensor_row"] for e in sink.rows("edge")}
    assert sink.rows("tensor")[rows[7, 9]]["tensor_id"] == 8


def test_an_operator_gets_nothing_from_its_own_callers_or_from_later_ones(tmp_path: Path) -> None:
    inner, outer = node(11, "aten::_to_copy", 10, [A], [B]), node(10, "aten::to", 2, [A], [A, B])
    sink = loaded(tmp_path, [inner, outer, node(12, "aten::exp", 2, [B], [A])])
    assert flows(sink, "data") == {(11, 12)}


def test_lists_of_tensors_are_walked(tmp_path: Path) -> None:
    cat = node(3, "aten::cat", 2, [], [C])
    cat["inputs"] = {
        "values": [[A, B], 0],
        "shapes": [[[2, 3], [4]], []],
        "types": ["GenericList[Tensor(float),Tensor(c10::BFloat16)]", "Int"],
    }
    sink = loaded(tmp_path, [cat])
    assert [(t["role"], t["tensor_id"], t["dtype"], t["shape"]) for t in sink.rows("tensor")] == [
        ("input", 5, "float", "[2,3]"),
        ("input", 6, "c10::BFloat16", "[4]"),
        ("output", 7, "float", "[2,3]"),
    ]


def test_the_flat_nodes_of_schema_1_0_1_are_read(tmp_path: Path) -> None:
    old = {
        "name": "aten::relu", "id": 3, "rf_id": 1, "parent": 2, "fw_parent": 0, "seq_id": 4, "scope": 0, "tid": 1,
        "fw_tid": 0, "op_schema": "", "inputs": [A], "input_shapes": [[6]], "input_types": ["Tensor(float)"],
        "outputs": [B], "output_shapes": [[6]], "output_types": ["Tensor(float)"],
    }  # fmt: skip
    path = write(tmp_path, trace([old, {**old, "id": 4, "inputs": [B], "outputs": []}], schema="1.0.1"))
    assert execution_trace.recognise(Source(path, path.name).head()) == 95
    sink = load(execution_trace, path)
    assert flows(sink, "data") == {(3, 4)}
    assert flows(sink, "control") == {(2, 3), (2, 4)}
    assert [(n["op"], n["sequence"]) for n in sink.rows("node")] == [("aten::relu", 4)] * 2


def test_process_groups_are_those_of_the_init_node(tmp_path: Path) -> None:
    init = node(3, "## process_group:init ##", scope=7)
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [], "group_size": 2},
        {"pg_name": "9", "ranks": [4, 5], "group_size": 2},
        {"pg_name": "8", "ranks": "odd"},
    ]
    init["inputs"] = {"values": [json.dumps(groups)], "shapes": [[]], "types": ["String"]}
    rows = loaded(tmp_path, [init], "pytorch_et_3.json").rows("process_group")
    assert [(g["name"], g["description"], g["backend"], g["ranks"]) for g in rows] == [
        ("0", "default_pg", "cuda:nccl", "0,1"),
        ("9", None, None, "4,5"),
        ("8", None, None, None),
    ]


@pytest.mark.parametrize(("name", "rank"), [("pytorch_et_3.json", 3), ("et_12_x.json", 12), ("et.json", None)])
def test_the_rank_is_that_of_the_file_name(tmp_path: Path, name: str, rank: int | None) -> None:
    assert loaded(tmp_path, NODES, name).procs[0].get("rank") == rank


def kept(tmp_path: Path, data: bytes) -> int:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    sink = MemorySink()
    try:
        execution_trace.load(Source(path, path.name), sink)
    except ArtifactError:
        return 0
    return len(sink.rows("node"))


@pytest.mark.parametrize("piece", [1 << 20, 700])
def test_more_bytes_never_give_fewer_nodes(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_execution_nodes, "PIECE_BYTES", piece)
    monkeypatch.setattr(_execution_nodes, "_CHUNK_BYTES", max(piece // 2, 4096))
    data = trace(NODES * 2).encode()
    ends = [*sorted(random.Random(2).sample(range(1, len(data)), 200)), len(data)]
    counts = [kept(tmp_path, data[:end]) for end in ends]
    assert counts == sorted(counts)
    assert set(counts) == set(range(17))


def test_a_trace_without_its_end_says_where_it_was_cut(tmp_path: Path) -> None:
    text = trace(NODES)
    end = text.index('"ReluBackward0"')
    sink = load(execution_trace, write(tmp_path, text[:end]))
    assert [n["node_id"] for n in sink.rows("node")] == [4, 3, 5]
    assert (sink.quality, sink.warnings[0]["code"]) == ("partial", "truncated")
    assert text[: sink.bad_byte].rstrip().endswith(",")
    assert not any(c["complete"] for c in sink.coverage)


def test_a_damaged_node_costs_only_itself(tmp_path: Path) -> None:
    text = trace(NODES).replace('"aten::linear"', 'aten::linear"', 1)
    sink = load(execution_trace, write(tmp_path, text))
    assert [n["node_id"] for n in sink.rows("node")] == [4, 5, 7, 6, 9, 8, 2]
    assert [w["code"] for w in sink.warnings] == ["bad-json"]
    assert sink.quality == "partial"


@pytest.mark.parametrize("key", ["id", "name", "ctrl_deps", "inputs", "outputs", "attrs"])
@pytest.mark.parametrize(
    "value",
    [None, [], {}, -1, 2**80, "\ud800", [[[[[[1]]]]]], {"values": [[1, 2]], "types": ["Tensor("]}, [2**70], True],
)
def test_hostile_nodes_raise_nothing(tmp_path: Path, key: str, value: object) -> None:
    sink = loaded(tmp_path, [{**NODES[0], key: value}, *NODES[2:]])
    assert len(sink.rows("node")) >= len(NODES) - 2


def test_callers_in_a_ring_end(tmp_path: Path) -> None:
    ring = [node(3, "a", 4, [A], [A]), node(4, "b", 3, [A], [A]), node(5, "c", 5, [A], [A])]
    assert len(loaded(tmp_path, ring).rows("node")) == 3


@pytest.mark.parametrize(
    "text", ["", "{}", '{"nodes": []}', '{"schema": "1.0", "nodes": 5}', "[]", '{"traceEvents": []}']
)
def test_other_files_are_not_claimed(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    assert execution_trace.recognise(Source(path, path.name).head()) == 0


@needs_artifacts
def test_a_real_trace_gives_every_node_tensor_and_group(tmp_path: Path) -> None:
    with tarfile.open(REAL) as archive:
        member = archive.extractfile("1.0.2-chakra.0.0.4.json")
        data = io.BytesIO(member.read() if member else b"").getvalue()
    path = tmp_path / "1.0.2-chakra.0.0.4.json"
    path.write_bytes(data)
    sink = load(execution_trace, path)
    document = json.loads(data)
    assert [n["node_id"] for n in sink.rows("node")] == [n["id"] for n in document["nodes"]]
    # Counted by the types alone, lists of tensors by their elements.
    n_tensors = sum(
        kind.count("Tensor(") for n in document["nodes"] for side in ("inputs", "outputs") for kind in n[side]["types"]
    )
    assert len(sink.rows("tensor")) == n_tensors == 500
    assert [(g["name"], g["ranks"]) for g in sink.rows("process_group")] == [("0", "0,1")]
    assert {e["kind"] for e in sink.rows("edge")} == {"data", "control"}
    ends = [*sorted(random.Random(1).sample(range(1, len(data)), 200)), len(data)]
    counts = [kept(tmp_path, data[:end]) for end in ends]
    assert counts == sorted(counts)
    assert counts[-1] == 263
