"""Several ranks: each has its own folder, and what one rank did wrong is told of that rank."""

from __future__ import annotations

from .conftest import TORCH, Recorded, Run
from .test_watch import births, told

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "0")
DDP = (
    TORCH
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
    def forward(self, x):
        return torch.sigmoid(self.last(torch.relu(self.norm(self.first(x)))))
net = {wrapper}
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
def loss_of(net, x, bad):
    p = net(x)
    return -torch.log(p * 0 if bad else p).mean()
rec = fr.record(OUT, model=net, optimizer=optimizer)
{extra}
with rec:
    for step in range(6):
        torch.manual_seed(10 * step + rank)
        with rec.step(step):
            loss = rec.run(loss_of, net, torch.randn(16, 8), step == 3 and rank == 1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
os._exit(0)  # threads of the backend that are not joined may abort an interpreter that takes its time to end
"""
)


def test_only_the_rank_at_fault_shows_a_birth_under_ddp(run: Run) -> None:
    script = DDP.format(wrapper="DistributedDataParallel(Net())", extra="rec.watch_buckets(net)")
    left = run(script, launcher=TORCHRUN, timeout=300)
    assert left.code == 0, left.stderr
    assert births(left, 1)[0]["op"] == "aten::log"
    # The other rank's gradients are bad too, after the all-reduce; run again alone, its step is fine.
    assert births(left, 0) == []
    assert told(left, 0)[0]["what"] == "gradient"
    assert any(r["module"] == "first" for r in left.lines("operators", 0))
    assert {line["role"] for line in left.lines("buckets", 1)} == {"bucket"}
    assert left.lines("buckets", 1)[0]["step"] == 3
    # What rank 0 brought in that step was finite, and what it got was not.
    at_fault = [line for line in left.lines("buckets", 0) if line["step"] == 3]
    assert all(line["n_nan"] == 0 and line["absmax"] < 10 for line in at_fault if line["role"] == "bucket")
    assert {line["name"] for line in at_fault if line["role"] == "reduced-bucket"} >= {"first.weight", "last.bias"}


def test_a_hook_of_the_job_is_called_and_what_it_makes_of_finite_gradients_is_looked_at(run: Run) -> None:
    hook = """
def hook(factor, bucket):
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda f: f.value()[0] * (factor if rec._buckets.step == 2 else 0.5))
rec.watch_buckets(net, hook=hook, hook_state=float("inf"))
"""
    script = DDP.format(wrapper="DistributedDataParallel(Net())", extra=hook)
    left = run(script.replace("step == 3 and rank == 1", "False"), launcher=TORCHRUN, timeout=300)
    assert left.code == 0, left.stderr
    for rank in range(2):
        lines = [line for line in left.lines("buckets", rank) if line["step"] <= 2]
        before, after = ([x for x in lines if x["role"] == role] for role in ("bucket", "reduced-bucket"))
        assert {line["step"] for line in lines} == {2}
        assert [line["name"] for line in before] == [line["name"] for line in after]
        assert all(x["n_nan"] + x["n_inf"] == 0 and x["absmax"] < 10 for x in before)
        assert all(x["n_nan"] + x["n_inf"] > 0 for x in after)


def test_fsdp_steps_are_recorded_while_they_run(run: Run) -> None:
    wrap = "FullyShardedDataParallel(Net(), device_id=torch.device('cpu'))"
    script = DDP.format(wrapper=wrap, extra="").replace(
        "from torch.nn.parallel", "from torch.distributed.fsdp import FullyShardedDataParallel\nfrom torch.nn.parallel"
    )
    left = run(script, launcher=TORCHRUN, timeout=300)
    assert left.code == 0, left.stderr
    first = told(left, 1)[0]
    assert (first["event"], first["step"], first["recorded"]) == ("nonfinite", 3, "no")
    assert "talks to other ranks" in first["why"]
    assert {r["step"] for r in left.lines("operators", 1)} == {4}


def test_equal_replicas_have_equal_checksums_and_differing_ones_do_not(run: Run) -> None:
    script = DDP.format(wrapper="DistributedDataParallel(Net())", extra="rank and net.module.last.bias.data.add_(1)")
    left = run(script.replace("step == 3 and rank == 1", "False"), launcher=TORCHRUN, timeout=300)
    sums = [_checksums(left, rank) for rank in range(2)]
    assert {name for name in sums[0] if sums[0][name] != sums[1][name]} == {"module.last.bias"}


def _checksums(left: Recorded, rank: int) -> dict[str, int]:
    rows = left.lines("gradients", rank)
    return {r["name"]: r["checksum"] for r in rows if r["role"] == "parameter" and r["step"] == 0}
