"""Finds the step and the metrics that training loops print: dicts, JSON objects, `name value` and `name: value` pairs.

Lines of one loop differ in their numbers only: what a line means is worked out once for its words, and later lines with
the same words only have their numbers converted. Digits in names belong to the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from forensics.formats._log_printer import phase_of, printer_of

MAX_PAIRS = 64
MAX_STEP = 1 << 62
_MAX_SHAPES = 20_000
CHARACTERS = 8192  # of a line that are looked at

_VALUE = r"[-+]?(?:(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:nan|inf)(?:\.0)?|NaN|Inf|Infinity)"
_UNIT = r"(?: ?(ms|us|s|sec|secs|[KMGT]i?B|%|it/s|s/it|tok/s|tokens/s|samples/s)(?!\s*[:=]?\s*[-+\d.]))?"
# The digits of nan.0, as Lightning's bar prints it, are no number.
_SPLIT = re.compile(r"((?<!nan\.)(?<!inf\.)[-+]?(?:\d+(?:,\d+)*\.?\d*|(?<!nan)(?<!inf)\.\d+)(?:[eE][-+]?\d+)?)")

_STEP = re.compile(
    r"(?<![\w./-])((?:global[_ ]?|train(?:ing)?[_ ]|total[_ ])?step|iteration|iter|it)s?\b['\"]?\]?\s*[:=#]?\s*\[?\s*"
    r"(\d[\d,]*)(?![\d.]*\d*(?:it/s|s\b|ms|%))",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"(?<![\w/])ep(?:och)?\b['\"]?\s*[:=]?\s*\[?(\d+(?:\.\d+)?)\]?(?:\s*/\s*\d+)?(?:\s*\[\s*(\d+)\s*/\s*\d+\])?",
    re.IGNORECASE,
)
_DICT = re.compile(r"\{['\"][\w/ .@-]{1,80}['\"]: ?[^{}]{1,4000}\}?")
_DICT_PAIR = re.compile(rf"['\"]([\w/ .@()-]{{1,80}})['\"]: ?(?:tensor\()?['\"]?({_VALUE})(?=['\",}}\s)]|$)")
_WORD = re.compile(
    rf"(?<![\w.%/])([A-Za-z][\w./@-]{{0,60}}?(?:\.(?:mean|max|min|std|item)\(\))?)(?:\s*[:=]\s*|\s+)\[?({_VALUE}){_UNIT}"
    r"(?=[\s,;|)\]}]|$|\.(?:\s|$))"
)
# Words that belong to the name when they stand before its last word.
_BEFORE = re.compile(
    r"(?<![\w.-])((?:train(?:ing)?|val(?:id)?(?:ation)?|eval|test|lm|avg|average|mean|total|aux|grad(?:ient)?|loss|learning|weight"
    r"|consumed|batch|step|data|global batch|elapsed|tokens|peak|max|gpu|allocated|reserved|skipped)[ _])$"
)
_OF_LOSS = re.compile(r"(?<![\w.:/-])([A-Za-z][\w-]{0,20} )$")  # whose loss: teacher loss 0.3
# A whole field of a `name: value | name: value` line (Megatron).
_SEGMENT = re.compile(r"\s*([A-Za-z][\w ()/.-]{1,60}?)\s*:\s*([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?)\s*$")
_LOSS = re.compile(r"(?:^|_)loss(?:$|[._](?:avg|mean|max|min|scale|std|ema))")
# Statistics lines of servers (vLLM, SGLang, TGI): every `name: number unit` between commas.
_SERVING = re.compile(r"KV cache usage: |token usage: |throughput(?: \([\w/]+\))?: |#running-req: ")
_SERVED = re.compile(
    r"(?:^|[,.\]:] ?)\s*#?([A-Za-z][\w /-]{1,60}?)(?: \([\w/]+\))?: ([-+]?\d[\d.]*)"
    r"(?: ?(%|reqs|tokens/s|GB|GiB|ms|s))?(?=,|\.?\s*$|\. )"
)
_LOSSES = {"loss", "avg_loss", "average_loss", "mean_loss", "total_loss"}  # of training, unless the line says otherwise
_REDUCED = re.compile(r"(?:reducing (?:loss scale )?to|setting loss scale to:) (\d+(?:\.\d+)?(?:e[-+]?\d+)?)\b")
_STOP = frozenset(
    {"in", "of", "at", "to", "for", "on", "by", "from", "with", "and", "or", "than", "is", "was", "after", "before"}
    | {"about", "over", "under", "per", "up", "ok", "got", "has", "have", "the", "a", "an", "no", "not", "all", "type"}
    | {"rank", "pid", "line", "port", "version", "node", "device", "gpu", "cuda", "world", "size", "shape", "dim"}
    | {"seed", "worker", "workers", "process", "proc", "scaler"}
)
_NO_NAME = _STOP | {"now", "new", "this", "that", "its", "while", "when", "if", "then", "but"}
_NO_NAME |= {"epoch", "iter", "iteration"}
_NAMES = {
    "lr": "learning_rate",
    "learning rate": "learning_rate",
    "grad norm": "grad_norm",
    "gradient norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "gnorm": "grad_norm",
    "gradnorm": "grad_norm",
    "total_norm": "grad_norm",
    "loss scale": "loss_scale",
    "scale": "loss_scale",
    "grad_scale": "loss_scale",
    "lm loss": "loss",
    "training loss": "train_loss",
    "validation loss": "val_loss",
    "valid loss": "val_loss",
    "ep": "epoch",
    "number of skipped iterations": "skipped_iterations",
    "number of nan iterations": "nan_iterations",
}
_METRIC_WORD = re.compile(r"step|iter|loss|ep(?:och)?\b|throughput|token usage", re.IGNORECASE)
_METRIC_WORDS = ("step", "iter", "loss", "ep", "throughput", "token usage")  # what it says, in short
_STEPS = (
    "global_step",
    "step",
    "total_step",
    "training_step",
    "train_step",
    "iteration",
    "iter",
    "iterations",
    "steps",
    "it",
)
TRAINER_NAMES = frozenset({"loss", "grad_norm", "learning_rate", "epoch", "train_loss", "eval_loss", *_STEPS})


class Found(NamedTuple):
    """A named number and where it starts in the line."""

    name: str
    at: int
    text: str
    unit: str | None
    named: tuple[int, int] = (0, 0)  # where its name stands


class Metrics(NamedTuple):
    """`printer`: by what words the loop that prints such lines is known again."""

    step: int | None
    names: list[str]
    units: list[str | None]
    values: list[float]
    printer: str | None = None


class Shape(NamedTuple):
    """Which of a line's numbers is what; a fixed value where it is not a number (nan, inf).

    `naming`: the numbers that are part of names.
    """

    step: int | None
    names: list[str]
    units: list[str | None]
    numbers: list[int]
    fixed: list[tuple[int, float]]
    naming: tuple[int, ...]
    printer: str | None = None


class MetricReader:
    """Reads the metrics of lines. What lines mean follows from their words alone, so all logs may share a reader."""

    def __init__(self) -> None:
        # By the words of a line: which of its numbers are part of names; by these: what the line means.
        self._shapes: dict[tuple[str, ...], tuple[tuple[int, ...], dict[tuple[str, ...], Shape | None]]] = {}
        self._n_shapes = 0

    def read(self, text: str) -> Metrics | None:
        """Step and metrics of a line; None when it holds neither. Lines that only count give a step alone."""
        shape, pieces = self.shape(text)
        if shape is None:
            return None
        numbers = pieces[1::2]
        try:
            values = [float(numbers[i].replace(",", "")) for i in shape.numbers]
            step = None if shape.step is None else float(numbers[shape.step].replace(",", ""))
        except ValueError:
            return None
        for position, value in shape.fixed:
            values.insert(position, value)
        counted = int(step) if step is not None and 0 <= step < MAX_STEP else None
        return Metrics(counted, shape.names, shape.units, values, shape.printer)

    def shape(self, text: str) -> tuple[Shape | None, list[str]]:
        """What a line's numbers mean, and its words and numbers in turn."""
        pieces = _SPLIT.split(text[:CHARACTERS])
        words = tuple(pieces[::2])
        naming, known = self._shapes.get(words, ((), {}))
        key = tuple(pieces[2 * number + 1] for number in naming)
        if key not in known:
            if self._n_shapes >= _MAX_SHAPES:
                self._shapes.clear()
                self._n_shapes = 0
            shape = _shape_of(pieces)
            naming, known = self._shapes.setdefault(words, (shape.naming if shape else (), {}))
            key = tuple(pieces[2 * number + 1] for number in naming)
            known[key] = shape
            self._n_shapes += 1
        return known[key], pieces


@lru_cache(maxsize=1)
def metric_reader() -> MetricReader:
    """The reader of all logs."""
    return MetricReader()


def may_count(text: str) -> bool:
    """Whether a line may say a step or metrics."""
    return has_metric_word(text) and _METRIC_WORD.search(text) is not None


def has_metric_word(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _METRIC_WORDS)


def parse_metrics(text: str) -> Metrics | None:
    """Step and metrics of a single line."""
    return metric_reader().read(text)


def normalised(name: str) -> str:
    plain = re.sub(r"\s+", " ", name.strip().lower())
    return _NAMES.get(plain) or re.sub(r"[\s-]+", "_", plain.replace("()", ""))


def _shape_of(pieces: list[str]) -> Shape | None:
    """What a line means by its words; of its numbers only those that are part of names take part."""
    naming: tuple[int, ...] = ()
    while True:
        text, starts = _with_plain_numbers(pieces, naming)
        step, found, before = _find(text)
        if step is None and not found:
            return None
        spans = [item.named for item in found]
        more = tuple(n for at, n in starts.items() if any(start <= at < end for start, end in spans))
        if naming or not more:
            break
        naming = more
    phase = phase_of(before)
    named = {item.name: item for item in found[:MAX_PAIRS]}
    names, units, numbers, fixed = list[str](), list[str | None](), list[int](), list[tuple[int, float]]()
    for item in named.values():
        if item.at in starts:
            numbers.append(starts[item.at])
        elif (word := item.text.removesuffix(".0"))[-1:].isalpha():
            fixed.append((len(names), float(word)))
        else:
            continue
        names.append(f"{phase}_loss" if phase and item.name in _LOSSES else item.name)
        units.append(item.unit)
    counted = starts.get(step) if step is not None else None
    return Shape(counted, names, units, numbers, fixed, naming, printer_of(before))


def _with_plain_numbers(pieces: list[str], kept: tuple[int, ...]) -> tuple[str, dict[int, int]]:
    """A line with 1 for each number that is not kept, and which number starts where."""
    parts: list[str] = []
    starts: dict[int, int] = {}
    at = 0
    for index, piece in enumerate(pieces):
        if index % 2:
            starts[at] = index // 2
        parts.append("1" if index % 2 and index // 2 not in kept else piece)
        at += len(parts[-1])
    return "".join(parts), starts


def _find(text: str) -> tuple[int | None, list[Found], str]:
    """Where the step stands, the metrics, and what stands before them."""
    if "{" in text and (found := list(_dict_pairs(text))) and any(item.name in TRAINER_NAMES for item in found):
        steps = {item.name: item.at for item in found}
        step = next((steps[name] for name in _STEPS if name in steps), None)
        return step, [item for item in found if item.name not in _STEPS], text[: text.index("{")]
    if _SERVING.search(text):
        return None, [Found(normalised(m[1]), m.start(2), m[2], m[3], m.span(1)) for m in _SERVED.finditer(text)], ""
    step = _step(text)
    epoch = _EPOCH.search(text)
    if step is None and epoch is None and "loss" not in text.lower():
        return None, [], ""
    found = [item for item in _pairs(text) if item.name not in _STEPS and item.name != "epoch"]
    if step is None and epoch is None and not any(_LOSS.search(item.name) for item in found):
        return None, [], ""
    before = text[: found[0].named[0]] if found else ""
    if epoch is not None and found:
        found.append(Found("epoch", epoch.start(1), epoch[1], None))
        if epoch[2]:
            found.append(Found("batch", epoch.start(2), epoch[2], None))
    return step, found, before


def _step(text: str) -> int | None:
    first = None
    for m in _STEP.finditer(text):
        if first is None or m[1].lower().startswith(("global", "total")):
            first = m.start(2)
    return first


def _pairs(text: str) -> Iterator[Found]:
    if m := _REDUCED.search(text):
        yield Found("loss_scale", m.start(1), m[1], None)
        return
    offset = 0
    for segment in text.split("|")[:MAX_PAIRS]:
        if m := _SEGMENT.match(segment):
            yield Found(normalised(m[1]), offset + m.start(2), m[2], None, (offset + m.start(1), offset + m.end(1)))
        else:
            for _, m in zip(range(MAX_PAIRS), _WORD.finditer(segment), strict=False):
                if m[1].lower() not in _STOP:
                    before = _before(segment, m)
                    name = before + m[1]
                    named = (offset + m.start(1) - len(before), offset + m.end(1))
                    yield Found(normalised(name), offset + m.start(2), m[2], m[3], named)
        offset += len(segment) + 1


def _before(segment: str, word: re.Match[str]) -> str:
    """Words in front of a name that belong to it."""
    start = max(word.start() - 40, 0)
    if m := _BEFORE.search(segment, start, word.start()):
        return m[1]
    if word[1].lower() == "loss" and (m := _OF_LOSS.search(segment, start, word.start())):
        return "" if m[1].strip().lower() in _NO_NAME else m[1]
    return ""


def _dict_pairs(text: str) -> Iterator[Found]:
    for _, group in zip(range(MAX_PAIRS), _DICT.finditer(text), strict=False):
        for _, m in zip(range(MAX_PAIRS), _DICT_PAIR.finditer(group[0]), strict=False):
            named = (group.start() + m.start(1), group.start() + m.end(1))
            yield Found(normalised(m[1]), group.start() + m.start(2), m[2], None, named)
