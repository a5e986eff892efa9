"""`forensics diff CASE_A CASE_B`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def diff(good: Path, failed: Path, /, *, format: Literal["text", "markdown", "json"] = "text") -> int:
    """Compare the case of a good run with that of a failed one: what differs, the first divergence first.

    Exits 0 when nothing that both runs recorded differs, 1 when something does.

    Parameters
    ----------
    good
        Case of the run that went well: a case.duckdb, or the folder that `forensics analyze` wrote.
    failed
        Case of the run that failed.
    format
        text (for the terminal), markdown (for a ticket) or json; each lists 20 differences of a kind and counts all.
    """
    from forensics.comparison import compare
    from forensics.comparison_text import to_json, to_markdown, to_text

    comparison = compare(good, failed)
    write = {"text": to_text, "markdown": to_markdown, "json": to_json}[format]
    print(write(comparison))
    return int(any(section.n_all for section in comparison.sections))
