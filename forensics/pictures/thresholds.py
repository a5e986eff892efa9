"""Measured values against their thresholds: those of the findings, and those that are drawn whatever was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from forensics.finding import Finding
from forensics.redact import mask
from forensics.report.pictures import Gauge, ThresholdBoard
from forensics.rule import Rule

MAX_GAUGES = 30
_JOB = "The job"
_PARTS = {
    "gradient-sparsity": "zero / all elements of the gradients",
    "memory-residency": "memory held by the allocator / memory of the device",
    "backward-forward": "time of the backward / of the forward",
}
# Of the thread that trains; the same limits as in host-context-switch.
_QUEUE_MARKS = (("healthy", 150e-6), ("bad", 400e-6))
_MIN_SWITCHES = 20
# Of the free bytes that a failed request could use; below, they lie in too many pieces.
_CONTIGUITY_MARKS = (("healthy", 0.85), ("bad", 0.4))


def read(
    con: duckdb.DuckDBPyConnection, findings: Sequence[Finding], rules: Mapping[str, Rule]
) -> list[ThresholdBoard]:
    """One board; of findings of one rule the first is shown, in the order given."""
    gauges = [*_of_findings(findings, rules), *_health(con), *_queue(con)]
    return [ThresholdBoard(tuple(gauges[:MAX_GAUGES]), max(0, len(gauges) - MAX_GAUGES))] if gauges else []


def _of_findings(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Gauge]:
    gauges = []
    for finding in {f.rule: f for f in reversed(findings)}.values():
        how = "" if finding.rank is None else f"rank {finding.rank}"
        for threshold in rules[finding.rule].thresholds.values():
            value = threshold.measure(finding.facts)
            if value is not None:
                marks = (("threshold", threshold.value),)
                gauges.append(Gauge(mask(finding.title), threshold.unit, value, marks, how, threshold.why))
        contiguity = finding.facts.get("contiguity_ratio")
        if contiguity is not None:
            quantity = "longest free run / free bytes that the request could use"
            gauges.append(Gauge(mask(finding.title), quantity, float(contiguity), _CONTIGUITY_MARKS, how))
    order = {finding.title: i for i, finding in reversed(list(enumerate(findings)))}
    return sorted(gauges, key=lambda gauge: order.get(gauge.subject, len(order)))


def _health(con: duckdb.DuckDBPyConnection) -> list[Gauge]:
    """Each part of the health score, of the process that is worst in it."""
    rows = con.execute(
        """
        SELECT part, median(value) AS middle, healthy, bad, rank, count(*), says FROM health_part
        GROUP BY part, healthy, bad, rank, proc_id, says
        QUALIFY row_number() OVER (PARTITION BY part ORDER BY middle DESC, proc_id) = 1
        ORDER BY part
        """
    ).fetchall()
    return [
        Gauge(
            _JOB,
            _PARTS.get(part, part) + (f", {says}" if says else ""),
            value,
            (("healthy", healthy), ("bad", bad)),
            ("" if rank is None else f"rank {rank}, ") + f"median of {n} step{'s' if n > 1 else ''}",
        )
        for part, value, healthy, bad, rank, n, says in rows
    ]


def _queue(con: duckdb.DuckDBPyConnection) -> list[Gauge]:
    """How long the recorded thread waited for a processor, of the rank that waited longest."""
    row = con.execute(
        """
        SELECT rank, sum(value) FILTER (WHERE name = 'run_delay_seconds') AS delay,
            sum(value) FILTER (WHERE name = 'n_switches') AS n
        FROM metric WHERE source = 'metrics' AND step IS NOT NULL AND name IN ('run_delay_seconds', 'n_switches')
        GROUP BY proc_id, rank HAVING n >= ? AND delay IS NOT NULL
        ORDER BY delay / n DESC, proc_id LIMIT 1
        """,
        [_MIN_SWITCHES],
    ).fetchone()
    if row is None:
        return []
    rank, delay, n = row
    how = ("" if rank is None else f"rank {rank}, ") + f"mean of {int(n):,} switches"
    return [Gauge(_JOB, "s on the run queue for each switch", delay / n, _QUEUE_MARKS, how)]
