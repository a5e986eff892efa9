"""Sizes, numbers and times as people and programs write them, shared by every format that reads text.

Units of size are powers of 1024 however they are spelled: the kernel (`kB`), nvidia-smi, docker, SLURM and PyTorch
before 1.13 (`MB`) all mean that, and nothing in a text tells the rare decimal writer apart.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

_MAX_LENGTH = 64  # longer texts are no quantity; also bounds the cost of int() and Decimal()
_INT64_MAX = 2**63 - 1

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s?(?:([kmgtpe])(?:i?b|i)?|b|bytes?)?", re.IGNORECASE)
_EXPONENT = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]{1,5})?", re.IGNORECASE)
_NOT_FINITE = {
    "nan": math.nan,
    "+nan": math.nan,
    "-nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}
_TENSOR = re.compile(r"tensor\(([^,()]*)[,)]")


def parse_size(text: str) -> int | None:
    """Bytes of a text that is a size and nothing else: `40536MiB`, `1.5 GiB`, `16Gi`, `1024m`, `512 bytes`, `2269`.

    A bare number is bytes. None for anything else and for what 64 bits do not hold.
    """
    text = text.strip()
    match = _SIZE.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        return None
    factor = 1024 ** _EXPONENT[match[2].lower()] if match[2] else 1
    size = int(Decimal(match[1]) * factor)
    return size if size <= _INT64_MAX else None


def has_unit_of_size(text: str) -> bool:
    """Whether a text is a size with its unit written out, so that it cannot be a count of something else."""
    text = text.strip()
    match = _SIZE.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    return match is not None and bool(re.search(r"[bi]|bytes?$", text, re.IGNORECASE))


def parse_number(text: str) -> float | None:
    """A text that is one number, `nan` and `inf` in any spelling included, or a printed scalar tensor; else None."""
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        return None
    tensor = _TENSOR.match(text)
    if tensor is not None:
        text = tensor[1].strip()
    special = _NOT_FINITE.get(text.lower())
    if special is not None:
        return special
    return float(text) if _NUMBER.fullmatch(text) else None


def parse_quantity(text: str) -> float | None:
    """A number, or the bytes of a size whose unit is written out (`24 GB`); None for other texts."""
    number = parse_number(text)
    if number is not None:
        return number
    size = parse_size(text) if has_unit_of_size(text) else None
    return None if size is None else float(size)


@dataclass(frozen=True)
class Moment:
    ns: int  # since the epoch; of a time without a zone as if it were UTC
    zoned: bool


_ISO = re.compile(
    r"([0-9]{4})[-/]([0-9]{2})[-/]([0-9]{2})[T _]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,9}))?"
    r" ?(Z|UTC|[+-][0-9]{2}:?[0-9]{2})?"
)
_CTIME = re.compile(
    r"(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) {1,2}([0-9]{1,2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?: (UTC))? ([0-9]{4})"
)
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}


def parse_time(text: str) -> Moment | None:
    """A time with its date: ISO 8601 and its relatives (`2026/11/29 11:41:45.714`) or `Wed Aug 14 15:02:11 2024`."""
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        return None
    match = _ISO.fullmatch(text)
    if match is not None:
        year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
        fraction = int((match[7] or "").ljust(9, "0") or 0)
        return _moment((year, month, day, hour, minute, second), fraction, match[8])
    match = _CTIME.fullmatch(text)
    if match is None or match[1] not in _MONTHS:
        return None
    parts = (int(match[7]), _MONTHS[match[1]], int(match[2]), int(match[3]), int(match[4]), int(match[5]))
    return _moment(parts, 0, match[6])


def _moment(parts: tuple[int, int, int, int, int, int], fraction_ns: int, zone: str | None) -> Moment | None:
    try:
        moment = datetime(*parts, tzinfo=UTC)
    except ValueError:
        return None
    shift = timedelta(0)
    if zone and zone[0] in "+-":
        shift = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:])) * (1 if zone[0] == "+" else -1)
    seconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) - int(shift.total_seconds())
    ns = seconds * 10**9 + fraction_ns
    return Moment(ns, zone is not None) if abs(ns) <= _INT64_MAX else None


# Numbers of seconds, ms, µs and ns since the epoch do not overlap between 2001 and 2286.
_EPOCH_SCALES = ((10**9, 10**10, 10**9), (10**12, 10**13, 10**6), (10**15, 10**16, 10**3), (10**18, 10**19, 1))


def epoch_ns(value: float | int | str) -> int | None:
    """Nanoseconds of a number of seconds, ms, µs or ns since the epoch, told apart by magnitude; None out of range."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and (len(value) > _MAX_LENGTH or not _NUMBER.fullmatch(value.strip())):
        return None
    try:
        exact = Decimal(str(value))
    except (InvalidOperation, ValueError):
        return None
    for low, high, factor in _EPOCH_SCALES:
        if low <= exact < high:
            ns = int(exact * factor)
            return ns if ns <= _INT64_MAX else None
    return None
