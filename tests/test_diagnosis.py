"""Verdicts over findings: what explains what, and when nothing is claimed."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import pytest

from forensics import causality
from forensics.diagnosis import Exit, Outcome, diagnose
from forensics.finding import GRADES, Anomaly, Evidence, Finding
from forensics.ledger import calibration

SECOND = 1_000_000_000
STATES = ("rank-failed", "rank-gone", "collective-stuck", "device-full", "context-poisoned", "host-full")


def finding(number: int, rule: str, **known: Any) -> Finding:
    defaults: dict[str, Any] = {
        "id": number,
        "rule": rule,
        "title": rule,
        "variant": "log",
        "severity": "critical",
        "strength": "strong",
        "role": "cause",
        "message": rule,
        "fix": "",
        "causes": [],
        "requires": [],
        "attempt": 0,
        "clock_error_ns": SECOND // 20,
        "evidence": [Evidence(number, f"{number}.log", line=1)],
    }
    return Finding(**{**defaults, **known})


def state(name: str) -> list[dict[str, str]]:
    return [{"state": name}]


def nan(number: int = 0, **known: Any) -> Finding:
    given = {"rank": 1, "step": 217, "ts_ns": 100 * SECOND, "causes": state("value-nonfinite"), **known}
    return finding(number, "numerics-nan-provenance", **given)


def timeout(number: int = 1, **known: Any) -> Finding:
    given = {
        "rank": 0,
        "step": 217,
        "ts_ns": 120 * SECOND,
        "role": "symptom",
        "severity": "high",
        "causes": state("rank-failed"),
        "requires": state("collective-stuck"),
        **known,
    }
    return finding(number, "distributed-timeout", **given)


def test_a_timeout_on_another_rank_is_a_consequence_of_the_first_fault() -> None:
    verdict = diagnose([timeout(), nan()], Outcome())
    assert verdict.status == "root-cause"
    assert [f.rule for f in verdict.root_causes] == ["numerics-nan-provenance"]
    assert [f.rule for f in verdict.consequences] == ["distributed-timeout"]


def test_a_fault_that_came_after_the_timeout_does_not_explain_it() -> None:
    verdict = diagnose([timeout(ts_ns=50 * SECOND), nan()], Outcome())
    assert all(link.effect != 1 for link in verdict.links)


def test_a_gap_below_the_clock_error_does_not_decide_the_order() -> None:
    late = nan(ts_ns=120 * SECOND + SECOND // 20)
    verdict = diagnose([timeout(), late], Outcome())
    assert [f.rule for f in verdict.consequences] == ["distributed-timeout"]


def test_another_attempt_explains_nothing() -> None:
    verdict = diagnose([timeout(attempt=1), nan()], Outcome())
    assert verdict.consequences == []


def test_a_later_step_does_not_explain_an_earlier_one() -> None:
    assert not diagnose([timeout(step=200), nan()], Outcome()).links


@pytest.mark.parametrize(("told", "joined"), [(216, True), (215, False)])
def test_a_rank_that_told_of_the_step_before_may_have_waited_in_the_one_of_the_fault(told: int, joined: bool) -> None:
    assert bool(diagnose([timeout(step=told), nan()], Outcome()).links) == joined


@pytest.mark.parametrize(("step", "explains"), [(216, True), (217, False)])
def test_a_bad_gradient_explains_what_comes_after_its_update_not_beside_it(step: int, explains: bool) -> None:
    cause = finding(1, "gradients-clip-ineffective", rank=1, step=step, causes=state("gradient-invalid"))
    effect = nan(requires=state("gradient-invalid"), ts_ns=None)
    diagnose([cause, effect], Outcome())
    assert (effect.explained_by == 1) is explains


def test_a_timeout_alone_is_not_a_cause() -> None:
    verdict = diagnose([timeout()], Outcome(failed="exit code 1"))
    assert verdict.status == "not-established"
    assert verdict.root_causes == ()
    assert "not in the evidence" in verdict.sentence


def test_no_evidence_at_all_is_not_established_rather_than_healthy() -> None:
    assert diagnose([], Outcome()).status == "not-established"


def test_healthy_needs_positive_evidence_of_completion() -> None:
    done = Outcome(completed="exit code 0")
    assert diagnose([], done).status == "healthy"
    both = Outcome("training finished", "exit code 1")
    assert diagnose([], both).status == "not-established"


@pytest.mark.parametrize(
    ("outcome", "survives"),
    [
        (Outcome("exit code 0", exits=[Exit(zero=True)]), True),
        (Outcome("training finished", completed_lines={0: 9}), True),  # further down in the same log
        (Outcome("training finished", completed_lines={1: 9}), False),  # in another file
        (Outcome("exit code 0", exits=[Exit(zero=True, folder="other_run")]), False),
        (Outcome("exit code 0", exits=[Exit(zero=True, rank=3)]), False),
        (Outcome("exit code 0", exits=[Exit(zero=True), Exit(zero=False)]), False),
    ],
)
def test_a_failure_is_survived_only_where_its_own_end_is_on_record(outcome: Outcome, survives: bool) -> None:
    failure = finding(0, "memory-capacity", causes=state("device-full"))
    verdict = diagnose([failure], outcome)
    assert (failure.severity == "medium") == survives
    assert (verdict.status == "root-cause") == (not survives)


def test_a_wrong_result_stays_a_cause_although_the_job_completed() -> None:
    stale = finding(0, "gradients-stale", causes=state("gradient-invalid"))
    verdict = diagnose([stale], Outcome(completed="exit code 0", exits=[Exit(zero=True)]))
    assert verdict.status == "root-cause"


def test_the_same_fault_on_many_ranks_is_one_cause_at_the_rank_that_shows_it_first() -> None:
    many = [
        finding(n, "memory-capacity", rank=n, ts_ns=(10 - n) * SECOND, causes=state("device-full")) for n in range(4)
    ]
    verdict = diagnose(many, Outcome())
    assert [f.rank for f in verdict.root_causes] == [3]
    assert sorted(f.rank for f in verdict.consequences) == [0, 1, 2]  # type: ignore[type-var]


def test_two_proven_faults_of_different_ranks_are_independent() -> None:
    one = finding(0, "memory-capacity", rank=0, causes=state("device-full"))
    two = finding(1, "checkpoint-mismatch", rank=1, causes=state("weights-incomplete"))
    assert diagnose([one, two], Outcome()).status == "independent"


def test_a_weaker_second_root_does_not_make_causes_independent() -> None:
    one = finding(0, "memory-capacity", rank=0, causes=state("device-full"))
    two = finding(1, "checkpoint-mismatch", rank=1, strength="indication", causes=state("weights-incomplete"))
    assert diagnose([one, two], Outcome()).status == "root-cause"


def test_performance_findings_never_outrank_a_failure() -> None:
    slow = finding(0, "efficiency-idle", role="performance", strength="proof", causes=state("throughput-low"))
    verdict = diagnose([slow, nan(1)], Outcome())
    assert [f.rule for f in verdict.root_causes] == ["numerics-nan-provenance"]
    assert diagnose([slow], Outcome(failed="exit code 1")).status == "not-established"


def test_what_costs_much_is_the_verdict_only_where_the_job_did_not_fail() -> None:
    slow = {"role": "performance", "severity": "high"}
    assert diagnose([finding(0, "capture-skip", **slow)], Outcome()).status == "root-cause"
    assert diagnose([finding(0, "capture-skip", **slow)], Outcome(completed="done")).status == "root-cause"
    assert diagnose([finding(0, "capture-skip", **slow)], Outcome(failed="exit code 1")).status == "not-established"
    assert diagnose([finding(0, "capture-skip", **slow), timeout()], Outcome()).status == "not-established"
    cancelled = finding(1, "host-preemption", role="symptom", severity="high", strength="indication")
    assert [f.id for f in diagnose([finding(0, "capture-skip", **slow), cancelled], Outcome()).root_causes] == [0]
    assert (
        diagnose([finding(0, "capture-skip", **slow | {"severity": "medium"})], Outcome()).status == "not-established"
    )


def test_the_earliest_anomaly_is_told_where_no_rule_knows_the_error() -> None:
    seen = Anomaly("ValueError: boom", 2, 5, Evidence(0, "rank_2.log", line=31))
    verdict = diagnose([], Outcome(), earliest=seen)
    assert "rank_2.log:31" in verdict.sentence


@pytest.mark.parametrize("rotation", range(3))
def test_the_verdict_does_not_depend_on_the_order_of_findings(rotation: int) -> None:
    first = finding(
        2,
        "distributed-first-failure",
        rank=1,
        ts_ns=101 * SECOND,
        causes=state("rank-gone"),
        requires=state("rank-failed"),
    )
    first.causes, rows = (
        state("rank-gone"),
        [nan(causes=[{"state": "value-nonfinite"}, {"state": "rank-failed"}]), timeout(), first],
    )
    verdict = diagnose(rows[rotation:] + rows[:rotation], Outcome())
    assert [f.rule for f in verdict.root_causes] == ["numerics-nan-provenance"]
    assert {f.rule for f in verdict.consequences} == {"distributed-timeout", "distributed-first-failure"}


def test_a_proof_names_the_rank_and_step_where_an_indication_is_as_early() -> None:
    printed = nan(0, rank=0, step=17, ts_ns=99 * SECOND, strength="indication")
    recorded = nan(1, rank=1, step=18, strength="proof")
    verdict = diagnose([printed, recorded], Outcome())
    assert [(f.rank, f.strength) for f in verdict.root_causes] == [(1, "proof")]
    assert [f.rank for f in verdict.consequences] == [0]


def test_what_came_steps_before_the_proof_is_named_although_it_is_weaker() -> None:
    printed = nan(0, rank=0, step=10, strength="indication")
    verdict = diagnose([printed, nan(1, rank=1, step=18, strength="proof")], Outcome())
    assert [f.rank for f in verdict.root_causes] == [0]


def test_a_fault_that_the_job_survived_does_not_stand_for_one_that_ended_it() -> None:
    survived = finding(0, "memory-capacity", rank=0, ts_ns=SECOND, severity="medium", causes=state("device-full"))
    fatal = finding(1, "memory-capacity", rank=1, ts_ns=9 * SECOND, causes=state("device-full"))
    assert [f.rank for f in diagnose([survived, fatal], Outcome()).root_causes] == [1]


def absent(number: int, rank: int, fault: str) -> Finding:
    return finding(number, "distributed-missing-rank", rank=rank, facts={"fault": fault}, causes=state("rank-stalled"))


def test_faults_that_a_rule_tells_apart_are_no_consequence_of_each_other() -> None:
    verdict = diagnose([absent(0, 3, "dp 7"), absent(1, 9, "tp 2"), absent(2, 4, "dp 7")], Outcome())
    assert verdict.status == "root-cause"
    assert verdict.sentence.endswith("at fault in the same way: rank 9")
    assert [f.rank for f in verdict.root_causes] == [3, 9]
    assert [(f.rank, f.explained_how) for f in verdict.consequences] == [(4, "the same fault, also here")]


def test_that_nothing_tells_which_rank_was_first_is_said() -> None:
    full = [finding(n, "memory-capacity", rank=n, causes=state("device-full")) for n in range(3)]
    assert diagnose(full, Outcome()).sentence.endswith("; ranks 1, 2 met the same, and nothing tells which was first")
    for late in full[1:]:
        late.step = 9
    full[0].step = 1
    assert diagnose(full, Outcome()).sentence == full[0].message


def test_the_work_grows_with_the_number_of_findings_not_with_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fits = [0], causality._fits

    def counted(*given: Any) -> bool:
        calls[0] += 1
        return fits(*given)

    monkeypatch.setattr(causality, "_fits", counted)
    spent = []
    for size in (500, 2000):
        calls[0] = 0
        many = [
            finding(n, f"rule-{n % 7}", rank=n, host=f"h{n // 8}", ts_ns=n * SECOND, causes=c, requires=r)
            for n, (c, r) in zip(range(size), cycle(product(map(state, STATES), map(state, STATES))), strict=False)
        ]
        diagnose(many, Outcome())
        spent.append(calls[0])
    assert 0 < spent[1] < 6 * spent[0]  # four times the findings; all pairs would be sixteen times as many


def test_two_that_could_each_explain_the_other_are_told_apart_by_time() -> None:
    lost = finding(0, "a", ts_ns=5 * SECOND, causes=state("connection-lost"), requires=state("collective-stuck"))
    stuck = finding(1, "b", ts_ns=9 * SECOND, causes=state("collective-stuck"), requires=state("connection-lost"))
    verdict = diagnose([stuck, lost], Outcome())
    assert [link.cause for link in verdict.links] == [0]
    assert [f.rule for f in verdict.root_causes] == ["a"]


def full(number: int = 0, **known: Any) -> Finding:
    """What asks for nothing and can bring about that a process fails."""
    return finding(number, "memory-capacity", **{"rank": 1, "causes": state("device-full"), **known})


def died(number: int = 1, **known: Any) -> Finding:
    """A cause that another finding may explain."""
    needs = {"causes": state("rank-gone"), "requires": state("rank-failed")}
    return finding(number, "distributed-first-failure", **{"rank": 1, "strength": "proof", **needs, **known})


@pytest.mark.parametrize(
    "below",
    [{"severity": "medium"}, {"severity": "info"}, {"role": "performance"}, {"role": "symptom", "severity": "medium"}],
    ids=lambda known: "-".join(known.values()),
)
def test_what_can_be_no_root_takes_none_away(below: dict[str, str]) -> None:
    other = finding(2, "numerics-dead-units", rank=7, severity="high", strength="indication")
    verdict = diagnose([full(**below), died(), other], Outcome())
    assert verdict.root_causes[0].rule == "distributed-first-failure"
    assert verdict.root_causes[0].explained_by is None
    assert all(link.effect != 1 for link in verdict.links)


def test_what_a_job_survived_does_not_explain_what_ended_it() -> None:
    survived = full(ts_ns=SECOND, evidence=[Evidence(0, "a.log", line=3)])
    verdict = diagnose([survived, died(ts_ns=9 * SECOND)], Outcome("epoch done", "exit code 1", completed_lines={0: 9}))
    assert [f.rule for f in verdict.root_causes] == ["distributed-first-failure"]


def test_a_lesser_step_between_a_root_and_what_it_led_to_stays_in_the_chain() -> None:
    root = finding(0, "memory-leak", rank=1, causes=state("memory-retained"))
    between = full(1, severity="medium", requires=state("memory-retained"))
    verdict = diagnose([died(2), between, root], Outcome())
    assert [f.rule for f in verdict.root_causes] == ["memory-leak"]
    assert [(f.rule, f.explained_by) for f in sorted(verdict.consequences, key=lambda f: f.id)] == [
        ("memory-capacity", 0),
        ("distributed-first-failure", 1),
    ]


def test_of_a_nearer_lesser_cause_and_one_that_can_be_root_the_chain_names_the_root() -> None:
    lesser = finding(0, "checkpoint-mismatch", rank=1, severity="medium", causes=state("rank-failed"))
    verdict = diagnose([lesser, full(1), died(2)], Outcome())
    assert [f.rule for f in verdict.root_causes] == ["memory-capacity"]
    assert [f.explained_by for f in verdict.consequences] == [1]


def test_what_only_follows_a_grave_symptom_is_no_root() -> None:
    verdict = diagnose([timeout(0), died(1, rank=0, ts_ns=130 * SECOND)], Outcome(failed="exit code 1"))
    assert verdict.status == "not-established"


def test_a_symptom_of_which_only_a_lesser_cause_is_known_still_shows_it() -> None:
    lesser = finding(0, "host-shm", rank=1, severity="medium", causes=state("rank-stalled"))
    symptom = timeout(1)
    diagnose([lesser, symptom], Outcome(failed="exit code 1"))
    assert symptom.explained_by == 0


def test_what_costs_much_stays_explained_by_what_costs_less() -> None:
    little = finding(0, "host-affinity", severity="medium", causes=state("cores-contended"))
    much = finding(1, "host-context-switch", role="performance", severity="high", requires=state("cores-contended"))
    slow = finding(2, "distributed-straggler", role="performance", severity="high")
    assert [f.rule for f in diagnose([little, much, slow], Outcome()).root_causes] == ["distributed-straggler"]


def test_the_same_fault_elsewhere_is_joined_to_what_a_lesser_finding_would_have_explained() -> None:
    lesser = full(0, severity="medium", rank=1)
    verdict = diagnose([lesser, died(1, rank=1, ts_ns=5 * SECOND), died(2, rank=2, ts_ns=9 * SECOND)], Outcome())
    assert [f.rank for f in verdict.root_causes] == [1]
    assert [f.id for f in verdict.consequences] == [2]


def test_confidence_is_that_of_the_grade_and_none_for_what_another_finding_explains() -> None:
    figures = {"own": 0.9, "open": 0.6}
    sure = diagnose([nan(), timeout()], Outcome(), confidence=figures)
    assert [root.confidence for root in sure.root_causes] == [0.9]
    assert [effect.confidence for effect in sure.consequences] == [None]
    could_follow = nan(requires=state("gradient-invalid"))
    assert [root.confidence for root in diagnose([could_follow], Outcome(), confidence=figures).root_causes] == [0.6]


def test_stored_figures_are_those_of_their_counts_and_better_than_one_figure_for_all() -> None:
    stored = calibration()
    assert set(stored["counts"]) == set(GRADES)
    for grade, count in stored["counts"].items():
        assert stored["root_cause_is_right"][grade] == round((count["right"] + 1) / (count["of"] + 2), 3)
    ours, of_one_figure = stored["brier"]
    assert ours < of_one_figure


def test_a_verdict_is_never_scored_by_a_figure_that_it_took_part_in() -> None:
    calibrate = pytest.importorskip("benchmarks.calibrate")
    rows = [calibrate.Row("f", str(n), False, "rule", "own", n % 2 == 0) for n in range(2)]
    # Each is judged by the other alone: (0 + 1) / (1 + 2) for the right one, (1 + 1) / (1 + 2) for the wrong one.
    assert calibrate.brier(rows, lambda row: row.case) == (pytest.approx(4 / 9, abs=1e-3),) * 2
    # Without both, which lie in one folder, nothing is known: 1 / 2.
    assert calibrate.brier(rows, lambda row: row.folder) == (0.25, 0.25)
