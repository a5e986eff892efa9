"""What c10d calls collectives and element types, by backend and release, under one name each."""

from __future__ import annotations

# Bytes of one element, by the names that torch's ScalarType prints.
ITEM_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8", "Bits8"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16", "Bits16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32", "ComplexHalf", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_SAME = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgather_into_tensor": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_allv": "all_to_all",
}


def operation_name(written: str) -> str:
    """One name for the spellings of one operation: `_allgather_base` and `all_gather_into_tensor` are all_gather."""
    plain = written.strip().lower().strip("_").removesuffix("_base")
    stem, coalesced, _ = plain.partition("_coalesced")
    return _SAME.get(stem, stem) + coalesced if stem else written
