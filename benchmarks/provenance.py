"""How well births of non-finite values are told on jobs that really ran, and how long a large graph takes to draw.

`python -m benchmarks.provenance births`: of each fixture whose label names a `culprit_cause`, with what the recorders
wrote and without it. `python -m benchmarks.provenance drawing [OPERATORS…]`: from a loaded case to the drawing.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from forensics.assembly import assemble_case
from forensics.case import create_case, open_for_rules, text_id
from forensics.citations import Citations
from forensics.discovery import discover
from forensics.engine import judge
from forensics.finding import Finding
from forensics.ingest import ingest
from forensics.library import load_rules, load_views
from forensics.models.provenance import derive_births
from forensics.pictures.provenance import read
from forensics.report.provenance_svg import provenance_exhibit

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
RECORDED = ("operators.jsonl", "gradients.jsonl", "buckets.jsonl", "tensor_stats*.jsonl", "forward_step*.jsonl")
PARTS = ("operator", "module", "direction", "step", "rank")
DRAWN_SECONDS = 2.0
BIRTHS, CAUSES = 0.95, 0.90


def labels() -> dict[str, dict[str, Any]]:
    """Labels of all fixtures of which it is known where, and why, the first non-finite value was born."""
    read_in = {p.parent.name: tomllib.loads(p.read_text("utf-8")) for p in sorted(FIXTURES.glob("*/expected.toml"))}
    return {name: label for name, label in read_in.items() if "culprit_cause" in label}


def findings(artifacts: Path, work: Path) -> list[Finding]:
    """What numerics-nan-provenance finds in these artifacts, by step; RuntimeError when a variant of it fails."""
    found = discover(artifacts, work / "unpacked")
    path = work / "case.duckdb"
    assemble_case(ingest(found, work / "cache"), path)
    rules = [rule for rule in load_rules() if rule.id == "numerics-nan-provenance"]
    con = open_for_rules(path)
    try:
        judgement = judge(con, rules, load_views(), Citations(con, [item.source for item in found]))
    finally:
        con.close()
    if failed := [run.reason for run in judgement.runs if run.outcome == "failed"]:
        raise RuntimeError(f"{artifacts}: {failed}")
    return sorted(judgement.findings, key=lambda finding: (finding.step is None, finding.step))


@contextmanager
def without_recordings(name: str) -> Iterator[Path]:
    """The artifacts of a fixture as a job without recorders leaves them: logs, metrics and traces."""
    with tempfile.TemporaryDirectory(prefix="births-") as folder:
        copy = Path(folder) / "artifacts"
        shutil.copytree(FIXTURES / name / "artifacts", copy)
        for pattern in RECORDED:
            for path in copy.rglob(pattern):
                path.unlink()
        yield copy


def agrees(label: Mapping[str, Any], finding: Finding) -> dict[str, bool]:
    """Which parts of the birth, and whether the cause, are those of the label."""
    facts = finding.facts
    return {
        "operator": facts.get("op") == label["culprit_op"],
        "module": (facts.get("module") or "") == label.get("culprit_module", ""),
        "direction": facts.get("phase") == label["culprit_phase"],
        "step": finding.step == label["culprit_step"],
        "rank": (finding.rank or 0) == label.get("culprit_rank", 0),
        "cause": facts.get("cause") == label["culprit_cause"],
    }


def wrong_births(label: Mapping[str, Any], told: list[Finding]) -> list[str]:
    """What is claimed of a job without recordings beyond what logs, metrics and traces can show."""
    said = []
    for finding in told:
        op = str(finding.facts.get("op", "an operator"))
        # Only anomaly mode names an operator, and that of the backward.
        is_named = not op.startswith("an operator") and not (finding.variant == "anomaly" and "Backward" in op)
        if finding.strength == "proof" or "cause" in finding.facts or is_named:
            said.append(finding.message)
        elif finding.variant == "metrics" and finding.step is not None and finding.step < label["culprit_step"]:
            said.append(f"too early: {finding.message}")
    return said


def births() -> bool:
    n_exact = n_causes = n_wrong = n_twins = 0
    known = labels()
    print(f"{'fixture':34} {' '.join(f'{part:9}' for part in PARTS)} cause")
    for name, label in known.items():
        with tempfile.TemporaryDirectory(prefix="births-") as folder:
            told = findings(FIXTURES / name / "artifacts", Path(folder) / "with")
            twin = findings(FIXTURES / f"{name}-healthy" / "artifacts", Path(folder) / "twin")
            with without_recordings(name) as bare:
                wrong = wrong_births(label, findings(bare, Path(folder) / "without"))
        right = agrees(label, told[0]) if told else dict.fromkeys((*PARTS, "cause"), False)
        words = {part: "exact" if right[part] else "WRONG" for part in PARTS}
        cause = label["culprit_cause"] if right["cause"] else f"WRONG {told[0].facts.get('cause') if told else ''}"
        more = f"  without recordings: {wrong}" if wrong else ""
        print(f"{name:34} {' '.join(f'{words[part]:9}' for part in PARTS)} {cause}{more}", flush=True)
        n_exact += all(right[part] for part in PARTS)
        n_causes += right["cause"]
        n_wrong += bool(wrong)
        n_twins += bool(twin)
    share, causes = n_exact / len(known), n_causes / len(known)
    print(f"births exact {n_exact} of {len(known)} ({share:.0%}, must reach {BIRTHS:.0%}); ", end="")
    print(f"causes {n_causes} ({causes:.0%}, must reach {CAUSES:.0%}); ", end="")
    print(f"without recordings {n_wrong} wrong; {n_twins} twins with a birth")
    return share >= BIRTHS and causes >= CAUSES and not n_wrong and not n_twins


def recorded_step(con: duckdb.DuckDBPyConnection, n: int) -> None:
    """A step of `n` operators, two thirds of them forward: a chain with branches; the tenth gives an infinity."""
    texts = {
        text: text_id(text) for text in ("aten::log", "aten::mul", "aten::add", "MulBackward0", "[4,4]", "layers.0")
    }
    con.executemany("INSERT OR IGNORE INTO string VALUES (?, ?)", [(key, text) for text, key in texts.items()])
    con.execute(
        "INSERT INTO artifact (id, path, sha256, bytes, format, quality, clock)"
        " VALUES (0, 'operators.jsonl', '', 0, 'tensor_stats', 'complete', 'none')"
    )
    nodes, edges, tensors = [], [], []
    for i in range(n):
        phase = "forward" if i < n * 2 // 3 else "backward"
        op = texts["aten::log" if i == 10 else "aten::add" if i % 3 else "aten::mul"]
        nodes.append(
            (0, i, 0, 0, 1, i, i, phase, op, texts["layers.0"], texts["MulBackward0"] if i >= n * 2 // 3 else None)
        )
        sources = sorted({j for j in (i - 1, i - 7 * (i % 5 == 0)) if 0 <= j < i})
        for role, places in (("input", sources or [None]), ("output", [None])):
            for source in places:
                bad = i >= 10 if role == "output" else source is not None and source >= 10
                row = len(tensors)
                if source is not None:
                    edges.append((0, 1, source, i, "data", row))
                tensors.append((0, row, 0, 0, 1, role, i, "float32", texts["[4,4]"], 0, int(bad), 1.0))
    con.executemany(
        "INSERT INTO node (artifact_id, row, proc_id, rank, step, ts_ns, graph_id, node_id, phase, op_id, module_id,"
        " autograd_id) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?)",
        nodes,
    )
    con.executemany("INSERT INTO edge VALUES (?, ?, ?, ?, ?, ?)", edges)
    con.executemany(
        "INSERT INTO tensor (artifact_id, row, proc_id, rank, step, role, node_id, dtype, shape_id, n_nan, n_inf,"
        " absmax) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        tensors,
    )


def drawing(sizes: list[int]) -> bool:
    holds = True
    for n in sizes:
        with tempfile.TemporaryDirectory(prefix="drawing-") as folder:
            con = create_case(Path(folder) / "case.duckdb")
            recorded_step(con, n)
            began, cpu = time.perf_counter(), time.process_time()
            derive_births(con)
            derived = time.process_time() - cpu
            picture = read(con)[0]
            exhibit = provenance_exhibit(picture)
            wall, spent = time.perf_counter() - began, time.process_time() - cpu
            con.close()
        assert exhibit is not None
        bound = f"{'holds' if wall <= DRAWN_SECONDS else 'MISSED'}: {DRAWN_SECONDS} s" if n <= 3000 else "no bound"
        print(
            f"{n} operators: births {derived:.2f} CPU s, all {spent:.2f} CPU s, {wall:.2f} s wall ({bound}); ", end=""
        )
        print(f"{len(picture.operations)} drawn, {picture.n_hidden} counted, {len(exhibit.svg or '') / 1000:.0f} kB")
        holds = holds and (n > 3000 or wall <= DRAWN_SECONDS)
    return holds


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["births"]:
        return 0 if births() else 1
    if arguments[:1] == ["drawing"]:
        return 0 if drawing([int(n) for n in arguments[1:]] or [3000]) else 1
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
