"""What is kept of a message that spans several lines while it is being read, and which lines belong to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from forensics.artifact import Frame, is_user_file
from forensics.formats._log_catalogue import Match, catalogue
from forensics.formats._log_marks import Line
from forensics.formats._log_threads import THREAD, Dump

MESSAGE_CHARACTERS = 64 * 1024
CODE_CHARACTERS = 200
MAX_FRAMES = 512  # of one stack: the first and last 256 of a deeper one
# A message of which nothing came for so many lines of the log is over; its writer may have ended with it.
QUIET_LINES = {"message": 256, "frames": 4096}
CHECKED_EVERY = 128  # lines
MAX_LINES = 20_000  # of one message or traceback

FRAME = re.compile(r'(\s*)File "([^"]{1,400})", line (\d{1,9})(?:, in (.{1,300}))?\s*$')
FAULT_FRAME = re.compile(r'\s*File "([^"]{1,400})", line (\d{1,9}|\?\?\?) in (.{1,300})$')
HEADER = "Traceback (most recent call last)"
CAUSE = "The above exception was the direct cause of the following exception"
DURING = "During handling of the above exception, another exception occurred"

_TYPE = re.compile(r"([A-Za-z_][\w.]{0,200}(?:\([\w., ]{1,120}\))?)(?::(?: (.*))?)?$", re.DOTALL)
_TYPE_END = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|ExceptionGroup|Timeout|Failure|Abort|Refused|Signal)\d?(?:\(|$)"
)
_NOT_TYPES = {
    "Epoch",
    "Step",
    "Iteration",
    "Loss",
    "Training",
    "Validation",
    "Test",
    "Time",
    "Note",
    "Warning",
    "Error",
}
_LOWER_TYPES = re.compile(r"[\w.]+\.(?:timeout|error|herror|gaierror)$")

# Lines that continue a message wherever they stand directly below it.
_STRICT = re.compile(
    r"CUDA kernel errors might|For debugging consider|Compile with `?TORCH_USE|Search for `|Device-side assertion"
    r"|Exception raised from|frame #\d+|C\+\+ CapturedTraceback|#\d+ \S|Last error:|nccl[A-Z]\w+: "
    r"|\s*what\(\): |\s+- (?:\[|To our|Snapshot|Failed)|\s+#\d+ (?:started|finished) ranks"
    r"|\s+\[[\d, ]+\] (?:started|finished|joined)"
    r"|(?:Missing|Unexpected) key|\s+(?:Missing|Unexpected) key|\s+size mismatch"
    r"|\s{2,6}(?:function: '|(?:last )?reasons?: )|Available (?:full )?tokens: "
    r"|Currently allocated|Requested  |Device limit|Free \(according"
    r"|Hint: |Parameter(?:s| at| ind)|In addition, you can|making sure all|If you already have done"
    r"|Possible solutions|Compile with|Extension modules|Mismatched elements|Greatest (?:absolute|relative)"
    r"|Original Traceback|from user code|Set TORCH|You can suppress|This error "
)
# Prose that follows the first line of an exception's message.
_PROSE = re.compile(
    r"(?:This|To|Please|Try|You|If|In addition|Note|Consider|See|Make sure|Possible|Parameter|Set|Use|Check"
    r"|Alternatively|For|When|While|Expected|Got|Explanation|Developer|Open an issue|Found from|The|It|Could|Did you)\b"
    r"|\d+[.)] |[-*] "
)
_SENTENCE = re.compile(r"[a-z][a-z']*,? [\w'\"(][^|=]{0,200} \S")
_COUNTING = re.compile(r"\b(?:step|iter|iteration|epoch|loss|batch|rank)\b.{0,20}\d|\d+%")
_WRAPPED_OOM = re.compile(
    r"(?:\s*│?\s*)(?:.{0,200}(?:[KMGT]iB|bytes)\b.{0,200}(?:free|allocated|memory|capac|reserved|is\b)"
    r"|.{0,120}(?:PyTorch|PYTORCH_|unallocated|max_split_size_mb|expandable_segments|fragmentation"
    r"|environment-variables|documentation|memory in use|reserved|is free|allocated))"
)
_OPEN_ENDS = (":", ",", "(", "[", "{", " by", " and", " or", " the", " to", " of", " is", " has", " a", " with", " ")
_PROGRESS = re.compile(r"\s*\d{1,3}%\|")
_FAULT_LINE = re.compile(
    r"\s*(?:<no Python frame>|\.\.\.$|Binary file |<.{0,80}>$|Extension modules:|Python runtime state"
    r"|Current thread's C)"
)
_ECHO = re.compile(r"\s+(?:warnings\.warn|return Variable\._exec|_warn)")


@dataclass
class Block:
    """A traceback, or a message with the lines that belong to it."""

    proc: int
    kind: str  # exception | line | anomaly | fault
    first_line: int
    line: int
    byte: int | None
    ts_ns: int | None = None
    step: int | None = None
    level: str | None = None
    writer: str | None = None
    prefixed: bool = False
    marks: tuple[tuple[str, str], ...] = ()
    state: str = "frames"  # frames | message
    indent: int = 0
    frames: list[Frame] = field(default_factory=list)
    exception: str | None = None
    lines: list[str] = field(default_factory=list)
    n_characters: int = 0
    n_lines: int = 0
    last_line: int = 0  # the last one that was its own
    n_blank: int = 0
    n_foreign: int = 0
    lead: str = ""  # the line before it
    follow: str = ""  # the line after it
    context: str | None = None  # why it is harmless, or where it comes from
    facts: dict[str, int | str] = field(default_factory=dict)
    matches: list[Match] | None = None  # of its first line
    at_margin: bool = False  # inside an exception group
    at_code: bool = False  # the next line is the source line of the last frame
    own_code: str = ""
    dump: Dump | None = None  # of faulthandler
    words: list[bytes] = field(default_factory=list)  # of its lines
    next_words: bytes = b""  # of the line of its process that ended it
    decisive: int | None = None  # which of its lines names the exception's type

    @property
    def message(self) -> str:
        return "\n".join(self.lines)

    @property
    def is_plain(self) -> bool:
        """Whether it is an exception, alone and whole."""
        marked = self.at_margin or "in_group" in self.facts
        return self.kind == "exception" and self.exception is not None and not marked

    def add_frame(self, frame: Frame) -> None:
        if len(self.frames) >= MAX_FRAMES:
            del self.frames[MAX_FRAMES // 2]
        self.frames.append(frame)

    def take_code(self, text: str) -> None:
        """Keeps the source lines of the innermost frame and of the job's own innermost one: builtins have no frames."""
        if self.at_code:
            code = self.facts["code"] = text.strip()[:CODE_CHARACTERS]
            if is_user_file(self.frames[-1].file):
                self.own_code = code
            if self.own_code not in ("", code):
                self.facts["user_code"] = self.own_code
            else:
                self.facts.pop("user_code", None)
        self.at_code = False

    def append(self, text: str) -> None:
        if self.n_characters + len(text) <= MESSAGE_CHARACTERS:
            if self.lines:
                self.lines.extend([""] * self.n_blank)
            self.lines.append(text)
            self.n_characters += len(text) + 1 + self.n_blank
        self.n_blank = 0

    def start_message(self, exception: str | None, message: str, number: int, byte: int | None) -> None:
        """The decisive line: the one with the exception's type."""
        self.state, self.exception, self.line, self.byte = "message", exception, number, byte
        self.decisive = len(self.words) if number > self.first_line else 0
        if message:
            self.append(message[:MESSAGE_CHARACTERS])


class Taken(NamedTuple):
    """A line that was taken for a message: its process, number and marks."""

    proc: int
    line: int
    marks: tuple[tuple[str, str], ...]


class Before(NamedTuple):
    """The last exception of a process."""

    line: int
    exception: str | None
    context: str | None
    ts_ns: int | None = None


def record_of_traceback(above: Iterable[tuple[Line, int]]) -> tuple[Line, int] | None:
    """The record under which a traceback without a prefix stands, as `logger.exception` writes both at once.

    `above`: lines of the same process with their numbers, the nearest first. Only records of errors have tracebacks;
    what a program printed in between came later, and so may have the traceback. Native code's records have none.
    """
    for line, number in above:
        if line.stamp is not None:
            is_record = line.level in {"error", "fatal"} and not (line.writer or "").endswith(_NATIVE)
            return (line, number) if is_record else None
        goes_on = not line.text.strip() or line.text[0].isspace()
        if not goes_on or line.prefixed or line.level or FRAME.match(line.text):
            return None
    return None


_NATIVE = (".cpp", ".cc", ".cu", ".h", ".hpp")


def exception_line(text: str) -> tuple[str, str] | None:
    """Type and message of the line that ends a traceback: `package.Type: message`."""
    m = _TYPE.match(text)
    if m is None:
        return None
    name = m[1].rsplit(".", 1)[-1]
    plain = name.split("(")[0]
    camel = plain[:1].isupper() and any(letter.islower() for letter in plain)
    if plain in _NOT_TYPES or not (camel or _TYPE_END.search(name) or _LOWER_TYPES.match(m[1])):
        return None
    return m[1], (m[2] or "").strip()


def bare_exception_line(text: str) -> tuple[str, str] | None:
    """Type and message of a line that can only be the last one of an exception, with or without a traceback."""
    found = exception_line(text) if text[:1].isalpha() or text[:1] == "_" else None
    if found is None or not _TYPE_END.search(found[0]) or found[0].endswith("Warning"):
        return None
    return found if ":" in text or "." in found[0] or found[0] in _BARE else None


_BARE = {"KeyboardInterrupt", "MemoryError", "AssertionError", "StopIteration", "NotImplementedError", "SystemExit"}


_CLUSTER_ROW = re.compile(r"\s*(?:Normal|Warning) {2,}[A-Z][A-Za-z]+ {2,}\S")  # an event of Kubernetes


def continues(block: Block, line: Line) -> bool:
    """Whether a non-blank line belongs to the block's message."""
    text = line.text
    if _STRICT.match(text):
        return True
    is_row = _CLUSTER_ROW.match(text) is not None
    if block.prefixed and line.prefixed and text[:1].isspace() and _same_logger(block, line) and not is_row:
        return True  # a record of several lines whose logger puts its prefix on each of them
    if is_row or block.n_blank or ((line.prefixed or line.level) and not block.prefixed):
        return False
    last = block.lines[-1] if block.lines else ""
    if "out of memory" in block.message[:400] and len(block.lines) < 16 and _WRAPPED_OOM.match(text):
        ended = last.rstrip().endswith(("variables)", "CUDA_ALLOC_CONF"))
        # Another "out of memory" is another message: of other figures, perhaps of another device.
        return not ended and "out of memory" not in text and exception_line(text) is None
    if block.kind != "exception" or _PROGRESS.match(text) or _ECHO.match(text):
        return False
    deeper = len(text) - len(text.lstrip()) > block.indent
    same = not (line.prefixed and block.prefixed) or line.level == block.level
    open_end = last.endswith(_OPEN_ENDS) and bare_exception_line(text.strip()) is None
    return deeper or (same and (open_end or _is_prose(text[block.indent :])))


def _is_prose(text: str) -> bool:
    if _PROSE.match(text) is None and (_SENTENCE.match(text) is None or _COUNTING.search(text) is not None):
        return False
    return not catalogue().match(text)  # else it is a message of its own


def _same_logger(block: Block, line: Line) -> bool:
    return (line.writer, line.level) == (block.writer, block.level)


def take_fault(block: Block, text: str, number: int) -> bool:
    """Takes a line of a dump of faulthandler; whether it is one."""
    if thread := THREAD.match(text.strip()):
        if block.dump is not None:
            block.dump.start(thread, number)
        # Keep the crashing thread's frames, else those of the last thread, which is the main one.
        if not (block.frames and "current" in block.facts):
            block.frames.clear()
        block.state = "other" if "current" in block.facts else "frames"
        if "Current thread" in text:
            block.facts["current"] = 1
        return True
    if m := FAULT_FRAME.match(text):
        frame = Frame(m[3].strip(), m[1], int(m[2]) if m[2].isdigit() else None)
        if block.dump is not None:
            block.dump.add(frame)
        if block.state == "frames":
            block.add_frame(frame)
        return True
    return not text.strip() or _FAULT_LINE.match(text) is not None
