"""Measures how often root causes are right, by grade, over folders of labelled cases.

    python benchmarks/calibrate.py FOLDER... [--rows FILE] [--write]

A labelled case is a folder with artifacts/ and expected.toml (`accept`: rules that name the true cause; `healthy`).
Each failing case is diagnosed twice: from all findings, and without those of the rules that name its true cause, as if
no rule knew that fault yet. A cause that is named then is wrong, as is one of a healthy case; saying that nothing is
established counts for nothing. `forensics.finding.GRADES` are the grades. Where a folder keeps what was named when a
case was first run (`first_runs.json`: case → rule, grade), before any rule was written or mended for it, that is taken
for the first of the two.

The figure for a grade is (right + 1) / (all + 2), the rule of succession, so that few verdicts claim little. `--write`
stores the figures as forensics/calibration.json, which every report cites. `--rows` keeps what was measured, one
verdict a line, and continues from there.

The Brier score is that of figures measured without the case they are applied to, and without the whole folder that it
lies in, beside the score of one figure for all: the share of right verdicts, left out likewise.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from forensics.case import open_for_rules
from forensics.diagnosis import diagnose
from forensics.finding import GRADES, Verdict
from forensics.ledger import read_outcome
from forensics.pipeline import analyze

STORED = Path(__file__).resolve().parent.parent / "forensics" / "calibration.json"


@dataclass(frozen=True)
class Row:
    """One diagnosis of one case. `rule`, `grade`: of the first root cause, None where none was named."""

    folder: str
    case: str
    withheld: bool
    rule: str | None
    grade: str | None
    right: bool
    first_run: bool = False  # named before any rule was made for this case


Rows = Sequence[Row]


def measure(label: Path) -> list[Row]:
    """The verdicts over one case: from all findings, and without those that name the true cause."""
    expected = tomllib.loads(label.read_text(encoding="utf-8"))
    accepted = set() if expected.get("healthy") else set(expected["accept"])

    def row(verdict: Verdict, withheld: bool) -> Row:
        root = verdict.root_causes[0] if verdict.root_causes else None
        rule, grade = (root.rule, root.grade) if root else (None, None)
        return Row(label.parents[1].name, label.parent.name, withheld, rule, grade, rule in accepted)

    with tempfile.TemporaryDirectory() as out:
        analysis = analyze(label.parent / "artifacts", out)
        found = [row(analysis.verdict, withheld=False)]
        if accepted:
            con = open_for_rules(Path(out) / "case.duckdb", None)
            try:
                outcome = read_outcome(con)
            finally:
                con.close()
            others = [f for f in analysis.findings if f.rule not in accepted]
            others = [replace(f, explained_by=None, explained_how="") for f in others]
            found.append(row(diagnose(others, outcome), withheld=True))
    return found


def first_runs(folder: Path) -> dict[str, dict[str, str | None]]:
    path = folder / "first_runs.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def succession(rows: Rows) -> float:
    return (sum(row.right for row in rows) + 1) / (len(rows) + 2)


def figures(rows: Rows) -> dict[str, float]:
    """How often a root cause of each grade was right; none for grades unseen."""
    of = {grade: [row for row in rows if row.grade == grade] for grade in GRADES}
    return {grade: round(succession(of_grade), 3) for grade, of_grade in of.items() if of_grade}


def brier(rows: Rows, apart: Callable[[Row], str]) -> tuple[float, float]:
    """Mean squared error of the figures and of the share of right verdicts, each without its like by `apart`."""
    ours = base = 0.0
    for row in rows:
        others = [other for other in rows if apart(other) != apart(row)]
        share = succession(others)
        ours += (figures(others).get(str(row.grade), share) - row.right) ** 2
        base += (share - row.right) ** 2
    return round(ours / len(rows), 4), round(base / len(rows), 4)


def measured(folders: Sequence[Path], kept: Path | None) -> list[Row]:
    rows: list[Row] = []
    if kept and kept.exists():
        rows = [Row(**json.loads(line)) for line in kept.read_text(encoding="utf-8").splitlines()]
    done = {(row.folder, row.case) for row in rows}
    for label in sorted(path for folder in folders for path in folder.glob("*/expected.toml")):
        if (label.parents[1].name, label.parent.name) in done:
            continue
        new = measure(label)
        first = first_runs(label.parents[1]).get(label.parent.name)
        if first is not None:
            expected = tomllib.loads(label.read_text(encoding="utf-8"))
            right = not expected.get("healthy") and first["rule"] in expected["accept"]
            new[0] = replace(new[0], rule=first["rule"], grade=first["grade"], right=right, first_run=True)
        rows += new
        if kept:
            with kept.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(row)) + "\n" for row in new)
    return rows


def main() -> None:
    words = sys.argv[1:]
    kept = Path(words.pop(words.index("--rows") + 1)) if "--rows" in words else None
    rows = measured([Path(word) for word in words if not word.startswith("--")], kept)
    named = [row for row in rows if row.rule is not None]
    for row in named:
        if not row.right:
            how = "without the rules that know it" if row.withheld else "with all rules"
            print(f"wrong: {row.case}, {how}: {row.rule} ({row.grade})")
    n_cases = len({(row.folder, row.case) for row in rows})
    of = {grade: [row.right for row in named if row.grade == grade] for grade in GRADES}
    counts = {grade: {"right": sum(hits), "of": len(hits)} for grade, hits in of.items()}
    silent = [row.rule is None for row in rows if row.withheld]
    scores = {"case": brier(named, lambda row: row.case), "folder": brier(named, lambda row: row.folder)}
    print(json.dumps({"figures": figures(named), "counts": counts, "cases": n_cases}))
    print(f"without the rules that know the cause: none named in {sum(silent)} of {len(silent)}")
    for apart, (score, base) in scores.items():
        print(f"Brier score without the {apart} in hand: {score}; of one figure for all: {base}")
    if "--write" in words:
        n_first = sum(row.first_run for row in rows)
        note = (
            f"on {n_cases} labelled cases, {n_first} of them at their first run, the others known while the rules were "
            "written, and each failing one once more without the rules that know its cause"
        )
        stored = {"root_cause_is_right": figures(named), "counts": counts, "brier": scores["case"], "note": note}
        STORED.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
