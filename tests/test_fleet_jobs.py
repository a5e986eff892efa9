"""Which jobs are found in which layouts, and what schedulers say of them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from fleet_rows import make_row, write_fleet

from forensics.errors import ForensicsError
from forensics.fleet.batch import _columns
from forensics.fleet.jobs import Found, chosen, find_jobs
from forensics.fleet.schedulers import expand_hosts, read_pods, read_sacct
from forensics.fleet.warehouse import open_fleet, rows_of


def lay(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    return root


def places(found: Found, root: Path) -> dict[str, int]:
    return {job.place.removeprefix(f"{root}").lstrip("/"): len(job.files) for job in found.jobs}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # folders with artifacts, at any depth; what else lies about is no job
        (["a/err.log", "a/deep/er/trace.json", "team/b/err.log", "notes.md"], {"a": 2, "team/b": 1}),
        # subfolders that are parts of a job
        (["j1/logs/0.log", "j1/traces/0.json", "j2/rank0/err.log", "j2/rank1/err.log"], {"j1": 2, "j2": 2}),
        # what describes a job lies beside its artifacts
        (["j/artifacts/deep/err.log", "j/expected.toml", "k/err.log"], {"j/artifacts": 1, "k": 1}),
        # torchrun's log folder
        (["run_a/attempt_0/0/stderr.log", "run_a/attempt_1/0/error.json", "run_b/attempt_0/0/stderr.log"],
         {"run_a": 2, "run_b": 1}),
        # SLURM's outputs beside each other, with a folder of one of the ids
        (["slurm-4711.out", "slurm-4711.err", "slurm-4712.out", "4712/trace.json", "train-4713.log"],
         {"4711": 2, "4712": 2, "train-4713.log": 1}),
        (["logs/train_81_3.out", "logs/train_81_4.out"], {"logs/train_81_3.out": 1, "logs/train_81_4.out": 1}),
        # ranks are no job ids
        (["j/train-rank12.log", "j/train-rank13.log", "j/rank_10.err"], {"j": 3}),
        # a kubelet's folders
        ([f"ml_bert-worker-{n}_{'0' * 8}-0000-0000-0000-00000000000{n}/pytorch/0.log" for n in (0, 1)]
         + [f"ml_solo_{'0' * 8}-0000-0000-0000-000000000009/main/0.log"],
         {"ml_bert": 2, f"ml_solo_{'0' * 8}-0000-0000-0000-000000000009": 1}),
        # archives
        (["one.tar.gz", "two.zip"], {"one.tar.gz": 1, "two.zip": 1}),
        (["j/rank0.tar.gz", "j/rank1.tar.gz"], {"j": 2}),
        # the root is the job itself
        (["err.log", "attempt_0/0/stderr.log"], {"": 2}),
        (["err.log", "metrics.jsonl"], {"": 2}),
        # results are no jobs
        (["a/err.log", "a.forensics/report.json", "out/case.duckdb", "out/report.json", ".git/config"], {"a": 1}),
    ],
)  # fmt: skip
def test_jobs_are_found_in_the_layouts_that_launchers_leave(
    names: list[str], expected: dict[str, int], tmp_path: Path
) -> None:
    assert places(find_jobs([str(lay(tmp_path, *names))], None, []), tmp_path) == expected


def test_files_beside_jobs_are_counted_as_belonging_to_none(tmp_path: Path) -> None:
    found = find_jobs([str(lay(tmp_path, "queue.log", "a/err.log", "b/err.log"))], None, [])
    assert len(found.jobs) == 2 and [Path(name).name for name in found.loose] == ["queue.log"]


_SACCT = """JobID|JobName|State|ExitCode|ElapsedRaw|AllocTRES|NodeList|Start|End|WorkDir
4711|bert|TIMEOUT|0:0|3600|billing=8,cpu=64,gres/gpu:a100=4,gres/gpu=4|gpu[01-02]|2026-11-01T10:00:00|2026-11-01T11:00:00|/x
4711.batch|batch|CANCELLED|0:15|3600|cpu=64|gpu01|2026-11-01T10:00:00|2026-11-01T11:00:00|
4712|bert|COMPLETED|0:0|60|gres/gpu=1|gpu03|2026-11-01T10:00:00|2026-11-01T10:01:00|/x
4713|gpt|CANCELLED by 1001|0:0|10||gpu03|Unknown|Unknown|/x
4714|gpt|RUNNING|0:0|10||gpu03|2026-11-01T10:00:00|Unknown|/x
9999|lost|FAILED|1:0|10||gpu03|||/elsewhere
"""
_TABLE = """JobID           JobName      State ExitCode
------------ ---------- ---------- --------
4711               bert OUT_OF_ME+    0:125
4711.batch        batch OUT_OF_ME+    0:125
4712               bert  COMPLETED      0:0
"""


def test_sacct_chooses_the_failed_jobs_and_brings_gpu_time_and_hosts(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(_SACCT)
    root = lay(tmp_path / "r", *(f"slurm-{n}.out" for n in (4711, 4712, 4713, 4714, 4715)))
    found = find_jobs([str(root)], None, read_sacct(tmp_path / "sacct.txt"))
    states = {Path(job.place).name: job.state for job in found.jobs}
    assert list(states.values()) == ["failed", "completed", "failed", "running", "unknown"]
    first = found.jobs[0]
    assert first.said is not None and first.series == "bert"
    assert (first.said.n_gpus, first.said.elapsed_s, first.said.hosts) == (4, 3600.0, ("gpu01", "gpu02"))
    assert first.why == "sacct: TIMEOUT 0:0" and first.said.ended_ns == 1793530800 * 10**9
    assert [said.id for said in found.without] == ["9999"]
    assert [job.state for job in chosen(found.jobs, every=False)] == ["failed", "failed", "unknown"]
    assert len(chosen(found.jobs, every=True)) == 4


def test_gpu_hours_are_elapsed_time_by_gpus_and_lost_where_a_job_failed(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(_SACCT)
    root = lay(tmp_path / "r", *(f"slurm-{n}.out" for n in (4711, 4712, 4715)))
    found = find_jobs([str(root)], None, read_sacct(tmp_path / "sacct.txt"))
    known = [_columns(job) for job in found.jobs]
    assert [(k["gpu_hours"], k["gpu_hours_origin"]) for k in known] == [(4.0, "sacct"), (1 / 60, "sacct"), (None, None)]
    rows = [make_row(k["name"], None, **{n: k[n] for n in ("state", "gpu_hours", "elapsed_s")}) for k in known]
    rows[2] |= {"verdict": "healthy"}
    with closing(open_fleet(write_fleet(tmp_path / "fleet", rows))) as con:
        lost = rows_of(con, "SELECT gpu_hours_lost AS lost FROM job ORDER BY name")
    assert [row["lost"] for row in lost] == [4.0, None, None]


def test_sacct_is_read_as_a_table_and_as_json_too(tmp_path: Path) -> None:
    (tmp_path / "table").write_text(_TABLE)
    assert [(s.id, s.state) for s in read_sacct(tmp_path / "table")] == [("4711", "failed"), ("4712", "completed")]
    job = {"job_id": 5, "name": "x", "state": {"current": ["NODE_FAIL"]}, "time": {"elapsed": 7, "start": 1793527200}}
    job |= {"tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 8}]}, "nodes": "n[1,3-4]"}
    (tmp_path / "json").write_text(json.dumps({"jobs": [job, "rubbish", {"job_id": None}]}))
    first, _ = read_sacct(tmp_path / "json")
    assert (first.state, first.n_gpus, first.elapsed_s, first.hosts) == ("failed", 8, 7.0, ("n1", "n3", "n4"))


@pytest.mark.parametrize("text", ["", "squeue: error", "JobID State\n1 FAILED", "{", "\0\xff"])
def test_what_is_no_output_of_sacct_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(text, encoding="latin-1")
    with pytest.raises(ForensicsError, match="said"):
        read_sacct(tmp_path / "said")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [("", 0), ("None assigned", 0), ("a,b", 2), ("gpu[08-11]", 4), ("x[1-999999999]", 20_000), ("a[", 1), ("[-]", 0)],
)
def test_host_lists_are_expanded_within_bounds(text: str, hosts: int) -> None:
    assert len(expand_hosts(text)) == hosts


def pod(name: str, phase: str, job: str | None = None, code: int | None = None) -> dict[str, object]:
    end = {"terminated": {"exitCode": code, "reason": "OOMKilled", "finishedAt": "2026-11-01T11:00:00Z"}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": {"training.kubeflow.org/job-name": job} if job else {}},
        "spec": {"nodeName": f"n-{name}", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
        "status": {
            "phase": phase,
            "startTime": "2026-11-01T10:00:00Z",
            "containerStatuses": [{"state": end if code is not None else {"running": {}}}],
        },
    }


def test_a_dump_of_pods_groups_them_by_job_and_one_that_failed_fails_it(tmp_path: Path) -> None:
    items = [pod("bert-worker-0", "Failed", "bert", 137), pod("bert-worker-1", "Succeeded", "bert", 0)]
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": [*items, pod("solo", "Running"), 3]}))
    said = {one.id: one for one in read_pods(tmp_path / "pods.json")}
    bert = said["ml/bert"]
    assert (bert.state, bert.words, bert.n_gpus, bert.elapsed_s) == ("failed", "OOMKilled 137", 4, 3600.0)
    assert said["ml/solo"].state == "running"
    uid = "0" * 8 + "-0000-0000-0000-000000000001"
    root = lay(tmp_path / "r", f"ml_bert-worker-0_{uid}/p/0.log", f"ml_bert-worker-1_{uid}/p/0.log", "solo/err.log")
    found = find_jobs([str(root)], None, list(said.values()))
    assert {job.name: job.state for job in found.jobs} == {"ml_bert": "failed", "solo": "running"}


def test_a_list_names_jobs_and_how_they_ended(tmp_path: Path) -> None:
    lay(tmp_path, "x/a/err.log", "x/b/err.log", "c.tar.gz")
    (tmp_path / "list").write_text("# mine\nx/a\tfailed\nx/b\tcompleted\n\nc.tar.gz\n")
    found = find_jobs([], tmp_path / "list", [])
    assert [(job.name, job.state, len(job.files)) for job in found.jobs] == [
        ("a", "failed", 1), ("b", "completed", 1), ("c.tar.gz", "unknown", 1),
    ]  # fmt: skip
    assert Path(found.jobs[2].place) == tmp_path / "c.tar.gz"
    (tmp_path / "list").write_text("x/a\tbroken\n")
    with pytest.raises(ForensicsError, match="list:1"):
        find_jobs([], tmp_path / "list", [])


def test_keys_stay_when_other_jobs_come_and_stamps_change_with_any_file(tmp_path: Path) -> None:
    root = lay(tmp_path, "a/err.log")
    (before,) = find_jobs([str(root)], None, []).jobs
    lay(tmp_path, "b/err.log", "a/more.log")
    after = {job.name: job for job in find_jobs([str(root)], None, []).jobs}["a"]
    assert before.key == after.key and before.stamp() != after.stamp()
