"""Simulated hangs of many ranks, and the two real incidents: who is waited for, whatever is missing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support import ARTIFACTS, needs_artifacts

from forensics.assembly import assemble_case
from forensics.case import connect
from forensics.discovery import discover
from forensics.formats._rank_ranges import ranges_of, ranks_of
from forensics.ingest import ingest
from forensics.models.waits import derive_waits

# The helpers around the simulator are those of the benchmark, which no wheel has.
waits = pytest.importorskip("benchmarks.waits")
culprits, is_right, loaded = waits.culprits, waits.is_right, waits.loaded
SIMULATOR = waits.simulator()
FAULTS = SIMULATOR.FAULTS
# ((world, tensor, pipeline, calls that hosts are ahead of devices), seed); larger worlds: benchmarks/waits.py
JOBS = (
    ((8, 1, 1, 0), 0),
    ((8, 1, 1, 0), 1),
    ((16, 4, 1, 2), 0),
    ((16, 2, 2, 0), 1),
    ((32, 2, 2, 1), 0),
    ((64, 4, 4, 0), 1),
)
# The rank that left a call out goes on to the last call of the program, or stands in a receive.
LEFT_OUT = (((64, 2, 2, 2), 8), ((64, 2, 2, 0), 36))
# The rank that died left no dump: receives that are queued behind a stuck call make no circle.
DIED = (((128, 2, 2, 2), 38),)


def simulated(fault: str, shape: tuple[int, int, int, int], seed: int) -> Any:
    world, tensor, pipeline, lead = shape
    return SIMULATOR.simulate(world, fault=fault, seed=seed, tensor=tensor, pipeline=pipeline, lead=lead)


@pytest.fixture(scope="module")
def case() -> Iterator[duckdb.DuckDBPyConnection]:
    with waits.empty_case() as con:
        yield con


@contextmanager
def undone(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """What is written inside is gone afterwards: one case serves many jobs, since making its tables costs most."""
    con.execute("BEGIN")
    try:
        yield
    finally:
        con.execute("ROLLBACK")


def found_in(con: duckdb.DuckDBPyConnection, job: Any, **how: Any) -> list[tuple[Any, ...]]:
    how.setdefault("without", set(job.truth["culprits"]) if job.truth["fault"] == "dies" else None)
    how.setdefault("starts", job.truth["fault"] == "device")
    with undone(con):
        loaded(job, into=con, **how)
        derive_waits(con)
        found: list[tuple[Any, ...]] = culprits(con)
        return found


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_culprit_is_the_rank_at_fault_and_no_other_is_named_beside_it(
    fault: str, case: duckdb.DuckDBPyConnection
) -> None:
    wrong = []
    for shape, seed in JOBS + {"skip": LEFT_OUT, "dies": DIED}.get(fault, ()):
        job = simulated(fault, shape, seed)
        found = found_in(case, job)
        named = {rank for rank, _, strength, _, _ in found if strength == "strong"}
        assert named <= {*job.truth["culprits"], None}, (shape, seed, job.truth, found[:3])
        if not is_right(job, found):
            wrong.append((shape, seed, job.truth, found[:3]))
    assert wrong == []


def permuted(job: Any, seed: int) -> tuple[Any, list[int]]:
    """The same job with its ranks renumbered."""
    new = list(range(job.world))
    random.Random(seed).shuffle(new)
    old = sorted(range(job.world), key=new.__getitem__)
    for group in job.groups:
        group.ranks = [new[rank] for rank in group.ranks]
    job.programs = [
        [op if op.peer is None else op._replace(peer=new[op.peer]) for op in job.programs[rank]] for rank in old
    ]
    for name in ("of_rank", "called", "done", "started", "sequences", "times_ns"):
        values = getattr(job, name)
        setattr(job, name, [values[rank] for rank in old])
    return job, new


@pytest.mark.parametrize("fault", FAULTS)
def test_culprits_follow_the_ranks_when_these_are_renumbered(fault: str, case: duckdb.DuckDBPyConnection) -> None:
    job = simulated(fault, (16, 2, 2, 1), 1)
    before = found_in(case, job)
    job, new = permuted(job, 1)
    job.truth["culprits"] = [new[rank] for rank in job.truth["culprits"]]
    after = found_in(case, job)
    renamed = {
        (None if rank is None else new[rank], reason) for rank, reason, _, _, says in before if says != "unnamed"
    }
    assert {(rank, reason) for rank, reason, _, _, says in after if says != "unnamed"} == renamed


@pytest.mark.parametrize("fault", ["stops", "skip", "size", "operation", "swap"])
def test_without_any_one_dump_no_innocent_rank_is_named_first(fault: str, case: duckdb.DuckDBPyConnection) -> None:
    n_right = n_all = 0
    job = simulated(fault, (8, 2, 1, 0), 1)
    for rank in range(job.world):
        found = found_in(case, job, without={rank})
        named = {who for who, _, strength, _, says in found if strength == "strong" and says != "unnamed"}
        # The call of the one that differed went with its dump: what is left may only be a rank without a dump.
        assert named <= {*job.truth["culprits"], None}, (job.truth, rank, found)
        if rank not in job.truth["culprits"]:
            n_all += 1
            n_right += is_right(job, found)
    assert n_right >= 0.8 * n_all


@pytest.mark.parametrize("fault", ["stops", "size", "swap"])
def test_rings_that_hold_two_calls_are_enough(fault: str, case: duckdb.DuckDBPyConnection) -> None:
    for seed in range(2):
        job = simulated(fault, (16, 4, 1, 0), seed)
        assert is_right(job, found_in(case, job, ring=2)), job.truth


def test_a_device_that_stands_is_named_only_where_starts_are_recorded(case: duckdb.DuckDBPyConnection) -> None:
    assert found_in(case, simulated("device", (16, 4, 1, 0), 1), starts=False) == []


def test_what_is_stored_grows_with_members_of_groups_not_with_ranks_times_ranks(
    case: duckdb.DuckDBPyConnection,
) -> None:
    job = simulated("stops", (64, 4, 4, 0), 0)
    with undone(case):
        loaded(job, into=case)
        derive_waits(case)
        rows = case.execute(
            "SELECT (SELECT count(*) FROM wait_member), (SELECT sum(len(ranks)) FROM process_group)"
        ).fetchone()
    assert rows is not None
    assert rows[0] == sum(len(group.ranks) for group in job.groups)
    assert rows[1] < 40 * rows[0]


@pytest.mark.parametrize(
    "ranks", [[], [3], [0, 1], [0, 1, 2, 5], list(range(0, 64, 8)), [5, 3, 1], [4, 4, 4], [0, 2, 4, 5, 6]]
)
def test_ranges_give_the_ranks_back_in_their_order(ranks: list[int]) -> None:
    assert ranks_of(ranges_of(ranks) or "") == ranks
    assert ranges_of(list(range(0, 56 + 1, 8))) == "0-56:8"
    assert ranges_of(list(range(16_384))) == "0-16383"


def assembled(folder: Path, work: Path) -> list[tuple[Any, ...]]:
    items = [item for item in ingest(discover(folder, work / "unpacked"), work / "cache") if item.found.format]
    assemble_case(items, work / "case.duckdb")
    with connect(work / "case.duckdb", read_only=True) as con:
        return con.execute("SELECT rank, reason, strength, n_waiting, says FROM wait_culprit ORDER BY place").fetchall()


@pytest.mark.parametrize(("fault", "form"), [("stops", "json"), ("swap", "pickle"), ("size", "pickle")])
def test_real_files_in_both_forms_tell_the_same_as_tables(
    fault: str, form: str, tmp_path: Path, case: duckdb.DuckDBPyConnection
) -> None:
    job = simulated(fault, (8, 2, 1, 0), 2)
    folder = tmp_path / "artifacts"
    folder.mkdir()
    for name, data in SIMULATOR.dumps(job, form=form, ring=12):
        (folder / name).write_bytes(data)
    assert assembled(folder, tmp_path) == found_in(case, job, ring=12)
    assert is_right(job, found_in(case, job))


def test_dumps_before_progress_was_written_and_dumps_of_recorders_that_were_off(tmp_path: Path) -> None:
    job = simulated("stops", (8, 2, 1, 0), 2)
    innocent = next(rank for rank in range(8) if rank not in job.truth["culprits"])
    for number, how in enumerate(({"status": False}, {"empty": {innocent}})):
        folder = tmp_path / str(number) / "artifacts"
        folder.mkdir(parents=True)
        for name, data in SIMULATOR.dumps(job, **how):
            (folder / name).write_bytes(data)
        assert is_right(job, assembled(folder, folder.parent)), how


@needs_artifacts
@pytest.mark.parametrize(("incident", "injected"), [("nvrx__lock_gil_1st", {9, 14}), ("nvrx__gpu_error_1st", {12, 14})])
def test_real_incidents_name_only_ranks_at_fault_without_any_one_dump(
    incident: str, injected: set[int], tmp_path: Path
) -> None:
    truth = (ARTIFACTS / "truth" / f"{incident}.fault_injection.log").read_text()
    assert all(f"Rank {rank}, fault_type" in truth for rank in injected)
    items = ingest(discover(ARTIFACTS / "flight_recorder" / incident, tmp_path / "unpacked"), tmp_path / "cache")
    assemble_case(items, tmp_path / "case.duckdb")
    with connect(tmp_path / "case.duckdb") as con:
        for rank in (None, *range(16)):
            with undone(con):
                forget(con, rank)
                derive_waits(con)
                named = {row[0] for row in culprits(con)}
            assert named, rank
            assert named <= injected, rank
            if rank is None:
                assert named == injected


def forget(con: duckdb.DuckDBPyConnection, rank: int | None) -> None:
    """The case as it was before waits were derived, and as it were without the dump of that rank."""
    dump = f"%_dump_{rank}"
    for table in ("wait_group", "wait_member", "wait_culprit", "wait_evidence"):
        con.execute(f"DELETE FROM {table}")
    for table in ("process_group", "collective", "coverage"):
        con.execute(f"DELETE FROM {table} WHERE artifact_id IN (SELECT id FROM artifact WHERE path LIKE ?)", [dump])
