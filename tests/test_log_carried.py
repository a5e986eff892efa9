"""Logs behind the prefixes of what carried them: the same events of the same processes, and what the prefix adds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import SHARED, MemorySink, load

from forensics.artifact import Source
from forensics.formats import formats, log

DEV = SHARED / "cases" / "dev"
needs_cases = pytest.mark.skipif(not DEV.is_dir(), reason="the folder of labelled cases is absent")


def _time(n: int) -> str:
    return f"2026-03-01T10:{n // 60 % 60:02d}:{n % 60:02d}.{123456789 + n}Z"


class Owner(NamedTuple):
    """Whose log it is. `ranks`, `hosts`: how many it names."""

    rank: int
    host: str
    ranks: int
    hosts: int


class Style(NamedTuple):
    """How each line is carried, and which columns the prefix may fill."""

    line: Callable[[int, str, Owner], str]
    adds: frozenset[str] = frozenset()


_TIME, _RANK = frozenset({"ts_ns"}), frozenset({"rank", "host", "step"})  # a known process has known hosts and steps
_HOST = frozenset({"host"})
STYLES = {
    "colours": Style(lambda n, text, who: f"\x1b[36m{text}\x1b[0m"),
    "kubectl": Style(lambda n, text, who: f"{_time(n)} {text}", _TIME),
    "cri": Style(lambda n, text, who: f"{_time(n)} stderr F {text}", _TIME),
    "docker": Style(lambda n, text, who: json.dumps({"log": text + "\n", "stream": "stderr", "time": _time(n)}), _TIME),
    "rank": Style(lambda n, text, who: f"[rank{who.rank}]: {text}", _RANK),
    "torchrun": Style(lambda n, text, who: f"[default{who.rank}]:{text}", _RANK),
    "srun": Style(lambda n, text, who: f"{who.rank}: {text}", _RANK),
    "srun, aligned": Style(lambda n, text, who: f" {who.rank}: {text}", _RANK),
    "mpi": Style(lambda n, text, who: f"[1,{who.rank}]<stderr>:{text}", _RANK),
    "pod": Style(lambda n, text, who: f"[pod/trainer-abc12/pytorch] {text}", _HOST),
    "pod and time": Style(lambda n, text, who: f"[pod/trainer-abc12/pytorch] {_time(n)} {text}", _HOST | _TIME),
    "ray": Style(lambda n, text, who: f"(RayTrainWorker pid={123 + who.rank}, ip=10.0.0.{who.rank}) {text}", _HOST),
    "compose": Style(lambda n, text, who: f"trainer-1  | {text}", _HOST),
    "pdsh": Style(lambda n, text, who: f"{who.host}: {text}", _HOST),
    "journal": Style(
        lambda n, text, who: f"Mar 01 10:{n // 60 % 60:02d}:{n % 60:02d} {who.host} python[123]: {text}", _HOST | _TIME
    ),
}


def _format_of(path: Path) -> str:
    head = Source(path, path.name).head()
    return max((module.recognise(head), name) for name, module in formats().items())[1]


def _owner(sink: MemorySink, path: Path) -> Owner:
    ranks = {proc["rank"] for proc in sink.procs.values() if "rank" in proc}
    hosts = {proc["host"] for proc in sink.procs.values() if "host" in proc}
    named = re.search(r"rank_?(\d+)", path.name)
    rank = min(ranks, default=int(named[1]) if named else 3)
    return Owner(rank, min(hosts, default="gpu-x07"), len(ranks), len(hosts))


def _rows(sink: MemorySink, table: str) -> Iterator[dict[str, Any]]:
    for row in sink.rows(table):
        proc = sink.procs.get(row.pop("proc"), {})
        for name in ("byte", "stack_id", "artifact_id", "proc_id"):
            row.pop(name, None)
        if isinstance(fields := row.get("fields"), str):
            row["fields"] = {name: value for name, value in json.loads(fields).items() if name != "actor"} or None
        if isinstance(value := row.get("value"), float):
            row["value"] = repr(value)  # equal where it is no number, too
        yield {**row, "rank": proc.get("rank"), "host": proc.get("host")}


def _carried_files() -> Iterator[tuple[Path, list[str]]]:
    for path in sorted(DEV.glob("*/artifacts/**/*")):
        if path.is_file() and _format_of(path) == "log":
            text = path.read_text(errors="replace")
            if "\r" not in text and text.count("\n") > 2:
                yield path, text.removesuffix("\n").split("\n")


@needs_cases
@pytest.mark.parametrize("name", STYLES)
def test_what_carried_a_log_changes_no_row(name: str, tmp_path: Path) -> None:
    style, n = STYLES[name], 0
    for path, lines in _carried_files():
        plain = load(log, path)
        who = _owner(plain, path)
        if (who.ranks > 1 and style.adds >= _RANK) or (who.hosts > 1 and name in {"pdsh", "journal"}):
            continue  # no launcher puts the name of one before the lines of several
        carried_path = tmp_path / path.name
        carried_path.write_text("".join(f"{style.line(at, text, who)}\n" for at, text in enumerate(lines)))
        assert _format_of(carried_path) == "log", path
        carried = load(log, carried_path)
        n += 1
        for table in ("log_event", "sample", "fact", "thread_state", "compile_event"):
            found, wanted = list(_rows(carried, table)), list(_rows(plain, table))
            assert len(found) == len(wanted), (path, table)
            for row, expected in zip(found, wanted, strict=True):
                added = {key for key in style.adds if expected.get(key) is None or key == "ts_ns"}
                assert {k: v for k, v in row.items() if k not in added} == {
                    k: v for k, v in expected.items() if k not in added
                }, path
        # That nothing tells whose file it is no longer holds behind a prefix that does.
        assert carried.facts == [f for f in plain.facts if f["key"] != "standing" or f in carried.facts], path
    assert n > 60


def _events(tmp_path: Path, text: str) -> tuple[MemorySink, list[dict[str, Any]]]:
    path = tmp_path / "x.log"
    path.write_text(text)
    sink = load(log, path)
    return sink, list(_rows(sink, "log_event"))


_ENDS_UNMARKED = """{0}[rank1]: Traceback (most recent call last):
{0}[rank1]:   File "train.py", line 118, in <module>
{0}[rank1]:     loss.backward()
{0}ValueError: no such shard
"""


@pytest.mark.parametrize(
    "outer", ["", "3: ", "[pod/a-0/main] ", "(Worker pid=7, ip=10.0.0.5) ", "[default5]:", "n-4: "]
)
def test_the_last_line_of_a_traceback_may_lack_the_mark_of_its_rank(tmp_path: Path, outer: str) -> None:
    _, (event,) = _events(tmp_path, f"{outer}starts\n{outer}goes on\n" + _ENDS_UNMARKED.format(outer))
    assert (event["rank"], event["exception"], event["message"]) == (1, "ValueError", "no such shard")


def test_an_exception_of_another_pod_is_not_that_of_the_traceback_above_it(tmp_path: Path) -> None:
    *begin, last = _ENDS_UNMARKED.format("[pod/a-0/main] ").splitlines(keepends=True)
    _, events = _events(tmp_path, "".join([*begin, "[pod/b-0/main] ValueError: another\n", last]))
    assert [(e["rank"], e["host"]) for e in events if e["message"] == "another"] == [(None, "b-0")]


def test_the_host_that_nccl_names_counts_before_that_of_a_pod(tmp_path: Path) -> None:
    text = "gpu-a07:812:901 [1] NCCL WARN Call to connect failed\nstarts\nRuntimeError: shard lost\n"
    sink, events = _events(tmp_path, "".join(f"[pod/t-0/main] {line}\n" for line in text.splitlines()))
    assert {event["host"] for event in events} == {"gpu-a07"}
    assert sink.procs[0]["host"] == "gpu-a07"


def test_times_before_the_frames_of_a_traceback_are_those_of_what_carried_the_log(tmp_path: Path) -> None:
    text = (
        'starts\nTraceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: bad:\nthe rest\n'
    )
    for stamp in ("2026-03-01T10:00:00.123Z ", "2026-03-01 10:00:00 ", "[2026-03-01 10:00:00] "):
        _, (event,) = _events(tmp_path, "".join(f"{stamp}{line}\n" for line in text.splitlines()))
        assert event["message"] == "bad:\nthe rest"
        assert event["ts_ns"] is not None
