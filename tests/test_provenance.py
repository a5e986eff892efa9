"""Births of non-finite values on jobs that really ran: operator, place, direction, step, rank and class of the cause.

The labels of the fixtures (`culprit_…`) say what is true of the program.
With the recorders' graphs the birth is exact; without them less is claimed, and nothing wrong.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
from support import ROOT

from forensics.case import open_for_rules
from forensics.library import load_views
from forensics.models.autograd_graph import Operand, Operator
from forensics.models.nonfinite_causes import CAUSES as KNOWN
from forensics.models.nonfinite_causes import classify
from forensics.pictures.provenance import read

births = pytest.importorskip("benchmarks.provenance")
provenance = births.findings
LABELS = births.labels()
FIXTURES = ROOT / "fixtures"


def test_enough_programs_say_where_their_first_nonfinite_value_is_born() -> None:
    assert len(LABELS) >= 23
    assert {label["culprit_cause"] for label in LABELS.values()} <= set(KNOWN)


@pytest.mark.parametrize("name", LABELS)
def test_the_birth_of_a_real_job_is_exact(name: str, tmp_path: Path) -> None:
    finding = provenance(FIXTURES / name / "artifacts", tmp_path)[0]
    assert [part for part, right in births.agrees(LABELS[name], finding).items() if not right] == []
    assert KNOWN[LABELS[name]["culprit_cause"]] in finding.message
    assert finding.strength == "proof"


@pytest.mark.parametrize("name", LABELS)
def test_without_the_recorders_graphs_no_birth_is_claimed(name: str, tmp_path: Path) -> None:
    with births.without_recordings(name) as bare:
        assert births.wrong_births(LABELS[name], provenance(bare, tmp_path)) == []


@pytest.mark.parametrize("name", LABELS)
def test_healthy_twins_have_no_harmful_birth(name: str, tmp_path: Path) -> None:
    assert provenance(FIXTURES / f"{name}-healthy" / "artifacts", tmp_path) == []


def test_two_births_of_one_step_are_told_apart(tmp_path: Path) -> None:
    finding = provenance(FIXTURES / "numerics-two-losses" / "artifacts", tmp_path)[0]
    assert finding.facts["op"] == "aten::div"
    others = [evidence.note for evidence in finding.evidence if "another birth" in evidence.note]
    assert others == ["another birth: aten::log, it took the logarithm of zero"]
    con = open_for_rules(tmp_path / "case.duckdb")
    drawn = [operation.label for operation in read(con)[0].operations if operation.role == "birth"]
    con.close()
    assert drawn == ["aten::div", "aten::log"]


def test_a_masked_row_whose_scores_are_not_on_record_is_no_proof(tmp_path: Path) -> None:
    copy = tmp_path / "artifacts"
    shutil.copytree(FIXTURES / "numerics-masked-row" / "artifacts", copy)
    recording = next(copy.rglob("operators.jsonl"))
    lines = recording.read_text().splitlines(keepends=True)
    recording.write_text("".join(line for line in lines if not is_operand_of_softmax(orjson.loads(line))))
    finding = provenance(copy, tmp_path)[0]
    assert (finding.strength, finding.facts["cause"]) == ("indication", "unknown-operands")


def is_operand_of_softmax(row: dict[str, Any]) -> bool:
    return (row.get("op"), row.get("role")) == ("aten::_softmax", "input")


def is_birth_of_log(row: dict[str, Any]) -> bool:
    return (row.get("step"), row.get("op"), row.get("phase")) == (52, "aten::log", "forward")


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        pytest.param(is_birth_of_log, "what aten::mul read", id="the operator at fault"),
        pytest.param(
            lambda row: is_birth_of_log(row) and row["role"] == "input", "what aten::log gave", id="its input"
        ),
        pytest.param(lambda row: is_birth_of_log(row) and row["role"] == "output", "aten::mul read", id="its output"),
    ],
)
def test_what_a_recording_lacks_makes_no_proof(
    lost: Callable[[dict[str, Any]], bool], said: str, tmp_path: Path
) -> None:
    copy = tmp_path / "artifacts"
    shutil.copytree(FIXTURES / "numerics-log-of-zero" / "artifacts", copy)
    recording = next(copy.rglob("operators.jsonl"))
    lines = recording.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not lost(orjson.loads(line))]
    assert len(kept) < len(lines)
    recording.write_text("".join(kept))
    finding = provenance(copy, tmp_path)[0]
    assert finding.strength == "indication"
    assert said in finding.message
    assert "is not in the recording" in finding.message


def test_a_birth_on_one_of_two_ranks_says_how_many_were_recorded(tmp_path: Path) -> None:
    copy = tmp_path / "artifacts"
    shutil.copytree(FIXTURES / "step-217" / "artifacts", copy)
    (copy / "tensor_stats_rank0.jsonl").unlink()
    finding = provenance(copy, tmp_path)[0]
    assert (finding.rank, finding.facts["op"]) == (1, "aten::log")
    assert "operators of 1 of 2 ranks are on record" in finding.message


def operand(n_nan: int = 0, n_inf: int = 0, absmax: float | None = 1.0, **known: Any) -> Operand:
    given = {"row": 0, "name": None, "dtype": "float32", "shape": (4, 4)} | known
    return Operand(n_nan=n_nan, n_inf=n_inf, absmax=absmax, **given)


def operator(
    op: str, inputs: list[Operand], outputs: list[Operand], *, node_id: int = 9, autograd: str | None = None
) -> Operator:
    phase = "backward" if autograd else "forward"
    return Operator(node_id, phase, op, autograd, None, None, None, None, None, inputs, outputs)


nan, inf = operand(n_nan=1), operand(n_inf=1)
half = {"dtype": "float16"}
CLASSES: dict[str, Callable[[], Operator]] = {
    "log-of-zero": lambda: operator("aten::log", [operand()], [inf]),
    "log-of-negative": lambda: operator("aten::log", [operand()], [nan]),
    "zero-over-zero": lambda: operator("aten::div", [operand(), operand()], [nan]),
    "division-by-zero": lambda: operator("aten::div", [operand(), operand(absmax=0.0)], [inf]),
    "negative-root": lambda: operator("aten::sqrt", [operand()], [nan]),
    "invalid-domain": lambda: operator("aten::acos", [operand(absmax=1.5)], [nan]),
    "inf-minus-inf": lambda: operator("aten::sub", [inf, inf], [nan]),
    "zero-times-inf": lambda: operator("aten::mul", [operand(absmax=0.0), inf], [nan]),
    "all-masked-softmax": lambda: operator("aten::_softmax", [inf], [nan]),
    "finfo-mask": lambda: operator(
        "aten::add", [operand(absmax=3.0), operand(absmax=65504.0)], [operand(0, 1, **half)]
    ),
    "overflow": lambda: operator("aten::mm", [operand(absmax=300.0), operand(absmax=300.0)], [operand(0, 1, **half)]),
    "single-sample": lambda: operator("aten::var", [operand()], [nan]),
    "empty-reduction": lambda: operator("aten::mean", [operand(absmax=None, shape=(0,))], [nan]),
    "root-derivative": lambda: operator("aten::div", [operand(), operand()], [inf], autograd="SqrtBackward0"),
    "bound-derivative": lambda: operator("aten::div", [operand(), operand()], [inf], autograd="AcosBackward0"),
    "unexplained": lambda: operator("aten::embedding", [operand()], [nan]),
}


@pytest.mark.parametrize("cause", CLASSES)
def test_a_cause_is_named_by_what_the_operands_prove(cause: str) -> None:
    assert classify(CLASSES[cause](), {}) == cause
    assert cause in KNOWN


@pytest.mark.parametrize(
    "harmless",
    [
        pytest.param(
            lambda: operator("aten::mm", [operand(), operand()], [operand(0, 1, **half)]), id="small operands"
        ),
        pytest.param(lambda: operator("aten::exp", [operand(absmax=80.0)], [inf]), id="exp of 80 in float32"),
        pytest.param(lambda: operator("aten::mul", [operand(), operand()], [nan]), id="a product of finite numbers"),
    ],
)
def test_what_the_operands_cannot_explain_is_said_so(harmless: Callable[[], Operator]) -> None:
    assert classify(harmless(), {}) == "unexplained"


def test_a_branch_that_where_did_not_take_is_known_by_the_backward_before() -> None:
    taken = operator("aten::where", [operand()], [operand(absmax=0.0)], node_id=1, autograd="WhereBackward0")
    divided = operator("aten::div", [operand(source=1), operand()], [nan], node_id=2, autograd="DivBackward0")
    assert classify(divided, {1: taken, 2: divided}) == "where-backward"


def test_a_trace_without_values_names_the_forward_of_the_function_that_anomaly_mode_found(tmp_path: Path) -> None:
    with births.without_recordings("step-217") as bare:
        finding = next(f for f in provenance(bare, tmp_path) if f.variant == "anomaly")
    assert (finding.rank, finding.facts["op"], finding.facts["forward_op"]) == (1, "LogBackward0", "aten::log")
    assert "by the trace it belongs to aten::log, the only one of a step" in finding.message
    assert any("trace_rank1" in evidence.artifact for evidence in finding.evidence)


def test_a_drawn_graph_names_the_parameters_behind_the_function_that_anomaly_mode_found(tmp_path: Path) -> None:
    finding = provenance(FIXTURES / "numerics-drawn-anomaly" / "artifacts", tmp_path)[0]
    assert (finding.variant, finding.strength, finding.facts["op"]) == ("anomaly", "strong", "MulBackward0")
    assert "through it come the gradients of 5 parameters, the nearest temperature" in finding.message
    assert "SqrtBackward0, which ran before it, can give an infinity" in finding.message
    assert any(evidence.artifact == "graph.dot" for evidence in finding.evidence)
    assert "cause" not in finding.facts  # no value is on record, so no birth
    assert provenance(FIXTURES / "numerics-drawn-anomaly-healthy" / "artifacts", tmp_path / "healthy") == []


def test_an_execution_trace_names_the_forward_of_each_run_of_that_function_by_its_sequence(tmp_path: Path) -> None:
    finding = provenance(FIXTURES / "numerics-traced-anomaly" / "artifacts", tmp_path)[0]
    assert (finding.variant, finding.strength) == ("anomaly", "strong")
    assert (finding.facts["op"], finding.facts["forward_op"]) == ("LogBackward0", "aten::log")
    # Steps 11 and 12 were recorded, each with one logarithm: the engine's frame around it is no second run.
    assert "by the execution trace it belongs to aten::log, one of 2 there" in finding.message
    assert "loss_of (/srv/job/traced_anomaly.py:28)" in finding.message
    assert any(evidence.artifact == "et.json.gz" for evidence in finding.evidence)
    assert provenance(FIXTURES / "numerics-traced-anomaly-healthy" / "artifacts", tmp_path / "healthy") == []


def test_remedies_are_of_causes_that_exist() -> None:
    view = next(view for view in load_views() if "nonfinite_remedy" in view)
    told = duckdb.sql(view[view.index("SELECT") :].rstrip("; \n")).fetchall()
    assert {cause for cause, *_ in told} <= {*KNOWN, "backward"}  # backward: what anomaly mode named, without a cause
    assert len({(cause, family) for cause, family, _ in told}) == len(told) > 15
    assert all(remedy.endswith(".") for *_, remedy in told)
