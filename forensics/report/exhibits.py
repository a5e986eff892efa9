"""Turns every picture of a report into its drawing and table, and says which one shows the cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forensics.report import pictures
from forensics.report.board_svg import board_exhibit
from forensics.report.capture_svg import capture_exhibit
from forensics.report.devices_svg import devices_exhibit
from forensics.report.exhibit import Exhibit
from forensics.report.grid_svg import grid_exhibit
from forensics.report.memory_svg import memory_exhibit
from forensics.report.provenance_svg import provenance_exhibit
from forensics.report.references_svg import references_exhibit
from forensics.report.segments_svg import segments_exhibit
from forensics.report.steps_table import steps_exhibit
from forensics.report.topology_svg import topology_exhibit
from forensics.report.waits_svg import waits_exhibit

_DRAWN_BY: dict[type, Callable[[Any, int], Exhibit | None]] = {
    pictures.MemoryTimeline: memory_exhibit,
    pictures.SegmentMap: segments_exhibit,
    pictures.Provenance: provenance_exhibit,
    pictures.CaptureWindow: capture_exhibit,
    pictures.GridView: grid_exhibit,
    pictures.WaitGraph: waits_exhibit,
    pictures.DeviceMap: devices_exhibit,
    pictures.DeviceTopology: topology_exhibit,
    pictures.ReferenceChains: references_exhibit,
    pictures.LastSteps: steps_exhibit,
    pictures.ThresholdBoard: board_exhibit,
}


def exhibits(views: Sequence[pictures.Picture], cause: str = "") -> tuple[Exhibit | None, list[Exhibit]]:
    """The picture that shows the rule `cause` best (None: none does), and all others in their order."""
    drawn = [made for i, view in enumerate(views) if (made := _DRAWN_BY[type(view)](view, i)) is not None]
    telling = [made for made in drawn if cause and made.svg and made.shows(cause)]
    lead = max(telling, key=lambda made: _closeness(made, cause), default=None)
    return lead, [made for made in drawn if made is not lead]


def _closeness(made: Exhibit, cause: str) -> int:
    """How much of the rule's id the picture is about: one for fragmentation alone stands before one for all memory."""
    return max(len(beginning) for beginning in made.about if cause.startswith(beginning))
