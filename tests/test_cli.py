"""The command as users type it: what it prints, what it writes, how it exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from support import ROOT

from forensics import __version__
from forensics.cli.query import print_rows
from forensics.errors import CaseError, ForensicsError, RuleError
from forensics.ingest import Loaded
from forensics.library import load_rules
from forensics.packing import pack
from forensics.pipeline import _unread
from forensics.reviews import known_findings

pytestmark = pytest.mark.installed

STEP_217 = ROOT / "fixtures" / "step-217" / "artifacts"
HEALTHY = ROOT / "fixtures" / "step-217-healthy" / "artifacts"


def forensics(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forensics.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("cli")
    return forensics("analyze", STEP_217, cwd=folder), folder


def test_analyze_writes_its_three_files_beside_where_it_was_called(
    analyzed: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, folder = analyzed
    written = {p.name for p in (folder / "artifacts.forensics").iterdir() if p.is_file()}
    assert written == {"report.html", "report.json", "case.duckdb"}


def test_a_failed_job_exits_with_1_and_prints_the_verdict_in_a_few_lines(
    analyzed: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result, _ = analyzed
    assert result.returncode == 1
    assert result.stderr == ""  # no progress bar where nobody watches
    assert "aten::log" in result.stdout and "step 217" in result.stdout
    assert len(result.stdout.splitlines()) < 40


def test_a_healthy_job_exits_with_0(tmp_path: Path) -> None:
    result = forensics("analyze", HEALTHY, "--out", tmp_path / "out", "--quiet")
    assert (result.returncode, result.stdout) == (0, "")
    verdict = json.loads((tmp_path / "out" / "report.json").read_bytes())["verdict"]
    assert verdict["status"] == "healthy" and verdict["root_causes"] == []


def test_fail_on_never_exits_with_0_on_a_failed_job(tmp_path: Path) -> None:
    result = forensics("analyze", STEP_217, "--out", tmp_path / "out", "--fail-on", "never", "--quiet")
    assert result.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", "/no/such/folder"),
        ("analyze",),
        ("analyze", ".", "--fail-on", "sometimes"),
        ("analyze", ".", "--memory-limit", "much"),
        ("analyze", ".", "--threads", "0"),
        ("analyze", ".", "--max-seconds", "-1"),
        ("analyze", ".", "--out", "/proc/nope"),
        ("analyze", ".", "--out", ""),
        ("analyze", ".", "--out="),
        ("analyze", ".", "--out", __file__),
        ("checkpoint-collisions", "/no/such/folder"),
        ("checkpoint-collisions", "."),
        ("checkpoint-collisions", ".", "--apply", "p", "--undo", "p"),
        ("checkpoint-diff", "/no/such/file", "/no/such/file"),
        ("checkpoint-diff", ".", ".", "--depth", "-1"),
        ("serve", "."),
        ("nosuchcommand",),
        ("query", "/no/such/case", "SELECT 1"),
        ("rules", "explain", "no-such-rule"),
    ],
)
def test_usage_errors_exit_with_2_and_without_a_traceback(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = forensics(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr and "Traceback" not in result.stdout
    assert "internal fault" not in result.stderr and "[Errno" not in result.stderr
    assert not list(tmp_path.iterdir())
    assert (result.stderr + result.stdout).strip()


def test_the_verdict_can_be_had_as_markdown(tmp_path: Path) -> None:
    result = forensics("analyze", STEP_217, "--out", tmp_path / "out", "--format", "markdown")
    assert result.stdout.lstrip().startswith("#") and "numerics-nan-provenance" in result.stdout


def test_query_answers_in_a_table_csv_and_json(analyzed: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    case = analyzed[1] / "artifacts.forensics"
    sql = "SELECT rule, rank FROM finding WHERE explained_by IS NULL ORDER BY id"
    assert "numerics-nan-provenance" in forensics("query", case, sql).stdout
    assert forensics("query", case, sql, "--format", "csv").stdout.splitlines()[0] == "rule,rank"
    lines = forensics("query", case, sql, "--format", "json").stdout.splitlines()
    assert {"rule": "numerics-nan-provenance", "rank": 1} in [json.loads(line) for line in lines]


@pytest.mark.parametrize("sql", ["DROP TABLE finding", "SELECT * FROM read_csv('/etc/passwd')", "SELECT nonsense"])
def test_query_can_only_read_the_case(analyzed: tuple[subprocess.CompletedProcess[str], Path], sql: str) -> None:
    result = forensics("query", analyzed[1] / "artifacts.forensics", sql)
    assert result.returncode == 2 and "Traceback" not in result.stderr


def test_a_cut_cell_says_so_and_what_would_steer_the_terminal_is_spelt_out(
    analyzed: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, folder = analyzed
    sql = "SELECT repeat('x', 500) AS long, chr(27) || '[31mred' || chr(10) || 'line' AS steering, 'Ä' AS plain"
    shown = forensics("query", folder / "artifacts.forensics", sql).stdout
    assert "x" * 120 + "… (500 characters)" in shown and "x" * 121 not in shown
    assert "\\x1b[31mred line" in shown and "\x1b" not in shown and "Ä" in shown
    many = forensics("query", folder / "artifacts.forensics", "SELECT * FROM range(1001)").stdout
    assert many.splitlines()[-1] == "… only the first 1000 rows; --format csv or json gives all"


def test_where_nothing_can_be_read_the_exit_code_is_2_and_the_report_says_why(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "table.parquet").write_bytes(b"PAR1" + bytes(range(256)) * 8)
    result = forensics("analyze", tmp_path / "job", "--out", tmp_path / "out", "--quiet")
    assert result.returncode == 2 and "none of 1 artifacts could be read" in result.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["verdict"]["status"] == "not-established"


def test_a_full_disk_ends_the_analysis_with_2_and_leaves_earlier_results_whole(tmp_path: Path) -> None:
    full = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))\n"
        "from forensics.cli import main; main(sys.argv[1:])"
    )
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.json").write_text("earlier")
    command = [sys.executable, "-c", full, "analyze", str(STEP_217), "--out", str(out), "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "File too large" in result.stderr and "internal fault" not in result.stderr
    assert (out / "report.json").read_text() == "earlier"
    assert {path.name for path in out.iterdir()} == {"report.json", "cache"}
    assert not list((out / "cache").glob("loading-*"))


def test_the_command_never_loads_pandas_which_takes_as_long_as_a_small_analysis(tmp_path: Path) -> None:
    code = (
        "import sys; from forensics.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(sorted({'duckdb', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "analyze", str(HEALTHY), "--out", str(tmp_path / "out"), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "['duckdb', 'pyarrow']"


def test_rules_and_formats_are_listed_from_their_own_files() -> None:
    listed = forensics("rules", "list").stdout
    assert "memory-fragmentation" in listed and "needs memory_segment, memory_event.oom" in listed
    assert "kineto" in forensics("formats").stdout
    explained = forensics("rules", "explain", "memory-fragmentation").stdout
    assert "Cannot prove:" in explained and "min_free_ratio" in explained and "SELECT" in explained


def test_rules_new_writes_a_rule_whose_files_load(tmp_path: Path) -> None:
    result = forensics("rules", "new", "memory-example", "--folder", tmp_path / "rules")
    assert result.returncode == 0
    listed = forensics("rules", "list", "--rules", tmp_path / "rules").stdout
    assert "memory-example" in listed
    assert forensics("rules", "new", "memory-example", "--folder", tmp_path / "rules").returncode == 2


def test_thresholds_come_from_a_configuration_file(tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text('[thresholds."no-such-rule"]\nx = 1\n')
    result = forensics("analyze", HEALTHY, "--out", tmp_path / "out", "--config", config)
    assert result.returncode == 2 and "no-such-rule" in result.stderr


@pytest.mark.checkout
def test_what_the_readme_names_exists() -> None:
    readme = (ROOT / "README.md").read_text()
    help_text = forensics("--help").stdout
    for command in ("analyze", "query", "rules", "formats"):
        assert f"forensics {command}" in readme and command in help_text


def test_an_empty_path_is_not_the_current_folder(tmp_path: Path) -> None:
    done = forensics("analyze", "", cwd=tmp_path)
    assert done.returncode == 2
    assert "the path is empty" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_package_runs_as_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "forensics", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == __version__


def test_what_the_terminal_cannot_show_is_spelt_out() -> None:
    code = r"from forensics.cli import main; main(['serve', '/no/\u00c4\udcff'])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 2 and "/no/\\xc4\\udcff: not found" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_by_way_of_what_cleans_up(number: signal.Signals) -> None:
    code = (
        "import os, signal; from forensics import cli\n"
        # What runs these tests may have been started by nohup, which has children ignore SIGHUP.
        f"signal.signal({int(number)}, signal.default_int_handler if {int(number)} == 2 else signal.SIG_DFL)\n"
        f"def ended(_):\n    try:\n        os.kill(os.getpid(), {int(number)})\n        import time; time.sleep(9)\n"
        "    finally:\n        print('cleaned')\n"
        "cli._run = ended; cli.main([])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "cleaned\n", "")


def test_a_result_that_is_no_result_is_named(tmp_path: Path) -> None:
    for content in ("{}", "x", "[]"):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(ForensicsError, match="not a report"):
            known_findings(tmp_path)
    (tmp_path / "case.duckdb").write_text("junk")
    with pytest.raises(CaseError, match="cannot be read"):
        pack(tmp_path, tmp_path / "out.zip")
    assert not list(tmp_path.glob("out.zip*"))


def test_why_artifacts_told_nothing_is_said_of_each_kind() -> None:
    def item(quality: str, *codes: str) -> Loaded:
        return Loaded(None, None, {"quality": quality, "warnings": [{"code": code} for code in codes]})  # type: ignore[arg-type]

    assert _unread([item("failed", "unreadable")]) == "none of 1 artifacts could be read"
    mixed = _unread([item("failed", "unreadable"), item("failed", "time-limit"), item("unknown"), item("complete")])
    assert "1 could not be read, 1 not read before the time limit, 2 could be read and" in mixed


def test_rules_that_lie_directly_in_a_folder_are_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "mine.sql").write_text("SELECT 1")
    with pytest.raises(RuleError, match="lies directly in the folder"):
        load_rules([tmp_path])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("batch", ("ROOTS...", "Exits with 0 when every job")),
        ("collect", ("PIDS...",)),
        ("review", ("[FINGERPRINT]",)),
        ("diff", ("Exits with 1 when something differs",)),
        ("rules explain", ("Further folder of rules",)),
    ],
)
def test_help_names_arguments_and_exit_codes(command: str, said: tuple[str, ...]) -> None:
    shown = " ".join(forensics(*command.split(), "--help").stdout.split())
    assert "[ARGS" not in shown and all(text in shown for text in said)


@pytest.mark.parametrize(("terminal", "shown"), [(True, "\\x1b[2J"), (False, "\x1b[2J")])
def test_csv_steers_no_terminal_and_is_left_as_it_is_in_a_file(
    terminal: bool, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    print_rows(duckdb.sql("SELECT chr(27) || '[2J' AS a, 7 AS b"), "csv")
    assert capsys.readouterr().out.splitlines() == ["a,b", f"{shown},7"]
