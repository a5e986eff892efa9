"""What a run depends on: versions, variables, flags, seeds, git commit, command line, device map of the parameters."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

FORMAT = "forensics.environment/1"
# Settings of the libraries that jobs are made of; others are the user's own business.
_VARIABLES = re.compile(
    r"(?:TORCH|PYTORCH|NCCL|CUDA|CUBLAS|CUDNN|GLOO|UCX|OMP|MKL|KMP|HF|TRANSFORMERS|ACCELERATE|DEEPSPEED|DS|FSDP|VLLM|"
    r"SLURM|MASTER|TRITON|NVIDIA|TOKENIZERS|TF32|PYTHON)[A-Z0-9_]*|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK"
)
_SECRET = re.compile(r"TOKEN(?!IZERS)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|AUTH|COOKIE|PRIVATE", re.IGNORECASE)
_PACKAGES = (
    "torch", "torchvision", "transformers", "accelerate", "peft", "datasets", "deepspeed", "lightning",
    "pytorch-lightning", "bitsandbytes", "flash-attn", "xformers", "triton", "numpy", "safetensors", "tokenizers",
    "vllm", "transformer-engine", "apex", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12",
)  # fmt: skip
_MAX_PARAMETERS = 20_000


def environment(header: dict[str, Any]) -> dict[str, Any]:
    """Facts as one object; secrets are left out by name."""
    known = {key: value for key, value in os.environ.items() if _VARIABLES.fullmatch(key) and not _SECRET.search(key)}
    facts = header | {
        "format": FORMAT,
        "command": " ".join(sys.orig_argv),
        "cwd": str(Path.cwd()),
        "versions": {"python": platform.python_version(), "kernel": platform.release()} | _versions(),
        "env": dict(sorted(known.items())),
        "git": _git(),
        "cpus": _cpus(),
    }
    torch = sys.modules.get("torch")
    return facts | ({"flags": _flags(torch), "devices": _devices(torch)} if torch is not None else {})


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        found |= {
            name: str(value) for name, value in (("cuda", torch.version.cuda), ("hip", torch.version.hip)) if value
        }
    return found


def _cpus() -> dict[str, Any]:
    """Processors of the machine, those that this process may use, its cgroup's limit, and those of each NUMA node."""
    facts: dict[str, Any] = {"count": os.cpu_count()}
    if hasattr(os, "sched_getaffinity"):
        facts["allowed"] = _ranges(sorted(os.sched_getaffinity(0)))
    facts["cpu_max"] = _first_line(Path("/sys/fs/cgroup/cpu.max"))
    for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))[:64]:
        facts[f"{node.name}_cpus"] = _first_line(node / "cpulist")
    return {key: value for key, value in facts.items() if value}


def _ranges(numbers: list[int]) -> str:
    """0-3,8 for 0, 1, 2, 3, 8, as the kernel writes lists of processors."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().split("\n", 1)[0].strip() or None
    except OSError:
        return None


def _git() -> dict[str, str]:
    def ask(*words: str) -> str:
        done = subprocess.run(("git", *words), capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
        return done.stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "dirty": str(bool(ask("status", "--porcelain", "-uno"))).lower()}
    except (OSError, subprocess.SubprocessError):
        return {}


def _flags(torch: Any) -> dict[str, Any]:
    """What decides about precision and repeatability."""
    read = {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "matmul_precision": torch.get_float32_matmul_precision,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "cudnn_allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
        "matmul_allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
        "matmul_reduced_precision_reduction": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "default_dtype": lambda: str(torch.get_default_dtype()).rpartition(".")[2],
        "anomaly_mode": torch.is_anomaly_enabled,
        "torch_seed": torch.initial_seed,
        "threads": torch.get_num_threads,
    }
    known: dict[str, Any] = {}
    for name, ask in read.items():
        try:
            known[name] = ask()
        except (AttributeError, RuntimeError):
            continue
    return known | {"python_hash_seed": os.environ.get("PYTHONHASHSEED", "random")}


def _devices(torch: Any) -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    try:
        found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return [{"name": one.name, "total_bytes": one.total_memory} | _near(one) for one in found]
    except RuntimeError:  # a broken device is what the recording is for, not a reason to fail here
        return []


def _near(device: Any) -> dict[str, str]:
    """Processors on the device's own side of the machine, as the kernel lists them."""
    if not hasattr(device, "pci_bus_id"):
        return {}
    domain, slot = getattr(device, "pci_domain_id", 0), getattr(device, "pci_device_id", 0)
    place = f"{domain:04x}:{device.pci_bus_id:02x}:{slot:02x}.0"
    near = _first_line(Path("/sys/bus/pci/devices") / place / "local_cpulist")
    return {"local_cpus": near} if near else {}


def device_map(model: Any, declared: Any = None) -> list[dict[str, Any]]:
    """One object a parameter, buffer and plain attribute: where it is, against the map of prefixes to devices."""
    from forensics_recorder.gradients import plain_attributes

    declared = declared if declared is not None else getattr(model, "hf_device_map", None)
    rows = []
    held = (("parameter", model.named_parameters()), ("buffer", model.named_buffers()))
    for kind, named in (*held, ("attribute", plain_attributes(model))):
        for name, tensor in named:
            row = {"name": name, "role": kind, "device": str(tensor.device), "shape": list(tensor.shape)}
            row |= {"dtype": str(tensor.dtype).rpartition(".")[2], "contiguous": tensor.is_contiguous()}
            row |= {"addr": tensor.data_ptr() if tensor.device.type != "meta" else 0}
            row |= {"requires_grad": tensor.requires_grad}
            if isinstance(declared, dict):
                prefix = max(
                    (p for p in declared if name == p or name.startswith(f"{p}.") or p == ""), key=len, default=None
                )
                row["declared"] = None if prefix is None else str(declared[prefix])
            rows.append(row)
            if len(rows) >= _MAX_PARAMETERS:
                return rows
    return rows
