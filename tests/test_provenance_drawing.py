"""The drawing of a provenance graph: births, the way and victims are in it, whatever labels hold, and it is quick."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree

from forensics.report.provenance_svg import MAX_NODES, GraphNode, provenance

SVG = "{http://www.w3.org/2000/svg}"


def small() -> list[GraphNode]:
    return [
        GraphNode(0, "aten::softmax", "healthy"),
        GraphNode(1, "aten::log <script>&", "birth", [0]),
        GraphNode(2, "aten::mul", "path", [1]),
        GraphNode(3, "aten::sum", "path", [2]),
        GraphNode(4, "LogBackward0", "victim", [1]),
    ]


def parsed(svg: str | None) -> ElementTree.Element:
    assert svg is not None
    return ElementTree.fromstring(svg)


def marks(root: ElementTree.Element, role: str) -> int:
    return sum(1 for item in root.iter() if item.get("class") == role)


def test_births_the_way_and_victims_are_marked_apart() -> None:
    root = parsed(provenance(small()))
    assert [marks(root, role) for role in ("birth", "path", "victim", "healthy")] == [1, 2, 1, 1]
    assert sum(1 for item in root.iter() if item.get("class") == "edge way") == 2
    texts = [item.text for item in root.iter() if item.tag.endswith("text")]
    assert texts == ["aten::log <script>&", "aten::mul", "aten::sum"]


def test_without_a_birth_nothing_is_drawn() -> None:
    assert provenance([GraphNode(0, "aten::mm", "healthy")]) is None


def test_three_thousand_operators_are_drawn_within_two_seconds_of_cpu() -> None:
    nodes = [GraphNode(i, f"aten::op{i}", "healthy", [i - 1, max(0, i - 7)]) for i in range(1, 3000)]
    nodes[1500] = GraphNode(1501, "aten::log", "birth", [1500])
    before = time.process_time()
    svg = provenance(nodes)
    assert time.process_time() - before < 2.0
    assert marks(parsed(svg), "healthy") == len(nodes) - 1


def test_of_more_operators_the_finite_ones_are_left_out_and_counted() -> None:
    nodes = [*small(), *(GraphNode(i, "aten::mm", "healthy") for i in range(10, MAX_NODES + 10))]
    root = parsed(provenance(nodes))
    assert marks(root, "birth") == 1
    assert marks(root, "healthy") == MAX_NODES - 4
    described = next(item.text for item in root.iter() if item.tag.endswith("desc"))
    assert described is not None and "5 not drawn" in described
