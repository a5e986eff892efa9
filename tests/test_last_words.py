"""A log that ends in a traceback is not outvoted by an exit code, which may be that of another command."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.pipeline import analyze

STEPS = "2026-03-01 10:00:00 INFO step 1 loss 2.1\n2026-03-01 10:00:05 INFO step 2 loss 2.0\n"
CRASH = """Traceback (most recent call last):
  File "/job/train.py", line 40, in <module>
    main()
  File "/job/train.py", line 33, in main
    h = lin(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)
"""


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({"train.log": STEPS + CRASH}, "not-established"),
        ({"train.log": STEPS + CRASH + "\n\n"}, "not-established"),
        ({"train.log": STEPS + CRASH + "2026-03-01 10:00:09 INFO evaluation skipped\n" + STEPS}, "healthy"),
        ({"stdout.log": STEPS, "stderr.log": CRASH}, "healthy"),  # what stdout says last came when?
    ],
)
def test_a_traceback_at_the_end_of_a_log_stands_against_exit_code_0(
    files: dict[str, str], status: str, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "exit_code.txt").write_text("0\n")
    for name, text in files.items():
        (job / name).write_text(text)
    assert analyze(job, tmp_path / "out").verdict.status == status
