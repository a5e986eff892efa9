"""Several processes that write to one pipe: lines of one between those of another, or in the middle of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import load

from forensics.formats import log

PREFIXES: dict[str, Callable[[int], str]] = {
    "torch": lambda rank: f"[rank{rank}]: ",
    "torchrun": lambda rank: f"[default{rank}]:",
    "torchrun and torch": lambda rank: f"[default{rank}]:[rank{rank}]: ",
    "srun": lambda rank: f"{rank}: ",
    "mpirun": lambda rank: f"[1,{rank}]<stderr>:",
}
TEARING = [kind for kind in PREFIXES if kind != "srun"]  # srun puts its labels before whole lines
BEGIN = r"^(?:\[[a-z]+\d+\]: ?)+|^\d+: |^\[1,\d+\]<stderr>:"
KINDS = ("plain", "cause", "during", "group", "syntax", "long", "worker")


def stack(draw: random.Random, rank: int, indent: str = "") -> list[str]:
    lines = [f"{indent}Traceback (most recent call last):"]
    for depth in range(draw.randint(1, 5)):
        lines.append(f'{indent}  File "/job/rank{rank}/part{depth}.py", line {draw.randint(1, 999)}, in call_{depth}')
        lines.append(f"{indent}    value = step_{depth}(batch, scale=0.{depth})")
    return lines


def failure(draw: random.Random, rank: int, number: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Lines of a failure, and the types and messages of its exceptions."""
    kind = draw.choice(KINDS)
    names = [(f"job.Rank{rank}Case{number}{part}Error", f"fault {part} of rank {rank} no {number}") for part in "AB"]
    (name, message), (other, what) = names
    if kind == "plain":
        return [*stack(draw, rank), f"{name}: {message}"], names[:1]
    if kind == "long":
        return [*stack(draw, rank), f"{name}: {message} " + "with a tensor of values " * draw.randint(20, 400)], names[
            :1
        ]
    if kind == "syntax":
        shown = [f'  File "/job/rank{rank}/bad.py", line {number + 1}', "    def f(:", "          ^"]
        return [*stack(draw, rank), *shown, f"SyntaxError: {message}"], [("SyntaxError", message)]
    if kind in {"cause", "during"}:
        said = (
            "The above exception was the direct cause of the following exception:"
            if kind == "cause"
            else "During handling of the above exception, another exception occurred:"
        )
        return [*stack(draw, rank), f"{name}: {message}", "", said, "", *stack(draw, rank), f"{other}: {what}"], names
    if kind == "worker":
        caught = f"Caught {other} in DataLoader worker process {number}."
        inner = [*stack(draw, rank), f"{other}: {what}"]
        inner[0] = "Original " + inner[0]
        return [*stack(draw, rank), f"{name}: {caught}", *inner], [(name, caught), (other, what)]
    group = f"  + Exception Group {stack(draw, rank)[0]}"
    frame = f'  |   File "/job/rank{rank}/group.py", line {number + 1}, in run'
    lines = [
        group,
        frame,
        f"  | ExceptionGroup: {message} (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
    ]
    lines += [f"    | {line}" for line in [*stack(draw, rank), f"{other}: {what}"]]
    return [*lines, "    +------------------------------------"], [("ExceptionGroup", message), (other, what)]


def program(draw: random.Random, rank: int) -> tuple[list[str], list[tuple[str, str]]]:
    """What one rank writes, and its exceptions."""
    lines, raised, step = [], [], 0
    for number in range(draw.randint(1, 3)):
        for _ in range(draw.randint(1, 4)):
            step += 1
            lines.append(f"step {step} loss {draw.random():.4f}")
        said, exceptions = failure(draw, rank, number)
        lines += [*said, f"saved what there is of part {number}"]
        raised += exceptions
    return lines, raised


def woven_by_line(draw: random.Random, texts: list[list[str]]) -> str:
    left, woven = [list(lines) for lines in texts], list[str]()
    while any(left):
        lines = draw.choice([lines for lines in left if lines])
        for _ in range(draw.choice((1, 1, 2, 5))):
            if lines:
                woven.append(lines.pop(0))
    return "".join(f"{line}\n" for line in woven)


def chunks_of(draw: random.Random, text: str) -> list[str]:
    """A text as one process writes it: mostly whole lines, sometimes up to somewhere within one, but not its prefix."""
    chunks = []
    while text:
        size = int(2 ** draw.uniform(0, 13))
        if draw.random() < 0.7:
            size = text.find("\n", size - 1) + 1 or len(text)
        elif draw.random() < 0.5:
            size = next((m.end() for m in re.finditer(BEGIN, text, re.MULTILINE) if m.end() >= size), size)
        size = next((m.end() for m in re.finditer(BEGIN, text, re.MULTILINE) if m.start() < size < m.end()), size)
        chunks.append(text[:size])
        text = text[size:]
    return chunks


def woven_by_chunk(draw: random.Random, texts: list[str], most_cut: int) -> str:
    """What was cut goes on at the beginning of a line, as nothing else would show where it does. `most_cut`: lines of
    different writers that are cut at the same time."""
    left, woven, cut, last = [chunks_of(draw, text) for text in texts], "", set[int](), -1
    while any(left):
        ready = [n for n, chunks in enumerate(left) if chunks and (n == last or n not in cut or woven[-1:] in "\n")]
        if len(cut) >= most_cut:
            ready = [n for n in ready if n in cut or left[n][0].endswith("\n")]
        last = draw.choice(ready or sorted(cut))
        woven += left[last].pop(0)
        (cut.discard if woven.endswith("\n") else cut.add)(last)
    return woven


def rows_of(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    path = tmp_path / "all.log"
    path.write_text(text, encoding="utf-8")
    sink = load(log, path)
    rows = sink.rows("log_event")
    for row in rows:
        known = sink.procs.get(row["proc"], {})
        row["rank"] = known.get("rank", known.get("local_rank"))
        row["fields"] = json.loads(row["fields"]) if row["fields"] else {}
    return rows


Raised = tuple[int | None, str, str]  # rank, type and beginning of the message


def lost(rows: list[dict[str, Any]], raised: list[Raised], *, any_rank: bool = False) -> list[Raised]:
    found = {(row["rank"], row["exception"], (row["message"] or "").split("\n")[0]) for row in rows}
    return [
        (rank, name, message)
        for rank, name, message in raised
        if not any((any_rank or r == rank) and n == name and m.startswith(message) for r, n, m in found)
    ]


def written(draw: random.Random, prefix: Callable[[int], str]) -> tuple[list[list[str]], list[Raised]]:
    texts, raised = [], list[Raised]()
    for rank in range(draw.randint(2, 5)):
        lines, exceptions = program(draw, rank)
        texts.append([prefix(rank) + line for line in lines])
        raised += [(rank, *exception) for exception in exceptions]
    return texts, raised


def joined(texts: list[list[str]]) -> list[str]:
    return ["".join(f"{line}\n" for line in lines) for lines in texts]


SEEDS = st.integers(0, 1 << 32) | st.sampled_from(range(40))


@pytest.mark.parametrize("kind", PREFIXES)
@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_lines_of_ranks_in_any_order_lose_no_exception(tmp_path_factory: Any, kind: str, seed: int) -> None:
    draw = random.Random(seed)
    texts, raised = written(draw, PREFIXES[kind])
    rows = rows_of(tmp_path_factory.mktemp("a"), woven_by_line(draw, texts))
    assert lost(rows, raised) == []


@pytest.mark.parametrize("kind", TEARING)
@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_a_line_cut_by_other_ranks_is_put_together_again(tmp_path_factory: Any, kind: str, seed: int) -> None:
    draw = random.Random(seed)
    texts, raised = written(draw, PREFIXES[kind])
    rows = rows_of(tmp_path_factory.mktemp("a"), woven_by_chunk(draw, joined(texts), most_cut=1))
    assert lost(rows, raised) == []


@pytest.mark.parametrize("kind", TEARING)
def test_hardly_any_exception_is_lost_where_lines_of_several_ranks_are_cut_at_once(tmp_path: Path, kind: str) -> None:
    n_raised, n_lost = 0, 0
    for seed in range(60):
        draw = random.Random(seed)
        texts, raised = written(draw, PREFIXES[kind])
        rows = rows_of(tmp_path, woven_by_chunk(draw, joined(texts), most_cut=9))
        n_raised += len(raised)
        n_lost += len(lost(rows, raised))
    assert n_lost * 100 < n_raised


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_lines_of_writers_without_prefixes_lose_no_exception(tmp_path_factory: Any, seed: int) -> None:
    draw = random.Random(seed)
    texts, raised = written(draw, lambda _: "")
    rows = rows_of(tmp_path_factory.mktemp("a"), woven_by_line(draw, texts))
    assert lost(rows, raised, any_rank=True) == []


MIXED = """\
Traceback (most recent call last):
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    main()
  File "b.py", line 1, in <module>
    other()
  File "a.py", line 5, in main
    x()
ValueError: from a
  File "b.py", line 7, in other
    y()
TypeError: from b
step 5
"""


def test_frames_of_mixed_tracebacks_are_said_to_be_uncertain(tmp_path: Path) -> None:
    first, second = rows_of(tmp_path, MIXED)
    assert [(row["exception"], row["message"], row["line"]) for row in (first, second)] == [
        ("ValueError", "from a", 9),
        ("TypeError", "from b", 12),
    ]
    for row in (first, second):
        assert row["stack_id"] is None and row["fields"]["interleaved"] == 2
        assert "b.py:7 in other" in row["fields"]["uncertain_frames"]


def test_frames_that_all_mixed_tracebacks_share_are_certain(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', '  File "a.py", line 5, in g']
    rows = rows_of(tmp_path, "".join(f"{line}\n{line}\n" for line in [*lines, "ValueError: x"]))
    assert [row["message"] for row in rows] == ["x", "x"]
    assert rows[0]["stack_id"] == rows[1]["stack_id"] is not None


def test_a_traceback_whose_writer_died_leaves_the_next_ones_frames_certain(tmp_path: Path) -> None:
    header = "Traceback (most recent call last):\n"
    text = f'{header}  File "a.py", line 1, in f\n{header}  File "b.py", line 2, in g\nValueError: x\nstep 6\n'
    died, raised = rows_of(tmp_path, text)
    assert died["fields"]["truncated"] and raised["exception"] == "ValueError"
    assert raised["stack_id"] is not None and "interleaved" not in raised["fields"]
