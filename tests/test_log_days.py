"""Logs whose lines tell the hour only: their days, midnights, and what is no time of day at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import MemorySink, load
from test_clocks import NOON, SECOND, build, clock, first_ns, rows_of, warnings

from forensics.formats import log

HOUR = 3600 * SECOND
DAY = 24 * HOUR
FIRST_DAY = 946_684_800 * SECOND  # 1 January of the year that stands for an unknown one
NOON_OF_1_MARCH = 1_772_366_400 * SECOND


def read(tmp_path: Path, text: str) -> MemorySink:
    (tmp_path / "rank_0.log").write_text(text)
    return load(log, tmp_path / "rank_0.log")


def times(sink: MemorySink) -> list[Any]:
    return [row["ts_ns"] for row in sink.rows("log_event")]


@pytest.mark.parametrize(
    "line",
    [
        "10:07:33 ERROR it broke",
        "10:07:33,250 - train.loop - ERROR - it broke",
        "10:07:33.250 | ERROR    | train:main:3 - it broke",
        "[10:07:33] ERROR: it broke",
        "[10:07:33] ERROR    it broke                     train.py:9",
        "10:07:33 [ERROR] it broke",
        "[rank0]: 10:07:33 ERROR it broke",
    ],
)
def test_a_time_of_day_with_a_level_is_a_stamp(tmp_path: Path, line: str) -> None:
    sink = read(tmp_path, line.replace("ERROR", "INFO").replace("10:07:33", "10:07:20") + "\n" + line + "\n")
    assert sink.clock_kind == "dayless"
    assert [ns // SECOND for ns in times(sink)] == [(FIRST_DAY + 10 * HOUR) // SECOND + 7 * 60 + 33]
    assert sink.rows("log_event")[0]["level"] == "error"


@pytest.mark.parametrize(
    "text",
    [
        "00:00:02 INFO start\n00:00:39 ERROR it broke\n",  # since the start of the program
        "[00:00:03] loading\n[00:00:05] loaded\n[00:00:39] RuntimeError: it broke\n",
        " 10:07:33 up 3 days,  2:11,  1 user,  load average: 0.10\nRuntimeError: it broke\n",
        "10:07:33 remaining\nRuntimeError: it broke\n",
        "[02:07:33] 45%\nRuntimeError: it broke\n",  # a single one
        "99:07:33 ERROR it broke\n",
    ],
)
def test_durations_are_no_stamps(tmp_path: Path, text: str) -> None:
    sink = read(tmp_path, text)
    assert (sink.clock_kind, sink.warnings) == ("none", [])
    assert set(times(sink)) == {None}


def test_a_time_without_a_level_is_a_stamp_where_most_lines_have_one_in_order(tmp_path: Path) -> None:
    lines = "[11:07:33] /src/tree/updater.cc:12: tree\n" * 3
    assert times(read(tmp_path, lines + "[11:07:39] RuntimeError: it broke\n")) == [
        FIRST_DAY + 11 * HOUR + 459 * SECOND
    ]
    assert times(read(tmp_path, "plain\n" * 6 + lines + "[11:07:39] RuntimeError: it broke\n")) == [None]


def test_a_time_that_rich_leaves_out_takes_no_level_away(tmp_path: Path) -> None:
    sink = read(tmp_path, "[10:07:33] INFO     loaded    a.py:3\n           ERROR    it broke\n[10:07:35] INFO     x\n")
    row = sink.rows("log_event")[0]
    assert (row["level"], row["message"], row["ts_ns"]) == ("error", "it broke", None)


def test_rich_may_write_the_date_too(tmp_path: Path) -> None:
    sink = read(tmp_path, "[03/01/26 12:00:00] INFO     loaded\n[03/01/26 12:00:01] ERROR    it broke\n")
    assert (sink.clock_kind, times(sink)) == ("local", [NOON_OF_1_MARCH + SECOND])


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("2026-03-01 11:59:58 INFO start\n", "local"),
        ("Job started: Sun Mar  1 11:58:11 UTC 2026\n", "local"),
        ("Sun Mar  1 11:58:11 AM UTC 2026\n", "local"),
        ("run directory outputs/2026-03-01_11-58-11, at 2026-03-01 11:58\n", "local"),
        ("data prepared at 2026-03-01 08:00\n", "dayless"),  # not near any line
        ("resumed from 2026-02-28 11:58, at 2026-03-01 11:58\n", "dayless"),  # two days fit
    ],
)
def test_the_day_is_that_of_a_date_near_the_lines(tmp_path: Path, head: str, kind: str) -> None:
    sink = read(tmp_path, head + "12:00:00 INFO a\n12:00:01 ERROR it broke\n")
    assert sink.clock_kind == kind
    assert times(sink) == [(NOON_OF_1_MARCH if kind == "local" else FIRST_DAY + 12 * HOUR) + SECOND]


def test_midnight_passes_between_lines_that_say_nothing(tmp_path: Path) -> None:
    lines = ["23:00:00 INFO begin", *(f"{h:02}:30:00 INFO still there" for h in (23, 0, 5, 11, 17, 23, 4)), ""]
    sink = read(tmp_path, "\n".join(lines) + "05:00:00 ERROR it broke\n")
    assert times(sink) == [FIRST_DAY + 2 * DAY + 5 * HOUR]


def test_lines_out_of_order_around_midnight_change_no_day_for_good(tmp_path: Path) -> None:
    order = [
        "23:59:59 ERROR one broke",
        "00:00:01 ERROR two broke",
        "23:59:59 ERROR three broke",
        "00:00:02 ERROR x broke",
    ]
    text = "23:50:00 INFO start\n" + "".join(f"{line}\n{line[:8]} INFO fine\n" for line in order)
    midnight = FIRST_DAY + DAY
    assert times(read(tmp_path, text)) == [midnight + s * SECOND for s in (-1, 1, -1, 2)]


def test_a_log_that_goes_back_by_hours_is_of_several_writers_not_of_the_next_day(tmp_path: Path) -> None:
    text = "10:00:00 INFO a\n13:00:00 ERROR one broke\n13:00:01 INFO c\n10:00:00 INFO a\n12:59:00 ERROR two broke\n"
    assert times(read(tmp_path, text)) == [FIRST_DAY + 13 * HOUR, FIRST_DAY + 13 * HOUR - 60 * SECOND]


def test_a_date_further_down_is_that_of_the_lines_before(tmp_path: Path) -> None:
    filler = "11:00:00 INFO nothing to see here, going on\n" * 7000  # beyond what is looked at first
    sink = read(tmp_path, "11:00:00 ERROR it broke\n" + filler + "2026-03-01 12:00:00 ERROR it broke again\n")
    assert times(sink) == [FIRST_DAY + 11 * HOUR, FIRST_DAY + 12 * HOUR]
    assert [(fact["key"], fact["value"]) for fact in sink.facts] == [("day", "2026-03-01")]
    con = build(tmp_path, {"a.log": (tmp_path / "rank_0.log").read_text()})
    assert (first_ns(con, "a.log"), warnings(con)) == (NOON_OF_1_MARCH - HOUR, [])


def test_metrics_have_the_days_of_their_lines_however_they_are_read(tmp_path: Path) -> None:
    steps = [(23 * 3600 + 3000 + 20 * n) % 86400 for n in range(90)]
    text = "".join(
        f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02} INFO step {n} loss 1.{n:03}\n" for n, s in enumerate(steps)
    )
    rows = read(tmp_path, text).rows("sample")
    assert [row["ts_ns"] for row in rows] == [FIRST_DAY + (23 * 3600 + 3000 + 20 * n) * SECOND for n in range(90)]


HOURS = "11:59:00 INFO start\n12:00:05 ERROR it broke\n"


def test_the_day_is_that_on_which_the_log_lies_with_dated_artifacts(tmp_path: Path) -> None:
    con = build(tmp_path, {"a.log": HOURS, "other.log": "2026-11-29 11:58:00 ERROR bad thing\n"})
    assert first_ns(con, "a.log") == NOON + 5 * SECOND
    assert {clock(con, name)["timeline"] for name in ("a.log", "other.log")} == {"wall"}
    assert ([row[0] for row in rows_of(con, "a.log")], warnings(con)) == (["day"], ["day-inferred"])


def test_absolute_times_tell_the_day_in_every_zone(tmp_path: Path) -> None:
    con = build(
        tmp_path, {"a.log": HOURS, "other.log": "2026-11-29T17:00:05Z ERROR bad\n2026-11-29T17:01:05Z ERROR b\n"}
    )
    found = clock(con, "a.log")
    assert (found["timeline"], first_ns(con, "a.log")) == ("epoch", NOON + 5 * HOUR + 5 * SECOND)


def test_a_day_among_several_is_not_guessed(tmp_path: Path) -> None:
    other = "2026-11-28 02:00:00 ERROR bad\n2026-11-30 23:00:00 ERROR bad thing\n"
    con = build(tmp_path, {"a.log": HOURS, "other.log": other})
    assert clock(con, "a.log")["timeline"].startswith("wall without day")
    assert first_ns(con, "a.log") < DAY
    con = build(tmp_path / "named", {"train_20261129.log": HOURS, "other.log": other})
    assert first_ns(con, "train_20261129.log") == NOON + 5 * SECOND


def test_a_message_that_another_log_has_too_tells_the_day(tmp_path: Path) -> None:
    message = "CUDA error: device-side assert triggered in the embedding of tokens 50257"
    hours = f"11:59:00 INFO start\n12:00:05 ERROR {message}\n"
    days = "2026-11-28 02:00:00 ERROR b\n2026-11-29 12:00:05 ERROR {}\n2026-11-30 23:00:00 ERROR b\n"
    con = build(tmp_path, {"rank_3.log": hours, "other.log": days.format(f"[rank3]: {message}")})
    assert first_ns(con, "rank_3.log") == NOON + 5 * SECOND
    con = build(tmp_path / "of-another", {"rank_3.log": hours, "other.log": days.format(f"[rank2]: {message}")})
    assert clock(con, "rank_3.log")["timeline"].startswith("wall without day")


def test_logs_without_a_day_share_a_timeline_only_where_they_overlap(tmp_path: Path) -> None:
    con = build(tmp_path, {"a.log": HOURS + HOURS, "b.log": "11:00:00 ERROR bad\n13:00:00 ERROR it broke\n"})
    assert {clock(con, name)["timeline"] for name in ("a.log", "b.log")} == {"wall without day"}
    con = build(tmp_path / "apart", {"a.log": HOURS, "b.log": "14:00:00 INFO start\n14:00:09 ERROR it broke\n"})
    assert clock(con, "a.log")["timeline"] != clock(con, "b.log")["timeline"]
