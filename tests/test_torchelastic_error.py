from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import MemorySink, load

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import torchelastic_error

CALLSTACK = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 7, in inner
    raise KeyError("x")
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/distributed/elastic/errors/__init__.py", line 355, in wrapper
    return f(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^
  File "/job/train.py", line 12, in main
    step()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
MESSAGE = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
DOCUMENT = {
    "message": {"message": MESSAGE, "extraInfo": {"py_callstack": CALLSTACK, "timestamp": "1795952507"}, "errorCode": 3}
}


def write(tmp_path: Path, text: str | bytes, name: str = "attempt_1/2/error.json") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def recognised(path: Path) -> int:
    return torchelastic_error.recognise(Source(path, path.name).head())


def event(sink: MemorySink) -> dict[str, object]:
    (row,) = sink.rows("log_event")
    return row


def test_the_error_becomes_one_event_with_its_stack(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(DOCUMENT))
    assert recognised(path) >= 80
    sink = load(torchelastic_error, path)
    row = event(sink)
    assert (row["source"], row["signature"], row["class"], row["role"]) == (
        "torchrun",
        "cuda-oom",
        "mem.gpu.oom",
        "primary",
    )
    assert (row["exception"], row["message"], row["line"]) == ("OutOfMemoryError", MESSAGE.partition(": ")[2], 1)
    assert row["ts_ns"] == 1795952507 * 10**9
    assert sink.clock_kind == "epoch"
    assert sink.procs == {0: {"exit_code": 3}}
    assert [(f["function"], f["line"]) for f in sink.rows("stack")] == [("wrapper", 355), ("main", 12)]
    assert row["stack_id"] == sink.rows("stack")[-1]["id"]
    assert [(c["capability"], c["complete"]) for c in sink.coverage] == [("log_event", True)]


def test_what_the_catalogue_knows_is_named_as_in_a_log(tmp_path: Path) -> None:
    message = "RuntimeError: Function 'LogBackward0' returned nan values in its 0th output."
    row = event(load(torchelastic_error, write(tmp_path, json.dumps({"message": {"message": message}}))))
    assert (row["class"], json.loads(str(row["fields"]))["function"]) == ("numerics.nan-backward", "LogBackward0")


def test_a_line_of_a_pretty_printed_file_is_that_of_its_message(tmp_path: Path) -> None:
    text = json.dumps(DOCUMENT, indent=2)
    row = event(load(torchelastic_error, write(tmp_path, text)))
    assert "OutOfMemoryError" in text.split("\n")[int(str(row["line"])) - 1]
    assert text.encode()[int(str(row["byte"])) :].startswith(b'"OutOfMemoryError')


@pytest.mark.parametrize(
    ("document", "exception"),
    [
        ({"message": "ValueError: boom"}, "ValueError"),
        ({"message": {"message": "Signal 9 (SIGKILL) received by PID 12"}}, None),
        ({"message": {"message": "", "extraInfo": {"py_callstack": CALLSTACK}}}, "torch.OutOfMemoryError"),
        ({"message": {"message": "SystemExit", "extraInfo": {"timestamp": 1795952507}}}, "SystemExit"),
    ],
)
def test_older_and_custom_forms_are_read(tmp_path: Path, document: object, exception: str | None) -> None:
    path = write(tmp_path, json.dumps(document))
    assert recognised(path) >= 60 or "extraInfo" in json.dumps(document)
    assert event(load(torchelastic_error, path))["exception"] == exception


def test_a_file_cut_anywhere_keeps_what_was_written(tmp_path: Path) -> None:
    text = json.dumps(DOCUMENT)
    for end in range(40, len(text) - 1, 23):
        sink = load(torchelastic_error, write(tmp_path, text[:end]))
        assert str(event(sink)["message"]) in MESSAGE or CALLSTACK.startswith(str(event(sink)["message"]))
        assert sink.quality == "partial"
        assert sink.warnings[0]["code"] == "truncated"
    sink = load(torchelastic_error, write(tmp_path, text[: text.index("step()")]))
    assert [f["function"] for f in sink.rows("stack")] == ["wrapper", "main"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"message": ',
        '{"message": {}}',
        '{"message": [1, 2]}',
        '{"message": {"message": "' + "x" * 300_000,
        '{"message": {"message": "x", "errorCode": 99999999999999999999, "extraInfo": {"timestamp": "never"}}}',
        '{"message": {"message": "\\ud800\\u0000"}}',
        '{"message": ' + '{"message": ' * 50_000,
        '{"message": {"message": "x", "extraInfo": {"py_callstack": "'
        + 'File \\"a\\", line 9999999999' * 5000
        + '"}}}',
        b"\xff\xfe{\x00",
    ],
)
def test_hostile_files_raise_nothing_but_the_agreed_error(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path, text)
    recognised(path)
    try:
        load(torchelastic_error, path)
    except ArtifactError:
        return


def test_other_json_is_not_claimed(tmp_path: Path) -> None:
    for text in (
        '{"step": 1}',
        '{"message": "x", "level": "info"}',
        '[{"message": {}}]',
        "message",
        '{"messages": []}',
    ):
        assert recognised(write(tmp_path, text)) == 0
