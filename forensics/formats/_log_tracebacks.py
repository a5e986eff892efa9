"""Follows tracebacks and messages of several lines, for several interleaved processes, and hands over whole ones.

Each process has a stack of open blocks: a second traceback that begins before the first one's end (two writers without
prefixes, or one inside the other's message) does not lose the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from forensics.artifact import Frame
from forensics.formats._log_blocks import (
    CAUSE,
    CHECKED_EVERY,
    DURING,
    FRAME,
    HEADER,
    MAX_LINES,
    QUIET_LINES,
    Before,
    Block,
    Taken,
    bare_exception_line,
    continues,
    exception_line,
    take_fault,
)
from forensics.formats._log_lines import Piece
from forensics.formats._log_marks import Line
from forensics.formats._log_weave import Weave

MAX_OPEN = 64  # blocks of one process
MAX_LEAD = 6  # lines between what introduces a traceback and its header
MAX_FOREIGN = 40  # lines of others between the frames of one traceback
MAX_WOVEN = 64  # tracebacks that may have been mixed with one another

_REPEATED = re.compile(r"\s*\[Previous line repeated (\d+) more times?\]")
_MARGIN = re.compile(r"\s*\| ?")
# Lines of a group whose beginning is lost or another's.
_LOST_MARGIN = re.compile(
    r"\s{2,40}\| (?: {1,40}File \"|Traceback \(most recent|[\w.]{0,80}(?:Error|Group|Exception): )"
)
_SEPARATOR = re.compile(r"\s*\+[-+]{2,}(?: (\d+) )?[-+]*\s*$")
_IGNORED = re.compile(r"Exception ignored (?:in|on|while)|--- Logging error ---")
_OWNER = re.compile(r"(?:Exception in thread (?P<thread>[^:]{1,80})|\^?C?Process (?P<process>[\w-]{1,60})):")


class Tracebacks:
    def __init__(self, finished: Callable[[Block], None]) -> None:
        self._finished = finished
        self._open: dict[int, list[Block]] = {}
        self._last: dict[int, Before] = {}
        # What the lines before a traceback say of it, and where they stand.
        self._chain: dict[int, tuple[int, str, Before]] = {}
        self._ignored: dict[int, int] = {}
        # Processes in the middle of an exception group: its last line, and how many lines outside of it followed.
        self._groups: dict[int, tuple[int, int]] = {}
        self._owner: dict[int, tuple[int, dict[str, str]]] = {}
        self._weaves: dict[int, Weave] = {}
        self._next_check = 0
        self._recent: Taken | None = None  # the last line that was taken
        self._adopted: int | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._open or self._groups)

    def is_open_of(self, proc: int) -> bool:
        """Whether a process is in the middle of a traceback."""
        return proc in self._groups or any(block.state == "frames" for block in self._open.get(proc, ()))

    def has_open(self, proc: int) -> bool:
        return proc in self._open or proc in self._groups

    def first_open_line(self) -> int | None:
        return min((block.first_line for blocks in self._open.values() for block in blocks), default=None)

    def open(self, block: Block) -> None:
        blocks = self._open.setdefault(block.proc, [])
        if len(blocks) >= MAX_OPEN:
            self.end(blocks[0])
            blocks = self._open.setdefault(block.proc, [])
        blocks.append(block)
        self._recent = Taken(block.proc, block.first_line, block.marks)

    def leaves_alone(self, proc: int, number: int) -> bool:
        """Whether a line that begins nothing is nothing to any open block."""
        if number >= self._next_check:
            self._end_quiet(number)
        return not self._may_be_adopted(proc, number) and not self.has_open(proc)

    def _may_be_adopted(self, proc: int, number: int) -> bool:
        recent = self._recent
        return recent is not None and number - recent.line <= 1 and (proc == 0 or len(recent.marks) > 1)

    def feed(self, proc: int, line: Line, piece: Piece, make: Callable[[str], Block]) -> bool:
        """Takes a line when it belongs to an open block or opens one. `make(kind)` gives a new block at this line."""
        if piece.number >= self._next_check:
            self._end_quiet(piece.number)
        own, proc = proc, self._owner_of(proc, line, piece)
        taken = self._feed(proc, line, piece, make)
        if taken:
            marks = self._recent.marks if self._recent and proc != own else line.marks
            self._recent = Taken(proc, piece.number, marks)
        return taken

    def _end_quiet(self, number: int) -> None:
        """Ends what is over by a line, in the order in which it was over: lines may have been passed over."""
        number -= number % CHECKED_EVERY
        while self._next_check <= number and self.is_open:
            self._end_quiet_at(self._next_check)
            self._next_check += CHECKED_EVERY
        self._next_check = number + CHECKED_EVERY

    def _end_quiet_at(self, number: int) -> None:
        for blocks in list(self._open.values()):
            for block in list(blocks):
                if number - max(block.last_line, block.first_line) > QUIET_LINES.get(block.state, 256):
                    self.end(block)
        for proc, (last, _) in list(self._groups.items()):
            if number - last >= QUIET_LINES["message"]:
                self._end_group(proc)

    def message_above(self, proc: int, number: int) -> Block | None:
        """What is open of a process above a line, if that is one exception that is at its message."""
        blocks = self._open.get(proc, [])
        alone = len(blocks) == 1 and proc not in self._groups and proc not in self._weaves
        if self._may_be_adopted(proc, number) and self._recent and self._recent.proc != proc:
            return None
        return blocks[0] if alone and blocks[0].state == "message" else None

    def note_passed(self, proc: int, message: Block, number: int) -> None:
        """Takes note of an exception like another one that was passed over."""
        self._last[proc] = Before(number, message.exception, message.context)
        for pending in (self._chain, self._ignored, self._owner):
            pending.pop(proc, None)

    def end_messages(self) -> None:
        """Ends messages to which nothing more can come, as their writers are known to have ended."""
        for block in self.open_blocks:
            if block.state == "message":
                self.end(block)

    @property
    def open_blocks(self) -> list[Block]:
        return [block for blocks in self._open.values() for block in blocks]

    def end_all(self) -> None:
        for blocks in list(self._open.values()):
            for block in list(reversed(blocks)):
                self.end(block)

    def _owner_of(self, proc: int, line: Line, piece: Piece) -> int:
        """The process whose traceback a line without its mark goes on with: only the first line of a logged message
        has a prefix, and the last line of a prefixed traceback may lack it. Nothing may lie between. What carried the
        log may have marked all of its lines."""
        recent = self._recent
        if recent is None or line.prefixed or line.level or piece.number - recent.line > 1:
            return proc
        n_marks = len(line.marks)
        if recent.proc == proc or (proc and (n_marks >= len(recent.marks) or recent.marks[:n_marks] != line.marks)):
            return proc
        if any(block.state != "message" for block in self._open.get(proc, ())):
            return proc
        other = recent.proc
        blocks = self._open.get(other)
        if other == 0 or not blocks:
            return proc
        text = line.text
        in_frames = blocks[-1].state == "frames"
        if (text[:1].isspace() or exception_line(text)) if in_frames else continues(blocks[-1], line):
            self._adopted = other
        elif self._adopted != other or blocks[-1].state != "message":
            return proc
        return other

    def _feed(self, proc: int, line: Line, piece: Piece, make: Callable[[str], Block]) -> bool:
        if proc not in self._groups and _LOST_MARGIN.match(line.text):
            self._groups[proc] = (piece.number, 0)
        if proc in self._groups and not line.text.lstrip().startswith("+ Exception Group"):
            if _SEPARATOR.match(line.text):
                self._groups[proc] = (piece.number, 0)
                self._end_message(_inside(proc), line.text)
                return True
            if m := _MARGIN.match(line.text):
                self._groups[proc] = (piece.number, 0)
                line.text = line.text[m.end() :]
                proc = _inside(proc)
            else:
                self._note_outside(proc, piece.number)
        blocks = self._open.get(proc)
        top = blocks[-1] if blocks else None
        text = line.text
        if top is not None:
            top.next_words = piece.words
        if HEADER in text:
            self._open_traceback(proc, line, piece, make)
            return True
        if top is not None and proc in self._weaves and (below := self._below(top, text)):
            if text[:1].isspace() and not FRAME.match(text):
                return True  # code, which is of no use, or the message's next line
            self.end(top, text)
            top = below
        if top is not None and self._take(top, line, piece):
            top.last_line = piece.number
            top.next_words = b""
            top.words.append(piece.words)
            return True
        return self._note(proc, line, piece, make)

    def _note_outside(self, proc: int, number: int) -> None:
        """Ends a group after a few lines outside of it, which may be those of another writer."""
        last, n_outside = self._groups[proc]
        if n_outside < MAX_FOREIGN:
            self._groups[proc] = (last, n_outside + 1)
        else:
            self._end_group(proc)

    def _end_group(self, proc: int) -> None:
        self._groups.pop(proc, None)
        for block in list(reversed(self._open.get(_inside(proc), ()))):
            self.end(block)

    def _end_message(self, proc: int, text: str) -> None:
        blocks = self._open.get(proc)
        if blocks and blocks[-1].state == "message":
            self.end(blocks[-1], text)

    def _below(self, top: Block, text: str) -> Block | None:
        """The traceback that goes on with a line, where the one above it is at its message."""
        weave, blocks = self._weaves[top.proc], self._open[top.proc]
        below = blocks[-2] if len(blocks) > 1 else None
        if below is None or below not in weave or below.state != "frames" or top.state != "message":
            return None
        return below if text[:1].isspace() or bare_exception_line(text.strip()) else None

    def _open_traceback(self, proc: int, line: Line, piece: Piece, make: Callable[[str], Block]) -> None:
        text = line.text
        lead = text[: text.index(HEADER)].strip()
        blocks = self._open.get(proc)
        top = blocks[-1] if blocks else None
        inside = top is not None and top.state == "message" and lead == "Original"
        if top is not None and top.state == "message" and not inside:
            self.end(top, text)
        block = make("exception")
        block.proc, block.indent = proc, len(text) - len(text.lstrip())
        block.lead = lead or block.lead
        if lead.endswith("Exception Group"):
            if proc >= 0:
                self._groups[proc] = (piece.number, 0)
            block.indent, block.lead, block.proc = 0, "", min(proc, _inside(proc))
            top = None
        elif proc < 0:
            block.facts["in_group"] = 1
        block.at_margin = block.proc < 0
        if inside and top is not None and top.exception:
            block.facts["wrapped_by"] = top.exception
        elif top is not None and top.kind == "exception" and top.state == "frames":
            weave = self._weaves.setdefault(proc, Weave([top], list(top.frames)))
            if len(weave.blocks) < MAX_WOVEN:
                weave.blocks.append(block)
        self._set_origin(proc, block, piece.number)
        self.open(block)

    def _set_origin(self, proc: int, block: Block, number: int) -> None:
        if number - self._ignored.pop(proc, -MAX_LEAD) < MAX_LEAD:
            block.context = "ignored-exception"
        at, owner = self._owner.pop(proc, (-MAX_LEAD, {}))
        if number - at < MAX_LEAD:
            block.facts.update(owner)
        chain = self._chain.pop(proc, None)
        if chain is not None and number - chain[0] < MAX_LEAD:
            _, how, before = chain
            block.facts["chain"] = how
            block.facts["chain_line"] = before.line
            if before.exception:
                block.facts["after"] = before.exception
            block.context = block.context or before.context
            block.ts_ns = before.ts_ns if block.ts_ns is None else block.ts_ns

    def _take(self, block: Block, line: Line, piece: Piece) -> bool:
        block.n_lines += 1
        if block.n_lines > MAX_LINES:
            self.end(block, line.text)
            return False
        if block.kind == "fault":
            return take_fault(block, line.text, piece.number) or self.end(block, line.text)
        if block.state == "message":
            return self._take_message(block, line)
        return self._take_frame(block, line, piece)

    def _take_frame(self, block: Block, line: Line, piece: Piece) -> bool:
        text = line.text
        weave = self._weaves.get(block.proc)
        if m := FRAME.match(text):
            frame = Frame((m[4] or "<module>").strip(), m[2], int(m[3]))
            block.add_frame(frame)
            block.at_code = weave is None or block not in weave  # else it may be another's
            if weave is not None and block in weave:
                weave.take(block, frame)
            if not block.frames[1:]:
                block.indent = min(block.indent, max(len(m[1].expandtabs()) - 2, 0))
            return True
        if not text.strip():
            return block.kind != "anomaly" or self.end(block, text)
        indent = len(text) - len(text.lstrip())
        if indent > block.indent or _REPEATED.match(text):
            block.take_code(text)
            return True
        if block.kind == "anomaly":
            return self.end(block, text)
        if found := exception_line(text.strip()):
            block.start_message(found[0], found[1], piece.number, piece.byte)
            block.level = line.level or block.level
            if weave is not None and block in weave:
                weave.take(block)
            return True
        block.n_foreign += 1
        return block.n_foreign > MAX_FOREIGN and self.end(block, text)

    def _take_message(self, block: Block, line: Line) -> bool:
        text = line.text
        if not text.strip():
            block.n_blank += 1
            return block.n_blank <= 3 or self.end(block, text)
        if CAUSE in text or DURING in text:
            self.end(block, text)
            return False
        if block.at_margin and bare_exception_line(text):
            return self.end(block, text)  # of another group
        if block.at_margin or continues(block, line):
            block.append(text[block.indent :] if text[: block.indent].isspace() else text)
            return True
        return self.end(block, text)

    def _note(self, proc: int, line: Line, piece: Piece, make: Callable[[str], Block]) -> bool:
        """What introduces a traceback, tracebacks without a header, exceptions without a traceback."""
        text = line.text
        if (CAUSE in text or DURING in text) and proc in self._last:
            self._chain[proc] = (piece.number, "cause" if CAUSE in text else "during", self._last[proc])
            return True
        if "Exception ignored" in text or "Logging error" in text:
            if _IGNORED.match(text.strip()):
                self._ignored[proc] = piece.number
            return False
        if text.rstrip().endswith(":") and (m := _OWNER.search(text)):
            self._owner[proc] = (piece.number, {name: value for name, value in m.groupdict().items() if value})
            return False
        if (m := FRAME.match(text)) and m[4]:
            block = make("exception")
            block.proc, block.indent = proc, max(len(m[1].expandtabs()) - 2, 0)
            block.add_frame(Frame(m[4].strip(), m[2], int(m[3])))
            self.open(block)
            return True
        in_group = proc < 0
        if found := exception_line(text.strip()) if in_group else bare_exception_line(text.strip()):
            block = make("exception")
            block.proc, block.at_margin = proc, in_group
            if in_group:
                block.facts["in_group"] = 1
            block.indent = len(text) - len(text.lstrip())
            block.start_message(found[0], found[1], piece.number, piece.byte)
            self._set_origin(proc, block, piece.number)
            self.open(block)
            return True
        return False

    def end(self, block: Block, follow: str = "") -> bool:
        """Ends a block and hands it over; False, for the line at hand is not its own."""
        blocks = self._open.get(block.proc, [])
        if block in blocks:
            blocks.remove(block)
        if not blocks:
            self._open.pop(block.proc, None)
        block.follow = follow
        stream = block.proc
        block.proc = max(stream, _inside(stream))
        if block.kind == "exception":
            before = Before(block.line, block.exception, block.context, block.ts_ns)
            self._last[stream] = self._last[block.proc] = before
        weave = self._weaves.get(stream)
        if weave is None or block not in weave:
            self._finished(block)
            return False
        block.words.append(b"")
        if weave.end(block):
            del self._weaves[stream]
            for settled in weave.settled():
                self._finished(settled)
        return False


def _inside(proc: int) -> int:
    """The number under which the lines inside a process's exception group are followed: they have a margin of their
    own, so that lines of others between them do no harm. It is its own inverse."""
    return -1 - proc
