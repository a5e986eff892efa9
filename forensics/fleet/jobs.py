"""Finds jobs among listed files, and tells which of them failed.

A job is what was left behind in one folder, however deep: the topmost folder below the root that holds an artifact
itself, or whose subfolders are parts of a job (`rank3/`, `logs/`, torchrun's `attempt_0/`). Other shapes:

* SLURM: a folder with outputs of several job ids (`slurm-42.out`, `train-42.err`, `42/`) holds a job per id;
* Kubernetes: folders NAMESPACE_POD_UID, as a kubelet writes them, belong to the job of that pod;
* archives beside each other, without other artifacts, are a job each.

How a job ended is said, the surest first, by the list that names it, by its scheduler, by its error or exit files;
where nothing tells it is `unknown`, and such jobs are analyzed too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from forensics.errors import ForensicsError
from forensics.fleet.listing import Entry, is_url, list_root
from forensics.fleet.schedulers import COMPLETED, FAILED, RUNNING, UNKNOWN, Said

_NO_ARTIFACT = re.compile(
    r"\.(?:py|sh|sbatch|md|rst|ya?ml|toml|cfg|ini|ipynb|lock|safetensors|pth|ckpt|bin|so|c|cu|cpp|h|html|css|js|png|jpg)$",
    re.IGNORECASE,
)
_PART = re.compile(
    r"(?:local_?rank|rank|host|node|attempt|worker|gpu|device|proc|process)[-_.=]?\d+|logs?|artifacts|traces?|profiler|"
    r"profiles?|metrics|snapshots?|memory|nccl|dumps?|stacks|env|environment|outputs?|std(?:out|err)|tb|tensorboard|debug",
    re.IGNORECASE,
)
_ARCHIVE = re.compile(r"\.(?:tar(?:\.\w{2,4})?|tgz|zip)$", re.IGNORECASE)
# %j, %A_%a, %x-%j and the like of sbatch --output; job ids have two to twelve digits here, fewer are ranks.
_SLURM = re.compile(r"(?:^|[A-Za-z][\w.]*?[-_.])(\d{2,12}(?:_\d{1,6})?)(?:[-_.]\w{1,40})?\.(?:out|err|log|o|e)$")
_IS_RANK = re.compile(r"(?:rank|host|node|step|attempt|worker|gpu)[-_.=]?\d+", re.IGNORECASE)
_POD = re.compile(r"([a-z0-9-]+)_([a-z0-9.-]+)_([0-9a-f-]{32,36})")
_ROLE = re.compile(r"^(.+?)-(?:worker|master|launcher|chief|ps)-\d+$")
_EXIT = re.compile(r"(?:exit_?code|rc|returncode|exit_?status)(?:\.txt)?", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z]+|\d+(?:_\d+)?")
_MAX_DEPTH = 12


@dataclass(frozen=True)
class Job:
    """One job. `place`: folder, file or URL that holds it; `files` are named relative to `root`.

    `gathered`: its files are some of those of a folder and have to be put together before they are analyzed.
    """

    key: str
    name: str
    root: str
    place: str
    files: Sequence[Entry]
    gathered: bool = False
    state: str = UNKNOWN
    why: str = ""
    said: Said | None = None

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files)

    @property
    def series(self) -> str:
        """What runs of the same training have in common: the scheduler's name, or the job's without numbers."""
        name = self.said.name if self.said and self.said.name else self.name
        return re.sub(r"[-_.]?\d+(?=$|[-_./])", "", name).strip("-_. ") or name

    def stamp(self) -> str:
        """Changes when a file comes, goes or is written."""
        digest = hashlib.blake2b(digest_size=16)
        for entry in self.files:
            digest.update(f"{entry.name}\0{entry.bytes}\0{entry.stamp}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@dataclass
class Found:
    """`without`: jobs of a scheduler of which no file was found; `loose`: files that belong to no job."""

    jobs: list[Job] = field(default_factory=list)
    without: list[Said] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)


@dataclass
class _Folder:
    files: list[Entry] = field(default_factory=list)
    folders: dict[str, _Folder] = field(default_factory=dict)

    def all_files(self) -> Iterator[Entry]:
        yield from self.files
        for folder in self.folders.values():
            yield from folder.all_files()

    def artifacts(self) -> list[Entry]:
        return [entry for entry in self.files if not _NO_ARTIFACT.search(entry.name)]


@dataclass(frozen=True)
class _Raw:
    place: str  # relative to the root; "" is the root itself
    files: tuple[Entry, ...]
    gathered: bool = False


def find_jobs(roots: Sequence[str], listed: Path | None, said: Sequence[Said], leave_out: Path | None = None) -> Found:
    """Jobs below `roots` and those that the file `listed` names, with what schedulers say of them.

    Raises ForensicsError for a root or a list that cannot be read.
    """
    found = Found()
    for root in roots:
        raws, loose = _jobs_below(list_root(root, leave_out))
        found.jobs += [_job(root, raw) for raw in raws]
        found.loose += [f"{root.rstrip('/')}/{name}" for name in loose]
    if listed is not None:
        found.jobs += _listed_jobs(listed, leave_out)
    found.jobs = list({job.key: job for job in found.jobs}.values())
    _join(found, said)
    return found


def _job(root: str, raw: _Raw, name: str = "") -> Job:
    base = root.rstrip("/")
    place = f"{base}/{raw.place}" if raw.place else base
    where = place if is_url(place) else str(Path(place).absolute())
    label = name or (raw.place or base.rpartition("/")[2] or base)
    if label.rpartition("/")[2] == "artifacts" and "/" in where:  # as `forensics analyze` names it
        label = where.split("/")[-2]
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", label)[-60:].strip("-.") or "job"
    key = f"{slug}-{hashlib.blake2b(where.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"
    state, why = _state_of_files(base, raw.files)
    shown = label.encode("utf-8", "replace").decode()
    return Job(key, shown, base, where.encode("utf-8", "replace").decode(), raw.files, raw.gathered, state, why)


def _jobs_below(entries: Sequence[Entry]) -> tuple[list[_Raw], list[str]]:
    """Jobs of one root, and the files that belong to none."""
    top = _Folder()
    for entry in entries:
        folder = top
        *parents, _ = entry.name.split("/")
        for name in parents[:_MAX_DEPTH]:
            folder = folder.folders.setdefault(name, _Folder())
        folder.files.append(entry)
    raws = _split(top, "", is_root=True)
    taken = {entry.name for raw in raws for entry in raw.files}
    return raws, [entry.name for entry in top.files if entry.name not in taken]


def _split(folder: _Folder, place: str, *, is_root: bool) -> list[_Raw]:
    by_id = _by_slurm_id(folder, place)
    if by_id:
        rest = {name: sub for name, sub in folder.folders.items() if _id_of_folder(name, by_id) is None}
        return [*by_id.values(), *_inner(rest, place)]
    pods = {name: match for name in folder.folders if (match := _POD.fullmatch(name))}
    if pods:
        others = {name: sub for name, sub in folder.folders.items() if name not in pods}
        return [*_pod_jobs(folder, place, pods), *_inner(others, place)]
    artifacts = folder.artifacts()
    archives = [entry for entry in artifacts if _ARCHIVE.search(entry.name)]
    if not artifacts and set(folder.folders) == {"artifacts"} and not _holds_many(folder):  # labels lie beside it
        return [_Raw(f"{place}artifacts", tuple(folder.folders["artifacts"].all_files()))]
    parts = any(_PART.fullmatch(name) for name in folder.folders)
    whole = parts and not any(_holds_many(sub) for sub in folder.folders.values())
    if not whole and len(archives) > 1 and len(archives) == len(artifacts) and not folder.folders:
        whole = any(_IS_RANK.search(entry.name.rpartition("/")[2]) for entry in archives)
        if not whole:
            return [_Raw(entry.name, (entry,)) for entry in archives]
    inner = [] if whole or (artifacts and not is_root) else _inner(folder.folders, place)
    if whole or (artifacts and not inner):
        return [_Raw(place.rstrip("/"), tuple(folder.all_files()))]
    return [*inner, *(_Raw(entry.name, (entry,)) for entry in archives)]


def _inner(folders: Mapping[str, _Folder], place: str) -> list[_Raw]:
    return [raw for name, sub in folders.items() for raw in _split(sub, f"{place}{name}/", is_root=False)]


def _holds_many(folder: _Folder) -> bool:
    return bool(_by_slurm_id(folder, "")) or any(_holds_many(sub) for sub in folder.folders.values())


def _by_slurm_id(folder: _Folder, place: str) -> dict[str, _Raw]:
    """Outputs of several SLURM jobs in one folder, with the folders that are named after the same id."""
    groups: dict[str, list[Entry]] = {}
    for entry in folder.files:
        name = entry.name.rpartition("/")[2]
        match = None if _IS_RANK.search(name) else _SLURM.search(name)
        if match:
            groups.setdefault(match[1], []).append(entry)
    if len(groups) < 2:
        return {}
    for name, sub in folder.folders.items():
        if (job_id := _id_of_folder(name, groups)) is not None:
            groups[job_id] += sub.all_files()
    return {
        job_id: _Raw(files[0].name if len(files) == 1 else f"{place}{job_id}", tuple(files), len(files) > 1)
        for job_id, files in groups.items()
    }


def _id_of_folder(name: str, ids: Iterable[str]) -> str | None:
    tokens = set(_TOKEN.findall(name))
    return next((job_id for job_id in ids if job_id in tokens), None)


def _pod_jobs(folder: _Folder, place: str, pods: Mapping[str, re.Match[str]]) -> list[_Raw]:
    groups: dict[str, list[str]] = {}
    for name, match in pods.items():
        role = _ROLE.match(match[2])
        groups.setdefault(f"{match[1]}_{role[1] if role else match[2]}", []).append(name)
    raws = []
    for group, names in groups.items():
        files = tuple(entry for name in names for entry in folder.folders[name].all_files())
        single = len(names) == 1
        raws.append(_Raw(f"{place}{names[0] if single else group}", files, not single))
    return raws


def _state_of_files(base: str, files: Sequence[Entry]) -> tuple[str, str]:
    """Error files, and files that hold an exit code and nothing else; never a guess at what logs say."""
    codes: dict[str, str] = {}
    for entry in files:
        name = entry.name.rpartition("/")[2]
        if name == "error.json" and entry.bytes:
            return FAILED, f"{entry.name}: an error file"
        if _EXIT.fullmatch(name) and entry.bytes < 32 and not is_url(base):
            try:
                codes[entry.name] = Path(base, entry.name).read_text(encoding="utf-8", errors="replace").strip()
            except OSError:
                continue
    for name, code in codes.items():
        if re.fullmatch(r"-?[1-9]\d{0,3}", code):
            return FAILED, f"{name}: exit code {code}"
    done = next((name for name, code in codes.items() if code == "0"), None)
    return (COMPLETED, f"{done}: exit code 0") if done else (UNKNOWN, "nothing tells how it ended")


def _listed_jobs(path: Path, leave_out: Path | None) -> list[Job]:
    """Lines `PLACE[<tab>STATE]`; places are relative to the list's folder."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ForensicsError(f"{path}: {error}; expected a text file with a folder, archive or URL per line") from error
    jobs = []
    for number, line in enumerate(lines, 1):
        place, _, state = line.strip().partition("\t")
        if not place or place.startswith("#"):
            continue
        if state and state not in {FAILED, COMPLETED, RUNNING, UNKNOWN}:
            raise ForensicsError(f"{path}:{number}: state {state!r}; expected failed, completed, running or unknown")
        root = place if is_url(place) else str(path.parent / place)
        entries = list_root(root, leave_out)
        is_file = not is_url(root) and Path(root).is_file()
        base, _, name = root.rpartition("/") if is_file else (root, "", "")
        job = _job(base or "/", _Raw(name, tuple(entries)), name=root.rstrip("/").rpartition("/")[2])
        jobs.append(replace(job, state=state, why=f"{path.name}:{number}") if state else job)
    return jobs


def _join(found: Found, said: Sequence[Said]) -> None:
    """Gives each job what its scheduler says: by an id or name in its own name, or by its working folder."""
    by_token: dict[str, list[int]] = {}
    for number, job in enumerate(found.jobs):
        last = job.place.rstrip("/").rpartition("/")[2]
        names = {last, *(match[2] for match in [_POD.fullmatch(last)] if match)}
        for name in names:
            for token in {name, *_TOKEN.findall(name)}:
                by_token.setdefault(token, []).append(number)
        if len(job.files) <= 64:
            for entry in job.files:
                match = _SLURM.search(entry.name.rpartition("/")[2])
                if match:
                    by_token.setdefault(match[1], []).append(number)
    by_place: dict[str, list[int]] = {}
    for number, job in enumerate(found.jobs):
        by_place.setdefault(job.place.rstrip("/"), []).append(number)
    for one in said:
        wanted = [one.id, *one.names] if one.origin == "sacct" else [*one.names, one.id.replace("/", "_")]
        numbers = {n for name in wanted if name for n in by_token.get(name, ())} or set(
            by_place.get(one.place.rstrip("/"), ()) if one.place else ()
        )
        if not numbers:
            found.without.append(one)
        for number in numbers:
            job = found.jobs[number]
            found.jobs[number] = replace(job, said=one, state=one.state, why=f"{one.origin}: {one.words}")


def chosen(jobs: Sequence[Job], *, every: bool) -> list[Job]:
    """Jobs to analyze: those that failed and those of which nothing tells how they ended; `every`: all that ended."""
    skipped = {RUNNING} if every else {RUNNING, COMPLETED}
    return [job for job in jobs if job.state not in skipped]
