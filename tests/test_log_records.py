"""Lines inside JSON records of containers and structured loggers are read like the lines that they hold."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import load
from test_log_columns import both_ways, everything, mixed_log

from forensics.formats import log
from forensics.formats._log_lines import Block, read_blocks
from forensics.formats._log_records import unwrap


def texts(*records: Any) -> list[str]:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    found = unwrap("\n".join(lines).encode())
    return [] if found is None else found.text.decode().split("\n")


@pytest.mark.parametrize(
    ("record", "lines"),
    [
        ({"log": "hi\n", "stream": "stderr", "time": "2026-03-01T10:00:00.5Z"}, ["2026-03-01T10:00:00.5Z stderr F hi"]),
        ({"log": "a\n\n  b\n\n"}, ["a", "", "  b"]),
        ({"level": "info", "message": "a\nb", "rank": 3}, ["[rank3]: [INFO] a", "[rank3]: b"]),
        ({"level": 30, "msg": "a", "rank": True}, ["a"]),
        ({"level": "error", "msg": "a", "step": 3}, ["[ERROR] a"]),
        ({"msg": "a", "step": 3, "loss": 2.5, "ok": True, "path": "x", "lr x": 1}, ["a step=3 loss=2.5"]),
        ({"msg": "a", "n_bytes": 3}, ["a"]),
        ({"msg": None, "event": "b"}, ["b"]),
        ({"ts": 1772359200.25, "msg": "a"}, ["2026-03-01T10:00:00.250000Z stderr F a"]),
        ({"ts": 1772359200250, "msg": "a"}, ["2026-03-01T10:00:00.250000Z stderr F a"]),
        ({"ts": 12.5, "msg": "a"}, ["a"]),
        ({"asctime": "2026-03-01 10:00:00,123", "message": "a"}, ["2026-03-01 10:00:00,123 stderr F a"]),
        ({"time": "03/01/2026 10:00:00", "message": "a"}, ["03/01/2026 10:00:00 a"]),
        ({"time": "yesterday\n", "message": "a"}, ["a"]),
        ({"message": "failed", "exc_info": "Traceback\n  x"}, ["failed", "Traceback", "  x"]),
        ('{"msg": "a", "loss": NaN}', ["a loss=nan"]),
        ('{"msg": "\\ud800"}', ["?"]),
    ],
)
def test_a_record_becomes_the_lines_that_it_holds(record: Any, lines: list[str]) -> None:
    assert texts(record) == lines


@pytest.mark.parametrize(
    "line",
    ["plain", '{"step": 3, "loss": 2.5}', '{"log": "cut', '{"log": 7}', '{"a": ' * 3000, '{"log": "a"} {"log": "b"}'],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert texts(line, {"msg": "a"}, line) == [line, "a", line]
    assert unwrap(line.encode()) is None


def test_lines_of_records_are_cited_where_the_record_stands() -> None:
    lines = [b"first", b'{"log": "a\\nb\\rc\\n"}', b"\xff", b'{"log": "\\u001b[31md"}', b"last", b""]
    data = b"\n".join(lines)
    starts = [data.index(line) for line in lines]
    (block,) = read_blocks(_stream(data))
    pieces = [block[index] for index in range(len(block))]
    assert [p.text for p in pieces] == ["first", "a", "b", "c", "\ufffd", "d", "last"]
    assert [p.number for p in pieces] == [1, 2, 2, 2, 3, 4, 5]
    assert [p.byte for p in pieces] == [starts[n - 1] for n in (1, 2, 2, 2, 3, 4, 5)]
    rest = block.rest(3)
    assert isinstance(rest, Block)
    assert [rest[index] for index in range(len(rest))] == pieces[3:]


def _stream(data: bytes) -> Any:
    return io.BytesIO(data)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from((3000, 1 << 20)), st.sampled_from((0, 0.1, 1)))
def test_records_are_read_like_the_lines_in_them(
    tmp_path_factory: pytest.TempPathFactory, seed: int, block: int, plain: float
) -> None:
    draw = random.Random(seed)
    time = "2026-03-01T10:00:00.{:06d}Z"
    folder = tmp_path_factory.mktemp("t")
    wrapped, bare = folder / "wrapped.log", folder / "bare.log"
    text = mixed_log(seed).decode("utf-8", "ignore")
    assume("\0" not in text)  # UTF-16, in which no runtime writes records
    lines = [line for line in text.splitlines() if line and not line.startswith("{")]
    records, same = [], []
    for number, line in enumerate(lines):
        if draw.random() < plain:
            records.append(line)
            same.append(line)
        else:
            records.append(json.dumps({"log": line + "\n", "stream": "stderr", "time": time.format(number)}))
            same.append(f"{time.format(number)} stderr F {line}")
    wrapped.write_text("\n".join(records))
    bare.write_text("\n".join(same))
    slow, fast = both_ways(wrapped, block)
    assert fast == slow
    of_records, of_lines = (_without_bytes(everything(load(log, path))) for path in (wrapped, bare))
    assert of_records == of_lines


def _without_bytes(found: dict[str, Any]) -> dict[str, Any]:
    return {name: re.sub(r"byte\W+\d+", "", str(rows)) for name, rows in found.items()}


def test_a_traceback_in_one_record_is_one_event(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    trace = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: odd'
    path.write_text(json.dumps({"level": "error", "message": "it failed", "exc_info": trace, "rank": 2}) + "\n")
    sink = load(log, path)
    rows = sink.rows("log_event")
    assert [(row["exception"], row["line"]) for row in rows if row["exception"]] == [("ValueError", 1)]
    assert {known["rank"] for known in sink.procs.values()} == {2}
