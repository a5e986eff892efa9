"""Makes the values of an event fit the columns they are read into; what does not fit is left out and counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import orjson

from forensics.formats._json_events import event_end
from forensics.formats._kineto_columns import ARGS, NAMES, TEXTS, TIMES

_EVENT_BYTES = 1 << 18  # no place is looked for in longer events
_DECIMAL = re.compile(r"[+-]?\d{1,16}(?:\.\d{1,18})?")


Refuse = Callable[[str, Any], None]


def fitting(fields: dict[str, Any], text: bytes, refuse: Refuse) -> bytes:
    """The event with only what the columns take, and of it only values that they can hold.

    `refuse` is called with name and value of each member that is of the wrong kind or out of range. Names, processes
    and the like are kept as the text of what stands there; other values are left out.
    """
    event: dict[str, Any] = {}
    for key in TEXTS:
        value = fields.get(key)
        if isinstance(value, dict | list | bool):
            refuse(key, value)
        if value is not None:
            event[key] = value if isinstance(value, str) else orjson.dumps(value).decode()
    for key in TIMES:
        event[key] = _decimal(key, fields.get(key), text)
        if event[key] is None and fields.get(key) is not None:
            refuse(key, fields[key])
    args = fields.get("args")
    if isinstance(args, dict):
        event["args"] = _fitting_args(args, refuse)
        if fields.get("ph") == "C":
            event["args"] |= {k: v for k, v in args.items() if isinstance(v, int | float) and k not in ARGS}
    elif args is not None:
        refuse("args", args)
    return orjson.dumps(event)


def _fitting_args(args: dict[str, Any], refuse: Refuse) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in args.items():
        name = NAMES.get(key, key)
        kind = ARGS.get(name, ("", ""))[1]
        if kind == "JSON" or (kind == "VARCHAR" and isinstance(value, str)):
            kept[name] = value
        elif kind.endswith("BIGINT"):
            kept[name] = _integer(value, unsigned=kind == "UBIGINT")
        if kind and value is not None and kept.get(name) is None:
            refuse(key, value)
    return kept


def _integer(value: object, *, unsigned: bool) -> int | None:
    if isinstance(value, str):
        try:
            value = int(value, 0) if len(value) <= 24 else None
        except ValueError:
            return None
    if isinstance(value, float):
        value = int(value) if abs(value) < 2**62 else None
    low, high = (0, 2**64) if unsigned else (-(2**63), 2**63)
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value < high else None


def _decimal(key: str, value: object, text: bytes) -> str | None:
    """Microseconds as they are written: a float has lost digits."""
    if isinstance(value, str):
        return value if _DECIMAL.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 10**16:
        return None
    for found in re.finditer(rb'"' + key.encode() + rb'"\s*:\s*([+-]?\d{1,16}(?:\.\d{1,18})?)(?![\d.eE+-])', text):
        if float(found[1]) == value:
            return found[1].decode()
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class First:
    """What the first event of a piece says, as the columns hold it."""

    ts_ns: int
    texts: dict[str, str | None]


def first_event(data: bytes, start: int, end: int) -> First | None:
    """The event that begins at `start`; None where it tells no time."""
    stop = event_end(data, start, min(end, start + _EVENT_BYTES))
    text = data[start:stop] if stop > 0 else b""
    try:
        fields = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return None
    written = _decimal("ts", fields.get("ts"), text)
    if written is None:
        return None
    given = {key: fields.get(key) for key in TEXTS}
    texts = {k: v if v is None or isinstance(v, str) else orjson.dumps(v).decode() for k, v in given.items()}
    return First(int((Decimal(written) * 1000).to_integral_value(ROUND_HALF_UP)), texts)
