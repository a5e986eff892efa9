"""Other settings of the caching allocator, tried on a recorded history that the model reproduces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forensics.models.allocator_fit import Fit
from forensics.models.allocator_limits import CONTEXT_BYTES
from forensics.models.allocator_replay import Limits, predict
from forensics.models.allocator_settings import AllocatorSettings, parse_settings

# The garbage collector works only under a memory fraction below 1; what-ifs of it assume this one.
FRACTION = 0.99

ALTERNATIVES: tuple[str, ...] = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:128,garbage_collection_threshold:0.8",
)


@dataclass(frozen=True)
class WhatIf:
    """`fits`: all requests of the record, those that failed among them, would have been served; None: not known.

    `peak_reserved` and `spare` as in Prediction, for the room that is most likely. `failed_row`: first request that
    would have failed. `assumes`: what the prediction rests on beside the record.
    """

    setting: str
    peak_reserved: int
    fits: bool | None
    spare: int | None
    failed_row: int | None
    assumes: str


def what_ifs(found: Fit, settings: Sequence[str] = ALTERNATIVES) -> list[WhatIf]:
    return [_try(found, text) for text in settings]


def _try(found: Fit, text: str) -> WhatIf:
    settings, limits, assumes = _conditions(found, parse_settings(text))
    room, history = found.room, found.history

    def under(device: int | None) -> bool:
        return predict(history, settings, replace(limits, device=device), found.runs, laid_out=same).fits

    same = settings == found.settings
    run = predict(history, settings, limits, found.runs, laid_out=same)
    fits: bool | None = run.fits
    if room.high is None:
        fits = True if run.fits and run.peak_reserved <= room.low else None
    elif not room.is_exact:
        # Most room is nearly always the best, and least the worst: what both say holds for what is between.
        fits = (True if under(room.low) else None) if run.fits else (None if under(room.high) else False)
    return WhatIf(text, run.peak_reserved, fits, run.spare, run.failed_row, "; ".join(assumes))


def _conditions(found: Fit, settings: AllocatorSettings) -> tuple[AllocatorSettings, Limits, list[str]]:
    assumes = []
    limits, room = found.limits, found.room
    device = limits.device
    if device is None and limits.allowed is not None:  # a fraction of the whole, which the device can hardly give
        device = max(room.low, limits.allowed - CONTEXT_BYTES)
        assumes.append("the room of the device as the memory fraction suggests it")
    device_bytes = limits.device_bytes
    if device_bytes is None and device is not None:
        device_bytes = device + CONTEXT_BYTES
    limits = replace(limits, device=device, device_bytes=device_bytes)
    if settings.gc_ratio > 0:
        settings = replace(settings, has_fraction=True)
        assumes.append(f"a memory fraction of {FRACTION}, without which nothing is collected")
        if device_bytes is None and limits.allowed is None:
            assumes.append("a device so large that nothing is collected")
        if not found.settings.collects:
            limits = replace(limits, allowed=None if device_bytes is None else int(FRACTION * device_bytes))
    if found.runs:
        assumes.append("blocks older than the history are laid out anew")
    return settings, limits, assumes
