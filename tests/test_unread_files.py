"""Files that give no rows are never passed over in silence: each says what it is, or what is wrong with it."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import load

from forensics.discovery import discover
from forensics.formats import formats, kineto
from forensics.loading import load_artifact
from forensics.parquet_sink import ParquetSink


def _parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"speed": list(range(1000))}), out)
    return out.getvalue()


@pytest.mark.parametrize("name", ["metrics.parquet", "CUPTI_ACTIVITY_KIND_KERNEL.parquet", "cuda_gpu_sum.parquet"])
@pytest.mark.parametrize("size", [12, 500, -8, -1])
def test_a_cut_parquet_file_says_that_its_end_is_missing(name: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(_parquet()[:size])
    (found,) = discover(path, tmp_path / "work")
    assert found.format is not None
    (tmp_path / "out").mkdir()
    meta = load_artifact(found.format, formats()[found.format], found.source, ParquetSink(tmp_path / "out"))
    assert meta["quality"] == "failed" and meta["warnings"] and not meta.get("fault")


def test_a_parquet_file_of_another_kind_is_named_with_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.parquet"
    path.write_bytes(_parquet())
    (found,) = discover(path, tmp_path / "work")
    assert found.format == "parquet_table"
    (warning,) = load(formats()["parquet_table"], path).warnings
    assert warning["code"] == "not-evidence" and "speed" in warning["message"]


@pytest.mark.parametrize("text", ['{"traceEvents":[]}', '{"traceEvents": [\n]}\n', '{"a": 1, "traceEvents":[ ]}'])
def test_a_trace_without_events_is_a_trace_that_says_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    (found,) = discover(path, tmp_path / "work")
    assert found.format == "kineto"
    sink = load(kineto, path)
    assert [w["code"] for w in sink.warnings] == ["no-events"]


def test_a_cut_gzip_of_no_known_format_is_said_to_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "blob.gz"
    packed = gzip.compress(bytes(n * n % 251 for n in range(300_000)) * 3)
    for size, codes in ((len(packed), []), (len(packed) - 9, ["damaged-compression"])):
        path.write_bytes(packed[:size])
        (found,) = discover(path, tmp_path / "work")
        assert found.format is None
        assert [code for code, _, _ in found.problems] == codes
