"""The engines and stores that extras bring: a Dask cluster whose worker is killed, and a server that speaks S3."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from test_batch import children_of, make_job, row_of

from forensics.errors import ForensicsError
from forensics.fleet.batch import Plan, run_batch
from forensics.fleet.jobs import find_jobs

# These packages warn of their own doings.
pytestmark = pytest.mark.filterwarnings("ignore")
_DIFFERS = {"analyzed_ns", "wall_s", "cpu_s", "peak_bytes", "run", "place", "job", "report"}


def test_on_a_cluster_whose_worker_is_killed_mid_job_results_are_those_of_the_local_pool(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    for number in range(3):
        make_job(tmp_path / "jobs", f"job-{number}", number)
    plan = Plan([str(tmp_path / "jobs")], workers=1)
    local = run_batch(tmp_path / "local", plan)
    killed = []

    def kill_a_busy_worker(cluster: Any) -> None:
        journal, until = tmp_path / "dask" / "journal.jsonl", time.monotonic() + 60
        while time.monotonic() < until and not (journal.exists() and b'"start"' in journal.read_bytes()):
            time.sleep(0.05)
        while time.monotonic() < until and not killed:
            for worker in cluster.workers.values():
                pid = worker.process.pid
                if any(children_of(server) for server in children_of(pid)):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    break

    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, processes=True) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        thread = threading.Thread(target=kill_a_busy_worker, args=[cluster])
        thread.start()
        far = run_batch(tmp_path / "dask", Plan(plan.roots, engine=f"dask://{address}"))
        thread.join()
    assert killed and (far.n_analyzed, far.put_aside) == (local.n_analyzed, []) == (3, [])
    for number in range(3):
        one, other = (row_of(tmp_path / engine, f"job-{number}") for engine in ("local", "dask"))
        assert {k: v for k, v in one.items() if k not in _DIFFERS} == {
            k: v for k, v in other.items() if k not in _DIFFERS
        }
        reports = [next((tmp_path / e / "jobs").glob(f"job-{number}-*")) / "report.json" for e in ("local", "dask")]
        assert reports[0].read_bytes() == reports[1].read_bytes()


_SBATCH = """#!/bin/sh
# As sbatch does: runs the script elsewhere and says under which number.
cp "$1" "$FAKE/script"
setsid sh "$FAKE/script" >"$FAKE/worker.log" 2>&1 &
echo $! >>"$FAKE/pids"
echo "Submitted batch job $!"
"""


@pytest.mark.checkout
def test_the_script_for_slurm_runs_a_batch_on_workers_that_its_queue_starts(tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    make_job(tmp_path / "jobs", "job")
    make_job(tmp_path / "jobs", "fine", code="0")
    (tmp_path / "bin").mkdir()
    for name, text in (("sbatch", _SBATCH), ("scancel", '#!/bin/sh\nkill -- -"$1"\n')):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    command = [sys.executable, str(ROOT / "deploy" / "forensics-dask-slurm.py"), "jobs", "fleet", "--nodes", "1"]
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "FAKE": str(tmp_path)}
    environment["PYTHONPATH"] = str(ROOT)
    command += ["--cores", "1", "--memory", "2GB", "--walltime", "00:20:00", "--partition", "cpu", "--", "--all"]
    try:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
    finally:
        for pid in (tmp_path / "pids").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)
    assert done.returncode == 0 and "2 jobs found, 2 analyzed" in done.stdout, done.stderr
    asked = (tmp_path / "script").read_text()
    for line in ("-p cpu", "--cpus-per-task=1", "--mem=2G", "-t 00:20:00"):
        assert f"#SBATCH {line}" in asked
    assert row_of(tmp_path / "fleet", "job")["verdict"]


def test_a_worker_with_other_rules_than_the_batch_is_no_jobs_fault(tmp_path: Path) -> None:
    from forensics.fleet import job_runner
    from forensics.fleet.layout import Fleet

    make_job(tmp_path / "jobs", "job")
    fleet = Fleet(tmp_path / "fleet")
    fleet.create()
    order = job_runner.Order(str(fleet.folder), "job-1", "/", str(tmp_path / "jobs"), False, [], {}, "another", 1)
    with pytest.raises(ForensicsError, match="are others here"):
        job_runner.run_job(order)
    job_runner.close_servers()
    assert not list(fleet.rows.iterdir())


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    make_job(tmp_path / "jobs", "job")
    with pytest.raises(ForensicsError, match=r"file\.json: not found"):
        run_batch(tmp_path / "fleet", Plan([str(tmp_path / "jobs")], engine="dask:///no/such/file.json"))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("runs")
    yield system
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_jobs_of_an_object_store_are_fetched_within_the_budget_and_only_when_they_changed(
    store: Any, tmp_path: Path
) -> None:
    make_job(tmp_path / "jobs", "small")
    make_job(tmp_path / "jobs", "large")
    (tmp_path / "jobs" / "large" / "trace.json").write_bytes(b" " * 3_000_000)
    store.put(str(tmp_path / "jobs") + "/", "runs/night/", recursive=True)
    local = run_batch(tmp_path / "local", Plan([str(tmp_path / "jobs" / "small")], workers=1))
    plan = Plan(["s3://runs/night"], workers=1, disk_budget="2MB")
    far = run_batch(tmp_path / "fleet", plan)
    assert (far.n_found, far.n_analyzed, local.n_analyzed) == (2, 1, 1)
    ((name, reason),) = far.put_aside
    assert name == "large" and "--disk-budget" in reason
    row, same = row_of(tmp_path / "fleet", "small"), row_of(tmp_path / "local", "small")
    assert row["place"] == "s3://runs/night/small" and row["verdict"] == same["verdict"]
    assert [f["incident"] for f in row["errors"]] == [f["incident"] for f in same["errors"]]  # type: ignore[attr-defined]
    again = run_batch(tmp_path / "fleet", plan)
    assert (again.n_standing, again.n_analyzed) == (2, 0)
    store.pipe("runs/night/small/stderr.log", b"nothing went wrong\n")
    assert run_batch(tmp_path / "fleet", plan).n_analyzed == 1
    report = json.loads(next((tmp_path / "fleet" / "jobs").glob("small-*/report.json")).read_bytes())
    assert {a["path"] for a in report["artifacts"]} == {"small/stderr.log", "small/exit_code"}


def test_a_url_of_no_known_kind_is_refused() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ForensicsError, match="nosuch://"):
        find_jobs(["nosuch://bucket/x"], None, [])
