"""Reports as an analysis would fill them, for looking at and for testing the renderers. Not shipped."""

# ruff: noqa: E501  texts stand as artifacts hold them

from __future__ import annotations

import math
import random
from dataclasses import replace

import picture_demo

from forensics.report import view
from forensics.report.view import EvidenceView, FindingView, Moment, NotChecked, RuledOut, SeriesView, Threshold

T0 = 1_788_343_331_318_000_000  # 2026-09-02 10:02:11.318 UTC
SECOND = 10**9

_SQL = """-- variant: statistics
WITH born AS (
    SELECT
        o.rank,
        o.step,
        o.node_id,
        o.artifact_id,
        o.row,
        o.ts_ns
    FROM tensor AS o
    WHERE o.role = 'output' AND o.n_nan + o.n_inf > 0
      AND NOT EXISTS (
          SELECT 1 FROM tensor AS i
          WHERE i.artifact_id = o.artifact_id AND i.node_id = o.node_id AND i.role = 'input' AND i.n_nan + i.n_inf > 0
      )
)
SELECT born.*, op.text AS op
FROM born JOIN node USING (artifact_id, node_id) JOIN string AS op ON op.id = node.op_id
ORDER BY born.ts_ns, born.rank, born.row"""


def findings() -> tuple[FindingView, ...]:
    born = FindingView(
        id=1,
        rule="numerics-nan-provenance",
        title="The first non-finite value and how it spread",
        variant="statistics",
        severity="critical",
        strength="proof",
        role="root",
        confidence=0.93,
        message="aten::log of rank 1 gave NaN at step 217 from finite inputs: its smallest input was -3.1e-07",
        rank=1,
        step=217,
        ts_ns=T0,
        proves="Every input of this operator was finite, its output was not, and no earlier operator of any rank had a "
        "non-finite output.",
        cannot_prove="Why the input was negative: a subtraction that cancels and a wrong sign in the data look the same here.",
        says="Statistics were recorded from step 210 on; an earlier non-finite value that was masked again would not be seen.",
        fix="# losses.py, line 88\n- kl = (p * torch.log(p - q)).sum()\n+ kl = (p * torch.log((p - q).clamp_min(1e-8))).sum()",
        references=(
            "https://docs.pytorch.org/docs/stable/generated/torch.log.html",
            "https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection",
        ),
        evidence=(
            EvidenceView(
                "tensors/rank1.jsonl",
                "line",
                4711,
                '{"step": 217, "node": 88, "op": "aten::log", "role": "input",  "n_nan": 0, "absmax": 0.9137, "min": -3.1e-07}\n'
                '{"step": 217, "node": 88, "op": "aten::log", "role": "output", "n_nan": 12, "n_inf": 0, "absmax": 15.02}',
                "finite input, NaN output",
            ),
            EvidenceView(
                "logs/rank1.stderr",
                "line",
                209,
                '[rank1]:   File "/job/losses.py", line 88, in kl_term\n'
                "[rank1]:     kl = (p * torch.log(p - q)).sum()\n"
                "[rank1]: RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.",
                "the same operator, named by anomaly mode",
            ),
            EvidenceView(
                "traces/rank1.json.gz", "byte", 1_482_993, '"name": "aten::log", "args": {"Sequence number": 18822', ""
            ),
        ),
        query=_SQL,
        thresholds=(
            Threshold(
                "min_recorded_share", "0.95", "recorded / executed operators", "fewer could hide an earlier birth"
            ),
        ),
        facts=(
            ("op", "aten::log"),
            ("module", "model.head.kl"),
            ("n_nan", "12 of 65,536"),
            ("input_min", "-3.1e-07"),
            ("operators recorded", "412 of 412"),
        ),
        fingerprint="numerics-nan-provenance:rank1:217:3f9ac1d2",
    )
    skipped = FindingView(
        id=2,
        rule="numerics-skipped-steps",
        title="The optimizer was skipped because gradients were not finite",
        variant="metrics",
        severity="high",
        strength="strong",
        role="consequence",
        message="Rank 1 raised in backward of step 217; the step was never finished",
        rank=1,
        step=217,
        ts_ns=T0 + 41_000_000,
        proves="The process of rank 1 ended with an exception in the backward pass of step 217.",
        cannot_prove="That a later step would have recovered.",
        fix="Nothing: it ends with its cause.",
        explained_by=1,
        evidence=(
            EvidenceView(
                "logs/rank1.stderr", "line", 216, "torch.distributed.elastic.multiprocessing.errors: exitcode: 1", ""
            ),
        ),
        query="SELECT * FROM log WHERE class = 'exception' ORDER BY ts_ns, rank, row",
        fingerprint="numerics-skipped-steps:rank1:217:aa01",
    )
    waiting = FindingView(
        id=3,
        rule="distributed-timeout",
        title="A collective timed out because a member did not join",
        variant="flight-recorder",
        severity="high",
        strength="proof",
        role="consequence",
        message="Rank 0 waited 600 s in allreduce 1302 for rank 1, which never called it",
        rank=0,
        step=217,
        ts_ns=T0 + 601 * SECOND,
        proves="Rank 0 had scheduled collective 1302 of the default group; the last that rank 1 recorded is 1301.",
        cannot_prove="What rank 1 was doing instead: see its own findings.",
        fix="Nothing: it ends with its cause.",
        explained_by=2,
        evidence=(
            EvidenceView(
                "nccl/trace_0",
                "row",
                1302,
                "group=default seq=1302 op=all_reduce state=scheduled in_bytes=26214400",
                "last entry of rank 0",
            ),
            EvidenceView(
                "logs/rank0.stderr",
                "line",
                188,
                "[rank0]:[E902 10:12:12.402 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=1302, OpType=ALLREDUCE, NumelIn=6553600, Timeout(ms)=600000) ran for 600012 milliseconds "
                "before timing out.",
                "",
            ),
        ),
        query="SELECT * FROM collective WHERE state <> 'completed' ORDER BY ts_ns, rank, row",
        fingerprint="distributed-timeout:rank0:1302",
    )
    slow = FindingView(
        id=4,
        rule="efficiency-input-wait",
        title="The device waited for input",
        variant="trace",
        severity="info",
        strength="indication",
        role="other",
        message="Rank 0 spent 6 % of a step waiting for the data loader",
        rank=0,
        step=214,
        ts_ns=T0 - 9 * SECOND,
        proves="Between steps 210 and 216 no kernel ran while the loader's next was open, 6 % of the time.",
        fix="DataLoader(num_workers=8, pin_memory=True)",
        evidence=(
            EvidenceView("traces/rank0.json.gz", "byte", 88_301, '"name": "enumerate(DataLoader)#_MultiProcessing', ""),
        ),
        query="SELECT * FROM interval WHERE kind = 'gap' ORDER BY from_ns",
        fingerprint="efficiency-input-wait:rank0",
    )
    return born, skipped, waiting, slow


def _series() -> tuple[SeriesView, ...]:
    noise = random.Random(217)
    made = []
    for rank in (0, 1):
        loss, norm = [], []
        for step in range(1, 218):
            trend = 2.9 * math.exp(-step / 90) + 0.8
            broken = rank == 1 and step == 217
            loss.append((float(step), math.nan if broken else trend + noise.gauss(0, 0.07)))
            norm.append(
                (float(step), math.nan if broken else 0.6 + abs(noise.gauss(0, 0.25)) + (0.08 * max(0, step - 205)))
            )
        made.append(SeriesView("loss", "", rank, tuple(loss), ((210.0, "recorder on"),)))
        made.append(SeriesView("grad_norm", "", rank, tuple(norm)))
    return tuple(sorted(made, key=lambda s: s.name != "loss"))


def _not_checked() -> tuple[NotChecked, ...]:
    snapshot = (
        "memory_event.complete",
        "the allocator's history from its first event on",
        "torch.cuda.memory._record_memory_history(max_entries=1_000_000)  # before the first allocation",
    )
    codes = (
        "slice.return_code",
        "results of CUDA calls",
        "nsys profile --trace=cuda,nvtx --export=sqlite python train.py",
    )
    return (
        NotChecked("memory-whatif", "What the allocator would have done with other settings", *snapshot),
        NotChecked("memory-leak", "Live memory grows step by step", *snapshot),
        NotChecked("memory-private-pool", "CUDA graph pools hold memory nobody replays", *snapshot),
        NotChecked("capture-abort", "Stream capture ended in an error", *codes),
        NotChecked("host-oom", "The kernel killed a process of the host", "log_event.kernel", "kernel messages of the host",
                   "dmesg -T > dmesg.txt"),
    )  # fmt: skip


def _ruled_out() -> tuple[RuledOut, ...]:
    last, dump = EvidenceView("metrics/rank0.jsonl", "line", 216), EvidenceView("nccl/trace_0", "row", 1301)
    return (
        RuledOut("distributed-desync", "Ranks called different collectives", "Sequences 1 to 1301 agree on both ranks.",
                 "flight-recorder", (dump, EvidenceView("nccl/trace_1", "row", 1301))),
        RuledOut("numerics-loss-spike", "The loss left its trend", "The largest deviation is 9 % of the trend, at step 190.",
                 "metrics", (EvidenceView("metrics/rank0.jsonl", "line", 190),)),
        RuledOut("gradients-explode", "The gradient norm left its band", "1.9 at step 216; the band ends at 4.1.", "metrics",
                 (last,)),
    )  # fmt: skip


def _no_sign() -> tuple[RuledOut, ...]:
    said = "No sign in: errors and messages that the process printed."
    return (
        RuledOut("memory-capacity", "The live set itself does not fit", said, "log"),
        RuledOut("hardware-xid", "The driver reported an error of the device", "No sign in: kernel messages of the host.", "smi"),
        RuledOut("environment-mismatch", "Ranks run different versions", said, "facts"),
    )  # fmt: skip


def _artifacts() -> tuple[view.ArtifactView, ...]:
    made = view.ArtifactView
    return (
        made("env.txt", "environment", 8_211, "complete", "job", "61 facts"),
        made("logs/rank0.stderr", "log", 29_411, "complete", "rank 0", "12 log_event"),
        made("logs/rank1.stderr", "log", 33_090, "complete", "rank 1", "15 log_event"),
        made("metrics/rank0.jsonl", "metrics_jsonl", 30_122, "complete", "rank 0", "653 sample"),
        made("metrics/rank1.jsonl", "metrics_jsonl", 30_180, "complete", "rank 1", "653 sample"),
        made("nccl/trace_0", "flight_recorder", 412_009, "complete", "rank 0", "1,302 collective"),
        made("nccl/trace_1", "flight_recorder", 411_640, "repaired", "rank 1", "1,301 collective", ("3 records without state",)),
        made("tensors/rank1.jsonl", "tensor_stats", 1_920_441, "complete", "rank 1", "8,240 tensor, 412 node"),
        made("traces/rank0.json.gz", "kineto", 18_220_100, "complete", "rank 0", "212,004 slice"),
        made("traces/rank1.json.gz", "kineto", 11_930_322, "partial", "rank 1", "139,118 slice",
             ("compressed data ends early; about 34 % of the events are lost",)),
        made("core.4711", "unknown", 812_331_008, "unknown"),
    )  # fmt: skip


def root_cause() -> view.Report:
    """A NaN born in aten::log on rank 1 at step 217, then the timeout of rank 0."""
    found = findings()
    verdict = view.VerdictView(
        status="root-cause",
        sentence="A NaN was born in aten::log on rank 1 at step 217; rank 0 then timed out waiting for it.",
        confidence=0.93,
        confidence_range=(0.82, 0.98),
        confidence_note="41 of 44 such verdicts were right on labelled cases",
        strength="proof",
        culprit=(
            ("rank", "1"),
            ("step", "217"),
            ("op", "aten::log"),
            ("module", "model.head.kl"),
            ("line", "losses.py:88"),
            ("host", "node-07"),
        ),
        fix=found[0].fix,
        earliest_anomaly=found[0].evidence[0],
    )
    nodes = (
        view.ChainNode(
            "f1",
            "NaN born in aten::log from finite inputs",
            "rank 1 · step 217 · losses.py:88",
            "finding",
            "critical",
            1,
        ),
        view.ChainNode(
            "f2", "Backward raised; the step was not finished", "rank 1 · exit code 1", "finding", "high", 2
        ),
        view.ChainNode("f3", "Allreduce 1302 timed out", "rank 0 · after 600 s", "finding", "high", 3),
    )
    edges = (
        view.ChainEdge("f1", "f2", "a check for finite values raises"),
        view.ChainEdge("f2", "f3", "peers wait for a member that no longer exists"),
    )
    log0, log1 = "logs/rank0.stderr", "logs/rank1.stderr"
    return view.Report(
        pictures=picture_demo.every(),
        title="lora-adapters-0217",
        artifacts_name="job-88213/artifacts",
        generated_by="forensics 0.1.0",
        verdict=verdict,
        findings=found,
        chain_nodes=nodes,
        chain_edges=edges,
        ruled_out=_ruled_out(),
        no_sign=_no_sign(),
        not_checked=_not_checked(),
        artifacts=_artifacts(),
        warnings=(
            view.WarningView("traces/rank1.json.gz", "byte 11,930,322", "compressed data ends early or is damaged",
                             "kernels of rank 1 after 10:02:10.9"),
            view.WarningView("nccl/trace_1", "row 877", "3 records have no state", "whether collectives 877 to 879 completed"),
        ),
        job_facts=(
            ("Ranks seen", "2 of 2"), ("Hosts", "node-06, node-07"), ("Attempts", "1"), ("PyTorch", "2.13.0"), ("CUDA", "13.0"),
            ("Driver", "580.65.06"), ("Device", "NVIDIA H200"), ("Last step", "217"),
            ("Command", "torchrun --nproc-per-node 1 train.py --lora-rank 16"),
        ),
        processes=(
            view.ProcessView(0, "node-06", 0, "failed: SIGABRT after a collective timeout", T0 - 412 * SECOND, T0 + 602 * SECOND),
            view.ProcessView(0, "node-07", 1, "failed: RuntimeError in backward, exit code 1", T0 - 411 * SECOND, T0 + SECOND),
        ),
        timeline=(
            Moment(T0, 1, "numerics", "aten::log gave 12 NaN from finite inputs", EvidenceView("tensors/rank1.jsonl", "line", 4711)),
            Moment(T0 + 41_000_000, 1, "exception", "RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.",
                   EvidenceView(log1, "line", 211)),
            Moment(T0 + 902_000_000, 1, "exit", "process ended with exit code 1", EvidenceView(log1, "line", 216)),
            Moment(T0 + 601 * SECOND, 0, "timeout", "Watchdog caught collective operation timeout: SeqNum=1302, ALLREDUCE",
                   EvidenceView(log0, "line", 188)),
            Moment(T0 + 602 * SECOND, 0, "exit", "process ended by SIGABRT", EvidenceView(log0, "line", 203)),
            Moment(T0 + 604 * SECOND, None, "launcher", "torchrun closed the job: ChildFailedError", EvidenceView("logs/torchrun.log",
                   "line", 31)),
        ),
        series=_series(),
    )  # fmt: skip


def healthy() -> view.Report:
    report = root_cause()
    return replace(
        report,
        title="lora-adapters-0216",
        artifacts_name="job-88212/artifacts",
        verdict=view.VerdictView(
            status="healthy",
            sentence="The job completed: both ranks finished all 400 steps and exited with code 0.",
            confidence=0.98,
            confidence_note="completion is recorded by both ranks and by the launcher",
        ),
        findings=(replace(report.findings[3], id=1),),
        chain_nodes=(),
        chain_edges=(),
        warnings=(),
        timeline=(),
        artifacts=tuple(replace(a, quality="complete", warnings=()) for a in report.artifacts[:7]),
        series=tuple(
            replace(s, points=tuple(p for p in s.points if math.isfinite(p[1])), marks=()) for s in report.series
        ),
        processes=tuple(replace(p, outcome="completed: exit code 0") for p in report.processes),
    )


def not_established() -> view.Report:
    report = root_cause()
    earliest = EvidenceView(
        "logs/rank0.stderr",
        "line",
        188,
        "[rank0]:[E902 10:12:12.402 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=1302, OpType=ALLREDUCE, NumelIn=6553600, Timeout(ms)=600000)",
        "earliest sign of trouble",
    )
    return replace(
        report,
        verdict=view.VerdictView(
            status="not-established",
            sentence="Rank 0 timed out in allreduce 1302; why rank 1 did not join is not in the evidence.",
            not_established_reason="Nothing that rank 1 left behind covers the time of the failure: its log ends at step 140 "
            "and it wrote no flight recorder dump.",
            earliest_anomaly=earliest,
        ),
        findings=(replace(report.findings[2], id=1, role="other", explained_by=None),),
        chain_nodes=(),
        chain_edges=(),
        not_checked=(
            NotChecked("distributed-desync", "Ranks called different collectives", "collective",
                       "collectives with sequence numbers and states", "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"),
            NotChecked("distributed-straggler", "One rank is slower than its peers", "collective",
                       "collectives with sequence numbers and states", "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"),
            *report.not_checked,
        ),
        timeline=report.timeline[3:],
        series=(),
    )  # fmt: skip


def independent() -> view.Report:
    report = root_cause()
    first, second = report.findings[0], report.findings[3]
    second = replace(second, role="independent", severity="critical", strength="strong", confidence=0.71,
                     message="The kernel killed the data loader of rank 0: the host was out of memory")  # fmt: skip
    return replace(
        report,
        verdict=replace(
            report.verdict,
            status="independent",
            sentence="Two independent faults: a NaN on rank 1, and a host of rank 0 out of memory.",
            confidence=0.71,
            confidence_note="the weaker of both",
        ),
        findings=(replace(first, role="independent"), second, *report.findings[1:3]),
    )


def many(n: int = 3_000) -> view.Report:
    """Thousands of findings, ranks, artifacts and warnings."""
    report = root_cause()
    waiting = report.findings[2]
    echoes = tuple(
        replace(waiting, id=100 + i, rank=i, message=f"Rank {i} waited for rank 1", explained_by=1) for i in range(n)
    )
    others = tuple(
        replace(report.findings[3], id=10_000 + i, rule=f"site-{i}", title=f"Site rule {i}") for i in range(n)
    )
    nodes = tuple(view.ChainNode(f"e{i}", f"Rank {i} timed out", "", "finding", "high", 100 + i) for i in range(n))
    return replace(
        report,
        findings=report.findings[:1] + echoes + others,
        chain_nodes=report.chain_nodes[:1] + nodes,
        chain_edges=tuple(view.ChainEdge("f1", node.id, "collective-stuck") for node in nodes),
        artifacts=report.artifacts * n,
        warnings=report.warnings * n,
        ruled_out=report.ruled_out * n,
        no_sign=report.no_sign * n,
        not_checked=tuple(replace(g, missing=f"{g.missing}.{i}") for i in range(n) for g in report.not_checked[:1]),
        processes=report.processes * n,
        timeline=report.timeline[:1] * n,
        series=tuple(replace(report.series[i % 4], rank=i) for i in range(256)),
    )


def fullest(n_ranks: int = 8, n_points: int = 100_000) -> view.Report:
    """As much of everything as a page takes: every picture at its bound, series of 100 000 points of each rank."""
    points = tuple((float(i), 2.0 + math.sin(i / 900) + (i * 7919 % 1000) / 1000) for i in range(n_points))
    names = ("loss", "grad_norm", "loss_scale")
    series = tuple(SeriesView(name, "", rank, points) for name in names for rank in range(n_ranks))
    return replace(many(600), series=series, pictures=picture_demo.fullest())
