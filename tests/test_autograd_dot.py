from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from support import MemorySink, load

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import autograd_dot, formats

# Written by torchviz for Linear, ReLU and mean, with attributes and saved tensors.
GRAPH = """digraph {
\tgraph [size="12,12"]
\tnode [align=left fontname=monospace fontsize=10 height=0.2 ranksep=0.1 shape=box style=filled]
\t140286015935488 [label="
 ()" fillcolor=darkolivegreen1]
\t140286011580016 [label="MeanBackward0
----------------------
self_sym_numel:      2
self_sym_sizes: (2, 1)"]
\t140286011579728 -> 140286011580016
\t140286011579728 -> 140286015932368 [dir=none]
\t140286015932368 [label="mat1
 (2, 4)" fillcolor=orange]
\t140286011579728 [label=AddmmBackward0]
\t140286011579584 -> 140286011579728
\t140286017721104 [label="2.bias
 (1)" fillcolor=lightblue]
\t140286017721104 -> 140286011579584
\t140286011579584 [label=AccumulateGrad]
\t140286011580016 -> 140286015935488
}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "graph.dot"
    path.write_text(text)
    return path


def test_boxes_become_nodes_tensors_and_arrows_edges(tmp_path: Path) -> None:
    path = write(tmp_path, GRAPH)
    head = Source(path, path.name).head()
    assert max(formats(), key=lambda name: formats()[name].recognise(head)) == "autograd_dot"
    sink = load(autograd_dot, path)
    names = {n["node_id"]: n["op"] for n in sink.rows("node")}
    assert [op for op in names.values() if op] == ["MeanBackward0", "AddmmBackward0", "AccumulateGrad"]
    tensors = {t["node_id"]: (t["role"], t["name"], t["shape"]) for t in sink.rows("tensor")}
    assert sorted(tensors.values(), key=str) == [
        ("output", None, "[]"),
        ("parameter", "2.bias", "[1]"),
        ("saved", "mat1", "[2,4]"),
    ]
    flow = [tuple(names[n] or tensors[n][1] for n in (e["from_node"], e["to_node"])) for e in sink.rows("edge")]
    assert flow == [
        ("AddmmBackward0", "MeanBackward0"),
        ("AddmmBackward0", "mat1"),
        ("AccumulateGrad", "AddmmBackward0"),
        ("2.bias", "AccumulateGrad"),
        ("MeanBackward0", None),
    ]
    assert {n["phase"] for n in sink.rows("node") if n["op"]} == {"backward"}
    lines = [p["line"] for p in sink.rows("position") if p["table"] == "node"]
    assert lines == [4, 6, 14, 12, 19, 16]
    assert not sink.warnings
    assert sink.coverage[0]["complete"]


@pytest.mark.parametrize("shape", ["(" + "9" * 40 + ")", "(" + "1 " * 60_000, "(1 2)", "(" * 5000, "(3, 4), (5)"])
def test_labels_that_are_no_shapes_give_none_at_once(tmp_path: Path, shape: str) -> None:
    label = f'\t1 [label=AccumulateGrad]\n\t2 [label="w\n {shape}" fillcolor=lightblue]\n'
    sink = load(autograd_dot, write(tmp_path, "digraph {\n" + label + "}\n"))
    assert {tensor["shape"] for tensor in sink.rows("tensor")} <= {None, "[5]"}


def test_more_bytes_never_give_fewer_boxes_or_arrows(tmp_path: Path) -> None:
    kept = []
    for end in [*sorted(random.Random(5).sample(range(1, len(GRAPH)), 200)), len(GRAPH)]:
        sink = MemorySink()
        path = write(tmp_path, GRAPH[:end])
        with contextlib.suppress(ArtifactError):
            autograd_dot.load(Source(path, path.name), sink)
        kept.append(len(sink.rows("node")) + len(sink.rows("edge")))
        assert not kept[-1] or (sink.quality == "partial") == (end < len(GRAPH) - 1)
    assert kept == sorted(kept)
    assert kept[-1] == 11


@pytest.mark.parametrize(
    "text",
    [
        'digraph { a [label="x" ]\n b -> c\n}',  # no grad_fn
        "graph { a -- b }",
        "digraph",
        "",
        "not a graph AccumulateGrad label=AccumulateGrad {",
    ],
)
def test_other_graphs_are_not_claimed(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    assert autograd_dot.recognise(Source(path, path.name).head()) == 0


@pytest.mark.parametrize(
    "line",
    ['\ta [label="', '\t"a" [label="\\', "\ta -> ", "\ta [[[[[", "\t" + "a" * 5000, '\ta [label="x" fillcolor=orange'],
)
def test_hostile_text_ends_soon(tmp_path: Path, line: str) -> None:
    opening = "digraph {\n\t1 [label=AccumulateGrad]\n"
    path = write(tmp_path, opening + f"{line}\n" * 20_000)
    sink = load(autograd_dot, path)  # a reader that tries again at each line to the end would take hours
    assert sink.rows("node")[0]["op"] == "AccumulateGrad"
    assert sink.warnings[0]["code"] == "truncated"
