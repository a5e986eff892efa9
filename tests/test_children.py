"""Artifacts that break what loads them: each costs itself only, and what it had given is kept."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import ROOT
from trouble import TROUBLE, dropped_in, messages

import forensics.formats
from forensics import children
from forensics.children import Children
from forensics.deadline import Deadline
from forensics.discovery import discover
from forensics.forking import ForkServer
from forensics.ingest import Loaded, ingest
from forensics.pipeline import Settings, analyze

pytestmark = pytest.mark.installed

STEP_217 = ROOT / "fixtures" / "step-217" / "artifacts"
linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")


@pytest.fixture(autouse=True)
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with dropped_in(tmp_path_factory.mktemp("formats"), "trouble", TROUBLE):
        yield


def job(folder: Path, *kinds: str) -> Path:
    folder.mkdir(exist_ok=True)
    for number, kind in enumerate(kinds):
        (folder / f"{number}-{kind}").write_text(f"TROUBLE {kind} {number}\n")
    return folder


def loaded(folder: Path, cache: Path, *, memory_bytes: int = 1 << 30, deadline: Deadline | None = None) -> list[Loaded]:
    with Children(2, memory_bytes) as ours:
        return ingest(discover(folder, cache / "work"), cache, children=ours, deadline=deadline)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("crash", "was killed by signal 6 (SIGABRT)"),
        ("fault", "was killed by signal 11 (SIGSEGV)"),
        ("hungry", "exceeded its memory limit"),
        ("leave", "ended its process with status 3"),
    ],
)
def test_what_ends_its_process_costs_that_artifact_only_and_keeps_its_rows(
    kind: str, said: str, tmp_path: Path
) -> None:
    first, bad, last = loaded(job(tmp_path / "job", "fine", kind, "fine"), tmp_path / "cache")
    (warning,) = bad.meta["warnings"]
    assert warning["code"] == "loader-fault" and warning["message"].startswith(f"trouble {said}")
    assert bad.meta["quality"] == "partial" and messages(bad) == ["before"]
    assert [fact["value"] for fact in bad.meta["facts"]] == [kind]
    (covered,) = bad.meta["coverage"]
    assert (covered["capability"], covered["complete"], covered["n_kept"]) == ("log_event", False, 1)
    for item in (first, last):
        assert item.meta["quality"] == "complete" and messages(item) == ["before", "after"]


def test_what_a_share_of_the_memory_is_too_little_for_is_loaded_again_alone(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", *["large", "fine"] * 3)
    for item in loaded(folder, tmp_path / "cache"):
        assert item.meta["quality"] == "complete" and messages(item) == ["before", "after"]
        assert item.meta["warnings"] == []


def test_what_all_the_memory_is_too_little_for_says_how_much_it_was(tmp_path: Path) -> None:
    large, fine = loaded(job(tmp_path / "job", "large", "fine"), tmp_path / "cache", memory_bytes=512 << 20)
    (warning,) = large.meta["warnings"]
    assert warning["message"] == "trouble exceeded its memory limit of 512 MiB, loaded alone"
    assert large.meta["quality"] == "partial" and messages(large) == ["before"]
    assert fine.meta["quality"] == "complete"


@pytest.mark.parametrize("kind", ["loop", "deaf"])
def test_a_load_without_end_is_ended_and_keeps_its_rows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LOAD_SECONDS", 0.3)
    monkeypatch.setattr(children, "_GRACE_SECONDS", 0.3)
    bad, fine = loaded(job(tmp_path / "job", kind, "fine"), tmp_path / "cache")
    (warning,) = bad.meta["warnings"]
    assert warning["code"] == "loader-fault" and "exceeded its time" in warning["message"]
    assert bad.meta["quality"] == "partial" and messages(bad) == ["before"]
    assert fine.meta["quality"] == "complete"


class _OnceBothLoad(Deadline):
    def __init__(self, cache: Path) -> None:
        super().__init__(600)
        self._cache = cache

    def left(self) -> float:
        return 0.0 if len(list(self._cache.glob("loading-*/*/log_event-00000.parquet"))) == 2 else 0.2

    def expired(self) -> bool:
        return self.left() == 0


def test_the_deadline_stops_what_runs_and_leaves_out_what_waits(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", "loop", "loop", "fine")
    first, second, third = loaded(folder, tmp_path / "cache", deadline=_OnceBothLoad(tmp_path / "cache"))
    for item in (first, second):
        assert [w["code"] for w in item.meta["warnings"]] == ["time-limit"]
        assert messages(item) == ["before"]
    assert [w["message"] for w in third.meta["warnings"]] == ["not loaded: the time limit was reached"]


def test_what_failed_is_not_cached_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", "crash", "fine")
    for n_parsed in (2, 1):
        assert analyze(folder, tmp_path / "out").n_parsed == n_parsed
    assert len(list((tmp_path / "out" / "cache").iterdir())) == 1


def test_many_crashes_end_no_analysis(tmp_path: Path) -> None:
    result = analyze(job(tmp_path / "job", *["crash"] * 30, "fine"), tmp_path / "out")
    assert sum(a.quality == "partial" for a in result.report.artifacts) == 30


def test_results_do_not_depend_on_the_number_of_children(tmp_path: Path) -> None:
    for threads in (1, 2):
        analyze(STEP_217, tmp_path / f"out{threads}", settings=Settings(threads=threads))
    for name in ("report.json", "report.html"):
        assert (tmp_path / "out1" / name).read_bytes() == (tmp_path / "out2" / name).read_bytes()
    rows = [_rows(tmp_path / f"out{threads}" / "case.duckdb") for threads in (1, 2)]
    for table, given in rows[0].items():
        assert repr(given) == repr(rows[1][table]), table  # as text: NaN is not equal to itself


def _rows(case: Path) -> dict[str, list[object]]:
    from forensics.case import connect

    with connect(case, read_only=True) as con:
        tables = [row[0] for row in con.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall()]
        rows = {table: con.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    for table in ("stack", "string"):  # sets, which DuckDB's own threads fill in any order
        rows[table].sort()
    return rows


def _alive(mark: str) -> list[int]:
    """Processes whose open directory or command names `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdigit() else ""
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if command else "Z"
        except OSError:
            continue
        if mark in command and state != "Z":
            found.append(int(entry.name))
    return found


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_child_outlives_an_analysis_that_is_killed(number: signal.Signals, tmp_path: Path) -> None:
    folder = job(tmp_path / "job", "deaf", "deaf")
    site = forensics.formats.__path__[-1]  # names this test's own folder: a mark in the server's command
    code = (
        f"import forensics.formats; forensics.formats.__path__.append({site!r})\n"
        f"from forensics.pipeline import analyze; analyze({str(folder)!r}, {str(tmp_path / 'out')!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until(lambda: len(list((tmp_path / "out" / "cache").glob("loading-*/*/log_event-00000.parquet"))) == 2)
        assert len(_alive(site)) >= 4  # parent, server and two workers
        os.kill(parent.pid, number)
        parent.wait(timeout=30)
        _until(lambda: not _alive(site))
    finally:
        parent.kill()
        parent.wait()


def _until(holds: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_folder_of_artifacts_is_never_searched_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job(tmp_path / "job", "fine")
    (folder / "duckdb.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    assert loaded(folder, tmp_path / "cache")[0].meta["quality"] == "complete"


def _server_and_workers() -> tuple[int, list[int]]:
    """Of the server that is kept: its own number and those of its children."""
    (kept,) = children._ready
    pid = kept.forks._server.pid
    return pid, [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@linux
def test_the_next_analysis_has_the_same_server_and_no_worker_of_the_last(tmp_path: Path) -> None:
    first = loaded(job(tmp_path / "one", "fine", "crash"), tmp_path / "cache")
    before = _server_and_workers()
    second = loaded(job(tmp_path / "two", "fine", "leave"), tmp_path / "cache")
    assert [item.meta["quality"] for item in (*first, *second)] == ["complete", "partial"] * 2
    assert _server_and_workers() == before == (before[0], [])


@linux
def test_a_server_whose_workers_were_broken_off_is_not_kept(tmp_path: Path) -> None:
    loaded(job(tmp_path / "one", "fine"), tmp_path / "cache")
    pid, _ = _server_and_workers()

    class CtrlC(Deadline):
        def left(self) -> float:
            if list((tmp_path / "other").glob("loading-*/*/log_event-00000.parquet")):
                raise KeyboardInterrupt
            return 0.2

    found = discover(job(tmp_path / "two", "deaf"), tmp_path / "work")
    with pytest.raises(KeyboardInterrupt), Children(2, 1 << 30) as ours:
        ingest(found, tmp_path / "other", children=ours, deadline=CtrlC(600))
    assert not children._ready and not Path(f"/proc/{pid}").exists()


TELLS = '''
"""Says where it is loaded."""
import os, resource
VERSION = 1
TITLE = "place of a test"
PROVIDES = ()
def recognise(head):
    return 100 if head.data.startswith(b"TELL") else 0
def load(source, sink):
    sink.fact("folder", os.getcwd(), scope="note")
    sink.fact("variable", os.environ.get("TOLD", "none"), scope="note")
    sink.fact("files", str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]), scope="note")
'''


def test_a_kept_server_passes_on_what_has_changed_since_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(number: int) -> list[str]:
        (tmp_path / f"{number}.txt").write_text(f"TELL {number}")
        (item,) = loaded(Path(f"{number}.txt"), tmp_path / "cache")
        return [fact["value"] for fact in item.meta["facts"]]

    most, last = resource.getrlimit(resource.RLIMIT_NOFILE)
    with dropped_in(tmp_path / "formats", "tells", TELLS):
        monkeypatch.chdir(tmp_path)
        assert told(1)[:2] == [str(tmp_path), "none"]
        monkeypatch.setenv("TOLD", "Ä")
        monkeypatch.chdir(tmp_path / "formats")
        monkeypatch.chdir(tmp_path)
        assert told(2)[:2] == [str(tmp_path), "Ä"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - 1, last))
        try:
            assert told(3)[2] == str(most - 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, last))


def test_a_server_that_nobody_needs_ends_by_itself_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "served_by_a_test.py").write_text(
        "import os, time\nfrom forensics.forking import serve_forks\n"
        "def serve(control, parent):\n    serve_forks(control, child, idle_seconds=0.2)\n"
        "def child(descriptors, asked):\n    time.sleep(0.6)\n    os._exit(7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    server = ForkServer("served_by_a_test")
    try:
        for _ in range(2):
            process = server._server
            pid = server.fork({}, [])
            assert pid and os.waitstatus_to_exitcode(server.status(pid) or 0) == 7  # it waits for its child
            _until(lambda: server._server.poll() is not None)
        assert process is not server._server
    finally:
        server.close()
