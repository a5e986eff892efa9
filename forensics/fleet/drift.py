"""Whether a metric is distributed otherwise than in the run before of the same series: two-sample Kolmogorov–Smirnov.

Statistic and asymptotic p: Smirnov 1948, with the correction for small samples of Stephens, J. R. Stat. Soc. B 32
(1970) 115, as in Press et al., Numerical Recipes, section 14.3. Values of one run depend on each other, so the number
of values is replaced by that of independent ones, n (1 - r) / (1 + r) with r the correlation of neighbours (Bayley
and Hammersley 1946). Only steps that both runs reached are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forensics.fleet.layout import Fleet

LEAST_STATISTIC = 0.3  # smaller shifts are common between healthy runs with other seeds
MOST_P = 0.001
_LEAST_SAMPLES = 20
_MOST_PAIRS = 20_000
_NO_DATA = ("epoch", "step_seconds", "learning_rate", "tokens_per_second", "samples_per_second", "loss_scale")
SCHEMA = pa.schema(
    {
        "series": pa.string(), "metric": pa.string(), "job": pa.string(), "job_before": pa.string(), "run": pa.int32(),
        "ended_ns": pa.int64(), "statistic": pa.float64(), "p": pa.float64(), "n": pa.float64(), "median": pa.float64(),
        "median_before": pa.float64(), "drifted": pa.bool_(),
    }
)  # fmt: skip


def ks_statistic(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest distance between the two empirical distributions."""
    first, second = np.sort(np.asarray(a, float)), np.sort(np.asarray(b, float))
    both = np.concatenate([first, second])
    below_a = np.searchsorted(first, both, side="right") / len(first)
    below_b = np.searchsorted(second, both, side="right") / len(second)
    return float(np.max(np.abs(below_a - below_b)))


def ks_p(statistic: float, n_a: float, n_b: float) -> float:
    """Probability of a distance at least as large between samples of one distribution, for many values."""
    root = math.sqrt(n_a * n_b / (n_a + n_b))
    x = (root + 0.12 + 0.11 / root) * statistic
    if x < 0.2:  # the sum converges slowly, and is 1 to ten digits
        return 1.0
    total = sum((-1) ** (k - 1) * math.exp(-2 * k * k * x * x) for k in range(1, 101))
    return float(min(1.0, max(0.0, 2 * total)))


def independent(values: Sequence[float]) -> float:
    """How many independent values tell as much about the distribution as these do."""
    given = np.asarray(values, float)
    spread = given - given.mean()
    total = float(np.dot(spread, spread))
    if total == 0:
        return float(len(given))
    r = min(0.99, max(0.0, float(np.dot(spread[1:], spread[:-1])) / total))
    return float(max(2.0, len(given) * (1 - r) / (1 + r)))


def compare(run: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any] | None:
    """Both as rows of the view `metric`; None where they share too few steps."""
    last = min(max(run["steps"], default=-1), max(before["steps"], default=-1))
    a = [v for s, v in zip(run["steps"], run["samples"], strict=True) if s <= last]
    b = [v for s, v in zip(before["steps"], before["samples"], strict=True) if s <= last]
    if min(len(a), len(b)) < _LEAST_SAMPLES:
        return None
    n_a, n_b = independent(a), independent(b)
    statistic = ks_statistic(a, b)
    p = ks_p(statistic, n_a, n_b)
    return {
        "series": run["series"],
        "metric": run["name"],
        "job": run["job"],
        "job_before": before["job"],
        "run": run["run"],
        "ended_ns": run["ended_ns"],
        "statistic": statistic,
        "p": p,
        "n": min(n_a, n_b),
        "median": float(np.median(a)),
        "median_before": float(np.median(b)),
        "drifted": statistic >= LEAST_STATISTIC and p <= MOST_P,
    }


def write_drift(fleet: Fleet, con: duckdb.DuckDBPyConnection) -> None:
    """Compares each run with the one before it in its series, the newest first, and keeps the answers in the fleet."""
    found = [row for pair in _pairs(con) if (row := compare(*pair)) is not None]
    fleet.derived.mkdir(exist_ok=True)
    beside = fleet.derived / ".drift.new"
    pq.write_table(pa.Table.from_pylist(found, SCHEMA), beside)
    beside.replace(drift_file(fleet))


def drift_file(fleet: Fleet) -> Path:
    return fleet.derived / "drift.parquet"


def _pairs(con: duckdb.DuckDBPyConnection) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    names = ", ".join(f"'{name}'" for name in _NO_DATA)
    cursor = con.execute(
        f"""
        SELECT series, name, job, run, ended_ns, steps, samples FROM metric
        WHERE len(samples) >= {_LEAST_SAMPLES} AND name NOT IN ({names}) AND series IN (
            SELECT series FROM job GROUP BY series HAVING count(*) > 1
        )
        ORDER BY series, name, ended_ns DESC NULLS LAST, job
        """
    )
    columns = [column[0] for column in cursor.description or ()]
    later: dict[str, Any] | None = None
    n_pairs = 0
    while n_pairs < _MOST_PAIRS and (row := cursor.fetchone()) is not None:
        known = dict(zip(columns, row, strict=True))
        if later is not None and (later["series"], later["name"]) == (known["series"], known["name"]):
            n_pairs += 1
            yield later, known
        later = known
