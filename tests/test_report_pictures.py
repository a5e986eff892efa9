"""The pictures of a report: each is well-formed, says in words what it shows, and has its figures in its table."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import picture_demo as demo
import pytest

from forensics.report.exhibit import Exhibit
from forensics.report.exhibits import exhibits
from forensics.report.pictures import Operation, Picture
from forensics.report.provenance_svg import MAX_NODES, provenance

HOSTILE = '<script>alert(1)</script>&"\x1b[31m\u202e' + "x" * 300


def drawn(view: Picture) -> Exhibit:
    _, made = exhibits([view])
    assert len(made) == 1
    return made[0]


def parsed(svg: str | None) -> ElementTree.Element:
    assert svg is not None
    return ElementTree.fromstring(svg)


def marks(root: ElementTree.Element, *classes: str) -> int:
    return sum(1 for item in root.iter() if set(classes) <= set((item.get("class") or "").split()))


def words(exhibit: Exhibit) -> str:
    return " | ".join(cell for row in exhibit.twin.rows for cell in row)


@pytest.mark.parametrize("view", demo.every(HOSTILE), ids=lambda view: type(view).__name__)
def test_hostile_names_stay_text(view: Picture) -> None:
    exhibit = drawn(view)
    if not exhibit.svg:
        return
    root = parsed(exhibit.svg)
    assert {item.tag.rpartition("}")[2] for item in root.iter()} <= {
        *("svg", "g", "title", "desc", "text", "path", "rect", "circle", "polygon")
    }
    assert "\x1b" not in exhibit.svg and "\u202e" not in exhibit.svg
    assert not any(name in item.attrib for item in root.iter() for name in ("style", "onclick", "href"))


@pytest.mark.parametrize("view", demo.every(), ids=lambda view: type(view).__name__)
def test_every_picture_has_words_and_a_table(view: Picture) -> None:
    exhibit = drawn(view)
    assert exhibit.lead.endswith(".")
    assert exhibit.twin.rows
    assert all(len(row) == len(exhibit.twin.headers) for row in exhibit.twin.rows)


def test_the_picture_of_the_cause_comes_first() -> None:
    lead, others = exhibits(demo.every(), "memory-fragmentation")
    assert lead is not None and lead.id.startswith("segments")
    assert len(others) == len(demo.every()) - 1
    lead, _ = exhibits(demo.every(), "memory-leak")
    assert lead is not None and lead.id.startswith("memory")
    assert exhibits(demo.every(), "serving-engine-died")[0] is None


def test_births_the_way_and_victims_are_marked_apart() -> None:
    root = parsed(provenance(demo.provenance().operations))
    assert [marks(root, "op-box", role) for role in ("birth", "path", "healthy")] == [1, 2, 1]
    assert marks(root, "victim") == 1
    assert marks(root, "edge", "way") == 2
    assert "5 inf of 48" in [item.text for item in root.iter()]


def test_without_a_birth_nothing_is_drawn() -> None:
    assert provenance([Operation(0, "aten::mm", "healthy", "forward")]) is None


def test_of_many_operators_the_finite_ones_are_left_out_and_counted() -> None:
    many = [Operation(i, "aten::mm", "healthy", "forward", sources=(i - 1, i - 7)) for i in range(10, 3000)]
    before = time.process_time()
    root = parsed(provenance([*demo.provenance().operations, *many]))
    assert time.process_time() - before < 2.0
    assert marks(root, "op-box", "birth") == 1
    described = next(item.text for item in root.iter() if item.tag.endswith("desc"))
    assert described is not None and f"{len(many) + 5 - MAX_NODES:,} not drawn".replace(",", "") in described


def test_a_long_way_fits_the_page_and_is_folded_in_its_middle() -> None:
    way = [Operation(i, f"aten::op{i}", "path", "forward", sources=(i - 1,)) for i in range(2, 40)]
    spread = [Operation(100 + i, "aten::mul", "victim", "backward", sources=(i,)) for i in range(5, 30)]
    root = parsed(provenance([*demo.provenance().operations[:2], *way, *spread]))
    assert float(root.get("width", 0)) <= 1100
    texts = [item.text for item in root.iter() if item.tag.endswith("text")]
    assert {"aten::softmax", "aten::log", "aten::op2", "aten::op39"} <= set(texts)
    folded = [int(said.removesuffix(" more")) for said in texts if said and said.endswith(" more")]
    assert len(folded) == 2, "one in each lane"
    drawn = marks(root, "op-box", "path") - 1 + marks(root, "victim") - 1  # less the fold of each lane
    assert drawn + sum(folded) == len(way) + len(spread)


def test_a_failed_request_stands_above_what_was_reserved() -> None:
    exhibit = drawn(demo.memory())
    assert "64 MiB" in exhibit.lead and "event 99" in exhibit.lead
    root = parsed(exhibit.svg)
    assert marks(root, "level", "limit") == 2 and marks(root, "level", "fits") == 2, "the line, and its key"
    assert marks(root, "stairs") >= 2
    assert "70 MiB" in words(exhibit)


def test_a_thinned_history_says_so() -> None:
    assert "lowest and highest" in " ".join(drawn(replace(demo.memory(), n_events=90_000)).notes)
    assert not drawn(demo.memory()).notes


def test_pinning_blocks_are_marked_and_listed_by_what_they_part() -> None:
    exhibit = drawn(demo.segments())
    assert marks(parsed(exhibit.svg), "pin") == 2, "the block, and its key"
    assert "longer than any free run" in exhibit.lead
    assert exhibit.twin.rows[0][:3] == ["row 1", "1 MiB", "7 MiB"]


def test_the_call_that_broke_a_capture_is_named_with_its_lane_and_time() -> None:
    exhibit = drawn(demo.capture())
    assert exhibit.lead.startswith("cudaStreamSynchronize on thread 2 broke the capture 5 µs after its begin")
    assert marks(parsed(exhibit.svg), "call", "offence") == 1


def test_the_rank_that_others_wait_for_stands_out() -> None:
    exhibit = drawn(demo.waits())
    assert "rank 2" in exhibit.lead and "never made the call" in exhibit.lead
    root = parsed(exhibit.svg)
    assert marks(root, "reach", "culprit") == 1 and marks(root, "wait", "unknown") == 1
    assert "no dump" in words(exhibit)


def test_what_is_not_finite_is_crossed_and_what_is_missing_is_left_out() -> None:
    exhibit = drawn(demo.grid())
    root = parsed(exhibit.svg)
    assert marks(root, "h-lost") == 1
    assert sum(marks(root, f"h{i}") for i in range(6)) == 4 + 6, "four cells, and six of the key"
    assert "9 s" in exhibit.lead and "Not finite from step 5" in exhibit.lead


def test_a_tensor_on_another_device_than_declared_stands_out() -> None:
    exhibit = drawn(demo.devices())
    assert "layers.3.weight lies on meta, declared cuda:1" in exhibit.lead
    root = parsed(exhibit.svg)
    assert marks(root, "stretch", "misplaced") == 1 and marks(root, "declared") == 1
    assert exhibit.twin.rows[1][-1] == "not as declared"


def test_the_last_steps_keep_every_step_and_what_was_said() -> None:
    exhibit = drawn(demo.steps())
    assert len(exhibit.twin.rows) == 10
    assert exhibit.twin.headers == ["Step", "Rank", "Loss", "my_metric", "What happened"]
    assert exhibit.twin.rows[-1][-1] == "RuntimeError: nan"


def test_the_board_marks_what_is_beyond_a_bad_limit_and_says_how_often_a_threshold_was_passed() -> None:
    exhibit = drawn(demo.board())
    assert "zero / all elements of the gradients 0.9" in exhibit.lead and "longest / all" not in exhibit.lead
    root = parsed(exhibit.svg)
    assert [marks(root, "measure", standing) for standing in ("bad", "between", "healthy")] == [1, 1, 0]
    assert marks(root, "limit-mark") == 5
    assert "3.96, 4 times the threshold" in [item.text for item in root.iter()]
    bar = next(item for item in root.iter() if "measure" in (item.get("class") or ""))
    mark = next(item for item in root.iter() if item.get("class") == "limit-mark")
    assert float(bar.get("x", 0)) + float(bar.get("width", 0)) > float(mark.get("d", "M0 ").split()[0][1:])


def test_a_chain_of_holders_ends_in_what_lives_by_itself_and_a_long_one_is_shortened() -> None:
    exhibit = drawn(demo.references())
    assert "variable evaluator of main (job.py:50): 20 tensors of 320 MiB together" in exhibit.lead
    root = parsed(exhibit.svg)
    assert marks(root, "op-box") == 3 + 5 and marks(root, "op-box", "birth") == 2
    assert "3 more" in [item.text for item in root.iter()]
    assert exhibit.twin.rows[1][-1].endswith("d ← module job"), "the table has all of it"
    assert exhibit.notes == ["3 more ways not drawn."]


def test_each_pair_of_gpus_stands_with_its_path() -> None:
    exhibit = drawn(demo.topology())
    assert exhibit.lead == (
        "Of 3 pairs, 2 by SYS (the interconnect between processors); 1 by NV12 (12 links of NVLink)."
    )
    root = parsed(exhibit.svg)
    assert [marks(root, shade) for shade in ("h1", "op-box")] == [2, 4]
    assert "near processors 0-31" in [item.text for item in root.iter()]
    assert exhibit.notes == ["1 more GPU not drawn."]
