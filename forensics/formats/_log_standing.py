"""Whether a text is a log of the job, or one that may only quote what went wrong elsewhere or before.

A log shows by its own lines that the job wrote it: times, levels, ranks, hosts, steps; or its name or folder says so.
Notes, pages and programs are written for readers: sentences, markup, code. What shows neither is unplaced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forensics.formats._log_marks import Labels
from forensics.formats._log_metrics import parse_metrics
from forensics.formats._log_prefix import parse

LOG, UNPLACED, DOCUMENT = "log", "unplaced", "document"

_LINES = 4000
_LINE_CHARACTERS = 1000

_READ_BY_PEOPLE = re.compile(r"(?i)\.(?:md|markdown|rst|adoc|textile|wiki|tex|html?|ipynb|eml|docx?|patch|diff)$")
_PROGRAM = re.compile(r"(?i)\.(?:py|pyi|pyx|sh|bash|zsh|c|cc|cpp|cxx|cu|cuh|h|hpp|go|rs|java|js|ts|lua|jl|sql|toml)$")
_NAMES_DOCUMENT = re.compile(
    r"(?i)(?<![a-z])(?:read_?me|notes?|todo|change_?log|changes|issues?|faq|licen[cs]e|contributing|news|how_?to|docs?|wiki)"
    r"(?![a-z])"
)
_NAMES_LOG = re.compile(
    r"(?i)\.(?:log|out|err|stdout|stderr|[oe]\d+)(?:\.\d{1,4})?(?:\.(?:gz|zst|xz|bz2|lz4))?$"
    r"|(?<![a-z])(?:log|logs|std_?out|std_?err|console|output|slurm|nohup|dmesg|journal|syslog|messages|kern|rank|worker"
    r"|node|train|training|trainer|server|run|job|launcher|driver|container|pod|events)(?![a-z])"
)
_FENCE = re.compile(r"\s{0,6}(?:```|~~~)")
_MARKUP = re.compile(
    r"#{1,6} \S|[-*+] \S|\d{1,3}[.)] [A-Za-z]|> ?\S|\|.*\|\s*$|(?:={3,}|-{3,}|~{3,}|\*{3,})\s*$|.*\]\(\w+://|<\w+[^>]*>\s*$"
)
_CODE = re.compile(
    r"\s*(?:(?:def|class|import|from|return|elif|except|try|with)\b.*|(?:if|for|while)\b.*:\s*$|#include\b.*|//.*|/\*.*"
    r'|[\w.]+ [+*|-]?= .+|"""|\'\'\'|[})\]]+[;,]?\s*$)$'
)
# Words by which people tell of something; logs that leave out times use few of them, and hardly ever the personal ones.
_PERSONAL = frozenset(
    {"I", "we", "my", "our", "yesterday", "today", "tried", "saw", "seen", "week", "month", "ago", "please", "thanks"}
)
_TELLING = _PERSONAL.union(
    (
        "you",
        "it",
        "your",
        "this",
        "that",
        "these",
        "those",
        "the",
        "a",
        "an",
        "was",
        "were",
        "is",
        "are",
        "did",
        "does",
    ),
    (
        "had",
        "has",
        "have",
        "been",
        "be",
        "with",
        "of",
        "to",
        "on",
        "in",
        "at",
        "after",
        "before",
        "when",
        "then",
        "but",
    ),
    ("not", "so", "because", "again", "now", "if", "there", "here", "see", "try", "got", "get", "same", "each", "once"),
)
_MIN_WORDS, _MIN_TELLING = 4, 2


def standing(name: str, text: str, labels: Labels) -> str:
    """LOG, UNPLACED or DOCUMENT. `name`: with folders; `text`: the beginning of the content."""
    folder, _, own = name.replace("!", "/").rpartition("/")
    if _PROGRAM.search(own):
        return DOCUMENT
    count = _count(text, labels)
    is_marked = count.n_marked > 2 * count.n_written
    if _READ_BY_PEOPLE.search(own) or _NAMES_DOCUMENT.search(own):
        return UNPLACED if is_marked else DOCUMENT
    if _NAMES_LOG.search(own) or is_marked:
        return LOG
    if count.is_personal and count.n_written > count.n_marked:
        return DOCUMENT
    return LOG if count.n_marked or _NAMES_LOG.search(folder) else UNPLACED


@dataclass
class _Count:
    """Lines with marks of a log, and lines written for readers; what a fence or a traceback holds is neither."""

    n_marked: int = 0
    n_written: int = 0
    is_personal: bool = False  # somebody tells of what happened, or shows it between fences


def _count(text: str, labels: Labels) -> _Count:
    count = _Count()
    is_fenced = is_traced = False
    for raw in text.splitlines()[:_LINES]:
        if not raw.strip():
            continue
        shown = raw[:_LINE_CHARACTERS]
        if _FENCE.match(shown):
            is_fenced, count.is_personal = not is_fenced, True
            count.n_written += 1
            continue
        line = parse(shown, labels)
        body = line.text.lstrip()
        if line.stamp is not None or line.level is not None or line.names_a_process or shown.startswith('{"'):
            count.n_marked += not is_fenced
        elif is_traced:
            is_traced = raw[:1].isspace()  # the line of the exception is its last
        elif body.startswith("Traceback (most recent call last)"):
            is_traced = True
        elif not is_fenced:
            _count_own(count, shown, body)
    return count


def _count_own(count: _Count, shown: str, body: str) -> None:
    spoken = [word for word in (raw.strip(".,:;!?()\"'") for raw in body.split()) if word.isalpha()]
    words = [word if word == "I" else word.lower() for word in spoken]
    is_told = len(words) >= _MIN_WORDS and sum(word in _TELLING for word in words) >= _MIN_TELLING
    if is_told or _MARKUP.match(body) or _CODE.match(shown):
        count.n_written += 1
        count.is_personal |= is_told and not _PERSONAL.isdisjoint(words)
    elif parse_metrics(body) is not None:
        count.n_marked += 1
