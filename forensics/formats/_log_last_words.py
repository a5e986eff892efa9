"""What a log ends in: an exception after which nothing follows stands against an exit code of 0 beside it.

Such a code may be that of another command, as of `tee` in a pipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from forensics.artifact import Sink
from forensics.formats._log_blocks import Block

# Of a stream of errors alone nothing follows: what the job printed afterwards is elsewhere.
_ERRORS_ALONE = re.compile(r"(?i)std_?err|\.(?:err|e\d+)(?:\.|$)")


def tell_last_words(sink: Sink, name: str, still_open: Iterable[Block], last_line: int) -> None:
    """Writes the fact `ends_in` where an exception with its traceback, not known as harmless, is the end.

    Of a stream of errors alone the fact is `errors_end_in`: the job may have gone on.
    """
    key = "errors_end_in" if _ERRORS_ALONE.search(name) else "ends_in"
    for block in still_open:
        reaches = max(block.last_line, block.line) >= last_line
        if reaches and block.kind == "exception" and block.exception and block.frames and block.context is None:
            sink.fact(key, block.exception, scope="note", line=block.line)
            return
