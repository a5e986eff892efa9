"""Rows of fleets that never were, for tests of what is made of them: jobs of a few kinds over days and batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forensics.fleet.incidents import incident_of, incident_of_error
from forensics.fleet.layout import Fleet
from forensics.fleet.rows import SCHEMA

DAY_NS = 86_400 * 10**9
EPOCH_NS = 1_790_000_000 * 10**9


def make_row(name: str, rule: str | None, run: int = 1, **known: Any) -> dict[str, Any]:
    """A job with one root cause; without a rule it has one unknown error and no cause."""
    key, host, device = f"{name}-0123456789ab", known.pop("host", "node-1"), known.pop("device", 0)
    message = known.pop("message", "Rank 3: aten::log gave the first infinity at step 217")
    facts = {"op": known.pop("op", "aten::log")}
    errors, findings = [], []
    if rule is None:
        incident = incident_of_error("FluxError", message)
        errors = [
            {"exception": "FluxError", "message": message, "where_in_code": "main (a.py)", "n": 2, "incident": incident}
        ]
    else:
        incident = incident_of(rule, message, facts)
        findings = [
            {
                "id": 1, "rule": rule, "title": f"Title of {rule}", "severity": "critical", "strength": "proof",
                "place": "root",
                "confidence": 0.9, "rank": 3, "host": host, "device": device, "message": message, "fix": "Mend it.",
                "fingerprint": f"f-{name}", "incident": incident,
            }
        ]  # fmt: skip
    row = {
        "job": key, "name": name, "series": name.rstrip("0123456789-"), "place": f"/jobs/{name}", "run": run,
        "status": "analyzed", "state": "failed", "verdict": "root-cause" if rule else "not-established", "rule": rule,
        "severity": "critical", "sentence": message, "incident": incident, "analyzed_ns": EPOCH_NS + run,
        "ended_ns": EPOCH_NS + run * DAY_NS, "elapsed_s": 7200.0, "n_gpus": 4, "gpu_hours": 8.0,
        "gpu_hours_origin": "sacct", "n_findings": len(findings), "report": f"jobs/{key}/report.html",
        "findings": findings,
        "errors": errors,
        "processes": [{"attempt": 0, "host": host, "rank": 3, "device": device, "traced": True}],
        "artifacts": [{"format": "log", "quality": "complete", "n": 3, "bytes": 30}],
    }  # fmt: skip
    return {**row, **known}


def write_fleet(folder: Path, rows: list[dict[str, Any]]) -> Fleet:
    fleet = Fleet(folder)
    fleet.create()
    lists = [f.name for f in SCHEMA if pa.types.is_list(f.type)]
    table = pa.Table.from_pylist([{**{name: [] for name in lists}, **row} for row in rows], SCHEMA)
    pq.write_table(table, fleet.packed / "part-1.parquet")
    return fleet


def many_rows(n: int) -> list[dict[str, Any]]:
    """A fleet as it may grow over ninety days, the same at every call."""
    dice = random.Random(n)
    rules = [
        "numerics-nan-provenance", "memory-capacity", "memory-fragmentation", "distributed-missing-rank", "host-disk",
        "host-oom", "hardware-xid", "hardware-ecc", "distributed-network", "checkpoint-mismatch", "compile-failure",
        None,
    ]  # fmt: skip
    rows = []
    for number in range(n):
        day = dice.randrange(90)
        rule = dice.choices(rules, [12, 20, 6, 9, 3, 8, 4, 1, 5, 7, 3, 9])[0]
        name = f"{dice.choice(['bert-large', 'llama-7b', 'vit', 'asr', 'gpt-moe'])}-{number:05d}"
        variety = dice.randrange(3) if rule else dice.randrange(12)
        word = "abcdefghijkl"[variety]
        message = f"{(rule or 'flange').replace('-', ' ')}: {word * 5} was met by rank {dice.randrange(64)}"
        known: dict[str, Any] = {"message": message, "op": f"op{word}"}
        run, host = day + 1, f"gpu-{min(int(dice.expovariate(0.02)), 400):03d}"
        hours = dice.choice([None, 2.0, 16.0, 512.0])
        when = {"ended_ns": EPOCH_NS + day * DAY_NS + dice.randrange(DAY_NS), "gpu_hours": hours}
        row = make_row(name, rule, run, host=host, device=dice.randrange(8), **when, **known)
        if dice.random() < 0.04:
            row |= {
                "status": "not-analyzed",
                "verdict": None,
                "findings": [],
                "errors": [],
                "incident": None,
                "rule": None,
            }
            row |= {"reason": "it took longer than 900 s and was killed", "report": None, "sentence": None}
        rows.append(row)
    return rows
