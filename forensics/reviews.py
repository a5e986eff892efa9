"""What reviewers said of findings: a JSON line a review, beside the case, by fingerprint, so that it outlives a re-run.

The last line of a fingerprint counts. Lines that are not reviews are left alone and never used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from forensics.errors import ForensicsError
from forensics.redact import mask
from forensics.report.view import Report

FILE = "reviews.jsonl"
STATES = ("confirmed", "dismissed", "open")  # open: an earlier review is taken back
MAX_NOTE, MAX_BYTES = 2000, 16 << 20
_MAX_FINGERPRINT = 128


@dataclass(frozen=True)
class Review:
    fingerprint: str
    state: str  # STATES
    note: str = ""
    rule: str = ""  # of the finding, for people who read the file


def read_reviews(folder: Path) -> dict[str, Review]:
    """By fingerprint; empty where there is no file."""
    file = folder / FILE
    if not file.is_file():
        return {}
    with file.open("rb") as opened:
        lines = opened.read(MAX_BYTES).splitlines()
    return {review.fingerprint: review for line in lines if (review := _parsed(line)) is not None}


def record(folder: Path, reviews: Iterable[Review]) -> int:
    """Appends them in one write and waits until they are on the disk; how many there were."""
    rows = [
        {"fingerprint": r.fingerprint, "state": r.state, "note": r.note[:MAX_NOTE], "rule": r.rule} for r in reviews
    ]
    if rows:
        with (folder / FILE).open("ab") as opened:
            opened.write(b"".join(orjson.dumps(row) + b"\n" for row in rows))
            opened.flush()
            os.fsync(opened.fileno())
    return len(rows)


def exported(content: bytes, known: Mapping[str, str]) -> list[Review]:
    """The reviews of a file that a page exported, those of findings in `known` (fingerprint → rule) only.

    Raises ForensicsError where it is no such file, or holds a review of no finding of this case.
    """
    try:
        document = orjson.loads(content[:MAX_BYTES])
    except orjson.JSONDecodeError as error:
        raise ForensicsError(f"reviews: not JSON ({error}); expected a file that a report exported") from error
    rows = document.get("reviews") if isinstance(document, dict) else None
    if not isinstance(rows, list) or document.get("format") != "forensics.reviews/1":
        raise ForensicsError("reviews: not of format forensics.reviews/1; expected a file that a report exported")
    found = [review for row in rows if (review := _review(row)) is not None]
    if len(found) < len(rows):
        raise ForensicsError(f"reviews: {len(rows) - len(found)} entries are not reviews; nothing was recorded")
    strange = [review.fingerprint for review in found if review.fingerprint not in known]
    if strange:
        raise ForensicsError(f"reviews: no finding of this case has the fingerprint {strange[0]}; nothing was recorded")
    return [replace(review, rule=known[review.fingerprint]) for review in found]


def known_findings(folder: Path) -> dict[str, str]:
    """Fingerprint → rule of the findings in report.json; raises ForensicsError where there is none."""
    file = folder / "report.json"
    if not file.is_file():
        raise ForensicsError(f"{file}: not found; expected a folder that `forensics analyze` wrote")
    try:
        return {str(f["fingerprint"]): str(f["rule"]) for f in orjson.loads(file.read_bytes())["findings"]}
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ForensicsError(f"{file}: not a report; expected the one that `forensics analyze` wrote") from error


def with_reviews(report: Report, reviews: Mapping[str, Review]) -> Report:
    """The report with what was said of its findings."""
    if not reviews:
        return report
    return replace(
        report,
        findings=tuple(
            replace(f, review=said.state, review_note=mask(said.note))
            if (said := reviews.get(f.fingerprint)) is not None and said.state != "open"
            else f
            for f in report.findings
        ),
    )


def _parsed(line: bytes) -> Review | None:
    try:
        return _review(orjson.loads(line))
    except orjson.JSONDecodeError:  # the last line of a write that was cut off
        return None


def _review(row: Any) -> Review | None:
    if not isinstance(row, dict):
        return None
    fingerprint, state, note = row.get("fingerprint"), row.get("state"), row.get("note", "")
    if not (isinstance(fingerprint, str) and isinstance(note, str) and state in STATES):
        return None
    if not fingerprint or len(fingerprint) > _MAX_FINGERPRINT:
        return None
    rule = row.get("rule", "")
    return Review(fingerprint, state, note[:MAX_NOTE], rule if isinstance(rule, str) else "")
