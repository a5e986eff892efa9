"""Which texts tell of the job, and what becomes of errors that others only quote."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_diagnosis import finding, state

from forensics.diagnosis import Outcome, diagnose
from forensics.finding import Evidence
from forensics.formats._log_marks import Labels
from forensics.formats._log_standing import standing
from forensics.pipeline import analyze

TRACEBACK = """Traceback (most recent call last):
  File "/home/u/train.py", line 60, in main
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of \
which 1.10 GiB is free. Including non-PyTorch memory, this process has 22.54 GiB memory in use. Of the allocated \
memory 21.87 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated.
"""
RUNNING = "".join(f"2026-03-02 10:00:{n:02d},120 INFO step {n} loss {2 / (n + 1):.4f}\n" for n in range(40))
COMPLETED = RUNNING + "2026-03-02 10:06:00,000 INFO Training completed. Saved model to out/final.pt\n"
QUOTING = {
    "README.md": "A job\n=====\n\nThis card was bad last month:\n\n```\n[Tue Feb  3 04:12:33 2026] NVRM: Xid"
    " (PCI:0000:c1:00): 79, pid='<unknown>', GPU has fallen off the bus.\n```\n\nIt has been replaced.\n",
    "notes.txt": f"Yesterday it died with this, batch size was 64:\n\n{TRACEBACK}\nNow with 32.\n",
    "notes.md": TRACEBACK,
    "docs.txt": "Known trouble\n\nRuntimeError: CUDA error: an illegal memory access was encountered\n",
    "hardware.txt": "Xid 79 seen on node7 last week:\n"
    "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\nRebooted.\n",
    "CHANGELOG.rst": '1.2\n---\n\n* Handle "OSError: [Errno 28] No space left on device" at the end of a save\n',
    "examples.py": f'EXAMPLE = """\n{TRACEBACK}"""\n\n\ndef parse(text):\n    return text\n',
    "crash.txt": TRACEBACK,
}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("train.log", COMPLETED, "log"),
        ("a.txt", COMPLETED, "log"),  # by its stamps
        ("a.txt", "epoch 1 loss 0.51\nepoch 2 loss 0.42\n" + TRACEBACK, "log"),  # by its steps
        ("a.txt", "[rank3]: " + TRACEBACK.replace("\n", "\n[rank3]: "), "log"),
        ("stderr.txt", TRACEBACK, "log"),  # by its name
        ("job.e12345", TRACEBACK, "log"),
        ("logs/3.txt", TRACEBACK, "log"),  # by where it lies
        ("crash.txt", TRACEBACK, "unplaced"),
        ("a.txt", f"I tried again and got this:\n{TRACEBACK}", "document"),
        ("a.txt", f"```\n{COMPLETED}{TRACEBACK}```\n", "document"),
        ("README", COMPLETED, "unplaced"),  # a log under another name, or a page that shows one
        *[(name, text, "document") for name, text in QUOTING.items() if name != "crash.txt"],
        ("run.sh", "set -e\npython train.py\n", "document"),
    ],
)
def test_a_text_is_a_log_by_its_marks_its_name_or_its_place(name: str, text: str, expected: str) -> None:
    assert standing(name, text, Labels()) == expected


def test_what_other_texts_quote_is_nothing_against_a_job_that_completed(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.log").write_text(COMPLETED)
    for name, text in QUOTING.items():
        (job / name).write_text(text)
    result = analyze(job, tmp_path / "out")
    assert result.verdict.status == "healthy"
    assert all(finding.severity not in {"critical", "high"} for finding in result.findings)
    assert any("taken as quoted" in warning.message for warning in result.report.warnings)


def test_a_text_without_any_mark_is_taken_at_its_word_where_it_is_all_there_is(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "crash.txt").write_text(TRACEBACK)
    alone = analyze(tmp_path / "job", tmp_path / "out").verdict
    assert [(f.rule, f.strength) for f in alone.root_causes] == [("memory-capacity", "strong")]
    (tmp_path / "job" / "train.log").write_text(RUNNING)
    beside = analyze(tmp_path / "job", tmp_path / "out").verdict
    assert [(f.rule, f.strength) for f in beside.root_causes] == [("memory-capacity", "indication")]
    assert "need not be a log of this job" in beside.sentence


def test_an_error_in_a_report_of_it_is_an_indication(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "issue.md").write_text(f"# It crashes\n\nPlease help, I see this:\n\n```\n{TRACEBACK}```\n")
    verdict = analyze(tmp_path / "job", tmp_path / "out").verdict
    assert [(f.rule, f.strength) for f in verdict.root_causes] == [("memory-capacity", "indication")]


def test_a_cause_that_the_jobs_own_log_shows_goes_before_one_that_is_quoted() -> None:
    quoted = finding(0, "hardware-gpu-lost", causes=state("device-lost"), evidence=[Evidence(7, "notes", line=1)])
    own = finding(1, "memory-capacity", severity="high", strength="indication", causes=state("device-full"))
    verdict = diagnose([quoted, own], Outcome(quoting={7}))
    assert [f.rule for f in verdict.root_causes] == ["memory-capacity"]
    assert quoted.strength == "indication"


def test_evidence_beside_the_text_that_quotes_keeps_its_strength() -> None:
    places = [Evidence(7, "notes", line=1), Evidence(1, "train.log", line=3)]
    both = finding(0, "memory-capacity", causes=state("device-full"), evidence=places)
    assert diagnose([both], Outcome(quoting={7})).root_causes[0].strength == "strong"
