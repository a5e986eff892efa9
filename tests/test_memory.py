"""What bounds the memory of an analysis."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forensics.memory import _cgroup_limits, parse_size, usable_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("4GiB", 4 << 30), ("1.5 gb", 1_500_000_000), ("much", None), ("0GB", None), ("4", None)],
)
def test_sizes_are_read_with_their_unit(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("line", "file", "text", "limit"),
    [
        ("0::/job", "job/memory.max", "4096\n", [4096]),
        ("0::/job/step", "job/memory.max", "4096\n", [4096]),  # of a parent
        ("0::/job", "job/memory.max", "max\n", []),
        ("0::/of/the/host", "memory.max", "8192\n", [8192]),  # as seen inside a container
        ("4:memory:/job", "memory/job/memory.limit_in_bytes", "4096\n", [4096]),
        ("4:cpu:/job", "cpu/job/memory.max", "4096\n", []),
    ],
)
def test_the_limit_of_a_cgroup_and_of_those_above_it_counts(
    line: str, file: str, text: str, limit: list[int], tmp_path: Path
) -> None:
    (tmp_path / "fs" / file).parent.mkdir(parents=True)
    (tmp_path / "fs" / file).write_text(text)
    (tmp_path / "own").write_text(f"{line}\n")
    assert _cgroup_limits(tmp_path / "fs", tmp_path / "own") == limit


def test_some_memory_is_usable() -> None:
    assert usable_bytes() > 1 << 26


def test_a_database_takes_half_of_what_its_process_may_still_take() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))\n"
        "from forensics.case import connect\n"
        "for limit in ('512MiB', '4GiB', None):\n"
        "    (said,) = connect(memory_limit=limit).execute(\"SELECT current_setting('memory_limit')\").fetchone()\n"
        "    print(said.replace('1.0 GiB', '1024 MiB'))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    asked, *most = [float(line.split()[0]) for line in said.splitlines()]
    assert asked == 512 and all(850 < mib <= 1024 for mib in most)  # half of what libraries left
