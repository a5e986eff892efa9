"""What the pictures of a report show, as plain values: bounded, masked and ordered by whoever fills them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """An allocation that failed. `event`: its row among the allocator events of the snapshot."""

    event: int
    requested_bytes: int
    place: str = ""


@dataclass(frozen=True)
class Level:
    """A height that the reserved memory can be held against."""

    label: str
    n_bytes: int
    kind: str  # limit (what the process could get) | fits | fails (under another setting)


@dataclass(frozen=True)
class Owner:
    category: str
    place: str
    n_blocks: int
    n_bytes: int


@dataclass(frozen=True)
class MemoryTimeline:
    """Live and reserved bytes of one device over the events of one snapshot."""

    artifact: str
    process: str  # "rank 0", "" for the only one
    device: int
    points: tuple[tuple[int, int, int], ...]  # (event row, live bytes, reserved bytes)
    n_events: int
    steps: tuple[tuple[int, int], ...] = ()  # (event row, step): where each begins
    failures: tuple[Failure, ...] = ()
    levels: tuple[Level, ...] = ()
    owners: tuple[Owner, ...] = ()  # of the live bytes at the last failure, or at the peak
    owned_at: str = ""  # "failure" or "peak"


@dataclass(frozen=True)
class Block:
    row: int
    offset_bytes: int  # from the first address of its segment
    size_bytes: int
    state: str  # active_allocated | active_pending_free | inactive
    place: str = ""
    joined_bytes: int = 0  # free bytes that freeing it would join, where it pins its segment


@dataclass(frozen=True)
class Segment:
    row: int
    total_bytes: int
    pool: str
    stream: int
    size_class: str  # small | large
    expandable: bool
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class SegmentMap:
    """What the allocator of one device held when the snapshot was taken."""

    artifact: str
    process: str
    device: int
    segments: tuple[Segment, ...]
    n_hidden: int
    requested_bytes: int | None  # of the last failed allocation
    longest_free_bytes: int
    free_bytes: int
    reserved_bytes: int
    pinned_by: str = ""  # the line whose blocks keep most of the free memory apart
    unlocked_bytes: int = 0


@dataclass(frozen=True)
class Operation:
    """An operator of a recorded step; `role`: birth | path | victim | healthy."""

    id: int
    label: str
    role: str
    phase: str  # forward | backward | optimizer
    module: str = ""
    values: str = ""  # "5 inf of 48"
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Provenance:
    """How the first non-finite value of a recorded step was born and spread."""

    artifact: str
    process: str
    step: int | None
    why: str
    operations: tuple[Operation, ...]
    n_hidden: int
    reaches_loss: bool
    parameter: str = ""  # whose gradient it reached first
    inferred: bool = False  # edges were told by shapes and counts, not recorded


@dataclass(frozen=True)
class Call:
    row: int
    name: str
    lane: str  # thread or stream
    start_ns: int  # from the begin of the capture
    dur_ns: int
    kind: str  # begin | end | offence | call | work
    code: int | None = None


@dataclass(frozen=True)
class CaptureWindow:
    artifact: str
    process: str
    window_row: int
    became_graph: bool
    length_ns: int | None
    calls: tuple[Call, ...]
    n_calls: int
    offence: str = ""
    place: str = ""


@dataclass(frozen=True)
class GridView:
    """A heat map. `cells` by row, then column; None where nothing was recorded, NaN or inf where that was the value."""

    name: str
    unit: str  # seconds | ""
    row_word: str  # rank | parameter
    rows: tuple[str, ...]
    columns: tuple[int, ...]  # steps; the first of each stretch where they are thinned
    cells: tuple[tuple[float | None, ...], ...]
    n_rows_hidden: int = 0
    per_column: int = 1  # steps that share a column; it shows the largest
    log: bool = False
    how: str = ""  # where the values come from
    marked: tuple[tuple[int, int], ...] = ()  # (row, column) of what a finding names


@dataclass(frozen=True)
class WaitMember:
    rank: int
    last_called: int | None
    waits_at: int | None  # sequence number
    operation: str
    culprit: str = ""  # why others wait for it
    has_dump: bool = True


@dataclass(frozen=True)
class WaitGroup:
    name: str
    backend: str
    members: tuple[WaitMember, ...]
    n_hidden: int = 0


@dataclass(frozen=True)
class WaitGraph:
    groups: tuple[WaitGroup, ...]
    n_hidden: int
    n_waiting: int


@dataclass(frozen=True)
class LastStep:
    rank: str
    step: int
    values: tuple[str, ...]
    events: tuple[str, ...] = ()


@dataclass(frozen=True)
class LastSteps:
    """The last steps of each rank: what was measured and said in each."""

    names: tuple[str, ...]  # of the values
    rows: tuple[LastStep, ...]
    n_hidden: int = 0


@dataclass(frozen=True)
class Stretch:
    """Modules that follow each other and lie, and were declared, on the same device."""

    first: str
    last: str
    n_tensors: int
    device: str
    declared: str  # "" where nothing was
    misplaced: bool
    n_bytes: int | None = None


@dataclass(frozen=True)
class DeviceMap:
    """Where the tensors of a model lay, in the order of its modules."""

    artifact: str
    process: str
    stretches: tuple[Stretch, ...]
    n_hidden: int = 0


@dataclass(frozen=True)
class DeviceTopology:
    """By which path each GPU of a host reaches the others."""

    artifact: str
    devices: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]  # by device, then device: NV12, PIX, SYS …; "" for itself or unknown
    near: tuple[str, ...]  # processors close to each device
    n_hidden: int = 0


@dataclass(frozen=True)
class Keeper:
    """Tensors that are kept alive in the same way."""

    n_tensors: int
    n_bytes: int
    example: str  # shape, type and device of the first
    links: tuple[str, ...]  # from what holds a tensor itself to what lives by itself


@dataclass(frozen=True)
class ReferenceChains:
    """Who keeps the largest tensors of a process alive, those who keep most first."""

    artifact: str
    process: str
    keepers: tuple[Keeper, ...]
    n_hidden: int = 0


@dataclass(frozen=True)
class Gauge:
    """One measured value and what it is held against."""

    subject: str  # what it is of: a finding's kind, or the job
    quantity: str
    value: float
    marks: tuple[tuple[str, float], ...]  # ("threshold", …), or ("healthy", …) and ("bad", …)
    how: str = ""  # "rank 0, median of 12 steps"
    why: str = ""  # of the threshold


@dataclass(frozen=True)
class ThresholdBoard:
    """What was measured against what rules and good practice allow."""

    gauges: tuple[Gauge, ...]
    n_hidden: int = 0


Picture = (
    MemoryTimeline
    | SegmentMap
    | Provenance
    | CaptureWindow
    | GridView
    | WaitGraph
    | LastSteps
    | DeviceMap
    | ThresholdBoard
    | DeviceTopology
    | ReferenceChains
)
