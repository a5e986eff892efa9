"""Environment, placement, references, bundles; and how little importing the package loads."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile

from .conftest import RECORDER, TORCH, Run


def test_importing_it_loads_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import forensics_recorder; "
        "print(sorted(name for name in set(sys.modules) - before if '.' not in name and name not in "
        "sys.stdlib_module_names and name != 'forensics_recorder'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=RECORDER, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_environment_has_versions_and_flags_and_no_secrets(run: Run) -> None:
    script = "os.environ |= {'HF_TOKEN': 'hf_abcdef', 'NCCL_DEBUG': 'INFO', 'HOME_PAGE': 'x'}\n" + TORCH
    left = run(script + "fr.record(OUT).close()")
    facts = json.loads((left.folder() / "environment.json").read_text())
    assert facts["env"]["NCCL_DEBUG"] == "INFO"
    assert "hf_abcdef" not in json.dumps(facts)
    assert facts["versions"]["torch"] == facts["torch"]
    assert facts["flags"]["torch_seed"] == 0


def test_a_device_map_is_checked_against_where_tensors_lie(run: Run) -> None:
    script = TORCH + (
        "net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device='meta'))\n"
        "fr.record(OUT, model=net, declared_devices={'0': 'cpu', '1': 0}).close()\n"
    )
    found = json.loads((run(script).folder() / "device_map.json").read_text())
    rows = {row["name"]: (row["device"], row["declared"]) for row in found["tensors"]}
    assert rows["0.weight"] == ("cpu", "cpu")
    assert rows["1.weight"] == ("meta", "0")


def test_tensors_that_no_module_registered_are_recorded_by_name(run: Run) -> None:
    script = TORCH + (
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(2, 2)\n"
        "        self.mean, self.tied = torch.zeros(2), [self.head.weight]\n"
        "        self.banks, self.last = {'a': torch.ones(3)}, None\n"
        "    def forward(self, x):\n"
        "        self.mean.add_(1)\n"
        "        self.last = self.head(x)\n"
        "        return self.last.sum()\n"
        "net = Net(); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "with fr.record(OUT, model=net, optimizer=optimizer) as rec, rec.step(0):\n"
        "    rec.run(net, torch.ones(1, 2)).backward(); optimizer.step()\n"
    )
    left = run(script)
    rows = [json.loads(line) for line in (left.folder() / "gradients.jsonl").read_text().splitlines()[1:]]
    assert {row["name"]: row["norm"] for row in rows if row["role"] == "attribute"} == {
        "mean": 1.414214,
        "banks['a']": 1.732051,
    }
    placed = json.loads((left.folder() / "device_map.json").read_text())["tensors"]
    assert {row["name"] for row in placed if row["role"] == "attribute"} == {"mean", "banks['a']"}


def test_what_an_optimizer_brought_to_its_first_step_is_an_event(run: Run) -> None:
    script = TORCH + (
        "def train(out, kind, first, state=None):\n"
        "    net = nn.Linear(2, 2); optimizer = kind(net.parameters(), lr=0.1)\n"
        "    if state: optimizer.load_state_dict(state)\n"
        "    with fr.record(out, model=net, optimizer=optimizer) as rec:\n"
        "        for step in range(first, first + 3):\n"
        "            with rec.step(step):\n"
        "                net(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
        "    return optimizer.state_dict()\n"
        "state = train(OUT + '/a', torch.optim.Adam, 0)\n"
        "train(OUT + '/b', torch.optim.Adam, 3, state); train(OUT + '/c', torch.optim.Adam, 3)\n"
        "train(OUT + '/d', torch.optim.SGD, 3)\n"
    )
    left = run(script)
    told = {}
    for path in sorted(left.out.glob("*/attempt_0/rank_0/events.jsonl")):
        (row,) = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        told[path.parts[-4]] = (row["first_step"], row["n_states"], row.get("steps_before"), row["keeps_state"])
    assert told == {"a": (0, 0, None, True), "b": (3, 2, 3, True), "c": (3, 0, None, True), "d": (3, 0, None, False)}


def test_reference_chains_name_who_keeps_a_tensor_alive(run: Run) -> None:
    script = TORCH + (
        "class Cache:\n    kept = []\n"
        "def fill():\n    Cache.kept.append({'activations': torch.zeros(1 << 20)})\n"
        "fill()\nfrom forensics_recorder.memory import reference_chains\n"
        "import json; print(json.dumps(reference_chains(largest=1)))\n"
    )
    (row,) = json.loads(run(script).stdout)
    assert row["bytes"] == 4 << 20
    assert row["chain"][0] == "dict['activations']"
    assert any("Cache" in link or "kept" in link for link in row["chain"])


def test_a_chain_ends_at_a_variable_of_a_running_function_and_not_in_the_recorder(run: Run) -> None:
    script = TORCH + (
        "import json\nfrom forensics_recorder.memory import reference_chains\n"
        "class Evaluator:\n    def __init__(self):\n        self.scores = []\n"
        "def score():\n    evaluator = Evaluator()\n"
        "    evaluator.scores += [torch.zeros(1 << 20) for _ in range(2)]\n"
        "    with fr.record(OUT):\n        print(json.dumps(reference_chains(largest=2)))\n"
        "score()\n"
    )
    for number, row in enumerate(json.loads(run(script).stdout)):
        first, held, root = row["chain"]
        assert first == f"list[{number}] of 2"
        assert held == "attribute scores of __main__.Evaluator"
        assert root.startswith("variable evaluator of score (")


def test_a_bundle_holds_the_folders_of_all_ranks(run: Run) -> None:
    left = run("fr.record(OUT).close(); print(fr.bundle(OUT))")
    with tarfile.open(left.stdout.strip()) as tar:
        assert "out/attempt_0/rank_0/end.json" in tar.getnames()


def test_files_stay_within_their_bound(run: Run) -> None:
    script = (
        "with fr.record(OUT, options=fr.Options(max_bytes=4000)) as rec:\n"
        "    for step in range(500):\n        rec.begin_step(step); rec.end_step(loss=1.0)\n"
    )
    left = run(script)
    sizes = [path.stat().st_size for path in left.folder().glob("steps*.jsonl")]
    assert len(sizes) == 2
    assert sum(sizes) < 9000
    assert left.lines("steps")[-1]["step"] == 499


def test_graphs_are_counted_and_captured_gradients_keep_their_addresses(run: Run) -> None:
    script = """
from forensics_recorder.graphs import Graphs
from forensics_recorder.journal import Journal
from pathlib import Path
class Graph:
    def replay(self): return "replayed"
    def capture_end(self): net.weight.grad = torch.ones(1, 2)
net = nn.Linear(2, 1)
own = Graph.replay
graphs = Graphs(net, Journal(Path(OUT), "gradients", {}), Graph, lambda _where, work: work())
graphs.step = 4
Graph().capture_end()
print(Graph().replay(), Graph().replay(), graphs.counters(), graphs.counters())
print(net.weight.grad.data_ptr())
graphs.close()
print(Graph.replay is own)
"""
    left = run(TORCH + script)
    said, address, restored = left.stdout.splitlines()
    assert said == "replayed replayed {'graph_captures': 1, 'graph_replays': 2} {}"
    assert restored == "True"
    (row,) = [json.loads(line) for line in (left.out / "gradients.jsonl").read_text().splitlines()[1:]]
    assert row | {"ts_ns": 0} == {
        "step": 4, "phase": "gradient", "role": "captured-gradient", "ts_ns": 0, "name": "weight", "addr": int(address)
    }  # fmt: skip


def test_decay_by_kind_of_parameter_subnormal_shares_and_steps_without_update_are_recorded(run: Run) -> None:
    script = TORCH + (
        "net = nn.Linear(2, 2).half(); optimizer = torch.optim.Adam(net.parameters(), lr=0.0, weight_decay=0.1)\n"
        "chosen = fr.Options(gradients_every=1, gradients_budget=1.0)\n"
        "with fr.record(OUT, model=net, optimizer=optimizer, options=chosen) as rec:\n"
        "    for step in range(3):\n"
        "        with rec.step(step):\n"
        "            net.weight.grad = torch.tensor([[0.0, 3e-5], [3e-5, 1.0]], dtype=torch.float16)\n"
        "            net.bias.grad = torch.ones(2, dtype=torch.float16)\n"
        "            if step < 2: optimizer.step()\n"
    )
    left = run(script)
    rows = left.lines("gradients")
    shares = {row["name"]: row["subnormal_ratio"] for row in rows if row.get("role") == "gradient"}
    assert shares == {"weight": 0.5, "bias": 0.0}
    began = next(event for event in left.lines("events") if event["event"] == "optimizer_began")
    told = ("weight_decay", "decoupled", "n_decayed", "n_decayed_vectors", "decayed_vector")
    assert tuple(began[key] for key in told) == (0.1, False, 2, 1, "bias")
    assert [step.get("optimizer_waited") for step in left.lines("steps")] == [None, None, 1]
