"""How the time of a diagnosis grows with the number of findings: `python benchmarks/diagnosis.py [N…]`.

Findings as a job of many ranks gives them: most ranks timed out or lost connections, some failed on their own, a few
hosts lost a device. Prints CPU seconds, and the ratio of the last to the first size against that of their findings.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from forensics.diagnosis import Outcome, diagnose
from forensics.finding import Evidence, Finding

SECOND = 1_000_000_000
RANKS_PER_HOST = 8
# Share of findings, rule, role, severity, states that it causes, states that would explain it.
KINDS = (
    (0.40, "distributed-timeout", "symptom", "high", ["rank-failed"], ["collective-stuck"]),
    (0.25, "distributed-network", "symptom", "high", ["connection-lost"], ["connection-lost", "collective-stuck"]),
    (0.10, "distributed-first-failure", "cause", "critical", ["rank-gone"], ["rank-failed"]),
    (0.10, "distributed-missing-rank", "cause", "critical", ["rank-stalled"], ["rank-stalled", "rank-gone"]),
    (0.05, "numerics-nan-provenance", "cause", "critical", ["value-nonfinite", "rank-failed"], ["gradient-invalid"]),
    (0.04, "memory-capacity", "cause", "critical", ["device-full"], ["memory-retained"]),
    (0.03, "hardware-illegal-access", "cause", "critical", ["context-poisoned"], ["context-poisoned", "device-lost"]),
    (0.02, "hardware-xid", "cause", "critical", ["device-lost"], ["device-lost"]),
    (0.01, "host-oom", "cause", "critical", ["host-full"], []),
)


def findings(count: int, seed: int = 7) -> list[Finding]:
    drawn = random.Random(seed)
    made: list[Finding] = []
    for kind in drawn.choices(KINDS, [k[0] for k in KINDS], k=count):
        _, rule, role, severity, causes, requires = kind
        rank = drawn.randrange(count)
        known: dict[str, Any] = {
            "rank": rank,
            "host": f"node{rank // RANKS_PER_HOST}",
            "device": rank % RANKS_PER_HOST,
            "step": drawn.choice([None, drawn.randrange(1000)]),
            "ts_ns": drawn.choice([None, drawn.randrange(3600 * SECOND)]),
        }
        made.append(
            Finding(
                id=len(made), rule=rule, title=rule, variant="log", severity=severity, strength="strong", role=role,
                message=rule, fix="", causes=[{"state": s} for s in causes], requires=[{"state": s} for s in requires],
                attempt=0, clock_error_ns=SECOND // 20, timeline="epoch",
                evidence=[Evidence(rank, f"rank_{rank}.log", line=1)], **known,
            )
        )  # fmt: skip
    return made


def main(sizes: list[int]) -> None:
    spent = []
    for size in sizes:
        given = findings(size)
        start = time.process_time()
        verdict = diagnose(given, Outcome())
        spent.append(time.process_time() - start)
        print(f"{size:7,} findings  {spent[-1]:7.2f} CPU s  {len(verdict.links):9,} links  {verdict.status}")
    if len(sizes) > 1:
        print(f"{sizes[-1] / sizes[0]:.1f} times the findings took {spent[-1] / spent[0]:.1f} times as long")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1250, 2500, 5000, 10_000, 20_000])
