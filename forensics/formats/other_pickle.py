"""Pickles that no other format knows: named with what they hold, or with the opcode for which they are refused.

What a pickle imports or calls is never looked up (`_pickle`), so one that needs it tells nothing but that.
"""

from __future__ import annotations

import pickletools
import re

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError, Untrusted
from forensics.formats._pickle import read_pickle, shown

VERSION = 1
TITLE = "Pickle of another kind, named with what it holds, or refused with the reason"
PROVIDES = ()

_SURENESS = 16  # above texts taken for logs, which pickles of protocol 0 look like; below every reader of a kind
_MAX_BYTES = 1 << 24  # looked at
_LOOKED_AT = 1 << 14
_BINARY = re.compile(rb"\x80[\x02-\x05]")
_CHECKPOINT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how torch.save began until 1.6: several pickles follow
_OLD = re.compile(rb"[(\]}]{1,4}(?:[dl]?p0\n|[dl]?q\0)|\(?c[A-Za-z_][\w.]{0,100}\n[A-Za-z_]\w{0,100}\n|\(?[dl]p[01]\n")
_ENOUGH = 8  # opcodes of which other files do not begin by chance


def recognise(head: Head) -> int:
    data = head.data[:_LOOKED_AT]
    if data.startswith(_CHECKPOINT) or (not _BINARY.match(data) and not _OLD.match(data)):
        return 0
    n = 0
    try:
        for opcode, _, _ in pickletools.genops(data):
            n += 1
            if opcode.name == "STOP" or n >= _ENOUGH:
                return _SURENESS
    except ValueError:  # the end of what is looked at, or no opcode
        pass
    return 0


def load(source: Source, sink: Sink) -> None:
    with source.open() as stream:
        data = stream.read(_MAX_BYTES)
    try:
        pickled = read_pickle(data)
        value, error = pickled.value, pickled.error
    except ArtifactError as refusal:
        value, error = None, refusal
    if isinstance(error, Untrusted):
        why = f"a pickle of no kind known here, {error} (byte {error.byte})"
        sink.warn("refused", why, "all that it says: reading it would run what it asks for", byte=error.byte)
    elif error is not None:
        text = f"a pickle of no kind known here, damaged: {error}"
        sink.warn("damaged-pickle", text, "all that it says", byte=error.byte)
    else:
        sink.warn("not-evidence", f"a pickle of no kind known here: {shown(value, 120)}", "what it says")
    sink.damaged("unknown")
