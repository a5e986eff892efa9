"""Loads logs: stdout and stderr of one or many ranks, launchers, containers, schedulers, kernels.

Any text that no other format claims better is loaded as a log. Names of the events come from `signatures/*.toml`.
"""

from __future__ import annotations

import re

from forensics.artifact import Head, Sink, Source
from forensics.formats._log_catalogue import catalogue, catalogue_edition
from forensics.formats._log_encodings import encoding_of, holds_utf16
from forensics.formats._log_marks import Labels
from forensics.formats._log_metrics import parse_metrics
from forensics.formats._log_prefix import parse
from forensics.formats._log_session import Session

VERSION = 33
TITLE = "Logs of training and serving processes, launchers, schedulers and kernels (text)"
PROVIDES = (
    "log_event",
    "log_event.kernel",
    "log_event.scheduler",
    "sample",
    "sample.allocator",
    "sample.device",
    "fact",
    "thread_state",
    "compile_event",
)
edition = catalogue_edition

_ANY_TEXT = 10
_KEY_VALUES = 12
_METRICS = 30
_LOG = 40
_LINES = 400
_MIN_PRINTED = 8  # lines of an object that is printed a field a line

_KEY_VALUE = re.compile(
    r"\s*(?:- ?)?(?:[\w .()/+-]{1,60}:(?: |$)|[\w.-]{1,60}==|[A-Z_][A-Z0-9_]*=|\$ |\+ |export |\[pip3?\] )"
)
_CSV_ROW = re.compile(r"[^,\t]{0,80}(?:[,\t][^,\t]{0,80}){1,60}$")
_NAME = re.compile(r"\s*[A-Za-z_][\w ./%()\[\]-]{0,60}\s*$")
_NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)\s*%?\s*$")
_TRACEBACK = re.compile(
    r'Traceback \(most recent call last\)|^\s*File "[^"]+", line \d+, in |^Fatal Python error', re.MULTILINE
)
_STAMPED = re.compile(r"\W{0,3}\d{2,4}[-/:]\d\d|\W{0,3}(?:INFO|WARN|ERROR|DEBUG)|\[rank\d")
_TRACED = ("Traceback (", 'File "', "Fatal Python error")
_STRUCTURED_TRACE = re.compile(r"^[VIWEC]\d{4} [\d:.]+ \d+ [^\]]+\] \{\"")


def recognise(head: Head) -> int:
    """10 for any text, 40 for text with log prefixes, tracebacks or known messages, 0 for binary, JSON and CSV."""
    text = _text_of(head)
    lines = [line for line in (text or "").splitlines()[:_LINES] if line.strip()]
    if text is None or not lines or _is_document(lines, text) or _is_csv(lines) or _is_source(lines, text):
        return 0
    n_records = sum(not line.startswith("\t") for line in lines)
    if sum(_STRUCTURED_TRACE.match(line) is not None for line in lines) * 2 > n_records:
        return _ANY_TEXT
    return _confidence(text, lines)


def _confidence(text: str, lines: list[str]) -> int:
    # Lines of the same words begin with prefixes of the same kind.
    words = [line[:4000].encode("utf-8", "replace").translate(None, b"0123456789") for line in lines]
    alike = {key: _has_prefix(line) for key, line in dict(zip(words, lines, strict=True)).items()}
    n_prefixed = sum(alike[key] for key in words)
    if (any(word in text for word in _TRACED) and _TRACEBACK.search(text)) or n_prefixed * 3 > len(lines):
        return _LOG
    parsed = [parse(line[:4000], Labels()) for line in lines]
    n_metrics = sum(parse_metrics(line.text) is not None for line in parsed[:100])
    if n_metrics * 2 > min(len(parsed), 100):
        return _METRICS
    if sum(_KEY_VALUE.match(line) is not None for line in lines) * 2 > len(lines):
        return _KEY_VALUES
    # Command lines and variables tell the size of a job too, and are no messages.
    if any(m.role != "noise" and m.cls != "job.size" for line in parsed for m in catalogue().match(line.text)):
        return _LOG
    return _METRICS if n_metrics * 4 > min(len(parsed), 100) else _ANY_TEXT


def _has_prefix(text: str) -> bool:
    line = parse(text[:4000], Labels())
    return line.prefixed or line.level is not None or line.rank is not None


def _text_of(head: Head) -> str | None:
    if encoding := encoding_of(head.data):
        return head.data.decode(encoding, "replace").lstrip("\ufeff")
    sample = head.data.rstrip(b"\0")
    # A NUL here and there is what a crash leaves in a log.
    if sample.count(b"\0") * 100 > len(sample) and not holds_utf16(sample):
        return None
    control = sum(byte < 32 and byte not in b"\t\n\r\f\v\b\x1b\x07" for byte in sample[:4096])
    return None if control * 20 > len(sample[:4096]) else head.text


# Lines of programs, scripts and pages. Logs quote some, below a traceback's frames or in a banner, never mostly.
_CODE = re.compile(
    r"\s*(?:(?:def|class|import|from|return|raise|elif|except|try|else|with|fi|done|do|then|esac|export|echo|set|source)\b"
    r"|(?:if|for|while)\b.*(?::|;|\bthen|\bdo)\s*$|#!|//|/\*|#include\b|@\w+"
    r"|[\w.]+ [+*|-]?= [\w.]+[(\[{]|\w[\w.]*\([^()]*\)\s*$|</?\w+[^>]*>"
    r"|[})\]]+[;,]?\s*$)"
)
_OPENS_SOURCE = ("#!", "<!doctype", "<html", "<?xml", "version https://git-lfs", "\x89png", "%pdf", "# ")


def _is_source(lines: list[str], text: str) -> bool:
    """Whether the text is a program, a script, a page or a pointer: it may name errors, but none happened in it."""
    if _TRACEBACK.search(text):
        return False
    start = text.lstrip("\ufeff \r\n\t")[:30].lower()
    opens = start.startswith(_OPENS_SOURCE) and not start.startswith(("# help ", "# type "))  # metrics in text form
    n_code = sum(_CODE.match(line) is not None for line in lines)
    return n_code * (4 if opens else 2) > len(lines) or (opens and not any(_STAMPED.match(line) for line in lines))


def _is_document(lines: list[str], text: str) -> bool:
    """JSON: one document, or records of numbers a line; records that hold a message are a log, and so are events and
    states of Kubernetes that are printed a line each."""
    first = lines[0].lstrip("\ufeff \t")
    if len(lines) > _MIN_PRINTED and any(sign in text for sign in ('"involvedObject"', '"containerStatuses"')):
        return False
    if first.startswith("{'"):
        return False  # what a trainer prints of a step, as Python writes it
    if first.startswith("{"):
        return not (first.startswith('{"') and re.search(r'"(?:log|message|msg|textPayload)" ?: ?"', first))
    if not first.startswith("[") or first.startswith("[1,"):
        return False  # "[1,3]<stdout>:" is Open MPI's
    return re.match(r"\[\s*(?:[\[{\"]|-?\d[\d.eE+-]*\s*,|$)", text.lstrip("\ufeff \t\r\n")) is not None


def _is_csv(lines: list[str]) -> bool:
    if len(lines) < 2 or not all(_CSV_ROW.match(line) for line in lines[:50]):
        return False
    for separator in (",", "\t"):
        cells = [line.split(separator) for line in lines[:50]]
        if len(cells[0]) > 1 and len({len(row) for row in cells}) == 1 and all(map(_NAME.match, cells[0])):
            return any(_NUMBER.match(cell) for cell in cells[1])
    return False


def load(source: Source, sink: Sink) -> None:
    Session(source, sink).run()
