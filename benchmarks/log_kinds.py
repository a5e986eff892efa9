"""The logs that benchmarks write: each kind the same bytes at every run, worded like its programs."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator

_TRACEBACK = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/job/train.py", line {line}, in main
[rank{rank}]:     batch = next(batches)
[rank{rank}]:   File "/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 708, in __next__
[rank{rank}]:     data = self._next_data()
[rank{rank}]: OSError: [Errno 5] Input/output error: '/data/shard-{line:05d}.tar'
"""
_INFO = (
    "{t} [rank{r}] INFO data.loader: opened shard /data/train/shard-{n:05d}.tar with {a} samples, {b} cached",
    "{t} [rank{r}] INFO train.memory: allocated {x:.2f} GiB reserved {y:.2f} GiB peak {y:.2f} GiB",
    "{t} [rank{r}] DEBUG net.pool: worker {a} returned buffer 0x{n:012x} after {b} ms",
    "{t} [rank{r}] INFO train.eval: evaluation of batch {a} took {x:.3f} s, cache hit ratio {y:.2f}",
    "{t} [rank{r}] INFO checkpoint: wrote model-{n:08d}.pt ({a} MB) in {x:.1f} s",
)


def _stamp(number: int) -> str:
    seconds, millis = divmod(number * 37, 1000)
    return f"2026-03-{1 + seconds // 86400 % 28:02d} {seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:" + (
        f"{seconds % 60:02d},{millis:03d}"
    )


def training(rank: int = 0) -> Iterator[str]:
    """One rank: 70 % step lines, 25 % other messages, progress bars, a traceback that it survives now and then."""
    draw = random.Random(rank)
    step = 0
    for number in range(1 << 62):
        dice = draw.random()
        if dice < 0.70:
            step += 1
            speed = draw.randrange(9000, 99999)
            yield (
                f"{_stamp(number)} [rank{rank}] INFO train: step {step} loss {2 + draw.random():.4f} "
                f"lr {3e-4 * draw.random():.3e} grad_norm {draw.random() * 2:.4f} tokens/s {speed}\n"
            )
        elif dice < 0.95:
            line = draw.choice(_INFO)
            yield line.format(
                t=_stamp(number), r=rank, n=draw.randrange(1 << 24), a=draw.randrange(512), b=draw.randrange(9999),
                x=draw.random() * 40, y=draw.random() * 80,
            ) + "\n"  # fmt: skip
        elif dice < 0.99998:
            done = number % 100
            yield f"\rEpoch 3: {done:3d}%|{'#' * (done // 5):20s}| {done}/100 [00:{done % 60:02d}<01:00, 11.{done}it/s]"
            if done > 95:
                yield "\n"
        else:
            yield "\n" + _TRACEBACK.format(rank=rank, line=draw.randrange(1000))


def metrics(rank: int = 0) -> Iterator[str]:
    draw = random.Random(rank)
    for step in range(1 << 62):
        yield f"step {step} loss {draw.random() * 5:.6f} lr {3e-4 * draw.random():.3e} grad_norm {draw.random():.4f}\n"


def dicts(rank: int = 0) -> Iterator[str]:
    """Records of a trainer whose floats are printed in full."""
    draw = random.Random(rank)
    for step in range(1 << 62):
        yield (
            str(
                {
                    "loss": round(draw.random() * 5, 4),
                    "grad_norm": draw.random() * 3,
                    "learning_rate": 5e-05 * draw.random(),
                    "epoch": round(step / 9000, 2),
                }
            )
            + "\n"
        )


def stamped(rank: int = 0) -> Iterator[str]:
    """Every other line counts, for eight ranks in one file."""
    draw = random.Random(rank)
    for number in range(1 << 62):
        who = draw.randrange(8)
        if number % 2:
            yield f"[rank{who}]: {_stamp(number)} INFO iter {number}: loss {draw.random():.4f}, time {who + 9.5}ms\n"
        else:
            yield (
                _INFO[number // 2 % 5].format(t=_stamp(number), r=who, n=number, a=who, b=number % 7919, x=1.5, y=2.5)
                + "\n"
            )


def errors(rank: int = 0) -> Iterator[str]:
    """Half of the lines are errors; most repeat, as those of a job that goes on retrying."""
    draw = random.Random(rank)
    texts = (
        "ERROR loader: failed to read /data/shard-{n}.tar: timeout after {a} s",
        "WARNING nccl: NCCL WARN Call to connect to 10.0.0.{a}<{n}> failed : Connection refused",
        "ERROR train: CUDA out of memory. Tried to allocate {a}.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        "RuntimeError: worker {n} exited unexpectedly with exit code {a}",
        "NVRM: Xid (PCI:0000:3b:00): 13, pid={n}, name=python, Graphics Exception on (GPC 0)",
    )
    for number in range(1 << 62):
        if number % 2:
            yield f"{_stamp(number)} INFO loader: shard {number} done in {draw.random():.2f} s by worker {number % 8}\n"
        elif number % 40 == 0:
            yield _TRACEBACK.format(rank=rank, line=draw.randrange(1000))
        else:
            text = draw.choice(texts).format(n=draw.randrange(1 << 20), a=draw.randrange(60))
            yield f"{_stamp(number)} {text}\n"


def plain(rank: int = 0) -> Iterator[str]:
    draw = random.Random(rank)
    for number in range(1 << 62):
        yield draw.choice(_INFO).format(
            t=_stamp(number), r=rank, n=draw.randrange(1 << 24), a=3, b=7, x=1.5, y=2.5
        ) + "\n"  # fmt: skip


def progress(rank: int = 0) -> Iterator[str]:
    """One line, all of it drawn over with carriage returns."""
    for number in range(1 << 62):
        done = number % 1000
        bar = f"{done // 10:3d}%|{'#' * (done // 40):25s}|"
        yield f"\rtrain: {bar} {done}/1000 [00:{done % 60:02d}<01:00, loss={done / 7:.3f}]"


def one_line(rank: int = 0) -> Iterator[str]:
    while True:
        yield "0123456789abcdef, tensor([0.1234, 0.5678]), "


def container(rank: int = 0) -> Iterator[str]:
    """Docker's JSON file: each line of a training job as a record."""
    for number, line in enumerate(training(rank)):
        for text in line.splitlines(keepends=True):
            time = f"{_stamp(number)[:19].replace(' ', 'T')}.{number:09d}Z"
            yield json.dumps({"log": text, "stream": "stderr", "time": time}) + "\n"


def records(rank: int = 0) -> Iterator[str]:
    """A structured logger: one JSON object a line, with numbers as fields and inside of the message."""
    draw = random.Random(rank)
    for step in range(1 << 62):
        record = {"timestamp": _stamp(step).replace(" ", "T").replace(",", "."), "level": "INFO", "logger": "trainer"}
        if step % 4:
            record["message"] = f"step {step} loss {draw.random() * 3:.4f} grad_norm {draw.random():.3f}"
            yield json.dumps({**record, "rank": rank, "step": step}) + "\n"
        else:
            record["message"] = f"fetched shard {draw.randrange(1 << 20)} in {draw.random():.3f} s"
            yield json.dumps({**record, "extra": {"bytes": draw.randrange(1 << 30), "cached": step % 8 == 0}}) + "\n"


def key_values(rank: int = 0) -> Iterator[str]:
    """logfmt: `key=value` pairs, the numbers in no usual order."""
    draw = random.Random(rank)
    for step in range(1 << 62):
        time = _stamp(step).replace(" ", "T").replace(",", ".") + "Z"
        if step % 3:
            yield (
                f'time={time} level=info msg="train step" lr={draw.random() * 1e-4:.3e} tokens_per_s='
                f"{draw.randrange(9999)} loss={draw.random():.5f} step={step} epoch={step // 1000} rank={rank}\n"
            )
        else:
            yield f'time={time} level=debug msg="batch ready" queue={draw.randrange(64)} wait_ms={draw.random():.2f}\n'


def srun(rank: int = 0) -> Iterator[str]:
    """64 tasks of `srun --label` in one file: step lines, notices, now and then the tracebacks of all."""
    draw = random.Random(rank)
    for step in range(1 << 62):
        tasks = list(range(64))
        draw.shuffle(tasks)
        for task in tasks:
            head = f"{task:2d}: {_stamp(step)} -"
            yield (
                f"{head} trainer - INFO - lr: {draw.random() * 1e-4:.3e} | loss: {draw.random():.4f} | step: {step} | "
                f"mem: {draw.random() * 80:.1f} GiB | {draw.random() * 9:.2f} s/it\n"
            )
            if task % 4 == 0:
                yield f"{head} loader - INFO - worker {draw.randrange(8)} is {draw.randrange(99)} ahead\n"
        if step % 500 == 499:
            for line in _TRACEBACK.splitlines():
                for task in tasks:
                    yield f"{task:2d}: {line.split(']: ', 1)[1].format(line=step)}\n"


def megatron(rank: int = 0) -> Iterator[str]:
    """Iteration lines of Megatron, with the lines of DeepSpeed's engine and timers between them."""
    draw = random.Random(rank)
    for step in range(1 << 62):
        time = _stamp(step * 100)
        yield (
            f" [{time[:19]}] iteration {step:8d}/  500000 | consumed samples: {step * 512:12d} | elapsed time per "
            f"iteration (ms): {draw.random() * 9000:.1f} | throughput per GPU (TFLOP/s/GPU): {draw.random() * 500:.1f}"
            f" | learning rate: {draw.random() * 1e-4:.6E} | global batch size:   512 | lm loss: {draw.random():.6E} | "
            f"loss scale: 1.0 | grad norm: {draw.random():.3f} | number of skipped iterations:   0 | "
            f"number of nan iterations:   0 |\n"
        )
        yield (
            f"[{time}] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[{draw.random():.3e}], "
            f"mom=[(0.9, 0.95)]\n"
        )
        yield (
            f"[{time}] [INFO] [timer.py:260:stop] epoch=0/micro_step={step * 8}/global_step={step}, "
            f"RunningAvgSamplesPerSec={draw.random() * 99:.6f}, CurrSamplesPerSec={draw.random() * 99:.6f}, "
            f"MemAllocated=14.{step % 100:02d}GB, MaxMemAllocated=31.97GB\n"
        )
        yield "(min, max) time across ranks (ms):\n"
        yield f"    forward-backward ......: ({draw.random() * 999:.2f}, {draw.random() * 999:.2f})\n"


def vllm(rank: int = 0) -> Iterator[str]:
    """A server: statistics, access lines, and requests whose ids are random."""
    draw = random.Random(rank)
    for number in range(1 << 62):
        time = _stamp(number * 27)[5:19]
        yield (
            f"INFO {time} [loggers.py:118] Engine 000: Avg prompt throughput: {draw.random() * 9000:.1f} tokens/s, "
            f"Avg generation throughput: {draw.random() * 900:.1f} tokens/s, Running: {draw.randrange(256)} reqs, "
            f"Waiting: {draw.randrange(99)} reqs, GPU KV cache usage: {draw.random() * 99:.1f}%, "
            f"Prefix cache hit rate: 31.4%\n"
        )
        for _ in range(3):
            name, peer = f"chatcmpl-{draw.getrandbits(128):032x}", f"10.0.{draw.randrange(256)}.7"
            yield (
                f"INFO {time} [logger.py:41] Received request {name}: prompt: None, params: SamplingParams(n=1, "
                f"temperature={draw.random():.2f}, top_p=1.0, max_tokens={draw.randrange(4096)}), lora_request: None.\n"
            )
            yield f"INFO {time} [async_llm.py:270] Added request {name}.\n"
            yield f'INFO:     {peer}:{draw.randrange(1 << 16)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def nccl(rank: int = 0) -> Iterator[str]:
    """NCCL_DEBUG=INFO of eight ranks that make communicators again and again."""
    draw = random.Random(rank)
    for number in itertools.count():
        gpu = draw.randrange(8)
        head = f"gpu-a01:{41000 + gpu}:{42000 + number % 97} [{gpu}] NCCL INFO"
        comm, buffer = f"0x{draw.getrandbits(44):x}", f"0x{draw.getrandbits(44):x}"
        for channel in range(16):
            yield f"{head} Channel {channel:02d}/0 : {gpu}[{gpu}] -> {gpu ^ 1}[{gpu ^ 1}] via P2P/CUMEM/read\n"
        yield (
            f"{head} AllGather: opCount {number:x} sendbuff {buffer} recvbuff {buffer} count {draw.randrange(1 << 24)} "
            f"datatype 9 op 0 root 0 comm {comm} [nranks=8] stream {buffer}\n"
        )
        yield f"{head} Connected all rings, use ring PXN 0 GDR 1\n"
        yield f"{head} comm {comm} rank {gpu} nRanks 8 nNodes 1 localRanks 8 localRank {gpu} MNNVL 0\n"


def same_failure(rank: int = 0) -> Iterator[str]:
    """Each of 512 ranks in one file ends with the same traceback, interleaved line by line, over and over."""
    for attempt in itertools.count():
        for line in _TRACEBACK.splitlines():
            for who in range(512):
                yield line.format(rank=who, line=attempt % 1000) + "\n"


def refused(rank: int = 0) -> Iterator[str]:
    """Errors whose texts all differ: names of hosts, hashes and paths in each, as of a service that is down."""
    draw = random.Random(rank)
    for number in itertools.count():
        name, time = f"{draw.getrandbits(64):016x}", _stamp(number)
        kind = draw.choice(("fetch", "store", "lookup"))
        yield f"{time} ERROR [cache.{kind}] {name}: upload to s3://bucket/{name[:4]}/{draw.getrandbits(40):x} failed\n"
        yield f"{time} WARNING [pool] botocore.exceptions.ConnectTimeoutError: Connect timeout on endpoint {name}\n"
        yield f"{time} INFO [pool] worker {draw.getrandbits(32):08x} goes on with {draw.randrange(99)} of 99\n"


def lightning(rank: int = 0) -> Iterator[str]:
    """Bars of Lightning and tqdm, a line each, where the output is no terminal."""
    draw = random.Random(rank)
    for step in range(1 << 62):
        done = step % 1000
        bar = "█" * (done // 40) + "▏" * (done % 40 > 20)
        yield (
            f"Epoch {step // 1000}: {done // 10:3d}%|{bar:25s}| {done}/1000 [00:{done % 60:02d}<01:00, "
            f"{draw.random() * 9:.2f}it/s, v_num=3, train_loss_step={draw.random():.3f}, val_acc=0.{done:03d}]\n"
        )
        if done % 50 == 0:
            yield f"Validation DataLoader 0: {done // 10:3d}%|{bar:25s}| {done // 10}/100 [00:01<00:09, 8.31it/s]\n"


def same_error(rank: int) -> str:
    """The end of a rank that fails as all others do."""
    return _TRACEBACK.format(rank=rank, line=411)


def timeout(rank: int) -> str:
    """The end of a rank whose collective ran into the watchdog's timeout, as that of each other rank did."""
    work = "WorkNCCL(SeqNum=1017, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000)"
    ran = f"{work} ran for {600000 + rank % 97} milliseconds before timing out."
    return (
        f"[rank{rank}]:[E301 10:31:40.{714321 + rank:09d} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: {ran}\n"
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/job/train.py", line 88, in main\n[rank{rank}]:     loss.backward()\n'
        f"[rank{rank}]: torch.distributed.DistBackendError: [Rank {rank}] Watchdog caught collective operation "
        f"timeout: {ran}\n"
    )


def out_of_memory(rank: int) -> str:
    """The end of a rank that ran out of device memory, like all others."""
    lead = f"[rank{rank}]: "
    return (
        f"{lead}Traceback (most recent call last):\n"
        f'{lead}  File "/job/train.py", line 88, in main\n{lead}    loss = model(batch)\n'
        f"{lead}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank % 8} has a total "
        f"capacity of 79.15 GiB of which 1.{rank % 90 + 10} GiB is free. Process 4711 has 78.00 GiB memory in use. "
        f"Of the allocated memory 70.10 GiB is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but "
        f"unallocated.\n"
    )


ENDS: dict[str, Callable[[int], str]] = {
    "same-error": same_error, "timeout": timeout, "out-of-memory": out_of_memory
}  # fmt: skip

KINDS: dict[str, Callable[[int], Iterator[str]]] = {
    "training": training,
    "metrics": metrics,
    "dicts": dicts,
    "stamped": stamped,
    "errors": errors,
    "plain": plain,
    "progress": progress,
    "one_line": one_line,
    "utf16": training,
    "container": container,
    "records": records,
    "key_values": key_values,
    "srun": srun,
    "megatron": megatron,
    "vllm": vllm,
    "nccl": nccl,
    "same_failure": same_failure,
    "refused": refused,
    "lightning": lightning,
}
