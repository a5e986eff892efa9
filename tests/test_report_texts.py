"""Texts of a report: escaping, cutting, units, and the renderings for tickets and terminals."""

from __future__ import annotations

import dataclasses
import re

import pytest
import report_demo as demo
from test_report_page import HOSTILE, hostile_report

from forensics.report import text
from forensics.report.markdown import code, escape, fence, render_markdown
from forensics.report.page import is_prose, parted
from forensics.report.terminal import render_terminal
from forensics.report.view import Report


def test_invisible_characters_become_escapes_and_letters_of_all_scripts_stay() -> None:
    assert text.visible("a\x1b[31m\u202e\u2028\U000e0041b") == "a\\x1b[31m\\u202e\\u2028\\U000e0041b"
    assert text.visible("שלום 你好 naïve é") == "שלום 你好 naïve é"
    assert text.visible("e" + "\u0301" * 50).count("\\u0301") == 47
    assert text.visible("a\tb\n", keep="\t\n") == "a\tb\n"


def test_one_line_joins_lines_and_says_what_it_leaves_out() -> None:
    assert text.one_line("a\r\n  b\tc") == "a b c"
    assert text.one_line("x" * 100_000, 50) == "x" * 50 + " … (99,950 more characters)"
    assert text.one_line("x" * 54, 50) == "x" * 54, "a note longer than what it replaces helps nobody"


def test_a_block_keeps_lines_and_is_bounded_in_both_directions() -> None:
    assert text.block("a\r\n\tb\n\n") == "a\n\tb"
    assert text.block("row\n" * 1_000, lines=3) == "row\nrow\nrow\n… (3,989 more characters)"
    assert len(text.block("y" * 100_000)) < 6_100


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (0.934, "93 %"),
        (1.0, "100 %"),
        (0.9999, "> 99 %"),
        (0.001, "< 1 %"),
        (0.0, "0 %"),
        (None, ""),
        (float("nan"), ""),
    ],
)
def test_a_probability_is_never_rounded_to_certainty(ratio: float | None, shown: str) -> None:
    assert text.percent(ratio) == shown


def test_sizes_and_times_carry_their_units() -> None:
    assert [text.size(n) for n in (0, 1023, 1024, 29_411, 812_331_008, 5 << 40)] == [
        "0 B", "1,023 B", "1 KiB", "28.7 KiB", "775 MiB", "5 TiB",
    ]  # fmt: skip
    assert text.moment(demo.T0) == "2026-09-02 10:02:11.318 UTC"
    assert text.moment(demo.T0, date=False) == "10:02:11.318"
    assert text.moment(1_500_000_000) == "+1.500 s"
    assert text.moment(None) == ""
    assert text.moment(2**62) == "2116-02-20 23:53:38.427 UTC"
    assert text.moment(10**30).endswith(" ns")


def test_the_ticket_holds_the_verdict_the_fix_the_evidence_and_the_gaps() -> None:
    ticket = render_markdown(demo.root_cause())
    assert ticket.startswith("## Root cause: A NaN was born in aten::log on rank 1 at step 217")
    assert "| line | losses.py:88 |" in ticket
    assert "```text\n# losses.py, line 88\n" in ticket
    assert "`tensors/rank1.jsonl` line 4711 – finite input, NaN output" in ticket
    assert "Cannot prove: Why the input was negative" in ticket
    assert "nsys profile --trace=cuda,nvtx" in ticket
    assert ticket.endswith("artifacts `job-88213/artifacts`_\n")
    assert len(ticket) < 10_000


@pytest.mark.parametrize("name", ["healthy", "not_established", "independent"])
def test_every_status_has_a_ticket(name: str) -> None:
    report = getattr(demo, name)()
    assert render_markdown(report).startswith("## ")
    assert render_markdown(report) == render_markdown(getattr(demo, name)())


def test_nothing_in_a_ticket_becomes_markup_a_mention_or_a_link() -> None:
    assert escape("<b>*x* [a](b) `c` | ~d~ $e$") == r"\<b\>\*x\* \[a\](b) \`c\` \| \~d\~ \$e\$"
    assert "://" not in escape("see https://evil.example and www.evil.example")
    assert not re.search(r"[@#]\w", escape("ping @org/team about #12"))
    for start in ("# title", "- item", "1. item", "> quote", "+ item", "=== rule"):
        assert re.match(r"\d*\\", escape(start, start=True))


def test_backticks_never_end_a_code_span_or_block() -> None:
    assert code("a``b`") == "``` a``b` ```"
    assert fence("````\nx")[0] == "`````text"
    ticket = render_markdown(hostile_report("```\n## injected\n" + HOSTILE))
    depth = None
    for line in ticket.split("\n"):
        ticks = re.match(r"\s*(`{3,})(text)?$", line)
        if ticks and depth is None:
            depth = ticks[1]
        elif ticks and depth is not None and len(ticks[1]) >= len(depth):
            depth = None
        elif depth is None:
            assert not line.lstrip().startswith("## injected")
            outside = re.sub(r"(`+).*?\1", "", re.sub(r"\\.", "", line))
            assert "<script>" not in outside
    assert depth is None


def test_the_terminal_gets_a_few_plain_lines() -> None:
    shown = render_terminal(demo.root_cause())
    assert shown.startswith("ROOT CAUSE  93 % sure, 82 to 98 %, evidence: proof\n")
    assert "\x1b" not in shown
    lines = shown.split("\n")
    assert len(lines) < 20
    assert max(map(len, lines)) <= 100
    assert "  where       rank 1, step 217, op aten::log" in shown
    assert "  evidence    tensors/rank1.jsonl line 4711" in shown
    assert "3 alternatives ruled out by evidence, no sign of 3" in shown and "more, 5 not checked" in shown


def test_the_terminal_is_coloured_only_when_asked_and_never_by_an_artifact() -> None:
    assert render_terminal(demo.healthy(), colour=True).startswith("\x1b[1;32mHEALTHY\x1b[0m")
    hostile = render_terminal(hostile_report())
    assert not [char for char in hostile if char != "\n" and not char.isprintable()]
    assert "\\x1b[31m" in hostile


def test_a_report_without_a_cause_says_what_to_capture_next_time() -> None:
    shown = render_terminal(demo.not_established())
    assert shown.startswith("NOT ESTABLISHED")
    assert "  evidence    logs/rank0.stderr line 188" in shown
    assert "  next time   export TORCH_FR_BUFFER_SIZE=2000" in shown


def test_all_causes_are_listed_in_the_terminal_but_at_most_five() -> None:
    report = demo.independent()
    assert render_terminal(report).count("\n  cause ") == 2
    many = dataclasses.replace(report, findings=tuple(dataclasses.replace(report.findings[0], id=i) for i in range(9)))
    assert "and 4 more causes" in render_terminal(many)


def test_the_same_fault_elsewhere_is_no_consequence() -> None:
    report = demo.root_cause()
    twin = dataclasses.replace(report.findings[0], id=99, role="consequence", explained_by=1, same_fault=True, rank=7)
    lines = render_terminal(dataclasses.replace(report, findings=(*report.findings, twin))).split("\n")
    assert any(line.startswith("  as well ") for line in lines)
    assert [line for line in render_terminal(report).split("\n") if line.startswith("  led to ")] == [
        line for line in lines if line.startswith("  led to ")
    ]


def test_long_and_empty_reports_stay_readable() -> None:
    assert len(render_terminal(hostile_report("z" * 100_000))) < 15_000
    assert len(render_markdown(hostile_report("z" * 100_000))) < 60_000
    assert len(render_markdown(demo.many(2_000))) < 40_000
    empty = Report("", "", "forensics", demo.view.VerdictView("not-established", "The folder is empty."))
    assert "0 artifacts" in render_terminal(empty)
    assert render_markdown(empty).startswith("## Cause not established: The folder is empty.")


def test_what_is_to_be_read_is_wrapped_and_what_is_to_be_run_is_not() -> None:
    read = (
        "forensics checkpoint-collisions FOLDER lists all sources; with --write PATCH it writes a patch that keeps one."
    )
    assert is_prose(read) and is_prose("Set A=1 and run again.")
    assert not is_prose("export A=1\npython train.py") and not is_prose("pip install -e .")
    report = demo.root_cause()
    long = dataclasses.replace(report, verdict=dataclasses.replace(report.verdict, fix=read))
    assert max(map(len, render_terminal(long).split("\n"))) <= 100


def test_consequences_of_one_kind_are_told_once_with_their_ranks() -> None:
    report = demo.root_cause()
    one = next(f for f in report.findings if f.role == "consequence")
    same = tuple(dataclasses.replace(one, id=10 + rank, rank=rank, title="The connection broke") for rank in (3, 1, 0))
    shown = render_terminal(dataclasses.replace(report, findings=(report.findings[0], *same)))
    assert "  led to      The connection broke 3 times: ranks 0, 1, 3\n" in shown


def test_a_long_sentence_is_parted_at_a_semicolon_into_heading_and_more() -> None:
    assert parted("Rank 1 failed; it was short") == ("Rank 1 failed; it was short", "")
    began = f"Tokens came late while {'x' * 60}; prompts to compute are {'y' * 60}"
    long = f"{began}; to the first token it took not some tenths but 2 s"
    assert parted(long) == (long.rpartition("; ")[0], "To the first token it took not some tenths but 2 s.")
    colon = f"Tokens came late {'x' * 60}: not one block {'y' * 120}; more"
    assert parted(colon) == (colon.partition(": ")[0], f"Not one block {'y' * 120}; more.")
    assert parted(f"A checkpoint {'x' * 150}; head.weight is larger than in the file by one row")[1].startswith("head.")
    assert parted("z" * 400) == ("z" * 400, "")
