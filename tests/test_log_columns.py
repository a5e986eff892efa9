"""Logs read as columns: the same rows as line by line, on mixed logs, at every size of block; and thinning."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ARTIFACTS, SHARED, MemorySink, load, needs_artifacts

from forensics.formats import _log_columns, _log_lines, _log_quiet, _log_samples, log
from forensics.formats._log_catalogue import catalogue
from forensics.formats._log_columns import ColumnReader
from forensics.formats._log_lines import Block
from forensics.formats._log_marks import Labels
from forensics.formats._log_metrics import MetricReader
from forensics.formats._log_quiet import Quiet, Sorted, without_looks
from forensics.formats._log_scan import Pattern, without_digits
from forensics.formats._log_session import _METRIC, _STRUCTURE
from forensics.formats._log_template import learn
from forensics.formats._log_time import Clock

Draw = random.Random


def number(draw: Draw) -> str:
    digits = "".join(draw.choices("0123456789", k=draw.choice((1, 1, 2, 3, 4, 9, 17, 25))))
    forms = (
        "{}",
        "{}",
        "{}.{}",
        "{}.{}",
        "{}.",
        ".{}",
        "-{}.{}",
        "{}e-{:.2}",
        "{}.{}e+{:.2}",
        "{},{}",
        "nan",
        "+{}",
        "inf",
    )
    return draw.choice(forms).format(digits, digits[::-1], digits)


def clock(draw: Draw) -> str:
    return f"{draw.choice((0, 9, 10, 23)):02d}:{draw.randrange(60):02d}:{draw.randrange(60):02d}"


STAMPS: list[Callable[[Draw], str]] = [
    lambda d: "",
    lambda d: f"2026-03-{d.choice((1, 2)):02d} {clock(d)},{d.randrange(1000):03d} ",
    lambda d: f"2026-03-01T{clock(d)}.{d.randrange(10**9)}Z ",
    lambda d: f"[2026-03-01 {clock(d)}] ",
    lambda d: f"2026/12/31 {clock(d)} - INFO - ",
    lambda d: f"I0301 {clock(d)}.{d.randrange(10**6):06d} {d.randrange(9)} a/b.py:{d.randrange(99)}] ",
    lambda d: f"INFO 03-0{d.choice((1, 2))} {clock(d)} [core.py:{d.randrange(99)}] ",
    lambda d: f"{clock(d)} INFO ",
    lambda d: f"[{clock(d)}] ",
    lambda d: f"[{d.randrange(10**4)}.{d.randrange(10**6):06d}] ",
]
WRITERS: list[Callable[[Draw], str]] = [
    lambda d: "",
    lambda d: f"[rank{d.choice((0, 1, 2, 13, 1234567))}]: ",
    lambda d: f"[rank{d.randrange(3)}] ",
    lambda d: f"[default{d.randrange(3)}]:",
    lambda d: f"(Worker pid={d.choice((7, 81, 4711))}, ip=10.0.0.{d.randrange(3)}) ",
    lambda d: f"{d.randrange(12)}: ",
    lambda d: f"node-{d.choice((3, 4, 17))}: ",
    lambda d: f"[Rank {d.randrange(3)}] ",
]
BODIES: list[Callable[[Draw], str]] = [
    lambda d: f"step {number(d)} loss {number(d)} lr {number(d)}",
    lambda d: f"step: {d.randrange(10**6):,}, loss: {number(d)}, grad_norm={number(d)};",
    lambda d: (
        f"iter {d.randrange(99)}: loss {number(d)}, time {d.randrange(99)}.{d.randrange(99):02d}ms, mfu {number(d)}%"
    ),
    lambda d: f"{{'loss': {number(d)}, 'grad_norm': {number(d)}, 'epoch': {number(d)}}}",
    lambda d: f"Epoch {d.randrange(12)}:  {d.randrange(100)}%|{'█' * d.randrange(3)}| 7/100 [loss={number(d)}]",
    lambda d: f"step {d.randrange(99)} loss {number(d)} Acc@1 {number(d)} Acc@5 5 loss_{d.choice((1, 2))} 0.5",
    lambda d: f" iteration {d.randrange(99)}/ 500 | lm loss: {number(d)} | grad norm: {number(d)} |",
    lambda d: (
        f" iteration {d.randrange(99)}/ 500 | lm loss: {number(d)} | number of skipped iterations: {d.randrange(2)} | "
        f"number of nan iterations: {d.choice((0, 0, 0, 7))} |"
    ),
    lambda d: f"step {d.randrange(99)}: {d.choice(('found', 'checked'))} nan in {d.randrange(3)} of 8 gradients",
    lambda d: f"[epoch {d.randrange(9)}/10] train/loss: {number(d)} ckpt-{d.randrange(999)}.pt",
    lambda d: f"{d.randrange(9)}-{d.randrange(9)} step {d.randrange(99)} rank{d.randrange(3)} loss {number(d)}",
    lambda d: f"loading shard-{d.randrange(10**4)} of epoch {d.randrange(3)}",
    lambda d: f'{{"step": {d.randrange(99)}, "loss": {d.random()}, "message": "step {d.randrange(9)} loss 1"}}',
    lambda d: f"ERROR [{d.choice(('cache', 'store'))}] {d.getrandbits(64):x} of 0x{d.getrandbits(40):x} is lost",
    lambda d: f"ERROR {d.choice((0, 7, 10))} errors in {d.getrandbits(48):x}, error: {d.choice((0, 3))}",
    lambda d: "nothing of note happened " + number(d),
    lambda d: f"RuntimeError: CUDA error {number(d)}",
    lambda d: 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: step 3',
    lambda d: f"\x1b[32mstep\x1b[0m {d.randrange(99)} loss {number(d)}",
    lambda d: f"shard {d.randrange(99)} done in {number(d)} s",
    lambda d: f"Training {d.choice(('finished', 'is done', 'goes on'))}, exit code {d.choice((0, 1, 137))}",
    lambda d: f"step {d.randrange(99)} done, {d.choice(('0 errors', 'Error: odd', 'loss nan', 'loss 1'))}",
    lambda d: "",
]


def mixed_log(seed: int) -> bytes:
    """Lines of a few kinds each, so that many have the same words."""
    draw = random.Random(seed)
    kinds = [tuple(draw.choice(part) for part in (STAMPS, WRITERS, BODIES)) for _ in range(draw.choice((1, 2, 3, 6)))]
    if draw.random() < 0.5:  # one stamp and one writer for all
        kinds = [(*kinds[0][:2], kind[2]) for kind in kinds]
    ends = draw.choice(("\n", "\n", "\n", "\r\n", "\r"))
    lines = []
    for _ in range(draw.choice((3, 20, 120))):
        stamp, writer, body = draw.choice(kinds)
        both = (writer(draw), stamp(draw))
        lines.append("".join(both if draw.random() < 0.9 else both[::-1]) + body(draw))
    return ends.join(lines).encode(draw.choice(("utf-8", "utf-8", "utf-16")))


@contextmanager
def reading(least: int, block: int) -> Iterator[None]:
    """`least`: lines of the same words from which on they are read as columns; `block`: bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_log_columns, "MIN_LINES", least)
        patch.setattr(_log_lines, "BLOCK_BYTES", block)
        patch.setattr(_log_lines, "LAST_BYTES", block // 2)
        yield


def everything(sink: MemorySink) -> dict[str, Any]:
    tables = {name: [repr(row) for row in sink.rows(name)] for name in sink.tables}
    return {**tables, "said": [sink.procs, sink.coverage, sink.warnings, sink.clock_kind, sink.quality]}


def both_ways(path: Path, block: int = _log_lines.BLOCK_BYTES) -> tuple[dict[str, Any], dict[str, Any]]:
    with reading(1 << 60, block):
        slow = everything(load(log, path))
    with reading(2, block):
        fast = everything(load(log, path))
    return slow, fast


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from((200, 3000, 1 << 20)))
def test_lines_read_as_columns_give_the_rows_of_lines_read_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, seed: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("t") / "x.log"
    path.write_bytes(mixed_log(seed))
    slow, fast = both_ways(path, block)
    assert fast == slow


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from((200, 3000, 1 << 20)), st.sampled_from((2, 1 << 60)))
def test_lines_that_say_nothing_may_be_left_out(
    tmp_path_factory: pytest.TempPathFactory, seed: int, block: int, searched: int
) -> None:
    path = tmp_path_factory.mktemp("t") / "x.log"
    path.write_bytes(mixed_log(seed))
    with reading(_log_columns.MIN_LINES, block), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_log_quiet, "_MANY_SEARCHED", searched)
        left_out = everything(load(log, path))
        patch.setattr(Quiet, "sort", lambda self, block, notable: Sorted(notable, set(), {}, {}))
        assert everything(load(log, path)) == left_out


@needs_artifacts
def test_real_logs_give_the_same_rows_both_ways() -> None:
    paths = [p for p in sorted((ARTIFACTS / "crash_log").iterdir()) if p.suffix != ".md"]
    for path in [*paths, *sorted((SHARED / "cases" / "dev").glob("*/artifacts/**/*.log"))]:
        slow, fast = both_ways(path)
        assert fast == slow, path


def columns_of(text: str, labels: Labels | None = None) -> list[int]:
    """How many lines each template took."""
    block = Block(text.encode(), 1, 0)
    reader = ColumnReader(labels or Labels(), MetricReader(), clock := Clock())
    clock.kind = "local"
    found, _ = reader.read(block, pa.array(range(len(block)), pa.uint64()))
    return [len(columns) for columns in found]


@pytest.mark.parametrize(
    "line",
    [
        "step {n} loss 1.{n} lr 3.0e-04",
        "2026-03-01 10:00:{s:02d},123 [rank{r}] INFO train: step {n} loss 2.{n} grad_norm 0.{n}",
        "[rank{r}]: 2026-03-01T10:{s:02d}:00.123456 iter {n}: loss 2.{n}, time 81{s}.80ms",
        "{{'loss': 2.{n}, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.{n}}}",
        "I0301 10:00:{s:02d}.123456 99 a/b.py:17] step={n}, loss={n}.5, ",
        "Epoch 3:  {s:2d}%|███   | {n}/9999 [00:10<01:20, 11.2it/s, train_loss=0.{n}]",
        " iteration {n}/ 2000 | lm loss: 1.{n}E+00 | grad norm: 8.1 | number of nan iterations: 0 |",
    ],
)
def test_lines_of_common_trainers_are_read_as_columns(line: str) -> None:
    assert columns_of("".join(line.format(n=n, s=10 + n % 50, r=n % 4) + "\n" for n in range(10, 100))) == [90]


def test_lines_that_differ_in_more_than_their_numbers_are_not_read_as_columns() -> None:
    text = "".join(f"step {n} loss {'' if n == 60 else n} lr 1\n" for n in range(100))
    assert columns_of(text) == []
    assert columns_of("".join(f"step {n} l{'7' if n == 60 else ''}oss 1.5\n" for n in range(100))) == []
    assert columns_of("".join(f"2026-03-01 10:00:{n} step {n}\n" for n in range(100))) == []


@pytest.mark.parametrize("structure", [_STRUCTURE, _METRIC])
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [*string.digits, " ", ":", "(", "[", "E", "Error", 'File "', '"', ", line ", "step", "loss", "ep"]
        )
        | st.sampled_from([".py:", "Warning: ", "nranks ", "Process ", "=== ", "throughput", ", "]),
        max_size=12,
    )
)
def test_a_pattern_without_digits_misses_no_text(structure: str, parts: list[str]) -> None:
    text = "".join(parts).encode()
    pattern = Pattern(structure)
    if pattern.matching(Block(text, 1, 0), pa.array([0])) if text.strip() else []:
        assert pattern.weakly_matching([text.translate(None, b"0123456789")]) == [True]


def test_a_pattern_without_its_looks_misses_no_example() -> None:
    assert without_looks(r"a(?!b[)(]\)(c))d(?:e|(?<=[^]x(])f)(?P<g>h)") == r"ad(?:e|f)(?P<g>h)"
    for signature in catalogue().signatures.values():
        for text in signature.examples:
            assert not signature.regex.search(text) or re.search(without_looks(signature.pattern), text)


def test_no_example_of_a_signature_is_missed_without_its_digits() -> None:
    pattern = Pattern(_STRUCTURE, catalogue().hints)
    for signature in catalogue().signatures.values():
        for line in "\n".join(signature.examples).encode().split(b"\n"):
            if line and pattern.matching(Block(line, 1, 0), pa.array([0])):
                assert pattern.weakly_matching([line.translate(None, b"0123456789")]) == [True], signature.name


def test_digits_are_taken_out_of_patterns() -> None:
    assert without_digits(r"a\d{3,4}[EF]\w+\b[0-3]x\d[^\"]+\[[a-z0-9]") == r"a[EF]\w*x[^\"]*\[[a-z0-9]?"


def test_a_line_that_other_digits_could_make_a_prefix_has_no_template() -> None:
    for text in ("20-1-1 step 3 loss 1", "[Rank 3] step 3 loss 1", "ERROR 3-1 step 3 loss 1", "Jan 3 step 3 loss 1"):
        assert learn(text.encode(), Labels(), MetricReader()) is None


def test_samples_beyond_the_bound_are_thinned_evenly_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MAX_SAMPLES", 500), ("_PER_LEVEL", 300)):
        monkeypatch.setattr(_log_samples, name, value)
    path = tmp_path / "x.log"
    lines = [f"[rank{i % 2}]: step {i // 2 * 10 + 1} loss {'nan' if i == 9000 else i / 8}" for i in range(12_000)]
    path.write_text("\n".join(lines) + "\n")
    with reading(2, 8192):
        sink = load(log, path)
    rows = sink.rows("sample")
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert [row["line"] for row in rows] == sorted(row["line"] for row in rows)
    assert [row["line"] for row in rows[:500]] == list(range(1, 501))
    assert rows[-1]["line"] == 12_000 and 9001 in {row["line"] for row in rows}
    assert 1500 < len(rows) < 4500
    between = [row for row in rows if 2000 < row["line"] < 11_000 and row["line"] != 9001]
    steps = [{row["step"] for row in between if row["proc"] == proc} for proc in (1, 2)]
    assert len(steps[0]) > 100 and steps[0] == steps[1]
    (warning,) = sink.warnings
    assert warning["code"] == "too-many-samples" and warning["message"].startswith(f"{12_000 - len(rows)} ")
    slow, fast = both_ways(path, 8192)
    assert fast == slow


def test_pieces_are_where_lines_and_carriage_returns_put_them() -> None:
    rng = random.Random(3)
    for _ in range(300):
        data = "".join(rng.choices(["a1", "\r", "\n", "\r\n", "\x1b[3m", "\0", "ö"], k=rng.randrange(1, 30))).encode()
        block = Block(data, 5, 100)
        assert block.n_feeds == data.count(b"\n")
        for index in range(len(block)):
            piece = block[index]
            at = piece.byte - 100 if piece.byte is not None else 0
            assert piece.number == 5 + data.count(b"\n", 0, at)
            raw = data[at:].split(b"\n")[0].split(b"\r")[0]
            assert _log_lines.ANSI.sub(b"", raw).replace(b"\0", b"").decode() == piece.text
            assert block.words[block.codes[index].as_py()].decode() == piece.text.replace("1", "")
        assert block.numbers(pa.array(range(len(block)), pa.uint64())).to_pylist() == [
            block.number(index) for index in range(len(block))
        ]
