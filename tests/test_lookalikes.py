"""Files that look like evidence and are none are named in the artifact's warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ARTIFACTS, load, needs_artifacts

from forensics.artifact import Head
from forensics.discovery import discover
from forensics.formats import lookalikes
from forensics.pipeline import analyze


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 7\n", "Git LFS pointer"),
        (b"/annex/objects/SHA256E-s7--aa.json\n", "git-annex pointer"),
        (b"\0\5\26\7\0\2\0\0Mac OS X        ", "AppleDouble"),
        (b"\0\0\0\1Bud1\0\0\x10\0", "Finder"),
        (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "object store"),
        (b"\n<!DOCTYPE html><html></html>", "HTML page"),
        (b'{"traceEvents":[{"ph":"X","name":"hipMalloc","args":{"BeginNs":"5"}}]}', "rocprof"),
        (b'{"traceEvents": [{"ph": "X", "cat": "FEE", "name": "f"}]}', "VizTracer"),
        (b'{"traceEvents":[{"ph":"X","cat":"v8","name":"f","pid":1,"tid":1,"ts":1,"dur":2}]}', "not known here"),
        (b'[{"cols":[{"id":"time","label":"Time"}],"rows":[]}]', "TensorBoard"),
        (b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[]}', "XLA"),
    ],
)
def test_a_look_alike_is_named_with_advice(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    (found,) = discover(path, tmp_path / "work")
    assert found.format == "lookalikes"
    (warning,) = load(lookalikes, path).warnings
    assert warning["code"] == "look-alike" and name in warning["message"]


@pytest.mark.parametrize("content", [b"", b"loss 0.5\n", b'{"traceEvents":[]}', b"[" * 70_000])
def test_other_content_is_no_look_alike(content: bytes) -> None:
    assert lookalikes.recognise(Head("x", content, whole=True)) == 0


@needs_artifacts
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("chrome_trace/kineto__profile_Cloud-TPU_10.240.1.50.overview_page.json", "TensorBoard"),
        ("chrome_trace/tracelens__._huvideo_traces_rank_0_step_3.json", "AppleDouble"),
        ("other/viztracer__old.json", "VizTracer"),
    ],
)
def test_look_alikes_among_real_artifacts_are_named(file: str, name: str) -> None:
    assert name in load(lookalikes, ARTIFACTS / file).warnings[0]["message"]


def test_the_report_says_what_a_look_alike_is(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "rank0.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 7\n")
    analyze(folder, tmp_path / "out")
    assert "Git LFS pointer" in (tmp_path / "out" / "report.html").read_text()
