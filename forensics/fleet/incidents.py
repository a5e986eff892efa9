"""What makes faults of different jobs one incident: the rule and its decisive words, without what differs by run.

Ranks, steps, sizes, addresses, paths, hosts, times and random names change from run to run; the rule, the exception,
the operator and the function do not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

_TIME = re.compile(
    r"\b\d{4}[-/]\d\d[-/]\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\b(?:(?:mon|tue|wed|thu|fri|sat|sun)\w*,?\s+)?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
    r"\s+\d{1,2}(?:,?\s+\d\d:\d\d:\d\d)?\b",
    re.IGNORECASE,
)
_RANDOM = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\btmp(?=\w*[\d_])\w{6,}|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,}\b",
    re.IGNORECASE,
)
# What loggers and launchers put before a message, where nothing else stands in it. What says more, such as
# `[Errno 28]`, stays.
_LEVEL = r"(?:error|critical|fatal|severe|err|crit)"
_LABEL = (
    r"(?:local|global|rank|worker|trainer|default|gpu|cuda|device|node|host|pid|tid|thread|process|proc|stdout|stderr)"
)
_MARK = re.compile(
    rf"""\s*(?:
        \[(?:{_LEVEL}|(?:{_LABEL}|[\d\s:/|,;=\#._-])+)\]:?  # [ERROR], [rank 3], [worker 1/8 | gpu 2]
        | {_LEVEL}\b\s*[:|-]*(?=\s)                       # ERROR:
        | {_LABEL}[ _-]?\d+\s*:(?=\s)                     # rank 3:
        | \d{{1,6}}:(?=\s)                                # 12: of srun --label
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_PATH = re.compile(r"(?:[\w.~-]*/)+([\w.-]+)")
_HEX = re.compile(r"\b(?:0x)?[0-9a-fA-F]{8,}\b")
_NUMBER = re.compile(r"[-+]?\d[\d.,:e+-]*(?:\s?[KMGT]i?B|\s?[mµn]?s\b)?", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']{40,}'|\"[^\"]{40,}\"")
_WHO = re.compile(r"\b(?:all )?ranks?\b[\s#,and]*|\bthe process\b|\bon \w+(?:-\w+)*-#(?=\W|$)", re.IGNORECASE)
_READ, _LEFT = 4000, 300  # characters of a message that are looked at, and of its words
_MOST_MARKS = 6
_DECISIVE = ("where_in_code", "op", "operator", "module", "exception", "signature", "class")


def normalised(text: str) -> str:
    """The words of a message that are alike over runs."""
    shown = _PATH.sub(r"\1", _QUOTED.sub("'…'", _TIME.sub("#", text[:_READ])))
    shown = _RANDOM.sub("#", shown)
    shown = _NUMBER.sub("#", _HEX.sub("#", shown))
    return " ".join(_WHO.sub("", shown).lower().split())[:_LEFT]


def incident_of(rule: str, message: str, facts: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits. Where a rule names operator, module or code, these decide; else its sentence does."""
    named = [normalised(str(facts[name])) for name in _DECISIVE if facts.get(name)]
    return _digest(rule, *(named or [normalised(message)]))


def incident_of_error(exception: str, message: str) -> str:
    """Of an error that no rule explains; who said it, when and how loudly does not count."""
    return _digest("unknown", exception, normalised(undecorated(message)))


def undecorated(text: str) -> str:
    """A line of a log without the marks of loggers and launchers that its reader left before the message."""
    shown = text[:_READ]
    for _ in range(_MOST_MARKS):
        mark = _MARK.match(shown)
        if mark is None or not shown[mark.end() :].strip():
            break
        shown = shown[mark.end() :]
    return shown.strip()


def _digest(*words: str) -> str:
    return hashlib.blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=6).hexdigest()
