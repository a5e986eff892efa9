"""Time and peak memory of `forensics checkpoint-diff` over two states: `python -m benchmarks.checkpoint_diff`.

Both files are generated below --work and removed afterwards; the second differs in one layer of four. Peak memory is
that of the child process as the kernel accounts it (ru_maxrss).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_ROWS, _COLUMNS = 4096, 4096  # of one matrix of float32: 64 MiB


def write_state(path: Path, n_bytes: int, seed: int) -> None:
    """A safetensors file of matrices; those of layers whose number divides by 4 depend on the seed."""
    n = max(1, n_bytes // (_ROWS * _COLUMNS * 4))
    size = _ROWS * _COLUMNS * 4
    header = {
        f"layers.{i // 4}.{'qkvo'[i % 4]}_proj.weight": {
            "dtype": "F32",
            "shape": [_ROWS, _COLUMNS],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(n)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for i in range(n):
            draw = np.random.default_rng([i, seed if i // 4 % 4 == 0 else 0])
            out.write(draw.standard_normal((_ROWS, _COLUMNS), np.float32).tobytes())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gigabytes", type=float, default=5.0, help="of each file")
    arguments.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    options = arguments.parse_args()
    n_bytes = int(options.gigabytes * 1e9)
    if shutil.disk_usage(options.work).free < 3 * n_bytes:
        sys.exit(f"{options.work}: not enough free space for two files of {options.gigabytes} GB")
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        a, b = Path(folder) / "a.safetensors", Path(folder) / "b.safetensors"
        write_state(a, n_bytes, 1)
        write_state(b, n_bytes, 2)
        command = [sys.executable, "-m", "forensics.cli", "checkpoint-diff", str(a), str(b), "--depth", "1"]
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        out = child.stdout.read()
        _, _, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        print(out)
        total = a.stat().st_size + b.stat().st_size
        rate, peak = total / seconds / 1e6, usage.ru_maxrss >> 10
        print(f"{total / 1e9:.1f} GB in {seconds:.1f} s ({rate:.0f} MB/s), peak {peak} MiB")


if __name__ == "__main__":
    main()
