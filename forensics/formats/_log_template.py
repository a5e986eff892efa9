"""Learns from one line of numbers how to read all lines that differ from it in their digits only, as a table.

The bytes around the line's numbers become separators, so that each number is a column of a CSV file, which Arrow reads
a hundred times faster than Python. A line is of the template when its columns hold digits where those of the learned
line do; words are held to it by reading them as a column of nulls, where the words are how a null is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import csv

from forensics.formats._log_marks import Labels, Line
from forensics.formats._log_metrics import CHARACTERS, MetricReader, Shape
from forensics.formats._log_prefix import parse

MAX_COLUMNS = 256
_DIGIT = re.compile(rb"\d")
_DIGITS = re.compile(rb"\d+")
_NUMBER = re.compile(rb"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_TIME = re.compile(rb"(\d\d):(\d\d):(\d\d(?:\.\d{1,9})?)(?:,(\d{1,9}))?")
_UNFIT = re.compile(rb" across cluster\]|NCCL|\r")
_NEVER_SEPARATORS = b"0123456789.-+eE\n"
# Texts that with other digits might begin with one prefix more.
_LIKE_PREFIX = re.compile(
    r"\[(?! *\d*/? *\d*\]|(?i:epoch|step|iter|iteration|it|batch|train|training|eval)[ ,:=])|\("
    r"|\d*[-/]\d*[-/]|\d*,\d*,|\d*:\d*:\d*|[A-Z]\d"
    r"|(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERR(?:OR)?|CRITICAL|FATAL|SEVERE|STAGE|USDT|VERBOSE)[ :]\d*[-/]"
    r"|(?:kern|user|daemon|syslog|auth|authpriv) *:"
    r"|(?:slurm|srun|salloc|sbatch|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
)
_LIKE_HOST = re.compile(r"[A-Za-z][\w.-]*\d[\w.-]*: ")

_NO_DIGITS = str.maketrans("", "", "0123456789")

Span = tuple[int, int]


@dataclass(frozen=True)
class Template:
    """How to read lines as columns.

    `keys`: columns of the prefix that hold digits; `time`: hour, minute, second and, behind a comma, its fraction;
    `named`: columns of digits in names, with their texts; `mixed`: columns of letters and digits, with what they look
    like; `placed`: columns of digits that say nothing but have to stand where they do, with patterns; `numbers`: all
    other columns with digits;
    `values`: one of these for each name, or the number that every line says.
    """

    body: str  # without digits
    separators: bytes  # for bytes.translate
    convert: csv.ConvertOptions
    columns: list[str]
    keys: list[str]
    time: list[str]
    named: list[tuple[str, str]]
    mixed: list[tuple[str, bytes]]
    placed: list[tuple[str, str]]
    numbers: list[str]
    step: str | None
    values: list[str | float]
    names: list[str]
    units: list[str | None]
    printer: str | None


def looks_of(text: bytes) -> bytes:
    """A text with one digit for each run of digits."""
    return _DIGITS.sub(b"0", text)


def without_digits(text: str) -> str:
    return text.translate(_NO_DIGITS)


def learn(raw: bytes, labels: Labels, reader: MetricReader) -> Template | None:
    """The template of a line; None where lines like it have to be read one by one."""
    if labels.compose or len(raw) > CHARACTERS or _UNFIT.search(raw):
        return None
    try:
        line = parse(raw.decode(), labels)
    except UnicodeDecodeError:
        return None
    begin = len(raw) - len(line.text.encode())
    if not raw[:begin].isascii() or _may_have_more_prefixes(line, labels):
        return None
    times = _time_spans(raw, line, begin)
    if times is None:
        return None
    shape, pieces = reader.shape(line.text)
    numbers = list(_number_spans(pieces, begin))
    separators = _separators(raw, [*times, *numbers], begin)
    spans = list(_columns(raw.translate(separators)))
    if len(spans) > MAX_COLUMNS or any(start < begin < end for start, end in spans):
        return None
    return _template(raw, without_digits(line.text), separators, spans, times, line.more_stamps, numbers, shape, begin)


def _template(
    raw: bytes, body: str, separators: bytes, spans: list[Span], times: list[Span], stamps: Sequence[Span],
    numbers: list[Span], shape: Shape | None, begin: int,
) -> Template | None:  # fmt: skip
    types: dict[str, pa.DataType] = {}
    words, keys, mixed = {""}, list[str](), list[tuple[str, bytes]]()
    named, placed = list[tuple[str, str]](), list[tuple[str, str]]()
    naming = [numbers[number] for number in shape.naming] if shape else []
    for name, (start, end) in zip(map(str, range(len(spans))), spans, strict=True):
        text = raw[start:end]
        types[name] = pa.string()
        if not _DIGIT.search(text):
            types[name] = pa.null()
            words.add(text.decode())
        elif start < begin:
            if any(since <= start and end <= until for since, until in stamps):
                placed.append((name, _DIGIT.sub(rb"\\d", re.escape(text)).decode()))
            elif (start, end) not in times:
                keys.append(name)
        elif any(start < until and end > since for since, until in naming):
            named.append((name, text.decode()))
        elif _NUMBER.fullmatch(text):
            types[name] = pa.float64()
        else:
            mixed.append((name, looks_of(text)))
    column = dict(zip(spans, types, strict=True))
    time = [column.get(span) for span in times]
    number = {span: name for span, name in column.items() if types[name] == pa.float64()}
    meant = _meaning(shape, [number.get(span) for span in numbers])
    if meant is None or None in time:
        return None
    convert = csv.ConvertOptions(check_utf8=False, column_types=types, null_values=sorted(words))
    return Template(
        body, separators, convert, list(types), keys, [name for name in time if name], named, mixed, placed,
        [name for name, kind in types.items() if kind == pa.float64()], *meant,
        shape.names if shape else [], shape.units if shape else [], shape.printer if shape else None,
    )  # fmt: skip


def _meaning(shape: Shape | None, columns: list[str | None]) -> tuple[str | None, list[str | float]] | None:
    """The column of the step and those of the values; None where one is no column. `columns`: that of each number."""
    if shape is None:
        return None, []
    step = columns[shape.step] if shape.step is not None else None
    values: list[str | float | None] = [columns[number] for number in shape.numbers]
    for position, value in shape.fixed:
        values.insert(position, value)
    found = [value for value in values if value is not None]
    return None if len(found) < len(values) or (step is None) != (shape.step is None) else (step, found)


def _may_have_more_prefixes(line: Line, labels: Labels) -> bool:
    if labels.srun and line.rank is None:
        return True
    if labels.hosts and _LIKE_HOST.match(line.text):
        return True
    return _LIKE_PREFIX.match(line.text) is not None


def _time_spans(raw: bytes, line: Line, begin: int) -> list[Span] | None:
    """Where hour, minute, second and fraction of the line's stamp stand; None where that is not known."""
    if line.stamp is None:
        return []
    m = _TIME.match(raw, line.time_at) if line.time_at is not None else None
    if m is None or m.end() > begin:
        return None
    return [m.span(group) for group in (1, 2, 3, 4) if m[group]]


def _number_spans(pieces: list[str], at: int) -> Iterator[Span]:
    for index, piece in enumerate(pieces):
        size = len(piece.encode())
        if index % 2:
            yield at, at + size
        at += size


def _separators(raw: bytes, spans: list[Span], begin: int) -> bytes:
    beside = {raw[at : at + 1] for start, end in spans for at in (start - 1, end) if at >= 0}
    beside |= {b" ", raw[begin - 1 : begin] if begin else b" "}
    chosen = {byte[0] for byte in beside if byte and byte not in _NEVER_SEPARATORS} | set(range(128, 256))
    return bytes(32 if byte in chosen else byte for byte in range(256))


def _columns(text: bytes) -> Iterator[Span]:
    at = 0
    for column in text.split(b" "):
        yield at, at + len(column)
        at += len(column) + 1
