"""Masks secrets in what reports show: tokens, keys, passwords, home folders."""

from __future__ import annotations

import re

_NAMED = re.compile(
    r"(?i)\b([\w.-]*(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|credential)[\w.-]*)(\s*[=:]\s*|\s+)"
    r"(?!\*\*\*)(\"[^\"\n]{4,}\"|'[^'\n]{4,}'|[^\s,;\"']{4,})"
)
# Token forms that services document: Hugging Face, GitHub, OpenAI-like, Slack, AWS key ids, JSON web tokens.
_SHAPED = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})"
)
_USERINFO = re.compile(r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)")
_HOME = re.compile(r"(?<![\w/])(/(?:home|Users)/)[^/\s\"':]+")
# Words that logs put behind a "token"-like name without it being a secret: counts, None, ids.
_HARMLESS = re.compile(r"^[\"']?(?:none|null|true|false|[\d.,:\[\]()]+|<[^>]*>)[\"']?$", re.IGNORECASE)


def mask(text: str) -> str:
    """The text with secrets replaced by *** and home folders by /home/***."""

    def named(match: re.Match[str]) -> str:
        if _HARMLESS.match(match[3]) or (match[2].isspace()):
            return match[0]
        return f"{match[1]}{match[2]}***"

    return _HOME.sub(r"\1***", _USERINFO.sub("***", _SHAPED.sub("***", _NAMED.sub(named, text))))
