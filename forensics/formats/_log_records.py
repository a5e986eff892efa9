"""Takes the lines of a log out of the JSON records that containers and structured loggers put them in.

A record becomes the text that it holds, behind the time, rank and level that it names, in the way in which container
runtimes write them: `2026-03-01T10:00:00Z stderr F [rank3] [INFO] text`. All that reads lines then reads these.
"""

from __future__ import annotations

import json
import re
from array import array
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple

import orjson

from forensics.formats._log_marks import Labels
from forensics.formats._log_metrics import TRAINER_NAMES, normalised
from forensics.formats._log_prefix import DATE, ZONE, parse

MAX_LINES = 5000  # of one record
_TEXTS = ("log", "message", "msg", "text", "textPayload", "event")
_TIMES = ("time", "@timestamp", "timestamp", "ts", "asctime")
_LEVELS = ("level", "severity", "levelname")
_RANKS = ("rank", "global_rank", "RANK")
_STACKS = ("exc_info", "exception", "traceback", "stack_trace", "stack")
_is_iso = re.compile(DATE + ZONE).fullmatch
_NAME = re.compile(r"[A-Za-z][\w./@-]{0,60}")
_FAILED = {f"[{name}] " for name in ("WARN", "WARNING", "ERR", "ERROR", "CRITICAL", "FATAL")}
_MAX_RANK = 10**6
_EPOCH_SECONDS = range(10**9, 10**10)  # 2001 to 2286; in milliseconds: a thousand times as many


class Unwrapped(NamedTuple):
    """`text`: the lines; for each of them the number of the line before, counted from 0, and where that one starts."""

    text: bytes
    lines: array[int]
    places: array[int]


class _Keys(NamedTuple):
    """Which keys of a record say what; None where none does."""

    texts: tuple[str, ...]
    times: tuple[str, ...]
    levels: tuple[str, ...]
    ranks: tuple[str, ...]
    stacks: tuple[str, ...]
    numbers: tuple[str, ...]  # names that metrics may have, if some of them usually do


def holds_records(data: bytes) -> bool:
    return data.startswith(b'{"') or b'\n{"' in data


def unwrap(data: bytes) -> Unwrapped | None:
    """The lines with those in place of records that these hold; None where no record holds text."""
    written = data.split(b"\n")
    found = [_texts_of(raw) if raw[:2] == b'{"' else None for raw in written]
    if found.count(None) == len(found):
        return None
    lines, places = array("q", range(len(written))), array("q", accumulate(map(len, written), _next_line, initial=0))
    several = {number: len(texts) for number, texts in enumerate(found) if isinstance(texts, list)}
    if several:
        lines = array("q", chain.from_iterable(repeat(number, several.get(number, 1)) for number in lines))
        places = array("q", map(places.__getitem__, lines))
        found = ["\n".join(texts) if isinstance(texts, list) else texts for texts in found]
    parts = [text if isinstance(text, str) else _plain(raw) for raw, text in zip(written, found, strict=True)]
    return Unwrapped(_encoded("\n".join(parts)), lines, places)


def _next_line(at: int, length: int) -> int:
    return at + length + 1


def _plain(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can say
        return text.encode("utf-8", "replace")


def _texts_of(raw: bytes) -> str | list[str] | None:
    """The line of a record, or its lines."""
    try:
        record = orjson.loads(raw)
    except orjson.JSONDecodeError:
        record = _odd_record(raw)
    if type(record) is not dict:
        return None
    keys = _keys(tuple(record))
    text = record[keys.texts[0]] if keys.texts else None
    if type(text) is not str:
        text = next((value for key in keys.texts if isinstance(value := record[key], str)), None)
        if text is None:
            return None
    before = lead = ""
    if keys.times:
        time = record[keys.times[0]]
        before = f"{time} stderr F " if type(time) is str and _is_iso(time) else _time(record, keys.times)
    if keys.ranks:
        before += _rank(record[keys.ranks[0]])
    if keys.levels:
        level = next((value for key in keys.levels if (value := record[key])), None)
        lead = f"[{level.upper()}] " if isinstance(level, str) and level.isascii() and level.isalpha() else ""
    for key in keys.stacks:
        if isinstance(record[key], str):
            text = f"{text}\n{record[key]}"
    if text[-1:] == "\n":
        text = text.rstrip("\n")
    if "\n" in text:
        first, *more = text.split("\n", MAX_LINES)[:MAX_LINES]
        return [before + lead + first, *(before + part for part in more)]
    if keys.numbers and lead not in _FAILED:
        text += _numbers(record, keys.numbers)
    return before + lead + text


def _odd_record(raw: bytes) -> Any:
    """What loggers in Python write and JSON does not know: NaN, halves of surrogate pairs."""
    try:
        return json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


@lru_cache(maxsize=512)
def _keys(keys: tuple[str, ...]) -> _Keys:
    def among(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name in keys)

    texts, ranks = among(_TEXTS), among(_RANKS)
    numbers = tuple(key for key in keys if key not in {*texts, *ranks} and _NAME.fullmatch(key))
    if not any(normalised(key) in TRAINER_NAMES for key in numbers):
        numbers = ()
    return _Keys(texts, among(_TIMES), among(_LEVELS), ranks, among(_STACKS), numbers)


def _time(record: dict[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        value = record[key]
        if isinstance(value, str):
            if _is_iso(value):
                return f"{value} stderr F "
            return f"{value} " if value.isprintable() and parse(f"{value} x", Labels()).text == "x" else ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value if int(value) in _EPOCH_SECONDS else value / 1000
            if int(seconds) in _EPOCH_SECONDS:
                return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%fZ} stderr F "
    return ""


def _rank(value: object) -> str:
    if isinstance(value, str) and value.isdecimal() and len(value) < 7:
        value = int(value)
    return f"[rank{value}]: " if type(value) is int and 0 <= value < _MAX_RANK else ""


def _numbers(record: dict[str, Any], keys: tuple[str, ...]) -> str:
    """Metrics among the fields."""
    values = ((key, record[key]) for key in keys)
    return "".join(f" {key}={value}" for key, value in values if type(value) in {int, float})
