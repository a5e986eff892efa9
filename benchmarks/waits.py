"""Culprits of simulated hangs, and what finding them costs: `python benchmarks/waits.py [RANKS [SEEDS [FIRST SEED]]]`.

For each fault and seed a job of that many ranks is simulated and put into a case as its dumps would be; then the
wait-for graph is derived from that loaded case. Prints how often the first culprit is the rank at fault, and CPU
seconds.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow as pa

from forensics import resources
from forensics.case import connect, text_id
from forensics.formats._rank_ranges import ranges_of
from forensics.models.waits import derive_waits

SHAPES = {4096: (8, 8), 16_384: (8, 16)}  # tensor, pipeline
_STATES = ("scheduled", "started", "completed")


def simulator() -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "fixtures" / "programs" / "collective_simulator.py"
    spec = importlib.util.spec_from_file_location("collective_simulator", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def empty_case() -> duckdb.DuckDBPyConnection:
    con = connect()
    con.execute(resources.schema_sql())
    return con


def loaded(
    job: Any, without: set[int] | None = None, *, starts: bool = False, ring: int = 2000, into: Any = None
) -> duckdb.DuckDBPyConnection:
    """A case in memory that holds what the job's dumps hold, but for stacks; ranks `without` left none."""
    con: duckdb.DuckDBPyConnection = into or empty_case()
    ranks = [rank for rank in range(job.world) if rank not in (without or ())]
    _put(con, "artifact", {"id": ranks, "path": [f"rank_{r}" for r in ranks], "sha256": [""] * len(ranks),
        "bytes": [1] * len(ranks), "quality": ["complete"] * len(ranks), "clock": ["epoch"] * len(ranks)})  # fmt: skip
    origin = ["content"] * len(ranks)
    _put(con, "proc", {"id": ranks, "attempt": [0] * len(ranks), "rank": ranks, "rank_origin": origin})
    _put(con, "coverage", {"artifact_id": ranks, "proc_id": ranks, "capability": ["collective"] * len(ranks),
        "complete": [True] * len(ranks), "n_read": [1] * len(ranks), "n_kept": [1] * len(ranks)})  # fmt: skip
    names = [str(group.number) for group in job.groups]
    _put(con, "string", {"id": pa.array([text_id(n) for n in names], pa.uint64()), "text": names})
    calls, groups = _rows(job, ranks, starts, ring)
    _put(con, "collective", calls)
    _put(con, "process_group", groups)
    return con


def _put(con: duckdb.DuckDBPyConnection, table: str, columns: dict[str, Any]) -> None:
    con.register("given", pa.table(columns))
    con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM given")
    con.unregister("given")


def _rows(job: Any, ranks: list[int], starts: bool, ring: int) -> tuple[dict[str, Any], dict[str, Any]]:
    calls: dict[str, list[Any]] = {name: [] for name in (
        "artifact_id", "row", "proc_id", "rank", "ts_ns", "group_id", "sequence", "p2p_sequence", "is_p2p",
        "peer_rank", "operation", "dtype", "in_bytes", "state", "retired")}  # fmt: skip
    groups: dict[str, list[Any]] = {name: [] for name in (
        "id", "artifact_id", "proc_id", "rank", "name_id", "description", "backend", "ranks", "last_enqueued",
        "last_completed")}  # fmt: skip
    members = [ranges_of(group.ranks) for group in job.groups]
    ids = [text_id(str(group.number)) for group in job.groups]
    item = {"Float": 4, "BFloat16": 2, "Long": 8}
    for rank in ranks:
        local = {number: n for n, number in enumerate(job.of_rank[rank])}
        enqueued: dict[int, int] = {}
        finished: dict[int, int] = {}
        for at, op in enumerate(job.programs[rank][: job.called[rank]]):
            number, done = job.sequences[rank][at], at < job.done[rank]
            enqueued[op.group] = number
            if done:
                finished[op.group] = number
            begun = done or (starts and at == job.done[rank] and job.started[rank])
            if at < job.called[rank] - ring:
                continue
            is_p2p, n_bytes = op.peer is not None, op.numel * item[op.dtype]
            row = (rank, at, rank, rank, job.times_ns[rank][at], local[op.group], 0 if is_p2p else number,
                number if is_p2p else 0, is_p2p, op.peer, op.name.strip("_").removesuffix("_base"), op.dtype, n_bytes,
                _STATES[done + begun], done)  # fmt: skip
            for column, value in zip(calls.values(), row, strict=True):
                column.append(value)
        for number, n in local.items():
            described = job.groups[number].description
            row = (n, rank, rank, rank, ids[number], described, "nccl", members[number], enqueued.get(number),
                finished.get(number))  # fmt: skip
            for column, value in zip(groups.values(), row, strict=True):
                column.append(value)
    return {**calls, "peer_rank": pa.array(calls["peer_rank"], pa.int32())}, {
        **groups, "name_id": pa.array(groups["name_id"], pa.uint64()),
        "last_enqueued": pa.array(groups["last_enqueued"], pa.int64()),
        "last_completed": pa.array(groups["last_completed"], pa.int64())}  # fmt: skip


def culprits(con: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
    return con.execute("SELECT rank, reason, strength, n_waiting, says FROM wait_culprit ORDER BY place").fetchall()


def is_right(job: Any, found: list[tuple[Any, ...]]) -> bool:
    wanted = job.truth["culprits"]
    return bool(found) and found[0][0] in wanted and found[0][4] != "unnamed" if wanted else not found


def main(world: int, n_seeds: int, first: int) -> None:
    simulated = simulator()
    tensor, pipeline = SHAPES.get(world, (2, 2))
    right: Counter[str] = Counter()
    spent = []
    for seed in range(first, first + n_seeds):
        for fault in simulated.FAULTS:
            job = simulated.simulate(world, fault=fault, seed=seed, tensor=tensor, pipeline=pipeline, lead=seed % 3)
            without = set(job.truth["culprits"]) if fault == "dies" else None
            con = loaded(job, without, starts=fault == "device")
            start = time.process_time()
            derive_waits(con)
            spent.append(time.process_time() - start)
            found = culprits(con)
            con.close()
            right[fault] += is_right(job, found)
            if not is_right(job, found):
                print(
                    f"seed {seed} {fault}: rank {job.truth['culprits']} at {job.truth['at']}, found {found[:4]}",
                    flush=True,
                )
    print(f"{world:,} ranks: " + ", ".join(f"{fault} {right[fault]}/{n_seeds}" for fault in simulated.FAULTS))
    total = n_seeds * len(simulated.FAULTS)
    share = f"{right.total()}/{total} = {right.total() / total:.1%}"
    print(f"first culprit right {share}; {max(spent):.2f} CPU s at most, {sum(spent) / total:.2f} on average")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(4096, 2, 0)[len(given) :])
