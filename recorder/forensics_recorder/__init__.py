"""Small recorders for PyTorch training code, so that the next failure leaves enough evidence.

`record(OUT, model=..., optimizer=...)` is all that a plain loop needs, `ForensicsCallback(OUT)` all that the Trainer of
Hugging Face needs. Importing this package loads nothing but the standard library; torch is used only where training
code gives a model to record.
"""

from __future__ import annotations

from typing import Any

from forensics_recorder.recorder import Halted, Options, Recorder

__all__ = ["ForensicsCallback", "Halted", "Options", "Recorder", "bundle", "record"]

record = Recorder


def __getattr__(name: str) -> Any:
    if name == "ForensicsCallback":
        from forensics_recorder.callback import ForensicsCallback

        return ForensicsCallback
    if name == "bundle":
        from forensics_recorder.bundles import bundle

        return bundle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
