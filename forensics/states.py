"""The frozen vocabulary: capabilities of evidence, states of entities, and how states travel.

Rules name states and never other rules; `diagnosis` joins them through this file. An entity is one of
`rank`, `process`, `device`, `host`, `group`, `job`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capability:
    meaning: str
    capture: str


CAPABILITIES: dict[str, Capability] = {
    "log_event": Capability(
        "errors and messages that the process printed",
        "keep stdout and stderr of every rank: torchrun --redirects 3 --tee 3 --log-dir logs",
    ),
    "log_event.kernel": Capability(
        "kernel messages of the host", "dmesg -T > dmesg.txt on every host after the failure"
    ),
    "log_event.scheduler": Capability(
        "messages of the scheduler about the job", "keep slurmd messages, sacct output or kubectl describe pod"
    ),
    "sample": Capability("step metrics of the run", "log loss, grad_norm and learning rate each step as JSON lines"),
    "sample.device": Capability(
        "memory and processes of the devices", "nvidia-smi > nvidia-smi.txt at the time of the failure"
    ),
    "sample.allocator": Capability(
        "counters of the CUDA allocator", "json.dump(torch.cuda.memory_stats(), open('memory_stats.json', 'w'))"
    ),
    "sample.host": Capability(
        "how long tasks of the host waited for a processor",
        "perf sched record -- sleep 10; perf sched latency > sched_latency.txt; "
        "cp /proc/PID/schedstat PID.schedstat for every rank",
    ),
    "sample.gauge": Capability(
        "requests, cache and latencies of a serving engine over time",
        "while sleep 10; do date -u; curl -s http://HOST:PORT/metrics; done >> metrics.prom (SGLang: --enable-metrics)",
    ),
    "fact": Capability(
        "versions, variables and options", "python -m torch.utils.collect_env > env.txt; env >> env.txt"
    ),
    "slice": Capability(
        "operators, kernels and runtime calls in time",
        "torch.profiler.profile(on_trace_ready=tensorboard_trace_handler('traces')) around the failing steps",
    ),
    "slice.device": Capability(
        "kernels and copies on devices", "torch.profiler.profile(activities=[CPU, CUDA]) around the failing steps"
    ),
    "slice.stack": Capability("Python stacks of operators", "torch.profiler.profile(with_stack=True)"),
    "slice.shapes": Capability("input shapes of operators", "torch.profiler.profile(record_shapes=True)"),
    "slice.sequence": Capability(
        "links from backward to forward operators", "torch.profiler.profile (PyTorch 1.8 or newer)"
    ),
    "slice.return_code": Capability("results of CUDA calls", "nsys profile --trace=cuda,nvtx --export=sqlite"),
    "span": Capability(
        "requests of a serving engine and their phases in time",
        "vllm serve --otlp-traces-endpoint ... to a collector with the file exporter (OTLP as JSON lines)",
    ),
    "memory_segment": Capability(
        "segments and blocks of the allocator at one moment", "torch.cuda.memory._dump_snapshot('snapshot.pickle')"
    ),
    "memory_event": Capability(
        "allocator events with stacks",
        "torch.cuda.memory._record_memory_history(max_entries=1_000_000) before training",
    ),
    "memory_event.complete": Capability(
        "the allocator's history from its first event on", "start _record_memory_history before the first allocation"
    ),
    "memory_event.oom": Capability(
        "the state of the allocator at a failed allocation",
        "torch._C._cuda_attach_out_of_memory_observer with a snapshot dump",
    ),
    "memory_event.profiler": Capability(
        "allocations as the profiler saw them, with totals", "torch.profiler.profile(profile_memory=True)"
    ),
    "memory_event.driver": Capability(
        "allocations and releases as the driver saw them", "nsys profile --cuda-memory-usage=true"
    ),
    "collective": Capability(
        "collectives with sequence numbers and states", "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
    ),
    "collective.profiler": Capability(
        "collectives as a profiler trace shows them: sizes, groups, times on the device",
        "torch.profiler.profile(activities=[CPU, CUDA], record_shapes=True) for a few steps on every rank",
    ),
    "collective.stack": Capability(
        "stacks of the calls of collectives", "dump the flight recorder as pickle with stacks (the default)"
    ),
    "collective.complete": Capability(
        "the finished collectives too, from the first on",
        "TORCH_FR_BUFFER_SIZE=20000 and torch._C._distributed_c10d._dump_fr_trace(onlyActive=False)",
    ),
    "process_group": Capability(
        "members and progress of process groups", "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
    ),
    "thread_state": Capability("what each thread was doing at one moment", "py-spy dump --pid PID for every rank"),
    "node": Capability("autograd graph of the failing step", "a recorder of forward and backward operators"),
    "node.execution": Capability(
        "operators in the order in which they began, with shapes and types of their tensors",
        "torch.profiler.ExecutionTraceObserver().register_callback('et.json') around the failing steps",
    ),
    "node.autograd": Capability(
        "the autograd graph that leads to one tensor, without an order of execution",
        "torchviz.make_dot(loss, params=dict(model.named_parameters())).save('graph.dot')",
    ),
    "edge": Capability(
        "which operator made the tensors that another one used",
        "torch.profiler.ExecutionTraceObserver().register_callback('et.json') around the failing steps",
    ),
    "tensor": Capability("statistics of tensors", "a recorder of tensor statistics, or the checkpoint itself"),
    "tensor.reduced": Capability(
        "gradients that were finite on every rank and not after their reduction",
        "forensics_recorder: rec.watch_buckets(ddp, hook=the job's communication hook)",
    ),
    "placement": Capability(
        "where each tensor of the model lies, against the device map",
        "forensics_recorder.record(OUT, model=model, declared_devices=device_map)",
    ),
    "reference_link": Capability(
        "who keeps the largest tensors alive",
        "forensics_recorder.record(OUT, model=model) as rec, and rec.snapshot() once memory has grown",
    ),
    "checkpoint": Capability(
        "names, shapes, places and values of stored tensors",
        "keep the checkpoints' files, or at least adapters, indices and the first megabytes of each",
    ),
    "compile_event": Capability(
        "compilations and their reasons", "TORCH_TRACE=trace_dir TORCH_LOGS=recompiles,graph_breaks"
    ),
    "outcome": Capability(
        "how the processes ended", "record exit codes: torchrun error files, sacct, or echo $? >> exit_code.txt"
    ),
}


@dataclass(frozen=True)
class State:
    entity: str
    meaning: str


STATES: dict[str, State] = {
    "rank-gone": State("rank", "the process of this rank no longer takes part: it died, was killed or left"),
    "rank-stalled": State("rank", "the process is alive but makes no progress"),
    "rank-failed": State("rank", "the process raised an error that it did not survive"),
    "device-full": State("device", "an allocation on the device failed"),
    "device-lost": State("device", "the device no longer answers or is unreliable"),
    "host-full": State("host", "the host or the job's cgroup ran out of memory"),
    "memory-retained": State("process", "memory of a failed or finished pass is kept alive"),
    "shm-full": State("host", "shared memory is exhausted"),
    "disk-full": State("host", "a file system is full, over quota or read-only"),
    "context-poisoned": State("process", "the CUDA context returns errors to every later call"),
    "capture-broken": State("process", "a CUDA graph capture was invalidated"),
    "generator-poisoned": State("process", "the CUDA random generator is left in capture mode"),
    "collective-stuck": State("group", "a collective cannot complete because a member does not join"),
    "collective-mismatched": State("group", "members called different collectives"),
    "connection-lost": State("group", "a member's connection to its peers broke"),
    "value-nonfinite": State("rank", "a NaN or infinity is in the values that the rank computes with"),
    "gradient-invalid": State("rank", "gradients of the step are not those of its loss"),
    "gradient-blocked": State("rank", "gradients do not reach some of the parameters that are to learn"),
    "weights-unmoved": State("rank", "the optimizer's steps leave weights as they were"),
    "batch-unusable": State("rank", "the batch holds labels or values that the loss cannot use"),
    "state-diverged": State("group", "replicas are no longer equal"),
    "input-stalled": State("rank", "the input pipeline delivers nothing"),
    "index-out-of-range": State("rank", "an index is outside the tensor that it indexes"),
    "weights-incomplete": State("job", "the model does not hold the weights that were meant"),
    "config-contradictory": State("job", "settings contradict each other or the environment"),
    "job-stopped": State("job", "the scheduler or an operator ended the job"),
    "kernel-replaced": State("job", "another kernel computes than the one that was meant or compared with"),
    "cores-contended": State("host", "the host's busy threads have fewer processors than they need"),
    "throughput-low": State("job", "the job works, but slower than it could"),
}


@dataclass(frozen=True)
class Travel:
    """A state of one entity brings about a state of another, related entity."""

    state: str
    then: str
    how: str


# Ways that states travel; relations (rank → group, device → rank, host → rank) come from the data.
TRAVELS: tuple[Travel, ...] = (
    Travel("device-full", "rank-failed", "the process on the full device fails its allocation"),
    Travel("memory-retained", "device-full", "what is kept alive is missing at the next allocation"),
    Travel("device-lost", "rank-failed", "the process on the device fails at its next call"),
    Travel("device-lost", "context-poisoned", "calls to a lost device return errors"),
    Travel("host-full", "rank-gone", "the kernel kills a process of the host"),
    Travel("shm-full", "rank-failed", "processes of the host cannot map shared memory"),
    Travel("disk-full", "rank-failed", "writes fail"),
    Travel("context-poisoned", "rank-failed", "every later CUDA call of the process fails"),
    Travel("index-out-of-range", "context-poisoned", "a device-side assertion leaves the context unusable"),
    Travel("capture-broken", "generator-poisoned", "an aborted capture leaves the generator in capture mode"),
    Travel("capture-broken", "rank-failed", "the captured step cannot run"),
    Travel("generator-poisoned", "rank-failed", "random operators of the process fail"),
    Travel("rank-failed", "rank-gone", "a process that does not survive its error leaves its groups"),
    Travel("rank-failed", "rank-stalled", "a process that handles its error does not join the next collective"),
    Travel("rank-gone", "collective-stuck", "peers wait for a member that will not come"),
    Travel("rank-gone", "connection-lost", "sockets of a dead process close"),
    Travel("rank-stalled", "collective-stuck", "peers wait for a member that will not come"),
    Travel("input-stalled", "rank-stalled", "a rank without input starts no step"),
    Travel("collective-mismatched", "collective-stuck", "no member's call can be matched"),
    Travel("collective-stuck", "rank-failed", "the watchdog or a timeout ends the waiting ranks"),
    Travel("connection-lost", "collective-stuck", "collectives over a broken connection cannot complete"),
    Travel("connection-lost", "rank-failed", "operations over a broken connection raise"),
    Travel("value-nonfinite", "rank-failed", "a check of values raises"),
    Travel("gradient-invalid", "value-nonfinite", "updates with invalid gradients can diverge"),
    Travel("value-nonfinite", "weights-unmoved", "a loss scaler skips every step whose gradients are not finite"),
    Travel("batch-unusable", "value-nonfinite", "a mean over nothing, or a value that is not finite, reaches the loss"),
    Travel("batch-unusable", "rank-failed", "the loss refuses the labels"),
    Travel("gradient-blocked", "weights-unmoved", "parameters without a gradient stay as they are"),
    Travel("job-stopped", "rank-gone", "the scheduler signals the processes"),
    Travel("config-contradictory", "rank-failed", "the contradiction surfaces as an error"),
    Travel("weights-incomplete", "rank-failed", "loading raises"),
)

# States that outlive the processes of an attempt: what was full, broken or wrong is so for the next attempt too.
PERSISTENT = frozenset({"disk-full", "device-lost", "config-contradictory", "weights-incomplete"})

# States that reach values only through an update of the weights: they do not bring about what happens in the same step.
ACT_ON_THE_NEXT_STEP = frozenset({"gradient-invalid"})

# Evidence that would tell what brought a state about, the most telling first.
SETTLED_BY: dict[str, tuple[str, ...]] = {
    "collective-stuck": ("collective", "thread_state"),
    "connection-lost": ("log_event", "log_event.kernel"),
    "capture-broken": ("slice.return_code",),
    "value-nonfinite": ("tensor",),
    "device-full": ("memory_event.oom",),
    "host-full": ("log_event.kernel",),
    "rank-failed": ("log_event",),
}

SEVERITIES = ("critical", "high", "medium", "info")
STRENGTHS = ("proof", "strong", "indication")
QUALITIES = ("complete", "repaired", "partial", "unknown", "failed", "empty")
