"""A site's configuration file: thresholds that differ, and findings that are known and not to be reported again.

[thresholds."memory-fragmentation"]
min_free_ratio = 1.5

[[suppress]]
rule = "environment-config"
fingerprint = "…"        # optional: only this finding
reason = "known, ticket 4711"
expires = 2027-01-31     # from this day on it is reported again
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forensics.engine import Judgement
from forensics.errors import ForensicsError, told
from forensics.finding import Finding


@dataclass(frozen=True)
class Suppression:
    rule: str
    reason: str
    expires: datetime.date
    fingerprint: str | None = None

    def covers(self, finding: Finding, today: datetime.date) -> bool:
        named = self.fingerprint is None or self.fingerprint == finding.fingerprint
        return finding.rule == self.rule and named and today < self.expires


@dataclass(frozen=True)
class Configuration:
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    suppressions: Sequence[Suppression] = ()


def read_configuration(path: Path) -> Configuration:
    """Raises ForensicsError naming what is wrong; an unknown key is wrong, since it would silently do nothing."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ForensicsError(told(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ForensicsError(f"{path}: {error}; expected a TOML file with [thresholds] and [[suppress]]") from error
    unknown = set(given) - {"thresholds", "suppress"}
    if unknown:
        raise ForensicsError(f"{path}: unknown {', '.join(sorted(unknown))}; expected [thresholds] and [[suppress]]")
    thresholds = given.get("thresholds", {})
    if not isinstance(thresholds, dict):
        raise ForensicsError(f'{path}: thresholds: expected [thresholds."RULE"] tables')
    for rule, values in thresholds.items():
        if not isinstance(values, dict) or not all(_is_number(value) for value in values.values()):
            raise ForensicsError(f'{path}: [thresholds."{rule}"]: expected NAME = NUMBER')
    return Configuration(
        thresholds, tuple(_suppression(path, entry) for entry in _entries(path, given.get("suppress", [])))
    )


def _entries(path: Path, given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise ForensicsError(f"{path}: suppress: expected [[suppress]] tables")
    return given


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _suppression(path: Path, entry: Any) -> Suppression:
    expected = f"{path}: [[suppress]]: expected rule, reason, expires (a date) and perhaps fingerprint"
    if not isinstance(entry, dict) or set(entry) - {"rule", "reason", "expires", "fingerprint"}:
        raise ForensicsError(f"{expected}; found {entry!r}")
    texts = [entry.get("rule"), entry.get("reason"), entry.get("fingerprint", "")]
    expires = entry.get("expires")
    if not all(isinstance(text, str) for text in texts) or not all(texts[:2]) or type(expires) is not datetime.date:
        raise ForensicsError(f"{expected}; found {entry!r}")
    return Suppression(entry["rule"], entry["reason"], expires, entry.get("fingerprint"))


def set_aside(judgement: Judgement, suppressions: Sequence[Suppression], today: datetime.date) -> None:
    """Moves the findings that a suppression covers today out of those that count; they stay listed with the reason."""
    for finding in list(judgement.findings):
        cover = next((s for s in suppressions if s.covers(finding, today)), None)
        if cover is not None:
            judgement.findings.remove(finding)
            judgement.set_aside.append((finding, f"{cover.reason} (until {cover.expires.isoformat()})"))
