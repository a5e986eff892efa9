"""Masks secrets: in settings before they reach any table, and in every text that a report shows.

Model settings are full of harmless tokens and keys (`pad_token_id`, `num_key_value_heads`, `tokenizer`), so names are
judged by their words, and values by their look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MASK = "***"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = {"secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials"}
_LAST = {"token", "tokens", "key", "keys", "apikey", "pwd", "auth"}
# `OLDPWD` and `PWD` are folders; texts of tokenizers are named after what they mark.
# fmt: off
_HARMLESS = {
    "pad", "bos", "eos", "unk", "cls", "mask", "sep", "image", "audio", "video", "special", "decoder", "max", "min",
    "per", "num", "sort", "primary", "public", "new", "start", "end", "stop", "total", "text", "label", "column",
}
# fmt: on
_NO_VALUE = re.compile(r"|none|null|true|false", re.IGNORECASE)
_PLAIN_VALUE = re.compile(r"[+-]?[0-9.]{1,12}|<[^<>]{1,40}>|\[[^\]]{1,40}\]")
# Tokens of GitHub, Hugging Face, OpenAI and its likes, AWS, Slack, JSON web tokens; passwords inside URLs.
_TOKEN = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|hf_[A-Za-z0-9]{20,255}|sk-[A-Za-z0-9_-]{20,255}"
    r"|AKIA[A-Z0-9]{16}|xox[abprs]-[A-Za-z0-9-]{10,255}|glpat-[\w-]{16,255}"
    r"|AIza[\w-]{30,255}|eyJ[\w-]{10,2000}\.[\w-]{10,4000}\.[\w-]{5,1000})"
)
_IN_URL = re.compile(r"(://[^\s/:@]{0,100}:)[^\s/@]{1,200}@")
_FLAG = re.compile(
    r"(--?[A-Za-z][\w-]{0,80}(?:=| (?!-))|\b[A-Z][A-Z0-9_]{0,80}=)(\"[^\"]{0,500}\"|'[^']{0,500}'|\S{1,500})"
)


_PAIR = re.compile(
    r"([A-Za-z][\w.-]{2,80})([\"']?\s{0,3}[:=]\s{0,3})(\"[^\"\n]{4,500}\"|'[^'\n]{4,500}'|[^\s,;\"']{4,500})"
)
_HOME = re.compile(r"(?<![\w/])(/(?:home|Users)/)[^/\s\"':]+")


_masks: ContextVar[bool] = ContextVar("masks", default=True)


@contextmanager
def masking(on: bool) -> Iterator[None]:
    """Whether `mask` masks within the block."""
    before = _masks.set(on)
    try:
        yield
    finally:
        _masks.reset(before)


def is_masking() -> bool:
    return _masks.get()


def mask(text: str) -> str:
    """A text of an artifact as it may be shown: no tokens, no values of secret names, no names of home folders."""
    if not _masks.get():
        return text
    text = _PAIR.sub(_masked_pair, masked_text(text))
    return _HOME.sub(rf"\1{MASK}", text)


def _masked_pair(match: re.Match[str]) -> str:
    """A quoted value may hold pairs of its own: a message that was printed as JSON."""
    name, between, value = match.groups()
    if is_secret(name, value.strip("\"'")):
        return f"{name}{between}{MASK}"
    if value[0] in "\"'":
        value = value[0] + _PAIR.sub(_masked_pair, value[1:-1]) + value[-1]
    return f"{name}{between}{value}"


def is_secret(name: str, value: str) -> bool:
    """Whether a setting of this name and value must not be shown."""
    words = [word.lower() for word in _WORD.findall(name[:200])]
    if not words or _NO_VALUE.fullmatch(value.strip()):
        return False
    if _ALWAYS.intersection(words):
        return True
    if _PLAIN_VALUE.fullmatch(value.strip()):
        return False
    shouted = name.isupper()  # variables hold secrets anywhere in their names: HF_TOKEN, AWS_ACCESS_KEY_ID
    found = _LAST.intersection(words if shouted else words[-1:])
    return bool(found) and name.upper() not in {"PWD", "OLDPWD"} and not _HARMLESS.intersection(words)


def masked_value(name: str, value: str) -> str:
    return MASK if is_secret(name, value) else masked_text(value)


def masked_text(text: str) -> str:
    """A line, sentence or command with the secrets in it masked."""
    text = _FLAG.sub(_masked_flag, text)
    return _IN_URL.sub(rf"\1{MASK}@", _TOKEN.sub(MASK, text))


def _masked_flag(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    return name + MASK if is_secret(name[:-1].lstrip("-"), value) else match[0]
