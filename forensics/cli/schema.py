"""`forensics schema`."""

from __future__ import annotations


def schema() -> int:
    """Print the JSON schema of report.json."""
    from forensics.report.html import asset

    print(asset("report.schema.json"), end="")
    return 0
