"""What schedulers say of jobs: `sacct` (parsable, table or JSON) and `kubectl get pods -o json`, read as text.

State words are those of sacct(1) and of the Kubernetes pod phase. Only whether a job failed, when and where it ran,
and how many GPUs it held are taken.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from forensics.errors import ForensicsError

FAILED, COMPLETED, RUNNING, UNKNOWN = "failed", "completed", "running", "unknown"
_MAX_BYTES = 256 << 20
_STATES = {
    COMPLETED: {"COMPLETED", "COMPLETE"},
    RUNNING: {"RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "REQUEUE", "RESIZING", "COMPLETING", "CONFIGURING"},
    FAILED: {
        "BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
        "LAUNCH_FAILED", "STOPPED",
    },
}  # fmt: skip
_JOB_LABELS = (
    "training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name", "volcano.sh/job-name", "ray.io/cluster",
    "batch.kubernetes.io/job-name", "job-name", "pytorch-job-name",
)  # fmt: skip
_GPU_KEYS = ("nvidia.com/gpu", "amd.com/gpu")


@dataclass(frozen=True)
class Said:
    """What a scheduler says of one job. `id` and `names` are looked for in the names of folders and files."""

    id: str
    name: str
    state: str  # FAILED | COMPLETED | RUNNING | UNKNOWN
    words: str  # its own: "TIMEOUT 0:0", "OOMKilled 137"
    origin: str  # sacct | kubernetes
    names: tuple[str, ...] = ()
    place: str = ""  # working folder
    hosts: tuple[str, ...] = ()
    started_ns: int | None = None
    ended_ns: int | None = None
    elapsed_s: float | None = None
    n_gpus: int | None = None


def read_sacct(path: Path) -> list[Said]:
    """One entry per job; its steps only tell what the job's own line leaves out."""
    text = _read(path)
    if text.lstrip().startswith("{"):
        rows: Iterator[Mapping[str, str]] = _json_rows(path, text)
    else:
        rows = _table_rows(path, text)
    jobs: dict[str, Said] = {}
    for row in rows:
        said = _slurm(row)
        job = said.id.partition(".")[0]
        if job == said.id:
            jobs[job] = said
        elif job not in jobs:
            jobs[job] = replace(said, id=job)
    return list(jobs.values())


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ForensicsError(f"{path}: {error.strerror}; expected what the scheduler's command printed") from error
    if len(data) > _MAX_BYTES:
        raise ForensicsError(f"{path}: more than {_MAX_BYTES >> 20} MiB; expected less; ask for a shorter time")
    return data.decode("utf-8", "replace")


def _table_rows(path: Path, text: str) -> Iterator[Mapping[str, str]]:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    head = next((n for n, line in enumerate(lines) if re.match(r"\s*JobID(?:Raw)?\b", line)), None)
    if head is None:
        raise ForensicsError(f"{path}: no line of column names with JobID; expected the output of sacct")
    if "|" in lines[head]:
        names = lines[head].split("|")
        yield from (dict(zip(names, line.split("|"), strict=False)) for line in lines[head + 1 :] if "|" in line)
        return
    # A table: dashes below the names tell how wide each column is.
    if head + 1 >= len(lines) or not re.fullmatch(r"[- ]+", lines[head + 1]):
        raise ForensicsError(f"{path}: no line of dashes below the column names; expected sacct's table, or sacct -P")
    spans = [match.span() for match in re.finditer(r"-+", lines[head + 1])]
    names = [lines[head][start:end].strip() for start, end in spans]
    for line in lines[head + 2 :]:
        yield {name: line[start:end].strip() for name, (start, end) in zip(names, spans, strict=True)}


def _json_rows(path: Path, text: str) -> Iterator[Mapping[str, str]]:
    """`sacct --json`, whose states are texts or lists of texts by version."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ForensicsError(f"{path}: {error}; expected the output of sacct --json") from error
    for job in document.get("jobs", []) if isinstance(document, dict) else []:
        if not isinstance(job, dict) or "job_id" not in job:
            continue
        time, state = _mapping(job.get("time")), _mapping(job.get("state")).get("current", "")
        tres = _mapping(job.get("tres")).get("allocated", [])
        gpus = [t for t in tres if isinstance(t, dict) and t.get("type") == "gres" and str(t.get("name")) == "gpu"]
        yield {
            "JobID": str(job["job_id"]),
            "JobName": str(job.get("name", "")),
            "State": str(state[0] if isinstance(state, list) and state else state),
            "NodeList": str(job.get("nodes", "")),
            "WorkDir": str(job.get("working_directory", "")),
            "StartEpoch": str(time.get("start", "")),
            "EndEpoch": str(time.get("end", "")),
            "ElapsedRaw": str(time.get("elapsed", "")),
            "AllocTRES": f"gres/gpu={gpus[0].get('count')}" if gpus else "",
        }


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _slurm(row: Mapping[str, str]) -> Said:
    word = row.get("State", "").partition(" ")[0].rstrip("+").upper()
    # A table cuts words: OUT_OF_ME+.
    states = [state for state, words in _STATES.items() if word and any(w.startswith(word) for w in words)]
    code = row.get("ExitCode", "")
    job_id = row.get("JobID") or row.get("JobIDRaw") or ""
    raw = row.get("JobIDRaw", "").partition(".")[0]
    elapsed = row.get("ElapsedRaw", "")
    return Said(
        id=job_id,
        name=row.get("JobName", ""),
        state=states[0] if states else UNKNOWN,
        words=f"{row.get('State', '')} {code}".strip(),
        origin="sacct",
        names=(raw,) if raw and raw != job_id.partition(".")[0] else (),
        place=row.get("WorkDir", ""),
        hosts=tuple(expand_hosts(row.get("NodeList", ""))),
        started_ns=_slurm_time(row.get("Start")) or _epoch(row.get("StartEpoch")),
        ended_ns=_slurm_time(row.get("End")) or _epoch(row.get("EndEpoch")),
        elapsed_s=float(elapsed) if elapsed.isdecimal() else _elapsed(row.get("Elapsed", "")),
        n_gpus=_gpus(row.get("AllocTRES", "") or row.get("ReqTRES", "")),
    )


def _elapsed(text: str) -> float | None:
    """[days-]hours:minutes:seconds."""
    match = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,2}):(\d{2}):(\d{2})(?:\.\d+)?", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _slurm_time(text: str | None) -> int | None:
    """Times of sacct are of the cluster's zone, which is not told; they are taken as UTC."""
    try:
        when = datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=datetime.UTC)
    return int(when.timestamp()) * 1_000_000_000


def _epoch(text: str | None) -> int | None:
    return int(text) * 1_000_000_000 if text and text.isdecimal() and 0 < int(text) < 1 << 33 else None


def _gpus(tres: str) -> int | None:
    """`billing=8,gres/gpu:a100=4,gres/gpu=4`: the total, not each kind again."""
    total = re.search(r"gres/gpu=(\d{1,6})", tres)
    if total:
        return int(total[1])
    kinds = re.findall(r"gres/gpu:[^=,]+=(\d{1,6})", tres)
    return sum(map(int, kinds)) if kinds else None


_MAX_HOSTS = 20_000


def expand_hosts(text: str) -> list[str]:
    """`gpu[01-03,7],login1` → each host; SLURM's own short form."""
    hosts: list[str] = []
    for part in re.findall(r"[^,\[]*(?:\[[^\]]*\])?[^,\[]*", text)[:1000]:
        match = re.fullmatch(r"\s*([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            hosts += [part.strip()] if part.strip() not in {"", "None assigned"} else []
            continue
        for span in match[2].split(","):
            first, _, last = span.partition("-")
            if not first.isdecimal() or not (last or first).isdecimal():
                continue
            count = range(int(first), min(int(last or first), int(first) + _MAX_HOSTS) + 1)
            hosts += [f"{match[1]}{number:0{len(first)}d}{match[3]}" for number in count]
    return hosts[:_MAX_HOSTS]


def read_pods(path: Path) -> list[Said]:
    """One entry per job: pods that carry the same job label belong together, others stand alone."""
    text = _read(path)
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ForensicsError(f"{path}: {error}; expected the output of kubectl get pods -o json") from error
    items = document.get("items", [document]) if isinstance(document, dict) else []
    groups: dict[str, list[Said]] = {}
    for item in items:
        if isinstance(item, dict) and item.get("kind", "Pod") == "Pod" and isinstance(item.get("status"), dict):
            pod = _pod(item)
            groups.setdefault(pod.id, []).append(pod)
    if not groups and not (isinstance(document, dict) and "items" in document):
        raise ForensicsError(f"{path}: no pods; expected the output of kubectl get pods -o json")
    return [_joined(pods) for pods in groups.values()]


def _pod(item: Mapping[str, Any]) -> Said:
    meta, spec, status = (_mapping(item.get(name)) for name in ("metadata", "spec", "status"))
    labels = _mapping(meta.get("labels"))
    name, namespace = str(meta.get("name", "")), str(meta.get("namespace", ""))
    job = next((str(labels[key]) for key in _JOB_LABELS if key in labels), name)
    ends = [
        _mapping(_mapping(c.get(when)).get("terminated"))
        for c in status.get("containerStatuses") or []
        if isinstance(c, dict)
        for when in ("state", "lastState")
    ]
    bad = next((end for end in ends if end.get("exitCode") not in (None, 0)), {})
    phase = str(status.get("phase", ""))
    state = {"Failed": FAILED, "Succeeded": COMPLETED, "Running": RUNNING, "Pending": RUNNING}.get(phase, UNKNOWN)
    if state == RUNNING and bad:  # restarted by its kubelet: what ended before is worth a look
        state = FAILED
    reason = bad.get("reason") or status.get("reason") or phase
    times = [_iso(end.get("finishedAt")) for end in ends]
    gpus = [
        int(str(limits[key]))
        for container in spec.get("containers") or []
        if isinstance(container, dict)
        for limits in [_mapping(_mapping(container.get("resources")).get("limits"))]
        for key in _GPU_KEYS
        if str(limits.get(key, "")).isdecimal()
    ]
    node = str(spec.get("nodeName") or "")
    return Said(
        id=f"{namespace}/{job}" if namespace else job,
        name=job,
        state=state,
        words=f"{reason} {bad.get('exitCode', '')}".strip(),
        origin="kubernetes",
        names=(name,) if name == job else (job, name),
        hosts=(node,) if node else (),
        started_ns=_iso(status.get("startTime")),
        ended_ns=max((t for t in times if t), default=None),
        n_gpus=sum(gpus) if gpus else None,
    )


def _iso(text: Any) -> int | None:
    return _slurm_time(text.replace("Z", "+00:00")) if isinstance(text, str) else None


def _joined(pods: list[Said]) -> Said:
    """A job failed when one of its pods did, and runs while one of them does."""
    states = {pod.state for pod in pods}
    state = next(state for state in (FAILED, RUNNING, UNKNOWN, COMPLETED) if state in states)
    first = next(pod for pod in pods if pod.state == state)
    starts, ends = ([t for t in times if t] for times in zip(*((p.started_ns, p.ended_ns) for p in pods), strict=True))
    started, ended = min(starts, default=None), max(ends, default=None)
    gpus = [pod.n_gpus for pod in pods if pod.n_gpus]
    return replace(
        first,
        names=tuple(dict.fromkeys(name for pod in pods for name in pod.names)),
        hosts=tuple(sorted({host for pod in pods for host in pod.hosts})),
        started_ns=started,
        ended_ns=ended,
        elapsed_s=(ended - started) / 1e9 if started and ended and ended > started else None,
        n_gpus=sum(gpus) if gpus else None,
    )
