"""The child process that analyzes one job of a batch, within its bounds.

`job_runner` has it forked from a server that is warm, gives it an order, and reads one line of JSON as its answer. What
it leaves where it is killed half-way is overwritten by the next try.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import orjson

from forensics.children import start_server
from forensics.errors import ForensicsError
from forensics.fleet.editions import content_of, edition
from forensics.fleet.job_runner import OTHER_EDITION, SCRATCH, Order
from forensics.fleet.rows import write_row
from forensics.fleet.staging import OverBudget, staged
from forensics.forking import die_with_parent, serve_forks
from forensics.imports import leave_out_pandas
from forensics.leftovers import temporary_folder
from forensics.memory import bound_growth, parse_size

_SOFT_SHARE = 0.8  # of the time; then analysis reports what it knows, before it is killed


def serve(control: int, parent: int, rules: Sequence[str], configuration: str) -> None:
    """A server of such processes (see `forking`), which has imported and parsed all that jobs have in common.

    It ends when the batch closes `control`, also by being killed, and its processes end with it. `rules`: folders of
    site rules. Descriptors of a request: a socket for the answer, the order as JSON, and where errors are printed.
    """
    os.setsid()  # Ctrl-C is the batch's affair
    leave_out_pandas()
    warm_up(rules)
    server, ours = (
        os.getpid(),
        edition([Path(folder) for folder in rules], Path(configuration) if configuration else None),
    )
    serve_forks(control, lambda descriptors, _: _be_job(descriptors, server, ours))


def warm_up(rules: Sequence[str]) -> None:
    """Imports and parses without opening a database: that would start threads."""
    from forensics.formats import formats
    from forensics.library import load_rules, load_views
    from forensics.report.html import warm_up as warm_up_page

    formats()
    warm_up_page()
    with contextlib.suppress(ForensicsError):  # each job says what is wrong with them
        load_rules([Path(folder) for folder in rules])
        load_views([Path(folder) for folder in rules])


def _be_job(descriptors: Sequence[int], server: int, ours: str) -> NoReturn:
    code = 1
    try:
        die_with_parent(server)
        os.setsid()  # a group to be killed as one
        channel, orders, errors = descriptors
        os.dup2(errors, 2)
        _offer_to_the_system()
        with os.fdopen(orders, "rb") as file:
            order = Order(**orjson.loads(file.read()))
        start_server(here=True)  # while there is no thread
        # Before anything is written: on a cluster this may be another version than the batch's.
        answer = orjson.dumps(work(order) if ours == order.edition else {"status": OTHER_EDITION})
        with socket.socket(fileno=channel) as stream:
            stream.sendall(answer + b"\n")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _offer_to_the_system() -> None:
    """Where memory runs out the system shall end a job, not the batch."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


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
