"""Members of a plain tar by their headers alone, and the tar that torch.save wrote up to version 0.1.10 (2017)."""

from __future__ import annotations

from typing import BinaryIO

BLOCK = 512
_MAX_MEMBERS = 64
_TORCH = {"pickle", "tensors", "storages"}
FIRST_OF_TORCH = (b"sys_info\0", b"pickle\0", b"tensors\0", b"storages\0")  # in any order


def tar_members(file: BinaryIO) -> dict[str, tuple[int, int]]:
    """Where the data of each of the first members begins, and its size; of those before the first that is damaged."""
    found: dict[str, tuple[int, int]] = {}
    at = 0
    for _ in range(_MAX_MEMBERS):
        file.seek(at)
        header = file.read(BLOCK)
        if not is_tar_header(header):
            break
        try:
            size = int(header[124:136].strip(b" \0") or b"0", 8)
        except ValueError:  # of 8 GB and more, in another form
            break
        if size < 0:
            break
        found[header[:100].partition(b"\0")[0].decode("utf-8", "replace")] = (at + BLOCK, size)
        at += BLOCK + -(-size // BLOCK) * BLOCK
    return found


def is_tar_header(block: bytes) -> bool:
    """By its checksum: the first tars had no magic."""
    if len(block) < BLOCK or not block[0]:
        return False
    try:
        said = int(block[148:156].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return said == sum(block) - sum(block[148:156]) + 8 * 32


def is_torch_tar(file: BinaryIO) -> bool:
    return tar_members(file).keys() >= _TORCH
