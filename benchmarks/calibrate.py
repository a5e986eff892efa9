"""Measures how often root causes are right, by strength of proof, over folders of labelled cases.

    python benchmarks/calibrate.py FOLDER... [--write]

A labelled case is a folder with artifacts/ and expected.toml (`accept`: rules that name the true cause; `healthy`).
The figure for a strength is (right + 1) / (all + 2), the rule of succession, so that few cases claim little; a root
cause on a healthy case counts as wrong. Stronger proof is never given the lower figure: where counts say so by chance,
the strengths are taken together (pool adjacent violators, Ayer et al. 1955). `--write` stores the figures as
forensics/calibration.json, which every report cites.

The Brier score is that of figures measured without the case they are applied to (leave one out), beside the score of
one figure for all: the share of right verdicts, left out likewise.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from forensics.pipeline import analyze
from forensics.states import STRENGTHS

STORED = Path(__file__).resolve().parent.parent / "forensics" / "calibration.json"

Verdicts = Sequence[tuple[str, bool]]  # strength of the first root cause, and whether it is an accepted one


def succession(right: int, total: int) -> float:
    return (right + 1) / (total + 2)


def figures(verdicts: Verdicts) -> dict[str, float]:
    """How often a root cause of each strength was right, falling from the strongest on; none for strengths unseen."""
    pools: list[tuple[list[str], int, int]] = []
    for strength in STRENGTHS:
        hits = [right for name, right in verdicts if name == strength]
        if not hits:
            continue
        pools.append(([strength], sum(hits), len(hits)))
        while len(pools) > 1 and succession(*pools[-2][1:]) < succession(*pools[-1][1:]):
            weaker, stronger = pools.pop(), pools.pop()
            pools.append((stronger[0] + weaker[0], stronger[1] + weaker[1], stronger[2] + weaker[2]))
    return {name: round(succession(right, total), 3) for names, right, total in pools for name in names}


def brier(verdicts: Verdicts) -> tuple[float, float]:
    """Mean squared error of the figures and of the share of right verdicts alone, each without the case in hand."""
    ours = base = 0.0
    for n, (strength, right) in enumerate(verdicts):
        others = [*verdicts[:n], *verdicts[n + 1 :]]
        share = succession(sum(hit for _, hit in others), len(others))
        ours += (figures(others).get(strength, share) - right) ** 2
        base += (share - right) ** 2
    return round(ours / len(verdicts), 4), round(base / len(verdicts), 4)


def main() -> None:
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    labels = sorted(path for folder in folders for path in folder.glob("*/expected.toml"))
    verdicts: list[tuple[str, bool]] = []
    for path in labels:
        expected = tomllib.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as out:
            verdict = analyze(path.parent / "artifacts", out).verdict
        if verdict.root_causes:
            root = verdict.root_causes[0]
            hit = not expected.get("healthy") and root.rule in expected["accept"]
            verdicts.append((root.strength, hit))
            if not hit:
                print(f"wrong: {path.parent.name}: {root.rule} ({root.strength})")
    found = figures(verdicts)
    counts = {
        name: {"right": sum(hit for s, hit in verdicts if s == name), "of": sum(s == name for s, _ in verdicts)}
        for name in STRENGTHS
    }
    score, base = brier(verdicts) if len(verdicts) > 1 else (0.0, 0.0)
    print(json.dumps({"figures": found, "counts": counts, "cases": len(labels), "brier": score, "base rate": base}))
    if "--write" in sys.argv:
        where = f"{len(labels)} labelled cases, most known while the rules were written"
        note = f"measured on {len(verdicts)} verdicts over {where}"
        stored = {"root_cause_is_right": found, "counts": counts, "note": note}
        STORED.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
