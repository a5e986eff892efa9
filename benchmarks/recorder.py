"""Measures what each recorder costs a training loop, as the ratio to the same loop without it.

    python benchmarks/recorder.py [--rounds N] [--seconds S] [--model NAME]...

Loops with and without a recorder take turns in one process, in rounds. `overhead` is the median over rounds of the
ratio of their CPU times: all there is to pay, and on a busy machine mostly noise. `inside` is the CPU time between
entering and leaving the recorder, as a share of the other time of the same loop: it holds on busy machines, and does
not see what the recorder does to caches. `nonfinite` is the cost of the steps that are recorded operator by operator.
CPU only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recorder"))
import forensics_recorder as fr


class Decoder(nn.Module):
    def __init__(self, width: int, n_layers: int, n_words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, width)
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(n_layers)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, n_words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.head(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def _decoder(width: int, n_layers: int, batch: int, length: int) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = Decoder(width, n_layers, 1000)
    return model, lambda: torch.randint(0, 1000, (batch, length))


class Classifier(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).square().mean()


MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]] = {
    "tiny": lambda: (Classifier(128), lambda: torch.randn(64, 64)),
    "mlp": lambda: (Classifier(1024), lambda: torch.randn(256, 64)),
    "decoder": lambda: _decoder(256, 4, 8, 128),
}
NOTHING = {"gradients_every": 0, "watch_nonfinite": False, "memory_history": False, "stall_seconds": 0.0}
RECORDERS: dict[str, dict[str, Any]] = {
    "ring": NOTHING,
    "gradients": NOTHING | {"gradients_every": 10},
    "watch": NOTHING | {"watch_nonfinite": True},
    "all": {},
}


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch)


class Meter:
    """CPU seconds that one thread spends inside of the functions it has wrapped, minus those they give back."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def inside(self, call: Callable[..., Any], sign: int = 1) -> Callable[..., Any]:
        def metered(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += sign * (time.thread_time() - began)

        return metered


def watched(rec: Any, meter: Meter) -> Any:
    """The recorder, with all its doors metered."""
    for door in ("begin_step", "run", "end_step", "_before_optimizer"):
        setattr(rec, door, meter.inside(getattr(rec, door)))
    return rec


def loop(
    model: nn.Module, data: Callable[[], torch.Tensor], seconds: float, rec: Any = None
) -> tuple[float, float | None]:
    """CPU seconds a step, over `seconds` of training; with a recorder also the share inside of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    meter = Meter()
    work = meter.inside(loss_of, -1)
    if rec is not None:
        rec = watched(rec(optimizer), meter)
    step, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        batch = data()
        if rec is not None:
            rec.begin_step(step)
            loss = rec.run(work, model, batch)
        else:
            loss = loss_of(model, batch)
            float(loss.detach())  # loops log their loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rec is not None:
            rec.end_step(lr=1e-4)
        step += 1
    taken = time.process_time() - began
    if rec is not None:
        rec.close()
    return taken / step, meter.seconds / (taken - meter.seconds) if rec is not None else None


def measure(name: str, options: dict[str, Any], seconds: float, rounds: int, folder: Path) -> dict[str, float]:
    model, data = MODELS[name]()
    loop(model, data, seconds / 2)
    ratios, bare, inside = [], [], []
    for number in range(rounds):

        def record(optimizer: Any, number: int = number) -> Any:
            return fr.record(
                folder / f"{name}-{number}", model=model, optimizer=optimizer, options=fr.Options(**options)
            )

        pair = [loop(model, data, seconds), loop(model, data, seconds, record)]
        if number % 2:  # whoever comes second has the warmer caches
            pair = [loop(model, data, seconds, record), loop(model, data, seconds)][::-1]
        (without, _), (with_it, share) = pair
        ratios.append(with_it / without)
        bare.append(without)
        inside.append(share or 0.0)
    return {
        "ms_a_step": 1000 * statistics.median(bare),
        "ratio": statistics.median(ratios),
        "inside_ratio": statistics.median(inside),
    }


def recorded_step(name: str, rounds: int) -> float:
    """Time of forward and backward under the operator recorder, as a multiple of the same without."""
    from forensics_recorder.operators import OperatorRecorder

    model, data = MODELS[name]()
    ratios = []
    for _ in range(rounds + 1):
        batch = data()
        began = time.process_time()
        loss_of(model, batch).backward()
        bare = time.process_time() - began
        began = time.process_time()
        with OperatorRecorder(model, 0):
            loss_of(model, batch).backward()
        ratios.append((time.process_time() - began) / bare)
    return statistics.median(ratios[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--model", action="append", choices=sorted(MODELS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    print(f"{'model':8} {'recorder':10} {'ms a step':>10} {'overhead':>10} {'inside':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.model or MODELS:
            for recorder, options in RECORDERS.items():
                found = measure(name, options, given.seconds, given.rounds, Path(folder))
                figures[f"{name}/{recorder}"] = found
                shares = f"{100 * (found['ratio'] - 1):8.2f} % {100 * found['inside_ratio']:7.2f} %"
                print(f"{name:8} {recorder:10} {found['ms_a_step']:10.3f} {shares}", flush=True)
            ratio = recorded_step(name, 3 * given.rounds)
            figures[f"{name}/nonfinite"] = {"ratio": ratio}
            print(f"{name:8} {'nonfinite':10} {'':10} {ratio:8.2f} x (steps recorded operator by operator)", flush=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
