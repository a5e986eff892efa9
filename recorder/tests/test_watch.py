"""The operator that gave the first value that is not finite is on record, and the training is as without a recorder."""

from __future__ import annotations

import math
from typing import Any

import pytest

from .conftest import TORCH, Recorded, Run

NET = (
    TORCH
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 1)
    def forward(self, x):
        return torch.sigmoid(self.head(self.inner(x)))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
def batch(step):
    torch.manual_seed(step)
    return torch.randn(16, 8), torch.ones(16, 1)
def loss_of(net, x, y, bad):
    p = net(x)
    return -(torch.log(p * 0 if bad else p) * y).mean()
"""
)
LOOP = """
with fr.record(OUT, model=net, optimizer=optimizer) as rec:
    for step in range(12):
        x, y = batch(step)
        with rec.step(step):
            loss = {call}
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def told(left: Recorded, rank: int = 0) -> list[dict[str, Any]]:
    """Events but what an optimizer brought to its first step, which every run tells."""
    return [event for event in left.lines("events", rank) if event["event"] != "optimizer_began"]


def births(left: Recorded, rank: int = 0) -> list[dict[str, Any]]:
    """Outputs that are not finite of operators whose inputs all are."""
    rows = left.lines("operators", rank)
    bad = {(r["step"], r["order"]) for r in rows if r["role"] == "input" and (r["n_nan"] or r["n_inf"])}
    outputs = [r for r in rows if r["role"] == "output" and (r["n_nan"] or r["n_inf"])]
    return [r for r in outputs if (r["step"], r["order"]) not in bad]


def test_the_operator_at_fault_is_found_by_running_the_step_again(run: Run) -> None:
    left = run(NET + LOOP.format(call="rec.run(loss_of, net, x, y, step == 5)"))
    assert left.code == 0, left.stderr
    first = births(left)[0]
    assert (first["step"], first["op"], first["phase"]) == (5, "aten::log", "forward")
    rows = [r for r in left.lines("operators") if r["order"] == first["order"] and r["step"] == 5]
    assert any(frame[0] == "loss_of" for frame in rows[0]["stack"])
    assert told(left)[0] | {"ts_ns": 0} == {
        "ts_ns": 0, "step": 5, "event": "nonfinite", "what": "loss", "recorded": "replayed"
    }  # fmt: skip


def test_a_fault_of_backward_alone_is_found(run: Run) -> None:
    script = NET.replace("p = net(x)", "p = net(x - x if bad else x)").replace(
        "torch.log(p * 0 if bad else p)", "((p - p.detach()) if bad else p).abs().sqrt()"
    )
    left = run(script + LOOP.format(call="rec.run(loss_of, net, x, y, step == 5)"))
    first = births(left)[0]
    assert (first["step"], first["phase"], first["autograd"]) == (5, "backward", "SqrtBackward0")
    assert told(left)[0]["what"] == "gradient"


def test_modules_of_backward_operators_are_those_of_their_forward(run: Run) -> None:
    left = run(NET + LOOP.format(call="rec.run(loss_of, net, x, y, step == 5)"))
    rows = [r for r in left.lines("operators") if r["phase"] == "backward" and r.get("autograd") == "AddmmBackward0"]
    assert {r["module"] for r in rows} == {"head", "inner.0"}


def test_training_is_bit_for_bit_what_it_is_without_a_recorder(run: Run) -> None:
    tail = "print([float(p.double().sum()) for p in net.state_dict().values()], float(torch.rand(1)))\n"
    call = "rec.run(loss_of, net, x, y, False)"
    # Gradients that are not finite for one step, and whose update is left out, as a careful loop does.
    script = LOOP.replace("optimizer.step()", "(optimizer.step() if math.isfinite(loss) else None)").replace(
        "{call}", call.replace("False", "step == 5")
    )
    recorded = run("import math\n" + NET + script + tail)
    nothing = (
        "import contextlib\nclass rec:\n    run = staticmethod(lambda f, *a: f(*a))\n"
        "    step = staticmethod(contextlib.nullcontext)\n"
    )
    without = script.replace("with fr.record(OUT, model=net, optimizer=optimizer) as rec:", "if True:")
    bare = run("import math\n" + NET + nothing + without + tail)
    assert recorded.stdout == bare.stdout, recorded.stderr + bare.stderr
    assert births(recorded)[0]["op"] == "aten::log"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_models_are_recorded_operator_by_operator(run: Run, backend: str) -> None:
    script = (
        NET
        + f"net = torch.compile(net, backend={backend!r})\n"
        + LOOP.format(call="rec.run(loss_of, net, x, y, step == 5)")
    )
    left = run(script, timeout=300)
    assert left.code == 0, left.stderr
    assert births(left)[0]["op"] == "aten::log"
    assert any(r["module"] == "inner.0" for r in left.lines("operators"))


def test_autocast_keeps_its_types_when_the_step_is_run_again(run: Run) -> None:
    script = NET.replace("p = net(x)", "p = torch.autocast('cpu', torch.bfloat16)(net)(x).float()")
    left = run(script + LOOP.format(call="rec.run(loss_of, net, x, y, step == 5)"))
    rows = left.lines("operators")
    assert {"bfloat16", "float32"} <= {r["dtype"] for r in rows}
    assert births(left)[0]["op"] == "aten::log"


def test_without_run_the_models_own_call_is_run_again_and_the_limits_are_visible(run: Run) -> None:
    left = run(NET + LOOP.format(call="loss_of(net, x, y, step == 5); rec.log(loss=loss)"))
    assert births(left) == []  # the logarithm is outside of the model
    assert any(r["module"] == "head" for r in left.lines("operators"))


def test_a_run_without_a_fault_records_no_operators(run: Run) -> None:
    left = run(NET + LOOP.format(call="rec.run(loss_of, net, x, y, False)"))
    assert left.lines("operators") == []
    assert told(left) == []
    assert all(math.isfinite(line["loss"]) for line in left.lines("steps"))


def test_gradients_tell_addresses_versions_and_what_is_missing(run: Run) -> None:
    script = NET.replace("net = Net()", "net = Net(); net.unused = nn.Linear(2, 2)")
    left = run(script + LOOP.format(call="rec.run(loss_of, net, x, y, False)"))
    rows = [r for r in left.lines("gradients") if r["role"] == "gradient"]
    assert {r["name"] for r in rows if r.get("missing")} == {"unused.weight", "unused.bias"}
    present = [r for r in rows if not r.get("missing")]
    assert all({"addr", "version", "checksum", "norm", "zero_ratio"} <= r.keys() for r in present)
    assert left.lines("steps")[0]["gradients_missing"] == 2


def test_a_step_after_skipped_ones_is_recorded_where_their_gradients_are_dropped_unseen(run: Run) -> None:
    script = NET.replace("torch.log(p * 0 if bad else p)", "((p - p.detach()) if bad else p).abs().sqrt()")
    loop = """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
with fr.record(OUT, model=net, optimizer=optimizer, scaler=scaler) as rec:
    for step in range(12):
        x, y = batch(step)
        with rec.step(step):
            loss = rec.run(loss_of, net, x, y, step >= 5)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
    left = run(script + loop)
    assert left.code == 0, left.stderr
    first = births(left)[0]
    assert (first["step"], first["phase"], first["autograd"]) == (8, "backward", "SqrtBackward0")
    found = next(event for event in left.lines("events") if event["event"] == "nonfinite")
    assert (found["step"], found["recorded"]) == (7, "no")
    assert "3 steps were skipped in a row" in found["why"]


def test_many_kinds_of_gradients_are_looked_at(run: Run) -> None:
    script = """
from forensics_recorder.watch import _totals
half = torch.full((70, 1000), 60000.0, dtype=torch.float16)
complex_ = torch.zeros(4, dtype=torch.complex64); complex_.imag[2] = float("nan")
inf = torch.zeros(5); inf[1], inf[2] = float("inf"), -float("inf")
totals = _totals([half[:1, :1], complex_, inf, torch.ones(2).bfloat16(), torch.zeros(0)])
print([x == x and abs(x) != float("inf") for x in totals])
"""
    assert run(TORCH + script).stdout.strip() == "[True, False, False, True, True]"


def test_a_halt_ends_the_run_with_a_reason(run: Run) -> None:
    options = "options=fr.Options(halt_when=lambda m: float(m['loss']) != float(m['loss']) or float(m['loss']) > 1e30)"
    script = LOOP.replace("optimizer=optimizer)", f"optimizer=optimizer, {options})")
    left = run(NET + script.format(call="rec.run(loss_of, net, x, y, step == 5)"))
    assert "Halted: step 5: halt_when holds" in left.stderr
    assert left.end()["exception"] == "Halted"
    assert births(left)[0]["op"] == "aten::log"
