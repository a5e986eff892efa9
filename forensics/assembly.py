"""Builds the case file from loaded artifacts: processes, clocks, tables, then what models derive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from forensics.case import (
    DERIVED_TABLES,
    EVENT_TABLES,
    MEMORY_LIMIT,
    affordable,
    arrow_type,
    case_columns,
    create_case,
    load_table,
)
from forensics.deadline import Deadline
from forensics.discovery import Hints
from forensics.errors import CaseError
from forensics.ingest import Loaded
from forensics.loading import no_space
from forensics.models import DERIVATIONS
from forensics.models.processes import Mention, Node, Processes, identify_processes
from forensics.models.runs import Lying, Series, tell_runs_apart

_ABSOLUTE = {"epoch", "local"}  # clocks whose times can be compared before they are set
_ONE_OF_A_JOB = {"trainer_state"}  # formats of files that one process writes for all ranks


def assemble_case(
    loaded: Sequence[Loaded],
    path: Path,
    *,
    threads: int = 2,
    memory_limit: str | None = None,
    deadline: Deadline | None = None,
) -> list[str]:
    """Writes the case at `path` (which must not exist); artifact ids are positions in `loaded`.

    The names of what the deadline kept out of it are returned: tables, or models that derive them.
    """
    until = deadline or Deadline()
    con = create_case(path)
    try:
        con.execute(f"SET threads = {int(threads)}")
        if memory_limit:
            con.execute("SET memory_limit = ?", [memory_limit])
        mentions, runs = tell_runs_apart([_lying(aid, item) for aid, item in enumerate(loaded)])
        processes = identify_processes(mentions, _nodes(loaded), n_told=_n_told(loaded))
        _insert(con, "artifact", [_artifact_row(aid, item, runs.get(aid)) for aid, item in enumerate(loaded)])
        _insert(con, "proc", processes.rows)
        _load_processes(con, processes)
        _insert(
            con,
            "ingest_warning",
            [{"artifact_id": a, **w} for a, i in enumerate(loaded) for w in [*i.meta["warnings"], *_contradictions(i)]],
        )
        _insert(con, "coverage", [row for a, i in enumerate(loaded) for row in _coverage_rows(a, i, processes)])
        _insert(con, "fact", [row for a, i in enumerate(loaded) for row in _fact_rows(a, i, processes)])
        told = [m.artifact_id for m in mentions if m.known.get("attempt") is not None]
        con.execute("CREATE TEMP TABLE attempt_told AS SELECT DISTINCT unnest(?::INTEGER[]) AS artifact_id", [told])
        missing = _fill(con, loaded, until, None if memory_limit else affordable(MEMORY_LIMIT))
        con.execute("CHECKPOINT investigation")
    finally:
        con.close()
    return missing


def _fill(
    con: duckdb.DuckDBPyConnection, loaded: Sequence[Loaded], deadline: Deadline, more_memory: str | None
) -> list[str]:
    """Loads events and derives; what lacks for want of time is returned.

    A step that needs more memory than the database has is done again with `more_memory`; CaseError where that is None
    or does not do.
    """
    steps: dict[str, Callable[[], None]] = {}
    for table in ("string", "stack", *EVENT_TABLES, *DERIVED_TABLES):
        parts = [(aid, part) for aid, item in enumerate(loaded) for part in item.tables().get(table, [])]
        if parts:
            steps[table] = partial(load_table, con, table, parts)
    steps.update({derive.__name__: partial(derive, con) for derive in DERIVATIONS})
    missing = []
    for name, step in steps.items():
        if deadline.expired():
            missing.append(name)
            continue
        try:
            done = _try(con, step, deadline)
        except duckdb.OutOfMemoryException as error:
            try:
                if more_memory is None or no_space(error):
                    raise
                con.execute("SET memory_limit = ?", [more_memory])
                done = _try(con, step, deadline)
            except duckdb.OutOfMemoryException as final:
                if no_space(final):
                    raise
                said = str(final).partition("\n")[0]
                raise CaseError(f"{name}: {said}; expected more room: raise --memory-limit") from final
        if not done:
            missing.append(name)
    return missing


def _try(con: duckdb.DuckDBPyConnection, step: Callable[[], None], deadline: Deadline) -> bool:
    """Whether the step ended in time; what is interrupted half-way, as a shift of clocks, does not remain."""
    con.begin()
    try:
        with deadline.interrupting(con):
            step()
        con.commit()
    except duckdb.Error:
        with contextlib.suppress(duckdb.Error):  # a full disk has ended the transaction already
            con.rollback()
        if not deadline.expired():
            raise
        return False
    return True


def _mentions(artifact_id: int, item: Loaded) -> list[Mention]:
    hints = item.found.hints
    numbers = dict(item.meta["procs"])
    for covered in item.meta["coverage"]:  # what speaks of the job as a whole makes no process
        if not covered.get("job"):
            numbers.setdefault(str(covered.get("proc", 0)), {})
    mentions = []
    for number, said in numbers.items():
        known: dict[str, Any] = dict(said)
        for name in ("rank", "local_rank", "host", "attempt"):
            if known.get(name) is not None:
                known.setdefault(f"{name}_origin", "content")
            elif name in {"host", "attempt"} or len(numbers) == 1 or number == "0":
                known.update({name: getattr(hints, name), f"{name}_origin": getattr(hints, f"{name}_origin")})
        if known.get("rank") is None and known.get("pid") is not None and len(numbers) > 1:
            known["separate"] = True
        mentions.append(Mention(artifact_id, int(number), known))
    return mentions


def _lying(artifact_id: int, item: Loaded) -> Lying:
    found, mentions = item.found, _mentions(artifact_id, item)
    values = _values(item) if found.format in _ONE_OF_A_JOB else {}
    has_series = "sample" in item.tables() and item.meta["clock"] in _ABSOLUTE
    series = cache(partial(_series, item)) if has_series else None
    return Lying(found.source.name, found.format, mentions, series, values)


def _values(item: Loaded) -> dict[tuple[int, int], float]:
    """Values of an artifact's samples by step and name."""
    found: dict[tuple[int, int], float] = {}
    for part in item.tables().get("sample", []):
        columns = pq.read_table(part, columns=["step", "name_id", "value"]).to_pydict()
        rows = zip(columns["step"], columns["name_id"], columns["value"], strict=True)
        found.update({(step, name): value for step, name, value in rows if step is not None})
    return found


def _series(item: Loaded) -> Series | None:
    """Steps and times of an artifact's samples, as the statistics of their Parquet files tell, without reading them."""
    bounds: dict[str, list[int]] = {"step": [], "ts_ns": []}
    for part in item.tables().get("sample", []):
        about = pq.read_metadata(part)
        for group in range(about.num_row_groups):
            columns = [about.row_group(group).column(number) for number in range(about.num_columns)]
            for column in columns:
                known = column.statistics if column.path_in_schema in bounds else None
                if known is not None and known.has_min_max:
                    bounds[column.path_in_schema] += [known.min, known.max]
    if not all(bounds.values()):
        return None
    steps, times = bounds["step"], bounds["ts_ns"]
    return Series(min(steps), max(steps), min(times), max(times), item.meta["clock"])


def _contradictions(item: Loaded) -> list[dict[str, Any]]:
    """Where a file's content names another process than its name or folder does; the content counts."""
    procs, hints = list(item.meta["procs"].values()), item.found.hints
    if len(procs) != 1:  # of a file of several processes the name is that of its writer
        return []
    found = []
    for name in ("rank", "local_rank", "host", "attempt"):
        said, named = procs[0].get(name), getattr(hints, name)
        if said is not None and named is not None and said != named:
            message = f"its content says {name.replace('_', ' ')} {said}, its {_place_of(hints, name)} {named}"
            found.append(
                {"code": "process-contradiction", "message": message, "hides": "nothing, if the content is right"}
            )
    return found


def _place_of(hints: Hints, name: str) -> str:
    place = getattr(hints, f"{name}_origin")
    return "file name" if place == "file-name" else "folder"


_GROUP_RANK = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
_N_LOCAL = ("LOCAL_WORLD_SIZE", "NPROC_PER_NODE", "SLURM_NTASKS_PER_NODE")

# Names of variables and of launchers' options that tell of so many processes at least.
_N_ALL = {
    *("world_size", "num_processes", "nproc_per_node", "local_world_size", "nnodes", "ntasks", "ntasks_per_node"),
    *("slurm_ntasks", "slurm_nprocs", "slurm_ntasks_per_node", "slurm_nnodes", "ompi_comm_world_size", "pmi_size"),
}


def _n_told(loaded: Sequence[Loaded]) -> int:
    """The most processes that a setting or a launcher's command line among the evidence tells of; 1 where none does."""
    return max(
        (
            int(fact["number"])
            for item in loaded
            for fact in item.meta["facts"]
            if fact.get("number") is not None and fact["key"].lower().replace("-", "_") in _N_ALL
        ),
        default=1,
    )


def _nodes(loaded: Sequence[Loaded]) -> dict[str, Node]:
    """Place of each host in the job, as its environment tells; none where two artifacts disagree."""
    found: dict[str, set[Node]] = {}
    for item in loaded:
        said = {
            f["key"]: int(f["number"]) for f in item.meta["facts"] if f.get("number") is not None and f["number"] >= 0
        }
        group = next((said[key] for key in _GROUP_RANK if key in said), None)
        n_local = next((said[key] for key in _N_LOCAL if key in said), None)
        hosts = [known.get("host") for known in item.meta["procs"].values()] + [item.found.hints.host]
        for host in hosts:
            if host is not None and group is not None and n_local:
                found.setdefault(host, set()).add(Node(group, n_local))
    return {host: nodes.pop() for host, nodes in found.items() if len(nodes) == 1}


def _artifact_row(artifact_id: int, item: Loaded, run: str | None) -> dict[str, Any]:
    from forensics.formats import formats

    meta, found = item.meta, item.found
    return {
        "id": artifact_id,
        "path": found.source.name,
        "sha256": found.source.sha256,
        "bytes": found.bytes,
        "format": found.format,
        "version": formats()[found.format].VERSION if found.format else None,
        "quality": meta["quality"],
        "bad_byte": meta.get("bad_byte"),
        "lost_bytes": meta.get("lost_bytes"),
        "clock": meta["clock"],
        "clock_error_ns": meta.get("clock_error_ns"),
        # What an archive was unpacked to is new.
        "modified_ns": None if "!" in found.source.name else _modified_ns(found.source.path),
        "run": run,
    }


def _modified_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _coverage_rows(artifact_id: int, item: Loaded, processes: Processes) -> list[dict[str, Any]]:
    rows = []
    for given in item.meta["coverage"]:
        row = {"complete": True, "n_read": 0, "n_kept": 0, **given, "artifact_id": artifact_id}
        job = row.pop("job", False)
        number = row.pop("proc", 0)
        row["proc_id"] = None if job else processes.ids.get((artifact_id, number))
        rows.append(row)
    return rows


def _fact_rows(artifact_id: int, item: Loaded, processes: Processes) -> list[dict[str, Any]]:
    rows = []
    for given in item.meta["facts"]:
        row = {**given, "artifact_id": artifact_id}
        number = row.pop("proc", None)
        row["proc_id"] = None if number is None else processes.ids.get((artifact_id, number))
        rows.append(row)
    return rows


def _load_processes(con: duckdb.DuckDBPyConnection, processes: Processes) -> None:
    ranks = {row["id"]: row["rank"] for row in processes.rows}
    mapping = pa.table(
        {
            "artifact_id": pa.array([a for a, _ in processes.ids], pa.int32()),
            "proc": pa.array([n for _, n in processes.ids], pa.int32()),
            "proc_id": pa.array(list(processes.ids.values()), pa.int32()),
            "rank": pa.array([ranks[p] for p in processes.ids.values()], pa.int32()),
        }
    )
    con.register("given_mapping", mapping)
    con.execute("CREATE OR REPLACE TEMP TABLE process_of AS SELECT * FROM given_mapping")
    con.unregister("given_mapping")


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Appends rows given as dicts; for the small tables only (events arrive as Parquet)."""
    if not rows:
        return
    kinds = case_columns()[table]
    given = pa.table(
        {name: pa.array([row.get(name) for row in rows], arrow_type(kind)) for name, kind in kinds.items()}
    )
    con.register("given_rows", given)
    con.execute(f"INSERT INTO {table} SELECT * FROM given_rows")
    con.unregister("given_rows")
