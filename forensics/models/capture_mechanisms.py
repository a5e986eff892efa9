"""How a CUDA graph capture was broken: the mechanism that a source line, frames, a message or a call tells.

The mechanisms are data: `capture_mechanisms.toml`.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

_TEXTS = ("code", "frames", "message", "call", "op")
_MAX_TEXT = 20_000  # characters of a message that are searched
_WORDS = {"code": "the line", "frames": "the frame", "message": "the message's", "call": "the call", "op": "inside of"}


@dataclass(frozen=True)
class Clues:
    """What is known of a call or an error that a capture did not survive. Empty: not known.

    code: source lines; frames: one a line, `function file`; op: names of operators and ranges around, one a line.
    """

    cls: str = ""
    code: str = ""
    frames: str = ""
    message: str = ""
    call: str = ""
    op: str = ""
    result: int | None = None
    other_thread: bool = False


@dataclass(frozen=True)
class Mechanism:
    """`offence` goes on after "a capture was broken by"; `tells`: why this mechanism and no other."""

    name: str
    offence: str
    tells: str
    fix: str
    seen: tuple[Mapping[str, Any], ...]

    def told_by(self, clues: Clues) -> str | None:
        """The words of the evidence that tell this mechanism; None where it does not hold."""
        for way in self.seen:
            words = _holds(way, clues)
            if words is not None:
                return words
        return None


def _holds(way: Mapping[str, Any], clues: Clues) -> str | None:
    if "class" in way and clues.cls not in way["class"]:
        return None
    if "result" in way and clues.result not in way["result"]:
        return None
    if way.get("thread") == "other" and not clues.other_thread:
        return None
    words = []
    for key in _TEXTS:
        if key in way:
            text = str(getattr(clues, key))[:_MAX_TEXT]
            found = re.search(way[key], text, re.MULTILINE)
            if found is None:
                return None
            begin, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
            words.append(f"{_WORDS[key]} {text[begin : end if end >= 0 else None].strip()[:160]}")
    return "; ".join(words)


@functools.cache
def mechanisms() -> tuple[Mechanism, ...]:
    """All of them, the more specific ones first."""
    text = files("forensics.models").joinpath("capture_mechanisms.toml").read_text(encoding="utf-8")
    return tuple(
        Mechanism(name, entry["offence"], entry["tells"], entry["fix"], tuple(entry["seen"]))
        for name, entry in tomllib.loads(text).items()
    )


def mechanism_of(clues: Clues) -> tuple[Mechanism, str] | None:
    """The first mechanism that holds, with the words that tell it; None: the evidence tells none apart."""
    for mechanism in mechanisms():
        words = mechanism.told_by(clues)
        if words is not None:
            return mechanism, words
    return None
