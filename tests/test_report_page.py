"""The page: what stands where, that it asks for nothing, that hostile texts stay texts, that it is bounded."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from itertools import pairwise
from typing import Any

import picture_demo
import pytest
import report_demo as demo
from report_tree import Node, parse

from forensics.report.html import link, render_html
from forensics.report.markdown import render_markdown
from forensics.report.view import ChainEdge, ChainNode, EvidenceView, Report
from forensics.report.witnesses import witnesses

HOSTILE = (
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)> {{7*7}} {% x %} "
    "</style></title></textarea><!-- \u202egnp.exe\u2066 \x1b[31m\x00\ud800\u200b ]]> javascript:alert(3)"
)
CASES = {
    "root-cause": demo.root_cause,
    "independent": demo.independent,
    "not-established": demo.not_established,
    "healthy": demo.healthy,
}


def poisoned(value: Any, text: str) -> Any:
    """The same report with every text replaced, statuses and ids of the vocabulary kept."""
    if isinstance(value, str):
        return text
    if isinstance(value, tuple):
        return tuple(poisoned(item, text) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: poisoned(getattr(value, f.name), text) for f in dataclasses.fields(value)}
        )
    return value


def hostile_report(text: str = HOSTILE) -> Report:
    report = demo.root_cause()
    bad = poisoned(report, text)
    nodes = tuple(
        ChainNode(str(i), text, text, node.kind, text, node.finding) for i, node in enumerate(report.chain_nodes)
    )
    return dataclasses.replace(
        bad,
        verdict=dataclasses.replace(bad.verdict, status="root-cause"),
        findings=tuple(dataclasses.replace(b, role=f.role) for b, f in zip(bad.findings, report.findings, strict=True)),
        chain_nodes=nodes,
        chain_edges=tuple(ChainEdge(str(i), str(i + 1), text) for i in range(len(nodes) - 1)),
        pictures=picture_demo.every(text),
        series=tuple(dataclasses.replace(s, axis="step") for s in bad.series),
    )


@pytest.fixture(scope="module", params=list(CASES))
def page(request: pytest.FixtureRequest) -> Node:
    return parse(render_html(CASES[request.param]()))


def test_every_page_has_one_title_one_heading_and_unique_ids(page: Node) -> None:
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert page.one("html").attributes["lang"] == "en"
    ids = [node.attributes["id"] for node in page.walk() if "id" in node.attributes]
    assert len(set(ids)) == len(ids)


def test_every_link_within_the_page_has_its_target(page: Node) -> None:
    ids = {node.attributes["id"] for node in page.walk() if "id" in node.attributes}
    targets = [a.attributes["href"][1:] for a in page.all("a") if a.attributes["href"].startswith("#")]
    assert len(targets) > 5
    assert set(targets) <= ids
    named = [n.attributes[k] for n in page.walk() for k in ("aria-labelledby", "aria-describedby") if k in n.attributes]
    assert set(named) <= ids


def test_headings_never_skip_a_level(page: Node) -> None:
    levels = [int(node.tag[1]) for node in page.walk() if re.fullmatch("h[1-6]", node.tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_page_asks_for_nothing(page: Node) -> None:
    for node in page.walk():
        assert node.tag not in {"img", "iframe", "object", "embed", "form", "base", "video", "audio", "source"}
        assert "style" not in node.attributes, "the content policy blocks style attributes"
        assert not [name for name in node.attributes if name.startswith("on")]
        for name in ("src", "srcset", "action", "xlink:href", "poster"):
            assert name not in node.attributes
        if node.tag == "link":
            assert node.attributes == {"rel": "icon", "href": "data:,"}


def test_the_policy_allows_exactly_the_pages_own_style_and_script() -> None:
    text = render_html(demo.root_cause())
    policy = next(
        m.attributes["content"]
        for m in parse(text).all("meta")
        if m.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    for tag in ("style", "script"):
        inline = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert len(inline) == 1
        digest = base64.b64encode(hashlib.sha256(inline[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert "url(" not in re.findall(r"<style>(.*?)</style>", text, re.S)[0]


def test_the_first_screen_answers_what_where_how_sure_and_what_to_do() -> None:
    verdict = parse(render_html(demo.root_cause())).one("section", "verdict")
    status = verdict.one("p", "status")
    assert status.text.startswith("Root cause") and status.one("span", "fault").text == demo.findings()[0].title
    assert (
        verdict.one("h1").text
        == "A NaN was born in aten::log on rank 1 at step 217; rank 0 then timed out waiting for it."
    )
    where = {div.one("dt").text: div.one("dd").text for div in verdict.one("dl", "culprit").all("div")}
    assert where["rank"] == "1"
    assert where["step"] == "217"
    assert where["op"] == "aten::log"
    assert where["line"] == "losses.py:88"
    assert verdict.one("p", "figure").text == "93 % likely 82 to 98 %"
    assert "41 of 44" in verdict.text
    assert "Evidence: proof." in verdict.text
    assert "Not proved: Why the input was negative" in verdict.text
    assert verdict.one("div", "copy").one("code").text.startswith("# losses.py, line 88")
    shown = verdict.one("div", "shown-at").one("figure", "place")
    assert shown.one("figcaption").text.startswith("tensors/rank1.jsonl line 4711")
    assert shown.one("code").text == " ".join(demo.findings()[0].evidence[0].text.split())


def test_where_is_never_empty() -> None:
    report = demo.root_cause()
    verdict = dataclasses.replace(report.verdict, culprit=(("evidence", "tensors/rank1.jsonl:4711"),))
    section = parse(render_html(dataclasses.replace(report, verdict=verdict))).one("section", "verdict")
    assert section.one("dl", "culprit").one("dd").text == "tensors/rank1.jsonl:4711"


def test_the_chain_is_drawn_with_links_to_its_findings_and_told_in_words() -> None:
    page = parse(render_html(demo.root_cause()))
    drawing = page.one("svg", "chain")
    assert [a.attributes["href"] for a in drawing.all("a")] == ["#finding-1", "#finding-2", "#finding-3"]
    assert len(drawing.all("path", "wire")) == 2
    assert drawing.one("title").text == "Causal chain"
    assert "peers wait for a member" in drawing.one("desc").text
    assert len(page.one("section", "chain-box").one("ol").all("li")) == 2


def test_consequences_are_folded_under_their_cause() -> None:
    page = parse(render_html(demo.root_cause()))
    root = page.by_id("finding-1")
    assert root.one("details", "card").attributes.get("open") == ""
    inner = root.one("div", "below").by_id("finding-2")
    assert "open" not in inner.one("details", "card").attributes
    assert inner.one("div", "below").by_id("finding-3")
    assert [p.text for p in page.all("p", "group-h")] == ["Root cause", "Other findings"]


def test_a_finding_shows_what_it_proves_its_evidence_and_its_query() -> None:
    root = parse(render_html(demo.root_cause())).by_id("finding-1")
    claims = {div.one("dt").text: div.one("dd").text for div in root.one("dl", "claims").all("div")}
    assert set(claims) == {"This proves", "It cannot prove", "Limits of this evidence"}
    place = root.one("figure", "place")
    assert place.one("figcaption").text == "tensors/rank1.jsonl line 4711 finite input, NaN output"
    assert [row.attributes["data-n"] for row in place.all("span", "row")] == ["4711", "4712"]
    basis = root.one("details", "basis")
    assert "numerics-nan-provenance" in basis.text
    assert "SELECT born.*, op.text AS op" in basis.one("pre", "query").text
    threshold = basis.all("table", "facts")[1].one("tbody")
    assert [cell.text for cell in threshold.walk() if cell.tag in {"th", "td"}][:2] == ["min_recorded_share", "0.95"]
    assert [a.attributes["rel"] for a in basis.one("ul", "refs").all("a")] == ["noopener noreferrer"] * 2


def test_commands_that_would_have_helped_stand_once_each() -> None:
    page = parse(render_html(demo.root_cause()))
    section = page.by_id("not-checked")
    assert len(section.all("div", "gap")) == 3
    assert section.one("div", "gap").one("code").text.startswith("torch.cuda.memory._record_memory_history")
    assert "would let 3 rules run" in section.one("div", "gap").text


def test_a_page_without_a_cause_shows_the_earliest_anomaly_and_what_to_capture() -> None:
    verdict = parse(render_html(demo.not_established())).one("section", "verdict")
    assert verdict.one("p", "status").text == "Cause not established"
    assert "its log ends at step 140" in verdict.one("p", "reason").text
    assert "logs/rank0.stderr line 188" in verdict.one("figure", "place").text
    assert len(verdict.one("ul", "settle").all("code")) == 3
    assert "no figure" not in verdict.text


def test_a_healthy_page_says_how_the_processes_ended_and_calls_for_nothing() -> None:
    page = parse(render_html(demo.healthy()))
    verdict = page.one("section", "verdict")
    assert verdict.one("p", "status").text == "Healthy"
    assert verdict.one("ul", "ended").text == "2 processes: completed: exit code 0"
    assert not verdict.all("div", "do")
    assert not page.all("svg", "chain")


def test_independent_causes_are_all_named_on_the_first_screen() -> None:
    verdict = parse(render_html(demo.independent())).one("section", "verdict")
    assert [a.attributes["href"] for a in verdict.one("ol", "causes").all("a")] == ["#finding-1", "#finding-4"]


def test_an_empty_report_is_a_whole_page() -> None:
    empty = Report("", "", "forensics", demo.view.VerdictView("not-established", "The folder is empty."))
    page = parse(render_html(empty))
    assert page.one("h1").text == "The folder is empty."
    assert "no artifact was found" in page.text


def test_hostile_texts_change_no_element_of_the_page() -> None:
    def shape(node: Node) -> list[str]:
        return [
            n.tag
            for n in node.walk()
            if n.tag not in {"tspan", "text", "polyline"} and "esc" not in n.attributes.values()
        ]

    harmless = parse(render_html(hostile_report("x" * len(HOSTILE))))
    hostile = parse(render_html(hostile_report()))
    # A wbr only lets a long word break.
    assert {n.tag for n in hostile.walk()} - {"wbr"} <= {n.tag for n in harmless.walk()}
    assert len(hostile.all("script")) == len(hostile.all("style")) == 1
    for node in hostile.walk():
        assert not [name for name in node.attributes if name.startswith("on") or name in {"src", "style"}]
        assert "alert" not in node.attributes.get("href", "") + node.attributes.get("class", "")
        assert re.fullmatch(r"[\w -]*", node.attributes.get("class", ""))
    for part in ("header", "footer"):
        assert shape(hostile.one(part)) == shape(harmless.one(part))
    assert hostile.one("h1").text.startswith("</script><script>alert(1)")
    assert "{{7*7}}" in hostile.one("h1").text


def test_invisible_and_reordering_characters_are_shown_as_escapes() -> None:
    text = render_html(hostile_report())
    assert not set(text) & {"\u202e", "\u2066", "\x1b", "\x00", "\ud800", "\u200b"}
    escapes = {span.text for span in parse(text).all("span", "esc")}
    assert {"\\u202e", "\\u2066", "\\x1b", "\\x00", "\\ud800", "\\u200b"} <= escapes
    text.encode("utf-8")


def test_texts_of_100_000_characters_are_cut_and_the_page_says_so() -> None:
    text = render_html(hostile_report("y" * 100_000))
    assert len(text) < 400_000
    assert "(99,400 more characters)" in text


def test_thousands_of_everything_are_bounded_and_the_page_says_so() -> None:
    report = demo.many(3_000)
    text = render_html(report)
    page = parse(text)
    assert len(text) < 1_000_000
    assert "more findings are not on this page" in page.by_id("findings").text
    assert "more artifacts not shown here" in page.by_id("artifacts").text
    assert "more warnings not shown here" in page.by_id("warnings").text
    assert "more ranks not drawn" in page.by_id("series").text
    assert "2,999 more findings of this rule" in page.by_id("finding-1").text
    shown = [n for n in page.walk() if n.attributes.get("id", "").startswith("finding-")]
    assert 300 < len(shown) < 500


def test_the_fullest_page_stays_below_five_megabytes() -> None:
    text = render_html(demo.fullest())
    assert len(text.encode()) < 5_000_000
    assert "from up to 100,000 points a rank by the lowest and highest" in parse(text).by_id("series").text


def test_a_typical_page_is_small() -> None:
    assert len(render_html(demo.root_cause()).encode()) < 150_000, "seven pictures among it"


def test_the_same_report_gives_the_same_bytes() -> None:
    assert render_html(demo.root_cause()) == render_html(demo.root_cause())


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "//evil", "https://a\u202eb", "https://" + "a" * 600]
)
def test_only_short_plain_web_addresses_become_links(url: str) -> None:
    assert "<a" not in link(url)
    assert link("https://docs.pytorch.org/x?a=1&b=2").startswith('<a href="https://docs.pytorch.org/x?a=1&amp;b=2"')


def test_the_first_screen_shows_the_places_that_hold_the_figures_and_names_of_the_message() -> None:
    finding = demo.root_cause().findings[0]
    places = [EvidenceView("a", "row", n, f"rank {n} of the group") for n in range(6)]
    places[4] = EvidenceView("a", "row", 4, "checksum 8f3a of w.bias")
    told = dataclasses.replace(
        finding, message="w.bias differs: 8f3a on rank 0, other on rank 5", evidence=tuple(places)
    )
    assert [place.position for place in witnesses(told)] == [0, 4, 5]
    noted = tuple(dataclasses.replace(place, note="one more") for place in places)
    assert [place.position for place in witnesses(dataclasses.replace(told, evidence=noted))] == [0, 1, 4, 5]
    assert witnesses(dataclasses.replace(told, evidence=(EvidenceView("a", "row", 1),))) == []


def test_what_rows_rule_out_stands_apart_from_what_only_left_no_sign() -> None:
    report = demo.root_cause()
    shown = parse(render_html(report)).by_id("ruled-out").text
    assert "Rows of the evidence speak against these." in shown and "nccl/trace_1" in shown
    assert "No sign of 3 other faults in what was read" in shown
    assert "No sign in: errors and messages that the process printed." in shown
    lines = render_markdown(report)
    assert "### Ruled out by evidence" in lines and "No sign of 3 other faults in what was read" in lines


def test_what_stands_beside_each_other_is_parted_by_blanks() -> None:
    report = demo.root_cause()
    page = parse(render_html(report))
    said = " ".join(page.text.split())
    assert "memory-whatif; Live memory grows step by step" in said
    assert not re.search(r'"(open|class=)', render_html(report).partition("<body")[2].partition("<script>")[0])
