"""Offline root-cause analysis of failed PyTorch jobs.

`analyze(path)` judges what a job left behind; `Case(path)` opens a finished investigation for questions of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forensics.finding import Finding, Verdict
    from forensics.investigation import Case
    from forensics.pipeline import analyze
    from forensics.rule import rule

__version__ = "0.1.0"
__all__ = ["Case", "Finding", "Verdict", "analyze", "rule"]

_HOMES = {
    "Case": "forensics.investigation",
    "Finding": "forensics.finding",
    "Verdict": "forensics.finding",
    "analyze": "forensics.pipeline",
    "rule": "forensics.rule",
}


def __getattr__(name: str) -> Any:  # names load on first use, so that `forensics --help` stays quick
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
