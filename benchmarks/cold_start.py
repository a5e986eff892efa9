"""Times whole commands from a cold start, each in a fresh process, against importing what they need anyway.

    python benchmarks/cold_start.py [RUNS]

Prints medians in seconds and the ratio to the yardstick measured in the same run: `python -c "import duckdb, pyarrow"`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def median_seconds(command: list[str], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    forensics = [sys.executable, "-m", "forensics.cli"]
    yardstick = median_seconds([sys.executable, "-c", "import duckdb, pyarrow.parquet"], runs)
    print(f"{'yardstick: import duckdb, pyarrow':44} {yardstick:6.2f} s")
    jobs = {
        "forensics --help": [*forensics, "--help"],
        "analyze a folder of small logs": ["fixtures/worker-killed/artifacts"],
        "analyze step-217": ["fixtures/step-217/artifacts"],
    }
    for name, given in jobs.items():
        with tempfile.TemporaryDirectory() as out:
            command = given
            if name.startswith("analyze"):
                command = [*forensics, "analyze", str(ROOT / given[0]), "--quiet", "--out", out, "--cache"]
                seconds = []
                for number in range(runs):  # a new cache each time: cold
                    seconds.append(median_seconds([*command, str(Path(out) / f"cache{number}")], 1))
                taken = statistics.median(seconds)
            else:
                taken = median_seconds(command, runs)
        print(f"{name:44} {taken:6.2f} s  {taken / yardstick:5.1f}x")


if __name__ == "__main__":
    main()
