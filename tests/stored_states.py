"""Writes small checkpoints without torch, whole or wrong in one way."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "uint8": "U8", "int8": "I8"}


def safetensors(path: Path, tensors: dict[str, Any], *, metadata: dict[str, str] | None = None) -> Path:
    """A file as the library writes it. A value is an array, or (dtype of safetensors, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, value in tensors.items():
        if isinstance(value, tuple):
            dtype, shape, content = value
        else:
            dtype, shape, content = _NAMES[str(value.dtype)], list(value.shape), value.tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return raw_safetensors(path, json.dumps(header), data)


def raw_safetensors(path: Path, header: str, data: bytes) -> Path:
    text = header.encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def adapter(
    path: Path, modules: dict[str, tuple[Any, Any]], *, prefix: str = "base_model.model.", **config: Any
) -> Path:
    """A PEFT folder at `path`: B and A of each module, and the configuration."""
    tensors = {}
    for module, (b, a) in modules.items():
        tensors[f"{prefix}{module}.lora_A.weight"] = np.asarray(a, np.float32)
        tensors[f"{prefix}{module}.lora_B.weight"] = np.asarray(b, np.float32)
    safetensors(path / "adapter_model.safetensors", tensors)
    settings = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "use_rslora": False,
    } | config
    (path / "adapter_config.json").write_text(json.dumps(settings))
    return path


def gguf(path: Path, tensors: dict[str, Any]) -> Path:
    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("tokenizer.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    data = b""
    for name, value in tensors.items():
        head += text(name) + struct.pack("<I", value.ndim)
        head += struct.pack(f"<{value.ndim}Q", *reversed(value.shape)) + struct.pack("<IQ", 0, len(data))
        data += value.tobytes() + b"\0" * (-value.nbytes % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path
