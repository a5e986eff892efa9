"""Mends JSON as profilers are known to break it, one event or one header at a time.

Mended are: quotes and backslashes that were not escaped, control bytes, invalid UTF-8, bare nan and inf, empty and
trailing members. What cannot be mended loses its `args`, then itself; it keeps its place in the order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from forensics.formats._json_events import event_end

_MEND_BYTES = 1 << 20  # longer events are not mended
_LOOKAHEAD_BYTES = 1 << 20  # how far the end of a damaged event is looked for
_NEAR_BYTES = 1 << 12
_FAR_BUDGET = 16 << 20  # of looking farther than near, for one piece

_SPACE = re.compile(rb"[\s,]*+")
_NEXT_EVENT = re.compile(rb'\}\s*,?\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|args)"\s*:)')
_AFTER_EVENT = re.compile(rb"[\s,]*+(?:\{|\Z)")
_OPEN_EVENT = re.compile(rb'\{\s*"')

_STRING = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
_TOKEN = re.compile(
    rf"(?P<string>{_STRING})"
    r"|(?P<word>[-+]?(?:nan|inf(?:inity)?)\b(?:\([a-z]*\))?)"
    r"|(?P<comma>,(?=\s*[,}\]]))"
    r"|(?P<open>[{\[])(?:\s*,)+"
    r"|(?P<colon>:)(?=\s*[,}\]])",
    re.IGNORECASE,
)
_ESCAPE = re.compile(
    r'\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))|\\(?:u[0-9a-fA-F]{4})?'
)
_CONTROL = re.compile(r"[\x00-\x1f]")
# A quote ends a string when this follows.
_AFTER_STRING = re.compile(r"\s*(?::|[}\]]|,\s*(?:[\"\d{\[\]},-]|true|false|null|nan|inf)|\Z)", re.IGNORECASE)
_AFTER_VALUE = re.compile(r'\s*(?::|[}\]]|,\s*(?:"[^"\n]{0,120}"\s*:|[}\]])|\Z)')
_ARGS = re.compile(r',?\s*"args"\s*:')


@dataclass(frozen=True)
class Mended:
    """One event of a damaged piece: `fields` is None when nothing of it could be kept."""

    start: int
    end: int
    fields: dict[str, Any] | None
    text: bytes  # the JSON that gave `fields`
    how: str  # whole | mended | stripped (without args) | lost


def split_events(data: bytes, start: int, end: int) -> Iterator[Mended]:
    """The events of a piece in order, mended where needed."""
    at = start
    budget = _FAR_BUDGET
    while True:
        opened = _next_open(data, at, end)
        if opened < 0:
            return
        event, looked_at = _event_at(data, opened, end, far=budget > 0)
        budget -= looked_at
        yield event
        at = event.end


def _next_open(data: bytes, at: int, end: int) -> int:
    space = _SPACE.match(data, at, end)
    at = space.end() if space else at
    if at < end and data[at : at + 1] == b"{":
        return at
    found = _OPEN_EVENT.search(data, at, end)
    return found.start() if found else -1


def _event_at(data: bytes, start: int, end: int, *, far: bool) -> tuple[Mended, int]:
    """The event that starts at `start`, and how far beyond the next one its end was looked for.

    Objects inside of args can look like the next event, so its end by brackets counts first, near, then far.
    """
    bound = min(end, start + _LOOKAHEAD_BYTES)
    following = _NEXT_EVENT.search(data, start, bound)
    next_stop = following.start() + 1 if following else data.rfind(b"}", start, bound) + 1
    near = min(bound, next_stop + _NEAR_BYTES)
    looked_at = 0
    closed = event_end(data, start, near)
    fields = _loads(data[start:closed]) if closed > 0 else None
    ends = fields is not None and _AFTER_EVENT.match(data, closed, end)
    if not ends and next_stop > start and (mended := mend_object(data[start:next_stop], strip=False)):
        return Mended(start, next_stop, *mended), 0
    if closed < 0 and far and near < bound:
        closed = event_end(data, start, bound)
        looked_at = bound - near
        fields = _loads(data[start:closed]) if closed > 0 else None
    if fields is not None:
        return Mended(start, closed, fields, data[start:closed], "whole"), looked_at
    for stop, strip in ((closed, False), (next_stop, True), (closed, True)):
        if stop > start and (mended := mend_object(data[start:stop], strip=strip)):
            return Mended(start, stop, *mended), looked_at
    return Mended(start, next_stop if following else end, None, b"{}", "lost"), looked_at


def mend_object(raw: bytes, *, strip: bool = True) -> tuple[dict[str, Any], bytes, str] | None:
    """The members of one JSON object, the text that holds them, and whether args had to be left out (`strip`)."""
    if len(raw) > _MEND_BYTES:
        return None
    text = raw.decode("utf-8", "replace")
    for attempt in _attempts(text):
        fields = _loads(attempt)
        if fields is not None:
            return fields, attempt, "mended"
    args = _ARGS.search(text) if strip else None
    if args:
        for attempt in _attempts(text[: args.start()] + "}"):
            fields = _loads(attempt)
            if fields is not None:
                return fields, attempt, "stripped"
    return None


def _attempts(text: str) -> Iterator[bytes]:
    yield _encoded(_tokens_mended(text))
    for after in (_AFTER_STRING, _AFTER_VALUE):
        yield _encoded(_tokens_mended(_quotes_escaped(text, after)))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _loads(text: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _tokens_mended(text: str) -> str:
    return _TOKEN.sub(_token_mended, text)


def _token_mended(found: re.Match[str]) -> str:
    if found["string"]:
        return '"' + _string_mended(found["string"][1:-1]) + '"'
    if found["word"]:
        return "null"
    if found["colon"]:
        return ": null"
    return found["open"] or ""


def _string_mended(inner: str) -> str:
    inner = _ESCAPE.sub(_escape_mended, inner) if "\\" in inner else inner
    return _CONTROL.sub(" ", inner)


def _escape_mended(found: re.Match[str]) -> str:
    escape = found[0]
    if escape == "\\":
        return "/"
    # Halves of surrogate pairs are refused even where both halves are there: rare, and only texts.
    return "?" if escape[:3] in {"\\ud", "\\uD"} and escape[3] in "89abcdefABCDEF" else escape


def _quotes_escaped(text: str, after: re.Pattern[str]) -> str:
    """Escapes quotes inside of strings, taking a quote for the end of its string only when `after` follows."""
    parts = []
    at = 0
    while (opened := text.find('"', at)) >= 0:
        parts.append(text[at : opened + 1])
        closed = text.find('"', opened + 1)
        while closed >= 0 and (_is_escaped(text, closed) or not after.match(text, closed + 1)):
            closed = text.find('"', closed + 1)
        if closed < 0:
            at = opened + 1
            break
        inner = text[opened + 1 : closed].replace('\\"', '"').replace('"', '\\"')
        parts.append(inner.replace("\n", " ") + '"')
        at = closed + 1
    parts.append(text[at:])
    return "".join(parts)


def _is_escaped(text: str, quote: int) -> bool:
    slashes = 0
    while text[quote - 1 - slashes] == "\\":
        slashes += 1
    return slashes % 2 == 1


def mend_header(raw: bytes) -> tuple[dict[str, Any], str]:
    """Top-level members out of the text before or after an array, and how: whole, mended, or in parts."""
    body = raw.strip(b" \t\r\n,\xef\xbb\xbf")
    if not body or body in {b"{", b"}"}:
        return {}, "whole"
    whole = (b"" if body.startswith(b"{") else b"{") + body
    whole += b"" if event_end(whole, 0, len(whole)) == len(whole) else b"}"
    fields = _loads(whole)
    if fields is not None:
        return fields, "whole"
    mended = mend_object(whole)
    if mended is not None:
        return mended[0], "mended"
    return _members_by_line(body.decode("utf-8", "replace")), "parts"


def _members_by_line(text: str) -> dict[str, Any]:
    """Members that stand on one line each, and the array of devices."""
    fields: dict[str, Any] = {}
    devices = re.search(r'"deviceProperties"\s*:\s*\[', text)
    if devices:
        raw = text.encode()
        start = len(text[: devices.end() - 1].encode())
        end = event_end(raw, start, len(raw))
        if end > 0:
            mended = mend_object(b'{"deviceProperties":' + raw[start:end] + b"}")
            fields.update(mended[0] if mended else {})
            text = text[: devices.start()] + "\n" + raw[end:].decode("utf-8", "replace")
    for line in text.splitlines():
        member = line.strip().rstrip(",")
        if member.startswith('"') and len(member) <= _MEND_BYTES:
            mended = mend_object(f"{{{member}}}".encode())
            fields.update(mended[0] if mended else {})
    return fields
