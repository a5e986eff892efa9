"""The child process that analyzes one job of a batch, within its bounds.

`job_runner` starts it with an order on stdin; it answers on stdout with one line of JSON. What it leaves where it is
killed half-way is overwritten by the next try.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from forensics.child import die_with_parent
from forensics.errors import ForensicsError
from forensics.fleet.editions import content_of
from forensics.fleet.job_runner import SCRATCH, Order
from forensics.fleet.rows import write_row
from forensics.fleet.staging import OverBudget, staged
from forensics.imports import leave_out_pandas
from forensics.leftovers import temporary_folder
from forensics.memory import bound_growth, parse_size

_SOFT_SHARE = 0.8  # of the time; then analysis reports what it knows, before it is killed


def main(parent: int) -> None:
    die_with_parent(parent)
    leave_out_pandas()
    order = Order(**orjson.loads(sys.stdin.buffer.read()))
    answer = work(order)
    sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
    sys.stdout.flush()


def work(order: Order) -> dict[str, Any]:
    """What became of it: `status`, `content`, and `reason` where it was not analyzed."""
    began = time.time_ns()
    memory = parse_size(order.memory_limit) if order.memory_limit else None
    if memory:
        bound_growth(memory, final=False)
    scratch = temporary_folder(SCRATCH)
    try:
        with staged(order, scratch) as (path, files):
            content = content_of(files)
            row = Path(order.fleet) / "rows" / f"{order.key}.parquet"
            if content == order.content and order.stands and row.is_file():
                return {"status": "unchanged", "content": content}
            return _analyze(order, path, content, began, row, scratch)
    except OverBudget as error:
        return {"status": "not-analyzed", "content": "", "reason": str(error)}
    except MemoryError:
        reason = f"it needs more memory than {order.memory_limit}"
        return {"status": "not-analyzed", "content": "", "reason": reason}
    except ForensicsError as error:
        return {"status": "not-analyzed", "content": "", "reason": str(error)}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _analyze(order: Order, path: Path, content: str, began: int, row: Path, scratch: Path) -> dict[str, Any]:
    from forensics.configuration import Configuration, read_configuration
    from forensics.fleet.extract import extract
    from forensics.pipeline import Settings, analyze

    start = time.monotonic()
    out = Path(order.fleet) / "jobs" / order.key
    settings = Settings(
        rules=[Path(folder) for folder in order.rules],
        configuration=read_configuration(Path(order.configuration)) if order.configuration else Configuration(),
        cache=Path(order.fleet) / "cache" if order.keep == "cache" else scratch / "cache",
        threads=order.threads,
        memory_limit=order.memory_limit,
        max_seconds=order.seconds * _SOFT_SHARE if order.seconds else None,
    )
    analyze(path, out, settings=settings)
    run = order.since if content == order.content and order.since else order.run
    told = extract(out)
    if order.keep == "report":
        (out / "case.duckdb").unlink(missing_ok=True)
    write_row(
        row,
        {
            **told,
            **_known(order, told),
            "run": run,
            "status": "analyzed",
            "content": content,
            "analyzed_ns": began,
            "wall_s": time.monotonic() - start,
            "cpu_s": _cpu_seconds(),
            "peak_bytes": _peak_bytes(),
        },
    )
    return {
        "status": "analyzed",
        "content": content,
        "verdict": told["verdict"],
        "sentence": told["sentence"],
        "since": run,
    }


def _known(order: Order, told: Mapping[str, Any]) -> dict[str, Any]:
    """What the scheduler says goes before what the job's files say of its times and devices."""
    said = {name: value for name, value in order.job.items() if value is not None or name not in told}
    elapsed, n_gpus = order.job.get("elapsed_s"), order.job.get("n_gpus")
    if elapsed is not None and n_gpus:
        said |= {"gpu_hours": elapsed * n_gpus / 3600, "gpu_hours_origin": order.job.get("state_origin")}
    if said.get("ended_ns") is None and told.get("ended_ns") is None:
        said["ended_ns"] = order.modified_ns or None
    return {**said, "edition": order.edition, "report": f"jobs/{order.key}/report.html"}


def _cpu_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _peak_bytes() -> int:
    """The most that one of its processes took."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) << 10
