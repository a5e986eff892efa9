"""What torch.save wrote (.pt, .pth, .bin, .ckpt): zip, the older row of pickles, or the tar before that.

Nothing is imported or called.
"""

from __future__ import annotations

from forensics.artifact import Head, Sink, Source
from forensics.formats._checkpoint_layout import at_places, read_at
from forensics.formats._checkpoint_rows import emit_checkpoint
from forensics.formats._torch_layout import MAGIC, read_torch_legacy, read_torch_zip
from forensics.formats._torch_tar import read_torch_tar
from forensics.formats._zip_checksums import check_members
from forensics.tar_members import FIRST_OF_TORCH, is_tar_header, is_torch_tar

VERSION = 3
TITLE = "Checkpoints that torch.save wrote (zip, legacy and tar)"
PROVIDES = ("checkpoint",)

_ZIP = b"PK\x03\x04"
_FIRST_MEMBERS = (b"/data.pkl", b"/byteorder", b"/.data/serialization_id", b"/constants.pkl", b"/version")


def recognise(head: Head) -> int:
    if head.data.startswith(MAGIC):
        return 95
    if head.data.startswith(FIRST_OF_TORCH) and is_tar_header(head.data[:512]):
        return 95
    if not head.data.startswith(_ZIP):
        return 0
    n_name = int.from_bytes(head.data[26:28], "little")
    return 95 if head.data[30 : 30 + n_name].endswith(_FIRST_MEMBERS) else 0


def load(source: Source, sink: Sink) -> None:
    with at_places(source) as (file, size):
        if read_at(file, 0, len(MAGIC)) == MAGIC:
            emit_checkpoint(read_torch_legacy(file, size), source, sink, file)
            return
        if is_torch_tar(file):
            emit_checkpoint(read_torch_tar(file, size), source, sink, file)
            return
        layout, members = read_torch_zip(file, size)
        check_members(layout, members, file)
        emit_checkpoint(layout, source, sink, file)
