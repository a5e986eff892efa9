"""What the history in a CUDA memory snapshot does not reach back to.

The recorder keeps the last `max_entries` events of each device (1 in PyTorch 2.0, unlimited later) and starts when it
is asked to; the file says neither. Both show as live blocks, segments and frees without a beginning among the events.
"""

from __future__ import annotations

from typing import NamedTuple

from forensics.formats._memory_history import History
from forensics.formats._memory_segments import DeviceHeld, Held

_BEFORE = "allocations before the first event: their stacks and times, and a peak before it"
_EVER = "how memory came to this state: allocations over time, the peak, stacks of freed blocks, failed allocations"


class Loss(NamedTuple):
    code: str
    message: str
    hides: str


def find_losses(histories: dict[int, History], held: Held) -> list[Loss]:
    """One loss for each device whose history is absent or does not begin with its first allocation."""
    if not held.segments and not any(h.n_events for h in histories.values()):
        what = "no segments and no events: nothing was held at this moment, and nothing is recorded of the time before"
        return [Loss("nothing-recorded", what, _EVER)]
    found = []
    for device in sorted({*histories, *held.devices}):
        loss = _loss_of_device(histories.get(device, History(device)), held.devices.get(device, DeviceHeld()))
        if loss is not None:
            found.append(loss)
    return found


def _loss_of_device(history: History, held: DeviceHeld) -> Loss | None:
    name = "pinned host memory" if history.device < 0 else f"device {history.device}"
    n = history.n_events
    if n == 0:
        if held.n_segments == 0:
            return None
        return Loss("history-off", f"{name}: {held.n_segments} segments, but no events: recording was off", _EVER)
    older = []
    if held.n_live_unexplained:
        older.append(f"{held.n_live_unexplained} of {held.n_live} live blocks")
    if held.n_segments_unexplained:
        older.append(f"{held.n_segments_unexplained} of {held.n_segments} segments")
    if history.n_stray:
        older.append(f"what {history.n_stray} events free")
    if older:
        full = is_ring_size(n)
        why = f"only the last {n} event(s), a full ring" if full else f"a history of {n} events that began late"
        return Loss("history-wrapped" if full else "history-late", f"{name}: {why}; older: {', '.join(older)}", _BEFORE)
    if n >= 1000 and is_ring_size(n):
        return Loss("history-full", f"{name}: exactly {n} events; the ring may have been full", _BEFORE)
    return None


def is_ring_size(n: int) -> bool:
    """Whether people give such a number as `max_entries`: round, a power of two, or 1, the default of PyTorch 2.0."""
    return n == 1 or (n >= 64 and n & (n - 1) == 0) or (n >= 100 and n % 10 ** (len(str(n)) - 1) == 0)
