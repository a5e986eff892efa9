"""The drawings: chain, series and lanes, and the thinning of long series."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
import report_demo as demo

from forensics.diagnosis import SAME_FAULT
from forensics.report import sampling
from forensics.report.chain_layout import MAX_IN_LAYER, MAX_LAYERS, PAGE, Layout, lay_out
from forensics.report.chain_svg import chain, chain_sentences
from forensics.report.lanes_svg import MAX_LANES, lanes
from forensics.report.scale import fit
from forensics.report.series_svg import MAX_CHARTS, MAX_POINTS, MAX_RANKS, charts
from forensics.report.svg import clip, text_width, wrap
from forensics.report.view import ChainEdge, ChainNode, Moment, ProcessView, SeriesView

NAN, INF = math.nan, math.inf


def finding(name: str, sub: str = "") -> ChainNode:
    return ChainNode(name, f"Finding {name}", sub, "finding", "high")


def chain_of(n: int, label: str = "") -> Layout:
    names = [f"n{i}" for i in range(n)]
    edges = [ChainEdge(a, b, label) for a, b in pairwise(names)]
    return lay_out([finding(name) for name in names], edges)


def overlapping(layout: Layout) -> list[tuple[str, str]]:
    boxes = layout.boxes
    return [
        (a.node.id, b.node.id)
        for i, a in enumerate(boxes)
        for b in boxes[i + 1 :]
        if a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height
    ]


def test_a_short_chain_runs_from_left_to_right_and_a_long_one_downwards() -> None:
    short, long = chain_of(4), chain_of(9)
    assert not short.downwards
    assert short.width <= PAGE
    assert [box.x for box in short.boxes] == sorted(box.x for box in short.boxes)
    assert long.downwards
    assert [box.y for box in long.boxes] == sorted(box.y for box in long.boxes)


def test_labels_get_room_between_the_boxes() -> None:
    plain, labelled = chain_of(3), chain_of(3, "peers wait for a member that no longer exists")
    assert labelled.boxes[1].x - labelled.boxes[0].x > plain.boxes[1].x - plain.boxes[0].x


def test_a_straight_chain_is_drawn_straight() -> None:
    layout = chain_of(4)
    assert len({round(box.y + box.height / 2, 3) for box in layout.boxes}) == 1


@pytest.mark.parametrize("seed", range(6))
def test_boxes_never_overlap_and_stay_inside(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [finding(f"n{i}", "rank 1 " * chance.randint(0, 9)) for i in range(chance.randint(2, 40))]
    pairs = [(chance.randrange(len(nodes)), chance.randrange(len(nodes))) for _ in range(60)]
    layout = lay_out(nodes, [ChainEdge(f"n{a}", f"n{b}", "leads to") for a, b in pairs])
    assert not overlapping(layout)
    for box in layout.boxes:
        assert box.x >= 0 and box.y >= 0
        assert box.x + box.width <= layout.width + 0.01 and box.y + box.height <= layout.height + 0.01


def test_an_edge_leads_to_a_later_layer_even_when_the_input_has_a_cycle() -> None:
    nodes = [finding(name) for name in "abc"]
    edges = [
        ChainEdge("a", "b"),
        ChainEdge("b", "c"),
        ChainEdge("c", "a"),
        ChainEdge("a", "a"),
        ChainEdge("a", "ghost"),
    ]
    layout = lay_out(nodes, edges)
    assert len(layout.wires) == 2
    assert all(wire.boxes[0].x < wire.boxes[-1].x for wire in layout.wires)


def test_a_wire_that_passes_layers_runs_around_their_boxes() -> None:
    nodes = [finding(name) for name in "abcd"]
    layout = lay_out(nodes, [ChainEdge(*pair) for pair in ("ab", "bc", "cd", "ad")])
    long = next(wire for wire in layout.wires if len(wire.boxes) == 4)
    for bend in long.boxes[1:-1]:
        assert not [
            box
            for box in layout.boxes
            if box.y <= bend.y <= box.y + box.height and box.x <= bend.x <= box.x + box.width
        ]


def test_what_is_too_much_for_a_picture_is_folded_and_counted() -> None:
    nodes = [finding("root"), *(finding(f"e{i}") for i in range(100))]
    wide = lay_out(nodes, [ChainEdge("root", f"e{i}") for i in range(100)])
    assert len(wide.boxes) == 1 + MAX_IN_LAYER
    assert wide.boxes[-1].node.label == f"{100 - MAX_IN_LAYER + 1} more"
    deep = chain_of(50)
    assert len(deep.boxes) == MAX_LAYERS
    assert deep.boxes[-1].node.label == f"{50 - MAX_LAYERS + 1} more"
    huge = chain([finding(f"n{i}") for i in range(1_000)], [])
    assert huge is not None
    assert huge.n_left_out == 600


def test_the_drawing_is_well_formed_whatever_its_texts_hold() -> None:
    bad = "</svg><script>\x00\u202e & \"'" * 9
    nodes = [ChainNode("a", bad, bad, "finding", bad, 1), ChainNode("b", bad, bad, bad, bad)]
    drawing = chain(nodes, [ChainEdge("a", "b", bad)], frozenset({1}))
    assert drawing is not None
    root = ET.fromstring(drawing.svg)
    assert not root.findall(".//script")
    assert [a.get("href") for a in root.iter("a")] == ["#finding-1"]
    assert chain([], []) is None


def test_the_chain_in_words_is_bounded_and_leaves_out_unknown_ends() -> None:
    nodes = [finding(f"n{i}") for i in range(60)]
    edges = [ChainEdge("n0", f"n{i}", "because") for i in range(1, 60)] + [ChainEdge("n0", "ghost")]
    words = chain_sentences(nodes, edges, 10)
    assert words[0] == "Finding n0 → Finding n1 (because)"
    assert words[-1] == "… 49 more links"


@pytest.mark.parametrize("how", [SAME_FAULT, f"{SAME_FAULT}; which of them came first, the clocks cannot tell"])
def test_no_arrow_leads_from_a_fault_to_the_same_fault_elsewhere(how: str) -> None:
    nodes = [finding("a"), finding("b"), finding("c")]
    edges = [ChainEdge("a", "b", how.rsplit(";", maxsplit=1)[-1].strip()), ChainEdge("a", "c", "because")]
    drawing = chain(nodes, edges)
    assert drawing is not None
    assert (drawing.svg.count('class="wire"'), drawing.svg.count('class="head"')) == (2, 1)
    assert [" → " in sentence for sentence in chain_sentences(nodes, edges)] == [False, True]


def test_wrapped_text_fits_its_width_and_ends_with_an_ellipsis_when_cut() -> None:
    rows = wrap("every collective of the default group " * 9 + "x" * 300, 150, 13, 4)
    assert len(rows) == 4
    assert rows[-1].endswith("…")
    assert all(text_width(row, 13) <= 150 for row in rows)
    assert wrap("y" * 500, 100, 13, 2)[-1].endswith("…")
    assert wrap("short", 100, 13, 2) == ["short"]
    assert clip("short", 100, 13) == "short"


def test_thinning_keeps_extremes_ends_and_the_limit() -> None:
    noise = random.Random(7)
    points = [(float(i), noise.random()) for i in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    points[77_777] = (77_777.0, -99.0)
    thinned = sampling.thin(points, MAX_POINTS)
    kept = [point for piece in thinned.pieces for point in piece]
    assert {(54_321.0, 99.0), (77_777.0, -99.0), points[0], points[-1]} <= set(kept)
    assert kept == sorted(kept)
    assert thinned.n_drawn == len(kept) <= MAX_POINTS + 2
    assert (thinned.n_points, thinned.low, thinned.high) == (100_000, -99.0, 99.0)


def test_a_series_within_the_limit_is_drawn_as_it_is() -> None:
    points = [(float(i), float(i % 7)) for i in range(MAX_POINTS)]
    assert sampling.thin(points, MAX_POINTS).pieces == [points]


def test_non_finite_values_break_the_line_and_are_kept_as_runs() -> None:
    thinned = sampling.thin([(1, 1.0), (2, NAN), (3, NAN), (4, INF), (5, 2.0), (6, -INF), (7, 3.0), (8, 4.0)], 100)
    assert [[x for x, _ in piece] for piece in thinned.pieces] == [[1], [5], [7, 8]]
    assert [(run.first, run.last, run.n, run.label) for run in thinned.non_finite] == [
        (2, 4, 3, "NaN or Inf"),
        (6, 6, 1, "-Inf"),
    ]


def test_a_series_without_any_finite_value_has_no_line() -> None:
    thinned = sampling.thin([(float(i), NAN) for i in range(5_000)], 100)
    assert thinned.pieces == []
    assert [run.n for run in thinned.non_finite] == [5_000]
    assert math.isnan(thinned.low)


def test_a_line_is_not_cut_into_thousands_of_pieces() -> None:
    points = [(float(i), NAN if i % 2 else 1.0) for i in range(10_000)]
    assert len(sampling.thin(points, MAX_POINTS).pieces) == 1


def test_scales_hold_any_finite_range_and_give_round_ticks() -> None:
    assert [label for _, label in fit(0, 217, 0, 100).ticks(5)] == ["0", "50", "100", "150", "200"]
    wide = fit(1e-6, 1e4, 0, 100, may_be_log=True)
    assert wide.log
    assert [label for _, label in wide.ticks(5)] == ["1e-06", "0.0001", "0.01", "1", "100", "10,000"]
    for low, high in ((-1e308, 1e308), (0.0, 0.0), (5e-324, 1e308), (3.0, 3.0), (NAN, NAN), (1e18, 1e18 + 1)):
        scale = fit(low, high, 10, 110, may_be_log=True, pad=0.04)
        assert len(scale.ticks(4)) < 40
        if math.isfinite(low):
            assert all(0 <= scale(value) <= 120 for value in (low, high))


def test_ranks_share_a_drawing_and_differ_by_class_and_label() -> None:
    drawn, n_hidden = charts(demo.root_cause().series)
    assert n_hidden == 0
    assert [chart.name for chart in drawn] == ["loss", "grad_norm"]
    root = ET.fromstring(drawn[0].svg)
    assert [line.get("class") for line in root.iter("polyline")] == ["line s0", "line s1"]
    texts = [text.text for text in root.iter("text")]
    assert {"rank 0", "rank 1", "NaN from step 217", "recorder on"} <= set(texts)
    assert [row.non_finite for row in drawn[0].rows] == ["none", "1, first at step 217"]


def test_long_series_and_many_ranks_are_bounded_and_the_chart_says_so() -> None:
    many = [SeriesView("loss", "", rank, tuple((float(i), 1.0 / (i + 1)) for i in range(9_000))) for rank in range(40)]
    many[33] = SeriesView("loss", "", 33, ((1.0, NAN), (2.0, 1.0)))
    [chart], _ = charts(many)
    assert [row.rank for row in chart.rows] == [f"rank {rank}" for rank in (*range(MAX_RANKS - 1), 33)]
    assert chart.notes[0] == "32 more ranks not drawn."
    assert "Drawn from up to 9,000 points a rank" in chart.notes[1]
    assert len(chart.svg) < 250_000
    many_names = [SeriesView(f"m{i}", "", 0, ((1.0, 1.0), (2.0, 2.0))) for i in range(50)]
    assert (len(charts(many_names)[0]), charts(many_names)[1]) == (MAX_CHARTS, 50 - MAX_CHARTS)


@pytest.mark.parametrize(
    "points", [(), ((1.0, 1.0),), ((1.0, NAN),), ((NAN, 1.0), (INF, 2.0)), ((1.0, 1e308), (2.0, -1e308))]
)
def test_odd_series_still_give_a_drawing(points: tuple[tuple[float, float], ...]) -> None:
    [chart], _ = charts([SeriesView("loss", "", None, points)])
    svg = ET.fromstring(chart.svg)
    assert "nan" not in chart.svg.replace("NaN", "")
    assert svg.get("role") == "img"


def test_a_series_over_time_is_drawn_in_seconds_from_its_start() -> None:
    points = tuple((float(demo.T0 + i * demo.SECOND), float(i)) for i in range(11))
    [chart], _ = charts([SeriesView("device_memory", "GiB", 0, points, axis="ns")])
    assert "10 s" in [text.text for text in ET.fromstring(chart.svg).iter("text")]


def test_lanes_number_moments_like_the_rows_of_the_timeline() -> None:
    report = demo.root_cause()
    drawing = lanes(report.timeline, report.processes)
    assert drawing is not None
    root = ET.fromstring(drawing.svg)
    assert [text.text for text in root.iter("text") if text.get("class") == "lane-name"] == ["job", "rank 0", "rank 1"]
    assert [text.text for text in root.iter("text") if text.get("class") == "chip-label"] == ["6", "4–5", "1–3"]


def test_lanes_are_bounded_and_show_ranks_with_moments_first() -> None:
    moments = [Moment(demo.T0 + i * demo.SECOND, 500 + i, "exit", "ended") for i in range(5)]
    drawing = lanes(moments, [ProcessView(0, "h", rank, "unknown", demo.T0, demo.T0) for rank in range(64)])
    assert drawing is not None
    names = [text.text for text in ET.fromstring(drawing.svg).iter("text") if text.get("class") == "lane-name"]
    assert len(names) == MAX_LANES
    assert names[-5:] == [f"rank {500 + i}" for i in range(5)]
    assert drawing.n_hidden == 64 + 5 - MAX_LANES


def test_numbers_on_a_lane_never_lie_on_each_other() -> None:
    chance = random.Random(3)
    times = sorted(demo.T0 + int(chance.random() ** 3 * 100 * demo.SECOND) for _ in range(250))
    drawing = lanes([Moment(ts, 0, "exit", "ended") for ts in times], [])
    assert drawing is not None
    chips = [item for item in ET.fromstring(drawing.svg).iter("rect") if item.get("class") == "chip"]
    spans = [(float(chip.get("x", 0)), float(chip.get("width", 0))) for chip in chips]
    assert len(spans) > 10
    assert all(a + width <= b for (a, width), (b, _) in pairwise(spans))


def test_lanes_hold_moments_that_are_a_nanosecond_apart() -> None:
    drawing = lanes([Moment(demo.T0 + n, n, "exit", f"ended {n}") for n in range(2)], [])
    assert drawing is not None and "+0.001 µs" in drawing.svg


def test_there_are_no_lanes_without_two_comparable_moments() -> None:
    assert lanes([], []) is None
    assert lanes([Moment(demo.T0, 0, "exit", "ended")], []) is None
    assert lanes([Moment(demo.T0, 0, "exit", "ended"), Moment(5, 0, "exit", "boot clock")], []) is None
