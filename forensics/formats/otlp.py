"""Spans of OpenTelemetry as JSON: OTLP (`resourceSpans`) as one object, a list or JSON lines, and what Python's console
exporter prints.

A span becomes a `slice` of kind `span` and a row of `span_detail` with the same number. Prompts and answers are left
out. Of a document that ends in the middle, or is damaged, the whole spans are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._lenient_json import JsonError, decode_at, parse_json
from forensics.formats._otlp_values import attributes_of, exception_of, id_of, status_of, time_of
from forensics.formats._text_lines import LineCounter, clean_text, numbered_lines, read_text

VERSION = 1
TITLE = "OpenTelemetry spans (OTLP as JSON, or printed by Python's console exporter)"
PROVIDES = ("span",)

_MAX_DOCUMENT = 128 << 20
_MAX_SPANS = 1_000_000
_BATCH = 20_000
_MAX_FAILED = 200
_HIDES = "the spans of that part"
_MARK = re.compile(rb'"resourceSpans"\s*:|"(?:trace_id|traceId)"\s*:\s*"')
_OURS = re.compile(rb'"resourceSpans"\s*:|"context"\s*:\s*\{\s*"trace_id"\s*:|"startTimeUnixNano"\s*:')
_LOGS = re.compile(rb'"resourceLogs"\s*:|"resourceMetrics"\s*:')
# Where a span may begin in a document that cannot be read as a whole.
_BEGINS = re.compile(r'\{\s*"(?=(?:traceId|spanId|name|context)")')
_SERVICE = re.compile(r'"service\.name"\s*,\s*"value"\s*:\s*\{\s*"stringValue"\s*:\s*"([^"\\]{1,200})"')


def recognise(head: Head) -> int:
    start = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start not in {b"{", b"["} or not _MARK.search(head.data) or _LOGS.search(head.data[:400]):
        return 0
    return 90 if _OURS.search(head.data) else 0


_SLICE = pa.schema(
    {
        "row": pa.int64(), "ts_ns": pa.int64(), "kind": pa.string(), "name": pa.string(), "dur_ns": pa.int64(),
        "parent_row": pa.int64(), "request": pa.string(),
    }
)  # fmt: skip
_DETAIL = pa.schema(
    {
        "row": pa.int64(), "ts_ns": pa.int64(), "trace_key": pa.string(), "span_key": pa.string(),
        "parent_key": pa.string(), "service": pa.string(), "status": pa.string(), "said": pa.string(),
        "attributes": pa.string(),
    }
)  # fmt: skip
_PLACE = pa.schema({"table": pa.string(), "row": pa.int64(), "line": pa.int64()})


@dataclass
class _Spans:
    sink: Sink
    count: int = 0
    n_odd: int = 0
    from_ns: int | None = None
    to_ns: int | None = None
    _known: dict[str, int] = field(default_factory=dict)  # row of each span's id
    _slices: list[dict[str, Any]] = field(default_factory=list)
    _details: list[dict[str, Any]] = field(default_factory=list)
    _places: list[dict[str, Any]] = field(default_factory=list)

    def add(self, span: Mapping[str, Any], service: str | None, line: int | None) -> None:
        told_context = span.get("context")
        context: Mapping[str, Any] = told_context if isinstance(told_context, Mapping) else {}
        trace = id_of(span.get("traceId") or context.get("trace_id"), "trace")
        own = id_of(span.get("spanId") or context.get("span_id"), "span")
        parent = id_of(span.get("parentSpanId") or span.get("parent_id"), "span")
        start = time_of(span.get("startTimeUnixNano", span.get("start_time")))
        end = time_of(span.get("endTimeUnixNano", span.get("end_time")))
        if not isinstance(span.get("name"), str) or start is None or self.count >= _MAX_SPANS:
            self.n_odd += 1
            return
        attributes = attributes_of(span.get("attributes"))
        status, said = status_of(span.get("status"))
        kind, message = exception_of(span.get("events"))
        told = ": ".join(part for part in (kind, message) if part) or said
        request = attributes.get("gen_ai.request.id") or attributes.get("request_id") or trace
        if own and len(self._known) < _MAX_SPANS:
            self._known[own] = self.count
        at = {"row": self.count, "ts_ns": start}
        self._slices.append(
            {**at, "kind": "span", "name": clean_text(span["name"])[:300], "parent": parent,
             "dur_ns": max(end - start, 0) if end is not None else None,
             "request": str(request)[:300] if request else None}
        )  # fmt: skip
        self._details.append(
            {**at, "trace_key": trace, "span_key": own, "parent_key": parent, "service": service, "status": status,
             "said": told, "attributes": orjson.dumps(attributes).decode()}
        )  # fmt: skip
        if line is not None:
            self._places += [{"table": "slice", "row": self.count, "line": line}]
        self.from_ns = start if self.from_ns is None else min(self.from_ns, start)
        self.to_ns = max(self.to_ns or 0, end or start)
        self.count += 1
        if len(self._details) >= _BATCH:
            self._flush_details()

    def _flush_details(self) -> None:
        if self._details:
            self.sink.emit("span_detail", pa.Table.from_pylist(self._details, schema=_DETAIL))
            self._details = []

    def close(self) -> None:
        """Emits what waits for its parent: a child is exported before the span that encloses it."""
        self._flush_details()
        for item in self._slices:
            item["parent_row"] = self._known.get(item.pop("parent") or "")
        for table, schema, rows in (("slice", _SLICE, self._slices), ("position", _PLACE, self._places)):
            for first in range(0, len(rows), _BATCH):
                self.sink.emit(table, pa.Table.from_pylist(rows[first : first + _BATCH], schema=schema))


def load(source: Source, sink: Sink) -> None:
    spans = _Spans(sink)
    whole = _load_lines(source, spans)
    if whole is None:
        whole = _load_document(source, sink, spans)
    spans.close()
    if not spans.count:
        raise ArtifactError(
            f"{source.name}: no span with a name and a start; expected resourceSpans or printed spans", byte=0
        )
    if spans.n_odd:
        sink.warn(
            "bad-spans", f"{spans.n_odd} spans have no name or no start, or are too many", "what these spans tell"
        )
    if spans.n_odd or not whole:
        sink.damaged("partial")
    sink.clock("epoch")
    sink.cover(
        "span", complete=whole and not spans.n_odd and source.damage is None, n_read=spans.count + spans.n_odd,
        n_kept=spans.count, from_ns=spans.from_ns, to_ns=spans.to_ns,
    )  # fmt: skip


def _load_lines(source: Source, spans: _Spans) -> bool | None:
    """Loads JSON lines; whether all could be read, or None when these are no JSON lines (nothing was kept then)."""
    bad = 0
    for number, text, whole in numbered_lines(source, max_chars=_MAX_DOCUMENT):
        if not text.strip():
            continue
        try:
            value = parse_json(text.lstrip("\ufeff")) if whole else None
        except JsonError:
            value = None
        if not isinstance(value, dict | list):
            if not spans.count:
                return None
            bad += 1
            if bad == 1:
                spans.sink.warn("bad-json", f"line {number}: no JSON ({text[:80]!r})", _HIDES, line=number)
            continue
        for span, service in _spans_in(value):
            spans.add(span, service, number)
    return not bad


def _load_document(source: Source, sink: Sink, spans: _Spans) -> bool:
    """Loads documents that run over lines, one or several on end; whether all of them could be read."""
    text, more = read_text(source, _MAX_DOCUMENT)
    if more:
        sink.warn("too-long", f"only the first {_MAX_DOCUMENT >> 20} MiB of the document were read", _HIDES)
    lines, at = LineCounter(text), 0
    while at < len(text):
        start = next((m.start() for m in re.finditer(r"[{\[]", text[at:])), None)
        if start is None:
            break
        at += start
        try:
            value, end = decode_at(text, at)
        except JsonError as error:
            sink.warn("bad-json", f"the document ends or is damaged at character {error.position}", _HIDES)
            _rescue(text, at, spans, lines)
            return False
        here = at
        for span, service in _spans_in(value):
            here = _find(text, span, here, end)
            spans.add(span, service, lines.at(here))
        at = end
    return not more


def _find(text: str, span: Mapping[str, Any], low: int, high: int) -> int:
    """Where a span's own id stands; the place before where it has none."""
    own = span.get("spanId")
    found = text.find(f'"{own}"', low, high) if isinstance(own, str) and own else -1
    return found if found >= 0 else low


def _rescue(text: str, at: int, spans: _Spans, lines: LineCounter) -> None:
    n_failed = 0
    for match in _BEGINS.finditer(text, at):
        if match.start() < at:
            continue
        try:
            value, end = decode_at(text, match.start())
        except JsonError:
            n_failed += 1  # each may have looked at all that follows
            if n_failed > _MAX_FAILED:
                break
            continue
        if isinstance(value, dict) and ("startTimeUnixNano" in value or "start_time" in value):
            before = list(_SERVICE.finditer(text, max(match.start() - (1 << 16), 0), match.start()))
            spans.add(value, before[-1][1] if before else None, lines.at(match.start()))
            at = end


def _spans_in(value: object) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """Every span of a document with the service that made it."""
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, Mapping):
            continue
        if "startTimeUnixNano" in item or "start_time" in item:
            resource = item.get("resource")
            yield item, _service(resource)
        for group in _lists(item, "resourceSpans"):
            service = _service(group.get("resource"))
            for scope in [*_lists(group, "scopeSpans"), *_lists(group, "instrumentationLibrarySpans")]:
                for span in _lists(scope, "spans"):
                    yield span, service


def _lists(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = value.get(key)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _service(resource: object) -> str | None:
    name = attributes_of(resource.get("attributes")).get("service.name") if isinstance(resource, Mapping) else None
    return str(name)[:200] if name else None
