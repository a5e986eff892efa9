from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from support import SHARED, MemorySink, load, needs_artifacts

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import metrics_jsonl

LINES = """{"step": 1, "loss": 0.5, "lr": 0.001, "total_norm": 2.0, "_timestamp": 1795952507.25}
{"step": 2, "loss": NaN, "lr": 0.001, "total_norm": Infinity, "_timestamp": 1795952508.25}

not json at all
{"step": 3, "train": {"loss": 0.25, "acc": 0.9}, "amp_scale": 65536.0, "finite": false}
{"step": 4, "loss": 0.1, "rss_gb": 1.5, "reserved_mib": 2
"""


def write(tmp_path: Path, text: str | bytes, name: str = "metrics.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def recognised(path: Path) -> int:
    return metrics_jsonl.recognise(Source(path, path.name).head())


def series(sink: MemorySink, name: str) -> list[tuple[int, float]]:
    return [(row["step"], row["value"]) for row in sink.rows("sample") if row["name"] == name]


def test_names_are_normalised_and_lines_kept(tmp_path: Path) -> None:
    path = write(tmp_path, LINES)
    assert recognised(path) >= 60
    sink = load(metrics_jsonl, path)
    rows = sink.rows("sample")
    assert [(row["step"], row["line"]) for row in rows if row["name"] == "loss"] == [(1, 1), (2, 2), (3, 5)]
    assert math.isnan(series(sink, "loss")[1][1])
    assert series(sink, "grad_norm") == [(1, 2.0), (2, math.inf)]
    assert series(sink, "learning_rate") == [(1, 0.001), (2, 0.001)]
    assert series(sink, "train/acc") == [(3, 0.9)]
    assert series(sink, "loss_scale") == [(3, 65536.0)]
    assert [(row["value"], row["unit"]) for row in rows if row["name"] == "finite"] == [(0.0, "bool")]
    assert rows[0]["ts_ns"] == 1795952507250000000
    assert sink.clock_kind == "epoch"


def test_bad_lines_are_counted_and_cost_only_themselves(tmp_path: Path) -> None:
    sink = load(metrics_jsonl, write(tmp_path, LINES))
    assert [warning["line"] for warning in sink.warnings] == [4, 6]
    assert sink.quality == "partial"
    assert not sink.coverage[0]["complete"]


def test_many_bad_lines_are_told_in_one_sentence(tmp_path: Path) -> None:
    sink = load(metrics_jsonl, write(tmp_path, '{"step": 1, "loss": 1}\n' + "x\n" * 500))
    assert len(sink.warnings) == 21
    assert "480 more lines" in sink.warnings[-1]["message"]


def test_sizes_become_bytes_under_a_name_without_their_unit(tmp_path: Path) -> None:
    text = '{"time": "2024-01-01T00:00:00", "rss_gb": 1.5, "reserved_mib": 2, "tokens_per_gb": 3, "step_ms": 4}\n'
    sink = load(metrics_jsonl, write(tmp_path, text * 2))
    rows = {row["name"]: (row["value"], row["unit"], row["source"]) for row in sink.rows("sample")}
    assert rows == {
        "rss": (1.5 * 2**30, "bytes", "host"),
        "reserved": (2.0 * 2**20, "bytes", "metrics"),
        "tokens_per_gb": (3.0, None, "metrics"),
        "step_ms": (4.0, "ms", "metrics"),
    }
    assert sink.clock_kind == "local"


def test_ranks_become_processes(tmp_path: Path) -> None:
    text = '{"rank": 3, "world_size": 8, "step": 1, "loss": 1}\n{"rank": 1, "step": 1, "loss": 2}\n'
    sink = load(metrics_jsonl, write(tmp_path, text))
    assert {p["rank"]: number for number, p in sink.procs.items()} == {3: 0, 1: 1}
    assert sink.procs[0]["world_size"] == 8
    assert [(row["proc"], row["value"]) for row in sink.rows("sample")] == [(0, 1.0), (1, 2.0)]
    assert [c["proc"] for c in sink.coverage] == [0, 1]


def test_long_form_names_its_values(tmp_path: Path) -> None:
    sink = load(metrics_jsonl, write(tmp_path, '{"name": "train/loss", "value": 0.5, "step": 7}\n' * 2))
    assert series(sink, "loss") == [(7, 0.5), (7, 0.5)]


def test_no_two_columns_of_a_line_share_a_name(tmp_path: Path) -> None:
    text = (
        '{"step": 1, "loss": 1, "train_loss": 2, "lr": [0.1, 0.2]}\n{"step": 1, "train_loss": 9, "train_runtime": 3}\n'
    )
    sink = load(metrics_jsonl, write(tmp_path, text))
    names = [(row["line"], row["name"], row["value"]) for row in sink.rows("sample")]
    assert names == [
        (1, "loss", 1.0),
        (1, "train_loss", 2.0),
        (1, "learning_rate", 0.1),
        (1, "lr/1", 0.2),
        (2, "train_loss", 9.0),
        (2, "train_runtime", 3.0),
    ]


def test_texts_are_facts_of_their_line_while_they_are_few(tmp_path: Path) -> None:
    sink = load(metrics_jsonl, write(tmp_path, '{"step": 1, "model": "a", "loss": 1}\n' * 3))
    assert [(fact["key"], fact["value"], fact["line"]) for fact in sink.facts] == [("model", "a", n) for n in (1, 2, 3)]
    assert {row["entity"] for row in sink.rows("sample")} == {"a"}
    sink = load(metrics_jsonl, write(tmp_path, '{"step": 1, "phase": "train", "loss": 1}\n' * 1000))
    assert [(fact["key"], fact["value"]) for fact in sink.facts] == [("phase", "train")]


def test_a_file_cut_anywhere_keeps_its_complete_lines(tmp_path: Path) -> None:
    text = "".join(f'{{"step": {n}, "loss": {n}.5}}\n' for n in range(20))
    for end in range(1, len(text), 17):
        path = write(tmp_path, text[:end])
        n_complete = text[:end].count("}")
        if n_complete == 0:
            with pytest.raises(ArtifactError):
                load(metrics_jsonl, path)
            continue
        assert recognised(path) or n_complete <= 1
        assert series(load(metrics_jsonl, path), "loss") == [(n, n + 0.5) for n in range(n_complete)]


def test_a_cut_compressed_file_is_not_complete(tmp_path: Path) -> None:
    data = gzip.compress("".join(f'{{"step": {n}, "loss": {n * 7919 % 100003}}}\n' for n in range(80_000)).encode())
    sink = load(metrics_jsonl, write(tmp_path, data[: len(data) // 2], "metrics.jsonl.gz"))
    assert 0 < len(sink.rows("sample")) < 80_000
    assert not sink.coverage[0]["complete"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        '{"step": ' + "9" * 5000 + ', "loss": 1}',
        '{"step": 99999999999999999999, "rank": -1, "loss": 1e999}',
        '{"step": true, "loss": "x", "time": [1], "rank": "a", "gpu": 1e9}',
        '{"a": ' * 5000,
        '{"\\ud800": 1, "b\\u0000": "\\udfff", "step": 1}',
        '{"step": 1, "loss": 1' + " " * 2_000_000 + "}",
        b"\xff\xfe{\x00",
        b"\x00" * 1000,
    ],
)
def test_hostile_files_raise_nothing_but_the_agreed_error(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path, text)
    recognised(path)
    try:
        sink = load(metrics_jsonl, path)
    except ArtifactError:
        return
    assert all(0 <= (row["step"] or 0) < 2**62 for row in sink.rows("sample"))
    for fact in sink.facts:
        (fact["key"] + fact["value"]).encode("utf-8")


@pytest.mark.parametrize(
    "text",
    [
        '{"log": "step 1 loss 2\\n", "stream": "stdout", "time": "2024-01-01T00:00:00Z"}\n' * 3,
        '{"ts": 1795952507.0, "level": "info", "msg": "step", "loss": 1}\n' * 3,
        '{"message": "x", "step": 1, "loss": 2}\n' * 3,
        'V1206 15:18:15.925000 1500233 torch/_dynamo/utils.py:1288] {"chromium_event": {}}\n' * 3,
        '{"ph": "X", "name": "k", "ts": 1, "dur": 2, "pid": 1, "tid": 2}\n' * 3,
        '{"traceEvents": [], "step": 1, "loss": 1}',
        '{"resourceSpans": []}\n' * 3,
        '{"format": "forensics.tensor_stats/1", "rank": 0}\n{"step": 1, "role": "input", "n_nan": 0}\n',
        '{"learning_rate": 0.1, "steps": 100}',
        '{\n  "step": 1,\n  "loss": 2\n}\n',
        "2024-01-01 step 1 loss 2\n" * 5,
    ],
)
def test_logs_traces_and_settings_are_not_claimed(tmp_path: Path, text: str) -> None:
    assert recognised(write(tmp_path, text)) == 0


@needs_artifacts
def test_real_metrics_are_read_without_a_warning() -> None:
    paths = sorted((SHARED / "cases" / "dev").glob("*/artifacts/**/*.jsonl"))
    assert paths
    for path in paths:
        assert recognised(path) >= 60, path
        sink = load(metrics_jsonl, path)
        assert not sink.warnings
        n_lines = sum(bool(line.strip()) for line in path.read_text().split("\n"))
        assert len({row["line"] for row in sink.rows("sample")}) == n_lines


def test_steps_and_ranks_that_are_none_are_told_not_dropped_in_silence(tmp_path: Path) -> None:
    text = (
        '{"step": -1, "rank": 0, "loss": 3}\n{"step": 1, "rank": 0, "loss": 2}\n'
        '{"step": 2, "rank": 99999999999999999999999999, "loss": 2}\n'
    )
    sink = load(metrics_jsonl, write(tmp_path, text))
    assert series(sink, "loss") == [(None, 3.0), (1, 2.0), (2, 2.0)]
    (warning,) = sink.warnings
    assert "step (1, first -1 in line 1)" in warning["message"]
    assert "rank (1, first 1e+26 in line 3)" in warning["message"]
    assert sink.quality == "complete"


def test_a_job_of_one_process_is_not_warned_of_its_rank(tmp_path: Path) -> None:
    sink = load(
        metrics_jsonl, write(tmp_path, '{"step": 1, "rank": -1, "loss": 3}\n{"step": 2, "rank": -1, "loss": 3}\n')
    )
    assert sink.warnings == []
