"""Compares the content of a checkpoint's members with the checksums in its directory, which torch.load does not.

torch 2.13 loads a file with a flipped bit without a word. `torch.serialization.set_crc32_options(False)` writes 0 for
every checksum; such files cannot be compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import BinaryIO

from forensics.formats._checkpoint_layout import Layout
from forensics.formats._torch_layout import Member

_BUDGET_BYTES = 512 << 20
_CHUNK = 1 << 20


def check_members(layout: Layout, members: Mapping[str, Member], file: BinaryIO) -> None:
    """Marks the tensors whose storage is not what was written. Members beyond the budget are not read."""
    if not any(member.entry.crc for member in members.values()):
        return
    left = _BUDGET_BYTES
    wrong: dict[str, int] = {}
    for name, member in members.items():
        n_bytes = member.entry.packed or 0
        if member.entry.method or member.entry.crc is None or n_bytes > left:
            continue
        left -= n_bytes
        found = _checksum(file, member.start, n_bytes)
        if found is not None and found != member.entry.crc:
            wrong[name] = member.start
    keys = {name.removeprefix("data/") for name in wrong if name.startswith("data/")}
    for tensor in layout.tensors:
        if tensor.storage in keys and not tensor.fault:
            tensor.fault = "wrong-checksum"
    if wrong:
        listed = ", ".join(sorted(wrong)[:4]) + (", …" if len(wrong) > 4 else "")
        message = f"members whose content is not what their checksums say: {listed}; torch.load does not compare them"
        layout.add("wrong-checksum", message, "what these held when they were written", min(wrong.values()))


def _checksum(file: BinaryIO, start: int, n_bytes: int) -> int | None:
    """None where the file ends inside: that is told otherwise."""
    file.seek(start)
    crc = 0
    while n_bytes:
        data = file.read(min(_CHUNK, n_bytes))
        if not data:
            return None
        crc = zlib.crc32(data, crc)
        n_bytes -= len(data)
    return crc
