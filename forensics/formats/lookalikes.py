"""Files that look like evidence and are none: named for what they are, with what to do about it.

Each is one entry of `LOOK_ALIKES`. A format that reads such a file wins over this one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forensics.artifact import Head, Sink, Source

VERSION = 2
TITLE = "Files that only look like evidence (pointers, other tools' traces, pages), named"
PROVIDES = ()

_SURENESS = 15  # above plain text taken for a log, below every reader that knows its own marks
_LOOKED_AT = 16 * 1024  # later members of other tools' files are content


@dataclass(frozen=True)
class LookAlike:
    name: str
    found: re.Pattern[bytes]
    advice: str
    hides: str = "nothing of the job, as far as is known"


def _start(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(?:\xef\xbb\xbf)?\s{0,100}" + pattern, re.IGNORECASE)


_JSON_START = rb"(?=\s{0,100}[\[{])"
LOOK_ALIKES = (
    LookAlike(
        "a Git LFS pointer",
        _start(rb"version https://git-lfs\.github\.com/spec/"),
        "the file itself was never fetched; run `git lfs pull` and analyze again",
        "all that the file itself would say",
    ),
    LookAlike(
        "a git-annex pointer",
        re.compile(rb"/annex/objects/[A-Z0-9]{2,20}-s\d"),
        "the file itself was never fetched; run `git annex get` and analyze again",
        "all that the file itself would say",
    ),
    LookAlike(
        "an AppleDouble file of macOS",
        re.compile(rb"\x00\x05\x16\x07\x00\x02\x00\x00"),
        "it holds a Mac's notes on the file of the same name without `._`",
    ),
    LookAlike("a folder view of the macOS Finder", re.compile(rb"\x00\x00\x00\x01Bud1"), "it can be removed"),
    LookAlike(
        "an error answer of an object store",
        _start(rb"<\?xml[^>]{0,200}>\s{0,100}<Error>\s{0,100}<Code>"),
        "the download failed and its error was saved; fetch the file again",
        "all that the file itself would say",
    ),
    LookAlike(
        "an HTML page", _start(rb"(?:<!doctype html|<html[ >])"), "pages are not read; keep what they were made of"
    ),
    LookAlike(
        "a trace of rocprof",
        re.compile(_JSON_START + rb'[\s\S]{0,16000}?(?:"BeginNs"\s*:|"name"\s*:\s*"\d+ CPU HIP API")'),
        "record with torch.profiler to have operators and kernels together",
        "what the device did",
    ),
    LookAlike(
        "a trace of VizTracer",
        re.compile(_JSON_START + rb'[\s\S]{0,16000}?(?:"viztracer_metadata"\s*:|"cat"\s*:\s*"FEE")'),
        "it tells of Python calls alone; record with torch.profiler(with_stack=True)",
        "which Python functions ran when",
    ),
    LookAlike(
        "a table of a TensorBoard profile page",
        _start(rb'\[?\s{0,100}\{"cols"\s*:\s*\[\s*\{"id"'),
        "it is drawn from a profile; keep the profile (`*.pt.trace.json`, `*.xplane.pb`)",
        "the summary of a profile",
    ),
    LookAlike(
        "a trace of the XLA profiler",
        re.compile(_JSON_START + rb'[\s\S]{0,16000}?"metadata"\s*:\s*\{\s*"highres-ticks"'),
        "record with torch.profiler",
        "what the device did",
    ),
    LookAlike(
        "a Chrome trace of a tool not known here",
        re.compile(_JSON_START + rb'[\s\S]{0,16000}?"traceEvents"\s*:\s*\[\s*\{'),
        "none of its events is of a kind that the PyTorch profiler writes",
        "what it traced",
    ),
)


def recognise(head: Head) -> int:
    return _SURENESS if _look_alike(head.data) else 0


def _look_alike(data: bytes) -> LookAlike | None:
    return next((known for known in LOOK_ALIKES if known.found.match(data[:_LOOKED_AT])), None)


def load(source: Source, sink: Sink) -> None:
    known = _look_alike(source.head(_LOOKED_AT).data)
    if known:
        sink.warn("look-alike", f"this is {known.name}: {known.advice}", known.hides)
        sink.damaged("unknown")  # named, not read
