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
        return [{"name": one.name, "total_bytes": one.total_memory} for one in found]
    except RuntimeError:  # a broken device is what the recording is for, not a reason to fail here
        return []


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
