"""Reproduces a record with the allocator model, and says whether the model may be trusted on it.

At least MIN_SHARE of the allocations have to land at their recorded address while memory is granted as recorded, and
reserved bytes have to agree within MAX_ERROR at the peak and at the end when only the device's limit is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forensics.models.allocator_history import History, Op
from forensics.models.allocator_limits import CONTEXT_BYTES, Room, find_room
from forensics.models.allocator_replay import Check, Limits, Prediction, check, predict
from forensics.models.allocator_rewind import Run
from forensics.models.allocator_settings import AllocatorSettings

MIN_SHARE = 0.95
MAX_ERROR = 0.01
_MAX_RANGES = 4
_BISECTIONS = 6
# Thresholds of a garbage collector that are tried, as thousandths of where it was seen to run: coarse, then around the
# best of them.
_COARSE = range(400, 1001, 50)
_FINE = range(-45, 46, 5)


@dataclass(frozen=True)
class Fit:
    """How the model reproduces the record. `reason`: why it is not accepted; empty when it is."""

    history: History
    settings: AllocatorSettings
    runs: Sequence[Run]
    room: Room
    check: Check
    limits: Limits
    own: Prediction
    reason: str = ""

    @property
    def accepted(self) -> bool:
        return not self.reason

    @property
    def is_exact(self) -> bool:
        return _distance(self) == (False, 0.0)

    @property
    def reserved_error(self) -> float:
        """The larger of the errors at the peak and at the end, as a share of the recorded peak."""
        off = max(abs(self.own.peak_reserved - self.room.peak), abs(self.own.reserved - self.room.reserved))
        return off / max(self.room.peak, 1)


def fit(history: History, settings: AllocatorSettings, runs: Sequence[Run], told: int | None = None) -> Fit:
    """Finds the limits under which the model comes closest to the record. `told`: see find_room."""
    room = find_room(history, settings, runs, told)
    placed, base = _place(history, settings, room, runs)
    fits = [
        Fit(history, used, runs, room, placed, limits, predict(history, used, limits, runs, laid_out=True))
        for used, limits in _plain_limits(settings, room, base)
    ]
    placeable = placed.share_at_address >= MIN_SHARE
    if placeable and settings.gc_ratio > 0 and room.gc_from is not None and not min(fits, key=_distance).is_exact:
        fits += _collected(history, settings, room, base, runs, placed)
    best = _narrowed(min(fits, key=_distance))
    return replace(best, reason=_objection(best))


def is_closer(found: Fit, other: Fit) -> bool:
    """Whether the model reproduces its record better than the other one."""
    return (not found.accepted, _distance(found)) < (not other.accepted, _distance(other))


def _narrowed(found: Fit) -> Fit:
    """The most room with which the model still explains all refusals, where the record bounds it too loosely.

    A mapping that was refused is smaller than its request by what was free at the end of the range.
    """
    low, high = found.room.low, found.room.high
    if not found.settings.expandable or high is None or not found.is_exact:
        return found
    for _ in range(_BISECTIONS):
        middle = (low + high) // 2
        limits = replace(found.limits, device=middle)
        own = predict(found.history, found.settings, limits, found.runs, laid_out=True)
        if _distance(replace(found, own=own)) > (False, 0.0):
            high = middle
        else:
            low = middle
    room = replace(found.room, high=high)
    limits = replace(found.limits, device=min(room.likely or low, low))
    own = predict(found.history, found.settings, limits, found.runs, laid_out=True)
    return replace(found, room=room, limits=limits, own=own)


def _place(history: History, settings: AllocatorSettings, room: Room, runs: Sequence[Run]) -> tuple[Check, Limits]:
    """The order of equal blocks and the size of the device that explain most addresses."""
    found: tuple[Check, Limits] | None = None
    for limits in _orders(history, settings, room):
        placed = check(history, settings, limits, runs)
        if found is None or placed.n_at_address > found[0].n_at_address:
            found = placed, limits
        if placed.n_at_address == placed.n_allocs:
            break
    assert found is not None
    return found


def _orders(history: History, settings: AllocatorSettings, room: Room) -> Iterator[Limits]:
    sizes: list[int | None] = [None]
    if settings.expandable:
        sizes += _range_sizes(history)
        if room.high is not None:
            sizes += sorted({room.low + CONTEXT_BYTES, room.high + CONTEXT_BYTES})
    for by_age in (True, False):
        for size in sizes:
            yield Limits(device_bytes=size, by_age=by_age)


def _range_sizes(history: History) -> list[int]:
    """Sizes of the device, should its ranges of addresses for expandable segments follow one another."""
    reached: dict[tuple[str, int], tuple[int, int]] = {}
    found = set()
    for kind, number in zip(history.kinds, history.numbers, strict=True):
        if kind != Op.MAP:
            continue
        segment = history.segments[number]
        key = (segment.pool_id, segment.stream)
        start, end = reached.get(key, (segment.addr, segment.addr))
        if segment.addr > end:
            found.add((segment.addr - start) * 8 // 9)
            start = segment.addr
        reached[key] = (start, max(end, segment.addr + segment.size))
    return sorted(found)[:_MAX_RANGES]


def _plain_limits(settings: AllocatorSettings, room: Room, base: Limits) -> Iterator[tuple[AllocatorSettings, Limits]]:
    plain = replace(base, at_failure=room.at_failure, allowed=room.allowed)
    yield settings, replace(plain, device=room.likely)
    # A mapping that was refused may have been smaller than assumed; with the least room all refusals are explained.
    if not room.is_exact and (room.high is not None or room.gc_from is not None):
        yield settings, replace(plain, device=room.low)


def _collected(
    history: History, settings: AllocatorSettings, room: Room, base: Limits, runs: Sequence[Run], placed: Check
) -> list[Fit]:
    """The record as a garbage collector explains it, by thresholds; the memory fraction is not recorded."""
    collecting = replace(settings, has_fraction=True)

    def at(thousandths: int) -> Fit:
        allowed = int((room.gc_from or 0) * thousandths / 1000 / settings.gc_ratio)
        limits = replace(base, device=room.likely, at_failure=room.at_failure, allowed=allowed)
        own = predict(history, collecting, limits, runs, laid_out=True)
        return Fit(history, collecting, runs, room, placed, limits, own)

    coarse = {n: at(n) for n in _COARSE}
    best = min(coarse, key=lambda n: _distance(coarse[n]))
    return [*coarse.values(), *(at(best + n) for n in _FINE if n)]


def _distance(found: Fit) -> tuple[bool, float]:
    own, room = found.own, found.room
    off = abs(own.peak_reserved - room.peak) + abs(own.reserved - room.reserved) + abs(own.obtained - room.obtained)
    return not own.complete, off / max(room.peak, 1)


def _objection(found: Fit) -> str:
    placed = found.check
    if placed.n_allocs == 0:
        return "the history holds no allocations"
    if placed.share_at_address < MIN_SHARE:
        share = f"{placed.share_at_address:.1%} of {placed.n_allocs} allocations"
        return f"only {share} land at the recorded address; the first that does not is event {placed.first_row}"
    if not found.own.complete:
        return f"the model has no memory for event {found.own.failed_row}, which the record has"
    if found.reserved_error > MAX_ERROR:
        return f"reserved bytes differ by {found.reserved_error:.1%} from the record"
    if found.history.n_lost > placed.n_allocs * (1 - MIN_SHARE):
        return f"{found.history.n_lost} allocations lie where the record has not freed the one before"
    return ""
