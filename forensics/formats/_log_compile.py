"""What torch.compile prints under TORCH_LOGS, as rows of `compile_event`.

Every line of a message carries the whole prefix, the compile id and the name of the log (`[0/1] [__recompiles]`, until
2.2 `torch._dynamo.guards.__recompiles: [DEBUG]`), so messages are put together by these, however they interleave.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Frame, Sink, Stacks
from forensics.formats._columns import clean_text
from forensics.formats._log_lines import Block, Piece
from forensics.formats._log_marks import Labels, Line
from forensics.formats._log_prefix import parse
from forensics.formats._log_processes import Processes
from forensics.formats._log_time import Clock
from forensics.formats._torch_trace_rows import quoted_frames

MAX_EVENTS = 100_000
MAX_OPEN = 256  # messages whose next line may still come
_MAX_TEXT = 4000
# Most logs hold none of these: looking for bytes costs nothing beside reading them.
_NEEDLES = (b"__recompiles", b"__graph_breaks", b"__guards", b"torch._dynamo hit config", b"kipping cudagraph")
_LINE = (
    r"__(?:recompiles|graph_breaks|guards)|torch\._dynamo hit config|kipping cudagraph"
    r"|(?:^|\]) {1,6}(?:function|last reason|reasons): "
)
_LOGGER = re.compile(r"[\w.]{1,200}\.__\w{1,40}: \[[A-Z]{1,10}\] ?")
_TAG = re.compile(rb"__(recompiles|graph_breaks|guards)(?:_verbose)?(?:\]|: \[[A-Z]{1,10}\]) ?")
_BEGINS = re.compile(
    rb"Recompiling function|Graph [Bb]reak in user code|Graph break(?:ed|ing)?:|GUARDS:"
    rb"|Graph break \(user stack suppressed|torch\._dynamo hit"
)
_RECOMPILED = re.compile(r"Recompiling function (\S{1,300}) in (\S{1,1000}):(\d{1,9})")
_LIMITED = re.compile(r"function: '([^'\n]{1,300})' \(([^()\n]{1,1000}):(\d{1,9})\)")
_SKIP = re.compile(r"[Ss]kipping cudagraphs? due to [^\n]{1,1000}")
_KINDS = {"recompiles": "recompile", "graph_breaks": "graph-break", "guards": "guards", "limit": "limit"}
_INTRODUCTION = re.compile(r"^ {0,8}triggered by the following guard failure\(s\):$|^ {0,8}- ", re.MULTILINE)
_EVENT = {
    "row": pa.int64(), "proc": pa.int32(), "ts_ns": pa.int64(), "compile_id": pa.string(), "kind": pa.string(),
    "name": pa.string(), "reason": pa.string(), "stack_id": pa.uint64(),
}  # fmt: skip
_PLACE = {"table": pa.string(), "row": pa.int64(), "line": pa.int64(), "byte": pa.int64()}


@dataclass
class _Message:
    row: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    n_characters: int = 0

    def append(self, text: str) -> None:
        if self.n_characters < 2 * _MAX_TEXT:
            self.lines.append(text[:1000])
            self.n_characters += len(text)


class CompileLines:
    def __init__(self, sink: Sink, labels: Labels, clock: Clock, processes: Processes) -> None:
        self._sink = sink
        self._labels = labels
        self._clock = clock
        self._processes = processes
        self._stacks = Stacks()
        self._rows: list[dict[str, Any]] = []
        self._places: list[dict[str, Any]] = []
        self._open: dict[tuple[int, str, str | None], _Message] = {}
        self._prefix = b""  # of the line before, up to the name of the log
        self._at: _Message | None = None  # that this line belongs to
        self.n_dropped = 0

    def read(self, block: Block) -> None:
        data = block.pieces.buffers()[2]
        content = data.to_pybytes() if data is not None else b""
        if not any(needle in content for needle in _NEEDLES):
            return
        for index in pc.indices_nonzero(pc.match_substring_regex(block.pieces, _LINE)).to_pylist():
            raw = block.raw(index)
            tag = _TAG.search(raw[:400])
            if tag and raw[: tag.end()] == self._prefix and not _BEGINS.search(raw):
                if self._at is not None:  # the prefix of the line before: so is all that it says
                    self._at.append(raw[tag.end() :].rstrip(b"\r").decode("utf-8", "replace"))
                continue
            piece = block[index]
            self._prefix = raw[: tag.end()] if tag else b""
            self._at = self._take(tag[1].decode() if tag else None, piece)

    def _take(self, tag: str | None, piece: Piece) -> _Message | None:
        """The message that a line begins or goes on with."""
        line = parse(piece.text[:8000], self._labels)
        skip = _SKIP.search(line.text)
        if skip is not None:
            self._begin("skip", piece, line).row["reason"] = clean_text(skip[0], _MAX_TEXT)
            return None
        kind = _KINDS[tag or "limit"]
        key = self._processes.number(line), kind, line.compile_id
        if _BEGINS.search(piece.text.encode()):
            if key in self._open:
                self._end(self._open.pop(key))
            elif len(self._open) >= MAX_OPEN:
                self._end(self._open.pop(next(iter(self._open))))
            self._open[key] = self._begin(kind, piece, line)
        if key in self._open:
            self._open[key].append(_LOGGER.sub("", line.text, count=1))
        return self._open.get(key)

    def _begin(self, kind: str, piece: Piece, line: Line) -> _Message:
        row: dict[str, Any] = {
            "row": len(self._rows), "proc": self._processes.number(line),
            "ts_ns": self._clock.ns(line.stamp, piece.number),
            "compile_id": line.compile_id, "kind": kind, "name": None, "reason": None, "stack_id": None,
        }  # fmt: skip
        if len(self._rows) >= MAX_EVENTS:
            self.n_dropped += 1
            return _Message(row)
        self._rows.append(row)
        self._places.append({"table": "compile_event", "row": row["row"], "line": piece.number, "byte": piece.byte})
        return _Message(row)

    def _end(self, message: _Message) -> None:
        text = "\n".join(message.lines)
        row, frames = message.row, []
        if row["kind"] == "graph-break":
            frames = quoted_frames(text + "\n\n")
        place = _RECOMPILED.search(text) or _LIMITED.search(text)
        if place is not None and int(place[3]) < 1 << 31:
            frames = [Frame(place[1], place[2], int(place[3]))]
        if row["kind"] == "recompile":
            text = _INTRODUCTION.sub("", text.partition("\n")[2] or text).strip()
        row["name"] = clean_text(frames[-1].function, 300) if frames else None
        row["reason"] = clean_text(text, _MAX_TEXT) or None
        row["stack_id"] = self._stacks.add(frames)

    def close(self, *, n_read: int) -> None:
        for message in self._open.values():
            self._end(message)
        if not self._rows:
            return
        for table, types, rows in (("compile_event", _EVENT, self._rows), ("position", _PLACE, self._places)):
            self._sink.emit(table, pa.table({n: pa.array([r[n] for r in rows], t) for n, t in types.items()}))
        stacks = self._stacks.table()
        if stacks.num_rows:
            self._sink.emit("stack", stacks)
        for proc in sorted({row["proc"] for row in self._rows}):
            n_kept = sum(row["proc"] == proc for row in self._rows)
            # A log shows what TORCH_LOGS asked for: what is absent may not have been asked for.
            self._sink.cover("compile_event", proc=proc, complete=False, n_read=n_read, n_kept=n_kept)
        if self.n_dropped:
            text = f"{self.n_dropped} further messages of torch.compile were counted, not kept"
            self._sink.warn("too-many-events", text, "recompilations, graph breaks and guards later on")
