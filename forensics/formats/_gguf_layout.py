"""Header of a GGUF file: key values, then name, shape, type and offset of each tensor, then aligned data.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

from forensics.errors import ArtifactError, Truncated
from forensics.formats._checkpoint_layout import MAX_NAME, MAX_TENSORS, Layout, StoredTensor, mark_places
from forensics.formats._text_lines import clean_text

MAGIC = b"GGUF"
_MAX_HEADER = 256 << 20
_MAX_KEYS = 100_000
_SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")))
_TEXT, _ARRAY = 8, 9
# Number → name, elements in a block, bytes of a block.
_TYPES = {
    0: ("float32", 1, 4),
    1: ("float16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("int8", 1, 1),
    25: ("int16", 1, 2),
    26: ("int32", 1, 4),
    27: ("int64", 1, 8),
    28: ("float64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bfloat16", 1, 2),
}


class _Header:
    def __init__(self, file: BinaryIO, order: str) -> None:
        self._file, self._order, self.at = file, order, 0
        file.seek(0)

    def take(self, n: int) -> bytes:
        if not 0 <= n <= _MAX_HEADER or self.at + n > _MAX_HEADER:
            raise ArtifactError(f"a value of {n} bytes", byte=self.at)
        data = self._file.read(n)
        if len(data) < n:
            raise Truncated("the header ends early", byte=self.at + len(data))
        self.at += n
        return data

    def number(self, kind: str) -> Any:
        return struct.unpack(self._order + kind, self.take(struct.calcsize(self._order + kind)))[0]

    def text(self) -> str:
        return clean_text(self.take(self.number("Q")).decode("utf-8", "replace"))

    def value(self, kind: int, depth: int = 0) -> Any:
        """None of arrays, which are passed over: they are vocabularies."""
        if kind == _TEXT:
            return self.text()[:2000]
        if kind != _ARRAY:
            if not _SCALARS.get(kind):
                raise ArtifactError(f"a value of unknown type {kind}", byte=self.at)
            return self.number(_SCALARS[kind])
        inner, n = self.number("I"), self.number("Q")
        if depth or n > _MAX_HEADER:
            raise ArtifactError(f"an array of {n} values", byte=self.at)
        if _SCALARS.get(inner):
            self.take(n * struct.calcsize(self._order + _SCALARS[inner]))
        else:
            for _ in range(n):
                self.value(inner, depth + 1)
        return None


def read_gguf(file: BinaryIO, file_size: int) -> Layout:
    layout = Layout("gguf")
    file.seek(4)
    version = file.read(4)
    order = ">" if int.from_bytes(version, "little") > 0xFFFF else "<"
    layout.byteorder = order
    header = _Header(file, order)
    try:
        header.take(4)
        layout.settings["gguf_version"] = header.number("I")
        layout.n_said, n_keys = header.number("Q"), header.number("Q")
        if n_keys > _MAX_KEYS or layout.n_said > MAX_TENSORS:
            said, layout.n_said = layout.n_said, None
            raise ArtifactError(f"it says {said} tensors and {n_keys} keys in {file_size} bytes", byte=8)
        for _ in range(n_keys):
            key = header.text()[:300]
            value = header.value(header.number("I"))
            if value is not None:
                layout.settings[key] = value
        for _ in range(layout.n_said):
            layout.tensors.append(_tensor(header))
    except (ArtifactError, struct.error) as error:
        code = "truncated" if isinstance(error, Truncated) else "bad-header"
        place = getattr(error, "byte", None)
        layout.add(code, f"the header cannot be read to its end: {error}", "the tensors behind that place", place)
    _place(layout, header.at, file_size)
    return layout


def _tensor(header: _Header) -> StoredTensor:
    name = header.text()[:MAX_NAME]
    n = header.number("I")
    if n > 8:
        raise ArtifactError(f"a tensor of {n} dimensions", byte=header.at)
    shape = tuple(header.number("Q") for _ in range(n))
    kind, offset = header.number("I"), header.number("Q")
    dtype, per_block, block_bytes = _TYPES.get(kind, (f"type {kind}", 1, 0))
    # GGUF gives the fastest index first.
    tensor = StoredTensor(name, dtype, tuple(reversed(shape)), offset, 0)
    tensor.n_bytes = -(-tensor.n_elements // per_block) * block_bytes
    return tensor


def _place(layout: Layout, header_end: int, file_size: int) -> None:
    alignment = layout.settings.get("general.alignment", 32)
    alignment = alignment if isinstance(alignment, int) and 0 < alignment <= 1 << 20 else 32
    data = -(-header_end // alignment) * alignment
    for tensor in layout.tensors:
        tensor.start = None if layout.problems else data + (tensor.start or 0)
        tensor.fault = "no-data" if layout.problems else None
    mark_places(layout.tensors, file_size)
    short = [t for t in layout.tensors if t.fault in {"cut", "outside"}]
    if short and not layout.problems:
        end = max((t.start or 0) + t.n_bytes for t in layout.tensors)
        message = f"the tensors are to end at byte {end}; the file ends at byte {file_size}"
        layout.add("truncated", message, "values of the tensors behind that place", file_size)
