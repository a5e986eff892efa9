"""What makes faults of different jobs one incident: the rule and its decisive words, without what differs by run.

Ranks, steps, sizes, addresses, paths, hosts and times change from run to run; the rule, the exception, the operator
and the function do not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

_PATH = re.compile(r"(?:[\w.~-]*/)+([\w.-]+)")
_HEX = re.compile(r"\b(?:0x)?[0-9a-fA-F]{8,}\b")
_NUMBER = re.compile(r"[-+]?\d[\d.,:e+-]*(?:\s?[KMGT]i?B|\s?[mµn]?s\b)?", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']{40,}'|\"[^\"]{40,}\"")
_WHO = re.compile(r"\b(?:all )?ranks?\b[\s#,and]*|\bthe process\b|\bon \w+(?:-\w+)*-#(?=\W|$)", re.IGNORECASE)
_LEFT = 300
_DECISIVE = ("where_in_code", "op", "operator", "module", "exception", "signature", "class")


def normalised(text: str) -> str:
    """The words of a message that are alike over runs."""
    shown = _PATH.sub(r"\1", _QUOTED.sub("'…'", text))
    shown = _NUMBER.sub("#", _HEX.sub("#", shown))
    return " ".join(_WHO.sub("", shown).lower().split())[:_LEFT]


def incident_of(rule: str, message: str, facts: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits. Where a rule names operator, module or code, these decide; else its sentence does."""
    named = [normalised(str(facts[name])) for name in _DECISIVE if facts.get(name)]
    return _digest(rule, *(named or [normalised(message)]))


def incident_of_error(exception: str, message: str) -> str:
    """Of an error that no rule explains."""
    return _digest("unknown", exception, normalised(message))


def _digest(*words: str) -> str:
    return hashlib.blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=6).hexdigest()
