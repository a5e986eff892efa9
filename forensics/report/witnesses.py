"""Which places of a finding are shown at first sight: those that the figures and names of its message come from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from forensics.report import text
from forensics.report.view import EvidenceView, FindingView

MOST = 4
GLANCE = 360  # characters of each
_ROWS = 3
_WORD = re.compile(r"[\w./:%+-]+")
# A figure, or a name that has parts: 65504, rank1/log, loss.backward, aten::log.
_TELLING = re.compile(r"[\d_./:]")
_READ = 2_000  # characters of a text, which may be of any length


def witnesses(finding: FindingView) -> list[EvidenceView]:
    """The finding's own place and up to three more in the order given, cut to what is taken in at a glance.

    Of too many those that hold more of the message come first. A place that shows none of it is taken only where a
    note says why it matters.
    """
    places = [place for place in finding.evidence if place.text.strip() or place.note]
    if not places:
        return []
    wanted = _words(finding.message)
    chosen = [0]
    while len(chosen) < min(MOST, len(places)):
        open_words = wanted - set().union(*(_words(_said(places[n])) for n in chosen))
        left = [n for n in range(len(places)) if n not in chosen]
        best = max(left, key=lambda n: (len(open_words & _words(_said(places[n]))), -n))
        if not open_words & _words(_said(places[best])):
            chosen += [n for n in left if places[n].note][: MOST - len(chosen)]
            break
        chosen.append(best)
    return [_at_a_glance(places[n]) for n in sorted(chosen)]


def _said(place: EvidenceView) -> str:
    return f"{place.note} {place.text}"


def _words(said: str) -> set[str]:
    words = (word.strip(".:-+/") for word in _WORD.findall(said[:_READ]))
    return {word for word in words if _TELLING.search(word)}


def _at_a_glance(place: EvidenceView) -> EvidenceView:
    body, note = text.cut_block(place.text, GLANCE, _ROWS)
    return replace(place, text=f"{body} {note}".rstrip())


def first_of(causes: Sequence[FindingView]) -> list[EvidenceView]:
    """The places to show for a verdict: all that bear witness to one cause, or the first of each of several."""
    shown = [witnesses(cause) or list(cause.evidence[:1]) for cause in causes]
    return shown[0] if len(shown) == 1 else [place for places in shown for place in places[:1]]
