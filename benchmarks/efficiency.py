"""Device time of profiler traces beside HolisticTraceAnalysis 0.5.0, also by HTA's own rules, so that differences show.

`HTA_PYTHON`: the interpreter of an environment with HolisticTraceAnalysis 0.5.0 and pandas < 3.
Usage: python -m benchmarks.efficiency TRACE…
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb

from benchmarks.ingest import ROOT
from forensics.case import connect
from forensics.models.intervals import derive_device_time
from forensics.pipeline import analyze

_HTA = ROOT.parent / "shared/peers/hta_run.py"
_FIGURES = """
SELECT
    idle_ns / 1000,
    compute_ns / 1000,
    (exposed_communication_ns + exposed_copy_ns) / 1000,
    (to_ns - ts_ns) / 1000,
    100.0 * (communication_ns - exposed_communication_ns) / nullif(communication_ns, 0)
FROM device_time
"""
# What HTA 0.5.0 counts: only work launched before the last step, where several are marked (trace.py,
# _filter_irrelevant_gpu_kernels); begins rounded up and ends down to whole microseconds where the trace has fractions
# (trace_parser.py, round_down_time_stamps); events of category cuda_sync, which it takes for work, and by its pattern
# `Stream Wait Event` for computation (utils.py).
_AS_HTA_COUNTS = (
    """
    DELETE FROM slice WHERE kind IN ('kernel', 'memcpy', 'memset', 'sync') AND (
        SELECT count(DISTINCT a.name_id) FROM slice AS a JOIN string AS n ON n.id = a.name_id
        WHERE n.text LIKE 'ProfilerStep%'
    ) > 1 AND coalesce((SELECT l.ts_ns FROM slice AS l WHERE l.row = slice.launch_row), -1) NOT BETWEEN 0 AND (
        SELECT max(a.ts_ns) - 1 FROM slice AS a JOIN string AS n ON n.id = a.name_id WHERE n.text LIKE 'ProfilerStep%'
    )
    """,
    """
    UPDATE slice SET
        kind = if((SELECT text FROM string WHERE id = name_id) LIKE '%Sync%', 'memset', 'kernel')
    WHERE kind = 'sync' AND stream >= 0
    """,
    """
    UPDATE slice SET
        ts_ns = (ts_ns + 999) // 1000 * 1000,
        dur_ns = greatest((ts_ns + dur_ns) // 1000 * 1000 - (ts_ns + 999) // 1000 * 1000, 0)
    WHERE kind IN ('kernel', 'memcpy', 'memset')
    """,
)


def figures(case: Path, *, as_hta: bool) -> tuple[float, ...]:
    """Idle, computing, other and whole microseconds, and the share of communication that overlaps, percent."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(shutil.copy(case, place))
        con: duckdb.DuckDBPyConnection = connect(copy)
        if as_hta:
            for change in _AS_HTA_COUNTS:
                con.execute(change)
            for table in ("device_time", "device_idle", "device_gap"):
                con.execute(f"DELETE FROM {table}")
            derive_device_time(con)
        rows = con.execute(_FIGURES).fetchall()
        con.close()
    return tuple(rows[0]) if rows else ()


def by_hta(trace: Path) -> tuple[float, ...]:
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copy(trace, place)
        command = [os.environ.get("HTA_PYTHON", sys.executable), str(_HTA), copy]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    row = said["temporal_breakdown"][0][0]
    overlap = said["comm_comp_overlap"]
    share = overlap[0][0]["comp_comm_overlap_pctg"] if isinstance(overlap, list) else float("nan")
    names = ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)")
    return (*(row[name] for name in names), share)


def main() -> None:
    print("| trace | | idle us | computing us | other us | whole us | overlap % |\n|---|---|---|---|---|---|---|")
    for name in sys.argv[1:]:
        trace = Path(name)
        with tempfile.TemporaryDirectory() as place:
            analyze(trace, Path(place) / "out")
            case = Path(place) / "out" / "case.duckdb"
            rows = {
                "HTA": by_hta(trace),
                "by its rules": figures(case, as_hta=True),
                "forensics": figures(case, as_hta=False),
            }
        for who, row in rows.items():
            told = " | ".join("" if value is None or value != value else f"{value:,.1f}" for value in row)
            print(f"| {trace.name.split('.json')[0][:48]} | {who} | {told} |", flush=True)


if __name__ == "__main__":
    main()
