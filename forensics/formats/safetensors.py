"""safetensors files: weights, adapters, shards of sharded checkpoints."""

from __future__ import annotations

from forensics.artifact import Head, Sink, Source
from forensics.formats._checkpoint_layout import at_places
from forensics.formats._checkpoint_rows import emit_checkpoint
from forensics.formats._safetensors_layout import is_safetensors, read_safetensors

VERSION = 3
TITLE = "Weights and adapters (safetensors)"
PROVIDES = ("checkpoint",)


def recognise(head: Head) -> int:
    return 90 if is_safetensors(head.data) else 0


def load(source: Source, sink: Sink) -> None:
    with at_places(source) as (file, size):
        emit_checkpoint(read_safetensors(file, size), source, sink, file)
