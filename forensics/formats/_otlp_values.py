"""Values of OTLP in JSON: attributes, ids, times and statuses, in the spellings that exporters really use.

Ids are hexadecimal in OTLP/JSON, base64 where an exporter follows the rules of protobuf instead, and carry `0x` from
Python's console exporter. Times are ns since the epoch as decimal text, or ISO 8601.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from typing import Any

from forensics.formats._lenient_json import as_float, as_int
from forensics.formats._quantities import parse_time
from forensics.formats._text_lines import clean_text
from forensics.redact import masked_value

MAX_ATTRIBUTES = 128
_MAX_TEXT = 300
_MAX_ITEMS = 64
_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]{16}|[0-9a-fA-F]{32})")
_NONE = re.compile(r"0*")
_BYTES = {"trace": 16, "span": 8}
_VALUE_KEYS = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")
# What users said and were answered: not needed to explain a failure.
_CONTENT = re.compile(r"gen_ai\.(?:prompt|completion|input\.messages|output\.messages|system_instructions)(?:\.|$)")


def id_of(value: object, kind: str) -> str | None:
    """An id as lower-case hexadecimal digits; None for an absent one or what is no id."""
    if not isinstance(value, str):
        return None
    found = _HEX.fullmatch(value)
    digits = found[1].lower() if found and len(found[1]) == 2 * _BYTES[kind] else None
    if digits is None and len(value) in {12, 24}:
        try:
            data = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return None
        digits = data.hex() if len(data) == _BYTES[kind] else None
    return None if digits is None or _NONE.fullmatch(digits) else digits


def time_of(value: object) -> int | None:
    """ns since the epoch; None for 0, which stands for unset, and for what is no time."""
    number = as_int(value, 1)
    if number is not None or not isinstance(value, str):
        return number
    moment = parse_time(value)
    return moment.ns if moment else None


def attributes_of(value: object) -> dict[str, Any]:
    """Attributes by name, whether they come as a list of keys and values or as an object."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = [
            (item.get("key"), _plain(item.get("value"))) for item in value[:MAX_ATTRIBUTES] if isinstance(item, dict)
        ]
    else:
        return {}
    found: dict[str, Any] = {}
    for name, item in pairs[:MAX_ATTRIBUTES]:
        if isinstance(name, str) and item is not None and not _CONTENT.match(name):
            found[clean_text(name)[:_MAX_TEXT]] = _stored(name, item)
    return found


def _plain(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    for key in _VALUE_KEYS:
        if key in value:
            item = value[key]
            return as_int(item) if key == "intValue" else as_float(item) if key == "doubleValue" else item
    for key in ("arrayValue", "kvlistValue"):
        if isinstance(value.get(key), Mapping):
            items = value[key].get("values")
            return str([_plain(item) for item in items[:_MAX_ITEMS]])[:_MAX_TEXT] if isinstance(items, list) else None
    return None


def _stored(name: str, value: Any) -> Any:
    number = None if isinstance(value, bool) else as_float(value)
    if isinstance(value, bool) or (number is not None and math.isfinite(number)):
        return value if isinstance(value, bool | float) or as_int(value) is not None else number
    return masked_value(name, clean_text(str(value))[:_MAX_TEXT])


def status_of(value: object) -> tuple[str | None, str | None]:
    """(ok, error or None where it is unset; its message)."""
    if not isinstance(value, Mapping):
        return None, None
    code = str(value.get("code", value.get("status_code", ""))).removeprefix("STATUS_CODE_").upper()
    said = value.get("message") or value.get("description")
    name = "error" if code in {"2", "ERROR"} else "ok" if code in {"1", "OK"} else None
    return name, clean_text(said)[:_MAX_TEXT] if isinstance(said, str) and said else None


def exception_of(events: object) -> tuple[str | None, str | None]:
    """Type and message of the first exception that the events of a span tell."""
    for event in events[:_MAX_ITEMS] if isinstance(events, list) else []:
        if isinstance(event, Mapping) and event.get("name") == "exception":
            told = attributes_of(event.get("attributes"))
            kind, said = told.get("exception.type"), told.get("exception.message")
            if kind or said:
                return str(kind)[:_MAX_TEXT] if kind else None, str(said)[:_MAX_TEXT] if said else None
    return None, None
