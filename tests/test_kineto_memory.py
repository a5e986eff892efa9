"""Profiler traces in a process that may take little memory: whole where it suffices, else the part that fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kineto_traces import many, trace

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds what a process may take")
_LOAD = """
import json, sys
from pathlib import Path
import pyarrow as pa
from forensics.artifact import Source
from forensics.formats import formats
from forensics.loading import load_artifact
from forensics.memory import bound_growth
from forensics.parquet_sink import ParquetSink
module = formats()["kineto"]
pa.set_cpu_count(1)
pa.set_io_thread_count(1)
path, folder = map(Path, sys.argv[1:3])
bound_growth(int(sys.argv[3]) << 20)
meta = load_artifact("kineto", module, Source(path, path.name), ParquetSink(folder))
print(json.dumps([meta["quality"], meta["warnings"], meta["coverage"], meta.get("short")]))
"""


def load_within(mib: int, path: Path, folder: Path) -> tuple[str, list[dict[str, object]], dict[str, int], bool]:
    import json

    folder.mkdir()
    variables = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", _LOAD, str(path), str(folder), str(mib)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120, check=True)
    quality, warnings, coverage, short = json.loads(done.stdout)
    return quality, warnings, next(c for c in coverage if c["capability"] == "slice"), bool(short)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 MB, 400 000 events: loaded without a bound it takes half of a gibibyte."""
    path = tmp_path_factory.mktemp("traces") / "trace.json"
    path.write_bytes(trace(many(400_000)))
    return path


@linux
def test_a_trace_that_needs_more_by_far_is_read_whole_in_small_slices(large: Path, tmp_path: Path) -> None:
    quality, warnings, covered, short = load_within(400, large, tmp_path / "out")
    assert (quality, warnings, covered["n_kept"], short) == ("complete", [], 400_000, False)


@linux
def test_where_memory_ends_what_was_read_is_kept_and_the_place_is_told(large: Path, tmp_path: Path) -> None:
    quality, warnings, covered, short = load_within(200, large, tmp_path / "out")
    assert quality == "partial" and short
    assert 0 < covered["n_kept"] < 400_000 and not covered["complete"]
    (cut,) = [w for w in warnings if w["code"] == "memory-limit"]
    assert isinstance(cut["byte"], int) and 0 < cut["byte"] < large.stat().st_size
    assert warnings[-1]["message"] == "kineto exceeded its memory limit"
