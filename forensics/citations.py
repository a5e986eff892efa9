"""Turns "row R of artifact A" into a place that a reader can open: file and line, byte or row, with its text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import duckdb

from forensics.artifact import Source
from forensics.finding import Evidence
from forensics.formats import formats
from forensics.redact import mask
from forensics.row_words import RowWords

_EXCERPT = 400  # characters of an artifact's text shown per place
_NAME = (4, 100)  # characters of a name that is looked for in a long text
_AROUND = 70  # characters shown on either side of it
_MOST_TELLINGS = 4  # of one error, in which a traceback is looked for
_TRACEBACK_LINES = 300  # before an error, in which its traceback is looked for
_LINE_SCAN_BYTES = 64 << 20  # files up to this size are read to find a line whose byte is not known


def _excerpt(text: str, names: Sequence[str]) -> str:
    """The beginning of a text, and where a name that the place tells of stands only beyond that, what is around it."""
    if len(text) <= _EXCERPT:
        return text
    head, begin = text[:_EXCERPT], _EXCERPT // 2
    for name in names:
        at = text.find(name) if _NAME[0] <= len(name) <= _NAME[1] and name not in head else -1
        if at >= 0:
            start = max(begin, at - _AROUND)
            return f"{text[:begin]} … {text[start : at + len(name) + _AROUND]}"
    return head


class Citations:
    """Resolves places of one case. `sources`: where each artifact id lies on disk."""

    def __init__(self, con: duckdb.DuckDBPyConnection, sources: Sequence[Source]) -> None:
        self._con = con
        self._sources = sources
        rows = con.execute("SELECT id, path, format FROM artifact ORDER BY id").fetchall()
        self._artifacts = {number: (path, kind) for number, path, kind in rows}
        self._lines = lru_cache(maxsize=4)(self._read_lines)
        self._words = RowWords(con)

    def cite(self, place: Mapping[str, Any]) -> Evidence | None:
        """`place` has `artifact_id` and any of `line`, `byte`, `row`, `text`, `note`; None without an artifact.

        `table` says whose row `row` is, where an artifact fills several tables.
        """
        artifact_id = place.get("artifact_id")
        if artifact_id is None or artifact_id not in self._artifacts:
            return None
        path, kind = self._artifacts[artifact_id]
        line, byte, row, text = place.get("line"), place.get("byte"), place.get("row"), place.get("text")
        if line is None and byte is None and row is not None:
            line, byte, text = self._look_up(artifact_id, kind, row, text, place.get("table"))
        if not text and line is not None:
            text = self._text_of_line(artifact_id, line, byte)
            if len(text) > _EXCERPT:  # a document on one line: what the event says tells more than how it begins
                text = self._message_at(artifact_id, line) or text
        if row is not None and (not text or text.startswith("{")):
            # A record of JSON is read as words; a short line of metrics as it is.
            is_long = not text or len(text) > _EXCERPT
            said = self._words.of(artifact_id, row, place.get("table"), metrics=is_long)
            text = (said if line is None else said.replace("\n", "; ")) or text  # a line is one, and numbered
        shown = _excerpt(mask(str(text or "")), [value for value in place.values() if isinstance(value, str)])
        return Evidence(artifact_id, path, line, byte, row, shown, str(place.get("note") or ""))

    def cite_call(self, place: Mapping[str, Any], cited: Evidence) -> Evidence | None:
        """Of a place that is an error in a log: the line of its traceback that is the job's own code.

        It may stand in another log of the same process, as beside an error file that is one line. None where there is
        none that stands line by line before the error.
        """
        tellings = self._con.execute(
            """
            SELECT o.artifact_id, o.line, o.stack_id
            FROM log_event AS e
            JOIN log_event AS o
                ON o.exception_id = e.exception_id AND o.proc_id IS NOT DISTINCT FROM e.proc_id
                AND o.message_id IS NOT DISTINCT FROM e.message_id
            WHERE e.artifact_id = ? AND e.row = ? AND e.line = ? AND o.stack_id IS NOT NULL AND o.line IS NOT NULL
            ORDER BY o.artifact_id <> e.artifact_id, o.row <> e.row, o.artifact_id, o.row LIMIT ?
            """,
            [cited.artifact_id, place.get("row"), cited.line, _MOST_TELLINGS],
        ).fetchall()
        return next((call for told in tellings if (call := self._call_before(*told))), None)

    def _call_before(self, artifact_id: int, line: int, stack_id: int) -> Evidence | None:
        own = next((frame for frame in self._words.frames(stack_id) if frame[3] and frame[1]), None)
        try:
            lines = self._lines(artifact_id)
        except OSError:
            return None
        if own is None:
            return None
        function, path, number, _ = own
        file, call = re.split(r"[/\\]", path or "")[-1], f", line {number}, in {function}"
        for n in range(min(line, len(lines)) - 1, max(line - _TRACEBACK_LINES, 0), -1):
            if call in lines[n - 1] and file in lines[n - 1]:
                code = lines[n] if n < line - 1 and 'File "' not in lines[n] else ""
                text = mask("\n".join(part for part in (lines[n - 1].strip(), code.strip()) if part))[:_EXCERPT]
                artifact = self._artifacts[artifact_id][0]
                return Evidence(artifact_id, artifact, n, text=text, note="the job's own call that raised it")
        return None

    def _look_up(
        self, artifact_id: int, kind: str | None, row: int, text: Any, table: str | None
    ) -> tuple[int | None, int | None, Any]:
        for name, columns in (("log_event", "line, byte"), ("sample", "line, NULL"), ("position", "line, byte")):
            if table not in {None, name} and name != "position":
                continue
            of_table = ' AND "table" = ?' if table and name == "position" else ""
            query = f"SELECT {columns} FROM {name} WHERE artifact_id = ? AND row = ? AND line IS NOT NULL{of_table}"
            known = self._con.execute(query, [artifact_id, row, *([table] if of_table else [])]).fetchone()
            if known:
                return known[0], known[1], text
        locate = getattr(formats().get(kind or ""), "locate", None)
        if locate is None:
            return None, None, text
        near = self._con.execute(
            "SELECT row, byte FROM position WHERE artifact_id = ? AND row <= ? AND byte IS NOT NULL"
            " ORDER BY row DESC LIMIT 1",
            [artifact_id, row],
        ).fetchone()
        try:
            place = locate(self._sources[artifact_id], row, near)
        except (OSError, ValueError):
            place = None
        if place is None:
            return None, None, text
        return place.line, place.byte, text or place.text

    def _message_at(self, artifact_id: int, line: int) -> str | None:
        query = (
            "SELECT exception, message FROM log WHERE artifact_id = ? AND line = ? AND message IS NOT NULL ORDER BY row"
        )
        said = self._con.execute(query, [artifact_id, line]).fetchone()
        return None if said is None else f"{said[0]}: {said[1]}" if said[0] else str(said[1])

    def _text_of_line(self, artifact_id: int, line: int, byte: int | None) -> str:
        source = self._sources[artifact_id]
        try:
            if byte is not None and source.path.stat().st_size > _LINE_SCAN_BYTES:
                with source.open() as stream:
                    while byte > 0 and (skipped := stream.read(min(byte, 1 << 20))):
                        byte -= len(skipped)
                    return stream.readline(1 << 16).decode("utf-8", "replace").strip()
            lines = self._lines(artifact_id)
        except OSError:
            return ""
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def _read_lines(self, artifact_id: int) -> list[str]:
        with self._sources[artifact_id].open() as stream:
            data = stream.read(_LINE_SCAN_BYTES)
        return data.decode("utf-8", "replace").split("\n")
