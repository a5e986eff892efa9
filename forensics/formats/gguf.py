"""GGUF files of llama.cpp: header, tensors and their places; values of the types that are not quantized."""

from __future__ import annotations

from forensics.artifact import Head, Sink, Source
from forensics.formats._checkpoint_layout import at_places
from forensics.formats._checkpoint_rows import emit_checkpoint
from forensics.formats._gguf_layout import MAGIC, read_gguf

VERSION = 3
TITLE = "Weights of llama.cpp (GGUF)"
PROVIDES = ("checkpoint",)


def recognise(head: Head) -> int:
    return 95 if head.data.startswith(MAGIC) and len(head.data) >= 8 else 0


def load(source: Source, sink: Sink) -> None:
    with at_places(source) as (file, size):
        emit_checkpoint(read_gguf(file, size), source, sink, file)
