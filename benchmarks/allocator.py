"""Measures the allocator model: its speed, and what it predicts against what PyTorch's allocator really did.

    python -m benchmarks.allocator speed [--events N]
    python -m benchmarks.allocator addresses FOLDER
    python -m benchmarks.allocator grid FOLDER TRUTH [--told]

`speed`: events a second of the check and of predictions, of an invented history. `addresses`: for each snapshot the
share of allocations at their recorded address, and the error of reserved bytes. `grid`: from each snapshot of a
workload the other settings it was recorded under, each against that recording up to the request at which the first one
ends. FOLDER holds snapshots, TRUTH for each a JSON file with `workload`, `setting`, `conf`, `room`, `completed` and
`device_bytes`. Predictions see the snapshot alone; with --told also the size of the device, as a log or nvidia-smi
would give it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from allocator_records import Snapshot, peak_up_to

from forensics.models.allocator import Allocator
from forensics.models.allocator_blocks import Block
from forensics.models.allocator_device import LimitedDevice
from forensics.models.allocator_fit import Fit
from forensics.models.allocator_history import DEFAULT_POOL, History, Op, Segment
from forensics.models.allocator_replay import Limits, check, predict
from forensics.models.allocator_settings import MIB, SMALL_REQUEST, AllocatorSettings, parse_settings
from forensics.models.allocator_whatif import ALTERNATIVES, what_ifs

_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20}


def invented(n_events: int) -> History:
    """A history like that of a training: up to 3000 allocations alive, a third of them small, each freed again."""
    dice, history = random.Random(1), History(groups=[(DEFAULT_POOL, 0)])
    device = LimitedDevice()
    allocator = Allocator(AllocatorSettings(), device)
    alive: list[tuple[int, Block]] = []
    while history.n_events < n_events:
        if len(alive) < 3000 and dice.random() < 0.51:
            size = dice.choice(
                [dice.randrange(1, MIB), dice.randrange(MIB, 9 * MIB), dice.randrange(10 * MIB, 90 * MIB)]
            )
            rounded, before = allocator.settings.rounded_one(size), allocator.reserved
            block = allocator.malloc(allocator.pool(DEFAULT_POOL, 0, small=rounded <= SMALL_REQUEST), rounded)
            assert block is not None
            if allocator.reserved > before:
                history.kinds.append(Op.OBTAIN)
                history.numbers.append(len(history.segments))
                history.segments.append(Segment(block.addr, allocator.reserved - before, 0, DEFAULT_POOL))
                history.n_events += 1
            alive.append((len(history.sizes), block))
            history.kinds.append(Op.ALLOC)
            history.numbers.append(len(history.sizes))
            history.sizes.append(size)
            history.addrs.append(block.addr)
            history.rows.append(history.n_events)
            history.group_of.append(0)
            history.n_events += 1
        elif alive:
            at = dice.randrange(len(alive))
            alive[at], alive[-1] = alive[-1], alive[at]
            number, block = alive.pop()
            allocator.free(block)
            history.kinds.append(Op.FREE)
            history.numbers.append(number)
            history.n_events += 2
    history.n_allocs = len(history.sizes)
    return history


def measure_speed(n_events: int) -> None:
    history = invented(n_events)
    began = time.process_time()
    placed = check(history, AllocatorSettings(), Limits(), [])
    print(f"{'check':70} {history.n_events / (time.process_time() - began) / 1000:6.0f} k events/s", flush=True)
    assert placed.n_at_address == placed.n_allocs
    for text in ALTERNATIVES:
        settings = parse_settings(text)
        # The collector needs a fraction; at this one it collects all the time.
        limits = Limits(allowed=placed.peak_reserved if settings.gc_ratio else None)
        began = time.process_time()
        found = predict(history, replace(settings, has_fraction=True), limits, [], laid_out=True)
        rate = f"{history.n_events / (time.process_time() - began) / 1000:6.0f} k events/s"
        print(f"{'predict ' + (text or 'defaults'):70} {rate if found.complete else 'stops at a request'}", flush=True)


def measure_addresses(folder: Path) -> None:
    n_files = n_good = 0
    print(f"{'snapshot':44} dev  allocations  at address  reserved error  history")
    for path in sorted(folder.glob("*.pickle")):
        snapshot = Snapshot(path)
        for device in snapshot.devices():
            found = snapshot.fit(device)
            placed = found.check
            n_files, n_good = n_files + 1, n_good + found.accepted
            whole = "rewound" if found.runs else "whole"
            print(
                f"{path.stem:44} {device:3} {placed.n_allocs:12} {placed.share_at_address:11.4f}"
                f" {found.reserved_error:15.4f}  {whole} {found.reason}"
            )
    print(f"accepted {n_good} of {n_files} histories")


def bytes_of(text: str) -> int:
    return int(text[:-3]) * _UNITS[text[-3:]]


def recorded_fits(folder: Path, truths: dict[str, Any], *, told: bool) -> Iterator[tuple[str, Fit]]:
    for name, truth in truths.items():
        yield name, Snapshot(folder / f"{name}.pickle").fit(told=bytes_of(truth["device_bytes"]) if told else None)


def measure_grid(folder: Path, truth_folder: Path, *, told: bool) -> None:
    texts = {path.stem: json.loads(path.read_text()) for path in sorted(truth_folder.glob("*.json"))}
    truths = {
        name: truth for name, truth in texts.items() if "setting" in truth and (folder / f"{name}.pickle").exists()
    }
    fits = dict(recorded_fits(folder, truths, told=told))
    by_place = {(t["workload"], t["setting"], t["room"]): name for name, t in truths.items()}
    counts: Counter[str] = Counter()
    for name, found in fits.items():
        if not found.accepted:
            print(f"{name}: not accepted, {found.reason}")
            continue
        truth = truths[name]
        asked = found.history.n_allocs + len(found.history.failures)
        for (workload, setting, room), other in by_place.items():
            if workload != truth["workload"] or room != truth["room"] or setting == truth["setting"]:
                continue
            (tried,) = what_ifs(found, [truths[other]["conf"]])
            peak = peak_up_to(fits[other], asked)
            fitted = truths[other]["completed"] or fits[other].history.n_allocs >= asked
            error = abs(tried.peak_reserved - peak) / peak
            counts["pairs"] += 1
            counts["peak within 2 %"] += error <= 0.02
            counts["fits: right"] += tried.fits is fitted
            counts["fits: not known"] += tried.fits is None
            counts["fits: wrong"] += tried.fits is not None and tried.fits is not fitted
            if error > 0.02 or (tried.fits is not None and tried.fits is not fitted):
                said = f"peak {tried.peak_reserved >> 20} MiB, fits {tried.fits}"
                print(f"{name} under {setting}: {said}; really {peak >> 20} MiB, {fitted}")
    print(", ".join(f"{what} {n}" for what, n in counts.items()))


def main() -> None:
    arguments = argparse.ArgumentParser()
    kinds = arguments.add_subparsers(dest="kind", required=True)
    kinds.add_parser("speed").add_argument("--events", type=int, default=1_000_000)
    kinds.add_parser("addresses").add_argument("folder", type=Path)
    grid = kinds.add_parser("grid")
    grid.add_argument("folder", type=Path)
    grid.add_argument("truth", type=Path)
    grid.add_argument("--told", action="store_true")
    options = arguments.parse_args()
    if options.kind == "speed":
        measure_speed(options.events)
    elif options.kind == "addresses":
        measure_addresses(options.folder)
    else:
        measure_grid(options.folder, options.truth, told=options.told)


if __name__ == "__main__":
    main()
