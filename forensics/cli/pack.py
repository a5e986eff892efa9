"""`forensics pack CASE`."""

from __future__ import annotations

from pathlib import Path


def pack(case: Path, /, *, out: Path | None = None) -> int:
    """Write a case with secrets masked into one archive, to send to someone else.

    Tokens, passwords, values of secret names and names of home folders are masked in the case, report.json and the
    reviews; the artifacts themselves are not in it. Masking knows forms and names: read the report before you send it.

    Parameters
    ----------
    case
        The folder that `forensics analyze` wrote.
    out
        The archive; default NAME.zip in the current folder.
    """
    from forensics.packing import pack as write

    archive = out or Path(f"{case.resolve().name}.zip")
    names = write(case, archive)
    print(f"{archive}: {', '.join(names)}")
    return 0
