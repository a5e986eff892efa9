"""A batch over real jobs in child processes: what a second run does, what kills and hostile jobs do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from forensics.errors import ForensicsError
from forensics.fleet.batch import Plan, run_batch
from forensics.fleet.editions import edition
from forensics.fleet.journal import Journal
from forensics.fleet.layout import Fleet
from forensics.fleet.lock import Busy, locked

pytestmark = pytest.mark.installed

_LOG = """2026-11-02 10:00:00 starting
step 1 loss 2.5
Traceback (most recent call last):
  File "train.py", line 31, in <module>
    main()
  File "train.py", line 20, in main
    raise FrobnicationError("the flange of batch %d is bent")
FrobnicationError: the flange of batch %d is bent
"""


def make_job(root: Path, name: str, number: int = 7, code: str = "1") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(_LOG % (number, number))
    (folder / "exit_code").write_text(code)
    return folder


def row_of(fleet: Path, name: str) -> dict[str, object]:
    path = next((fleet / "rows").glob(f"{name}-*.parquet"))
    return dict(pq.read_table(path).to_pylist()[0])


def children_of(pid: int) -> list[int]:
    """Of a process that may have ended."""
    try:
        listed = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(child) for text in listed for child in text.split()]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A fleet of one failed job; the completed one beside it was left out."""
    folder = tmp_path_factory.mktemp("batch")
    make_job(folder / "jobs", "train-1")
    make_job(folder / "jobs", "train-2", code="0")
    outcome = run_batch(folder / "fleet", Plan([str(folder / "jobs")], workers=1))
    assert (outcome.n_found, outcome.n_completed, outcome.n_analyzed, outcome.put_aside) == (2, 1, 1, [])
    return folder / "jobs", folder / "fleet"


def test_a_failed_job_leaves_its_report_case_and_row(done: tuple[Path, Path]) -> None:
    _, fleet = done
    (out,) = (fleet / "jobs").iterdir()
    assert {p.name for p in out.iterdir()} == {"report.html", "report.json", "case.duckdb"}
    row = row_of(fleet, "train-1")
    assert (row["state"], row["status"], row["run"], row["series"]) == ("failed", "analyzed", 1, "train")
    assert row["verdict"] == json.loads((out / "report.json").read_bytes())["verdict"]["status"]
    (error,) = row["errors"]  # type: ignore[misc]
    assert error["exception"].endswith("FrobnicationError")


def test_what_did_not_change_is_not_read_and_what_was_only_touched_not_analyzed(done: tuple[Path, Path]) -> None:
    jobs, fleet = done
    plan = Plan([str(jobs)], workers=1)
    again = run_batch(fleet, plan)
    assert (again.n_standing, again.n_unchanged, again.n_analyzed) == (1, 0, 0)
    before = row_of(fleet, "train-1")
    os.utime(jobs / "train-1" / "stderr.log")
    touched = run_batch(fleet, plan)
    assert (touched.n_standing, touched.n_unchanged, touched.n_analyzed) == (0, 1, 0)
    assert row_of(fleet, "train-1") == before
    assert run_batch(fleet, plan).n_standing == 1


def test_other_rules_make_another_edition(done: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "rule.sql").write_text("one")
    first = edition([tmp_path / "site"], None)
    (tmp_path / "site" / "rule.sql").write_text("two")
    assert len({edition([], None), first, edition([tmp_path / "site"], None)}) == 3


def test_a_killed_batch_leaves_no_process_behind_and_the_next_one_goes_on(tmp_path: Path) -> None:
    make_job(tmp_path / "jobs", "killed")
    command = [sys.executable, "-m", "forensics.cli", "batch", str(tmp_path / "jobs"), "--out", str(tmp_path / "fleet")]
    batch = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    journal = tmp_path / "fleet" / "journal.jsonl"
    until = time.monotonic() + 60
    while not (journal.exists() and b'"start"' in journal.read_bytes()):
        assert time.monotonic() < until and batch.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    while not any(children_of(server) for server in children_of(batch.pid)):
        assert time.monotonic() < until and batch.poll() is None
    children = [pid for server in children_of(batch.pid) for pid in (server, *children_of(server))]
    with journal.open("ab") as file:  # and the line that it was writing is torn
        file.write(b'{"event":"end","job":"kil')
    batch.send_signal(signal.SIGKILL)
    batch.wait()
    assert children
    while any(
        Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text() for pid in children
    ):
        assert time.monotonic() < until
        time.sleep(0.05)
    outcome = run_batch(tmp_path / "fleet", Plan([str(tmp_path / "jobs")], workers=1))
    assert (outcome.run, outcome.n_analyzed, outcome.put_aside) == (2, 1, [])
    assert all(json.loads(line) for line in journal.read_bytes().splitlines() if not line.endswith(b'"kil'))


def test_a_job_that_takes_too_long_is_put_aside_with_the_reason_until_something_changes(tmp_path: Path) -> None:
    make_job(tmp_path / "jobs", "slow")
    hurried = Plan([str(tmp_path / "jobs")], workers=1, seconds=0.1)
    outcome = run_batch(tmp_path / "fleet", hurried)
    assert outcome.put_aside == [("slow", "it took longer than 0.1 s and was killed")]
    assert row_of(tmp_path / "fleet", "slow")["status"] == "not-analyzed"
    again = run_batch(tmp_path / "fleet", hurried)
    assert (again.n_standing, again.put_aside) == (1, outcome.put_aside)
    other = run_batch(tmp_path / "fleet", Plan([str(tmp_path / "jobs")], workers=1, seconds=0.2))  # other bounds
    assert (other.n_standing, len(other.put_aside)) == (0, 1)


def test_a_job_that_ended_three_batches_is_not_tried_again_unless_asked_to(tmp_path: Path) -> None:
    make_job(tmp_path / "jobs", "bomb")
    fleet = Fleet(tmp_path / "fleet")
    fleet.create()
    plan = Plan([str(tmp_path / "jobs")], workers=1, seconds=0.1)
    from forensics.fleet.jobs import find_jobs

    (job,) = find_jobs(plan.roots, None, []).jobs
    for _ in range(3):
        with Journal(fleet.journal) as journal:
            journal.begin_run("", 0)
            journal.start(job.key)
    outcome = run_batch(fleet.folder, plan)
    assert outcome.put_aside == [("bomb", "3 batches ended while it was analyzed")]


def test_two_batches_on_one_fleet_exclude_each_other_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    hold = "import sys, time\nfrom pathlib import Path\nfrom forensics.fleet.lock import locked\n"
    hold += "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold, str(fleet / "lock")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(Busy, match=f"process {holder.pid}"):
            run_batch(fleet, Plan([str(tmp_path)]))
        holder.kill()
    with locked(fleet / "lock"):
        pass


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(), "nothing to look at"),
        (Plan(["/no/such/folder"]), "not found"),
        (Plan(["."], memory_limit="much"), "memory-limit"),
        (Plan(["."], seconds=0), "max-seconds"),
        (Plan(["."], engine="abacus"), "engine"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(plan: Plan, said: str, tmp_path: Path) -> None:
    with pytest.raises(ForensicsError, match=said):
        run_batch(tmp_path / "fleet", plan)


def test_a_rule_or_configuration_that_cannot_be_read_ends_the_batch_and_is_no_jobs_fault(tmp_path: Path) -> None:
    (tmp_path / "site" / "mine").mkdir(parents=True)
    (tmp_path / "site" / "mine" / "rule.sql").write_text("SELECT 1")
    (tmp_path / "bad.toml").write_text("thresholds = 3")
    for plan in (
        Plan(["/tmp"], rules=[tmp_path / "site"]),
        Plan(["/tmp"], configuration=tmp_path / "bad.toml"),
        Plan(["/tmp"], configuration=tmp_path / "none.toml"),
    ):
        with pytest.raises(ForensicsError, match=r"rule\.sql|bad\.toml|none\.toml"):
            run_batch(tmp_path / "fleet", plan)
    assert not (tmp_path / "fleet").exists()


def test_a_folder_with_something_else_in_it_is_no_place_for_a_fleet(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ForensicsError, match=r"thesis\.tex"):
        run_batch(tmp_path, Plan(["/tmp"]))


def test_a_job_whose_process_crashes_is_tried_once_more_alone_and_then_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forensics.fleet import engines
    from forensics.fleet.job_runner import Order, Result

    for name in ("good", "bad"):
        make_job(tmp_path / "jobs", name)
    tried: list[str] = []

    def run_job(order: Order) -> Result:
        tried.append(order.job["name"])
        if order.job["name"] == "bad":
            return Result(
                order.key, "not-analyzed", reason="its process was ended by signal 11 (SIGSEGV)", crashed=True
            )
        return Result(order.key, "analyzed", content="c", since=order.run)

    monkeypatch.setattr(engines, "warm_up", lambda order: None)
    monkeypatch.setattr(engines, "run_job", run_job)
    outcome = run_batch(tmp_path / "fleet", Plan([str(tmp_path / "jobs")], workers=1))
    assert tried == ["bad", "good", "bad"]
    assert outcome.put_aside == [("bad", "its process was ended by signal 11 (SIGSEGV)")] and outcome.n_analyzed == 1
    tried.clear()
    assert run_batch(tmp_path / "fleet", Plan([str(tmp_path / "jobs")], workers=1, retry=True)).n_analyzed == 0
    assert tried == ["bad", "bad"]


def test_a_killed_child_is_told_with_its_signal(tmp_path: Path) -> None:
    import threading

    from forensics.fleet import job_runner

    make_job(tmp_path / "jobs", "shot")
    fleet = Fleet(tmp_path / "fleet")
    fleet.create()
    order = job_runner.Order(
        str(fleet.folder),
        "shot-1",
        str(tmp_path / "jobs"),
        str(tmp_path / "jobs" / "shot"),
        False,
        [],
        {},
        edition([], None),
        1,
    )

    def shoot() -> None:
        while not job_runner._running:
            time.sleep(0.01)
        os.kill(next(iter(job_runner._running)), signal.SIGKILL)

    thread = threading.Thread(target=shoot)
    thread.start()
    result = job_runner.run_job(order)
    thread.join()
    job_runner.close_servers()
    assert result.crashed and result.reason == "its process was ended by signal 9 (SIGKILL)"


def test_a_job_whose_processes_hold_too_much_memory_is_killed_with_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forensics.fleet import job_runner

    make_job(tmp_path / "jobs", "hungry")
    monkeypatch.setattr(job_runner, "held_bytes", lambda pid: 3 << 30)
    monkeypatch.setattr(job_runner, "_LOOK_SECONDS", 0.01)
    outcome = run_batch(tmp_path / "fleet", Plan([str(tmp_path / "jobs")], workers=1, memory_limit="1GB"))
    reason = "its processes held 3072 MiB, more than allowed by 1GB, and were killed"
    assert outcome.put_aside == [("hungry", reason)]


def test_where_what_jobs_are_forked_from_is_killed_they_are_tried_again(tmp_path: Path) -> None:
    import threading

    from forensics.fleet import job_runner

    for number in range(2):
        make_job(tmp_path / "jobs", f"job-{number}")

    def shoot() -> None:
        while not job_runner._running:
            time.sleep(0.01)
        next(iter(job_runner._servers.values()))._server.kill()

    thread = threading.Thread(target=shoot)
    thread.start()
    outcome = run_batch(tmp_path / "fleet", Plan([str(tmp_path / "jobs")], workers=1))
    thread.join()
    assert (outcome.n_analyzed, outcome.put_aside, job_runner._servers) == (2, [], {})


def test_a_batch_that_is_asked_to_stop_holds_it_against_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forensics.fleet import engines
    from forensics.fleet.job_runner import Order, Result

    make_job(tmp_path / "jobs", "innocent")
    plan = Plan([str(tmp_path / "jobs")], workers=1)

    def interrupted(order: Order) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(engines, "warm_up", lambda order: None)
    monkeypatch.setattr(engines, "run_job", interrupted)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            run_batch(tmp_path / "fleet", plan)
    monkeypatch.setattr(engines, "run_job", lambda order: Result(order.key, "analyzed", content="c"))
    assert run_batch(tmp_path / "fleet", plan).n_analyzed == 1
