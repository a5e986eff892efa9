"""What lines have in common that differ in values only: numbers, addresses and random identifiers.

Thousands of messages of a job that goes on failing are one message with other values. Lines of one form say the same
wherever what they are searched for asks for no values (`Signature.is_blind`).
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_SEVENS = bytes.maketrans(b"0123456789", b"7777777777")
# Hexadecimal identifiers, once each digit is a 7: at least four characters, letters and digits among them.
_IDENTIFIER = r"\b(?:7+[a-f]|[a-f]+7)[7a-f]{2,}\b"
_FOUND_IDENTIFIER = re.compile(_IDENTIFIER.encode())
_PLACEHOLDER = "7a7a7a7a"
# Where a message says of errors that there are none.
_COUNTED = r"(?i)0 error|error[=:] ?0"


def forms_of(pieces: pa.Array) -> pa.DictionaryArray:
    """The form of each piece, which holds no line feed; lines in which a zero matters are their own form."""
    text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(pieces)], pa.int32()), pieces), b"\n")
    same_digits = pc.split_pattern(pa.array([text[0].as_py().translate(_SEVENS)], pa.binary()), b"\n").flatten()
    forms = pc.replace_substring_regex(same_digits, _IDENTIFIER, _PLACEHOLDER)
    counted = pc.match_substring_regex(pieces, _COUNTED)
    return pc.if_else(counted, pieces, forms).dictionary_encode()


def holds_identifier(text: str) -> bool:
    """Whether lines of one form may differ in more than digits there."""
    return _FOUND_IDENTIFIER.search(text.encode("utf-8", "replace").translate(_SEVENS)) is not None
