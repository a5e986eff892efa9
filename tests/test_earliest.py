"""The earliest sign of trouble: which lines of a host's kernel may be one of this job."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.assembly import assemble_case
from forensics.case import connect
from forensics.citations import Citations
from forensics.discovery import discover
from forensics.earliest import earliest_anomaly
from forensics.ingest import ingest

JOB = """\
2026-03-01T10:00:00.100Z INFO step 1 loss 0.5
2026-03-01T10:05:00.100Z INFO step 2 loss 0.4
2026-03-01T10:06:00.100Z ERROR the shard is gone
"""


def earliest_line(tmp_path: Path, kernel: str, job: str = JOB, **more: str) -> str:
    """Artifact and text of the earliest anomaly."""
    folder = tmp_path / "job"
    files = {"node-1/rank_0.log": job, "dmesg.txt": kernel, **more}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    found = discover(folder, tmp_path / "work")
    assemble_case(ingest(found, tmp_path / "cache"), tmp_path / "case.duckdb")
    con = connect(tmp_path / "case.duckdb")
    try:
        anomaly = earliest_anomaly(con, Citations(con, [item.source for item in found]))
    finally:
        con.close()
    assert anomaly is not None
    return anomaly.evidence.artifact


def killed(time: str = "10:05:30", host: str = "node-1", process: str = "python3", pid: int = 4242) -> str:
    return (
        f"2026-03-01T{time}.000000+00:00 {host} kernel: Out of memory: Killed process {pid} ({process}) total-vm:1kB\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        killed(),
        killed(process="pt_data_worker", pid=7),
        killed(time="09:59:30"),  # as a job begins to run before its first line
        killed(host="node-1.cluster.local"),
    ],
)
def test_a_kernels_line_of_the_jobs_time_host_and_processes_is_its_first_sign(tmp_path: Path, line: str) -> None:
    assert earliest_line(tmp_path, line) == "dmesg.txt"


@pytest.mark.parametrize(
    "line",
    [killed(time="08:00:00"), killed(host="node-9"), killed(process="mysqld")],
    ids=["before the job", "another host", "another process"],
)
def test_a_kernels_line_of_another_job_is_not(tmp_path: Path, line: str) -> None:
    assert earliest_line(tmp_path, line) == "node-1/rank_0.log"


@pytest.mark.parametrize(
    ("line", "job"),
    [
        (killed(host="node-9"), JOB.replace("step 1 ", "peer node-9 is rank 4, step 1 ")),
        (killed(process="serve_main"), JOB + "run.sh: line 3: 4242 Killed serve_main --port 80\n"),
    ],
)
def test_what_the_jobs_own_words_name_belongs_to_it(tmp_path: Path, line: str, job: str) -> None:
    files = {"env.txt": "PEERS=node-9\nSERVER=serve_main\nNCCL_DEBUG=INFO\nPATH=/bin\nHOME=/root\n"}
    assert earliest_line(tmp_path, line, job, **files) == "dmesg.txt"
