"""Measures how often root causes are right, by strength of proof, over folders of labelled cases.

    python benchmarks/calibrate.py FOLDER... [--write]

A labelled case is a folder with artifacts/ and expected.toml (`accept`: rules that name the true cause; `healthy`).
The figure for a strength is (right + 1) / (all + 2), the rule of succession, so that few cases claim little; a root
cause on a healthy case counts as wrong. `--write` stores it as forensics/calibration.json, which every report cites.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
from pathlib import Path

from forensics.pipeline import analyze
from forensics.states import STRENGTHS

STORED = Path(__file__).resolve().parent.parent / "forensics" / "calibration.json"


def main() -> None:
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    labels = sorted(path for folder in folders for path in folder.glob("*/expected.toml"))
    right = dict.fromkeys(STRENGTHS, 0)
    total = dict.fromkeys(STRENGTHS, 0)
    for path in labels:
        expected = tomllib.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as out:
            verdict = analyze(path.parent / "artifacts", out).verdict
        if verdict.root_causes:
            root = verdict.root_causes[0]
            total[root.strength] += 1
            hit = not expected.get("healthy") and root.rule in expected["accept"]
            right[root.strength] += hit
            if not hit:
                print(f"wrong: {path.parent.name}: {root.rule} ({root.strength})")
    figures = {name: round((right[name] + 1) / (total[name] + 2), 3) for name in STRENGTHS if total[name]}
    counts = {name: {"right": right[name], "of": total[name]} for name in STRENGTHS}
    print(json.dumps({"figures": figures, "counts": counts, "cases": len(labels)}, indent=2))
    if "--write" in sys.argv:
        where = f"{len(labels)} labelled cases, most known while the rules were written"
        note = f"measured on {sum(total.values())} verdicts over {where}"
        stored = {"root_cause_is_right": figures, "counts": counts, "note": note}
        STORED.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
