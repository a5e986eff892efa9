"""Tells the lines of one loop from those of another that print the same metrics: by the words in front of them.

A log holds the losses of several models, of training and of evaluation, and of comparisons at the end, under one name.
Digits, and words that every loop prints, tell nothing.
"""

from __future__ import annotations

import re

_MOST = 60  # characters
# Whole words: neither parts of paths and names with digits, nor units as in it/s.
_WORD = re.compile(r"(?<![\w./%-])[A-Za-z][A-Za-z_]*(?![\w./-])")
_TRAINING = frozenset({"train", "training"})
_PHASES = (
    dict.fromkeys(("eval", "evaluation", "evaluating", "evaluate"), "eval")
    | dict.fromkeys(("val", "valid", "validation", "validating", "dev"), "val")
    | dict.fromkeys(("test", "testing"), "test")
)
_NEUTRAL = frozenset(
    {"train", "training", "trainer", "epoch", "epochs", "ep", "step", "steps", "global", "iter", "iters", "iteration"}
    | {"iterations", "it", "batch", "batches", "loss", "average", "avg", "mean", "metrics", "stats", "progress"}
    | {"info", "debug", "warning", "log", "root", "main", "rank", "gpu", "device", "node", "worker", "process", "pid"}
    | {"time", "date", "eta", "elapsed", "at", "of", "in", "for", "and", "is", "the", "a", "to", "on", "with", "after"}
    | {"mon", "tue", "wed", "thu", "fri", "sat", "sun", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep"}
    | {"oct", "nov", "dec", "utc", "am", "pm"}
)


def printer_of(text: str) -> str | None:
    """The words in front of a line's metrics by which its printer is known again; None where there are none."""
    return " ".join(word for word in _words(text) if word not in _NEUTRAL)[:_MOST] or None


def phase_of(text: str) -> str | None:
    """eval, val or test, when the words in front of a line's metrics, or of a record, say so."""
    words = _words(text)
    phases = [_PHASES[word] for word in words if word in _PHASES]
    return phases[0] if phases and not _TRAINING.intersection(words) else None


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
