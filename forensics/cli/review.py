"""`forensics review CASE`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def review(
    case: Path,
    fingerprint: str = "",
    /,
    *,
    confirm: Annotated[bool, Parameter(negative="")] = False,
    dismiss: Annotated[bool, Parameter(negative="")] = False,
    reopen: Annotated[bool, Parameter(negative="")] = False,
    note: str = "",
    file: Path | None = None,
) -> int:
    """Record what a reviewer says of findings, or list what was said.

    Reviews are kept in reviews.jsonl beside the case, by fingerprint; the next `forensics analyze` into the same folder
    shows them in the report.

    Parameters
    ----------
    case
        The folder that `forensics analyze` wrote.
    fingerprint
        Of the finding, or the beginning of it; report and report.json show it.
    confirm
        The finding is right.
    dismiss
        The finding is wrong, or does not matter here.
    reopen
        Take an earlier review back.
    note
        Why, for those who read it later.
    file
        Reviews that were exported from the page.
    """
    from forensics.errors import ForensicsError
    from forensics.reviews import Review, exported, known_findings, record

    known = known_findings(case)
    states = [name for name, on in (("confirmed", confirm), ("dismissed", dismiss), ("open", reopen)) if on]
    if file is not None:
        if states or fingerprint:
            raise ForensicsError("review: a file and a finding at once; expected one of them")
        print(f"{record(case, exported(file.read_bytes(), known))} reviews recorded in {case / 'reviews.jsonl'}")
        return 0
    if not fingerprint and not states:
        return _list(case, known)
    if len(states) != 1 or not fingerprint:
        raise ForensicsError("review: expected a fingerprint and one of --confirm, --dismiss, --reopen")
    meant = [name for name in known if name.startswith(fingerprint)]
    if len(meant) != 1:
        raise ForensicsError(f"review: {len(meant)} findings of {case} begin with {fingerprint!r}; expected one")
    record(case, [Review(meant[0], states[0], note, known[meant[0]])])
    print(f"{states[0]}: {known[meant[0]]} {meant[0]}")
    return 0


def _list(case: Path, known: dict[str, str]) -> int:
    from forensics.report.text import one_line
    from forensics.reviews import read_reviews

    said = read_reviews(case)
    for fingerprint, rule in known.items():
        found = said.get(fingerprint)
        state = found.state if found else "open"
        print(f"{state:<10} {rule:<32} {fingerprint}  {one_line(found.note, 200) if found else ''}".rstrip())
    return 0
