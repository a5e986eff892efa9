"""Replays of the caching allocator for each snapshot and device of the case.

Reads artifact, memory_event, memory_segment, memory_block, stack, fact, sample and log_event; writes allocator_replay,
replay and allocator_pin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from forensics.models.allocator_fit import Fit, fit, is_closer
from forensics.models.allocator_held import HeldSegment, read_held
from forensics.models.allocator_history import DEFAULT_POOL, History, read_history
from forensics.models.allocator_pins import Code, Frame, Pin, find_pins
from forensics.models.allocator_rewind import learn_pools, rewind
from forensics.models.allocator_settings import SMALL_REQUEST, AllocatorSettings, read_settings
from forensics.models.allocator_whatif import ALTERNATIVES, what_ifs

# Each replay takes about 2 s per million events.
_MAX_EVENTS = 1_000_000
_MANY_EVENTS = 250_000  # from here on only the settings are tried that help most often
_OFTEN = ("", "expandable_segments:True")
_MAX_PINS = 200
_MAX_STACKS = 20_000

_DEVICES = """
SELECT artifact_id, device, min(proc_id), min(rank) FROM (
    SELECT artifact_id, device, proc_id, NULL AS rank FROM memory_segment
    UNION ALL
    SELECT artifact_id, device, proc_id, rank FROM memory_event
    WHERE action LIKE 'segment%' OR action = 'oom'
)
WHERE device >= 0
GROUP BY artifact_id, device
ORDER BY artifact_id, device
"""
# What other evidence says of the size of a device: only where all of it agrees to a hundredth.
_SIZES = """
SELECT CAST(max(size) AS BIGINT) FROM (
    SELECT CAST(coalesce(fields ->> 'device_bytes', fields ->> 'capacity_bytes') AS DOUBLE) AS size
    FROM log_event WHERE class = 'mem.gpu.oom' AND role <> 'noise'
    UNION ALL
    SELECT value * CASE unit WHEN 'MiB' THEN 1048576 WHEN 'bytes' THEN 1 WHEN 'B' THEN 1 END
    FROM metric WHERE name = 'memory.total' AND source = 'nvidia-smi'
)
WHERE size > 0
HAVING max(size) <= 1.01 * min(size)
"""
_FAILURE = """
SELECT row, size_bytes, coalesce(stream, 0), coalesce(pool_id, '0.0') FROM memory_event
WHERE artifact_id = ? AND device = ? AND action = 'oom' AND size_bytes IS NOT NULL ORDER BY row DESC LIMIT 1
"""
_OWN_FRAMES = """
WITH RECURSIVE
walk AS (
    SELECT k.id AS leaf, k.id, k.parent_id, k.user_stack_id FROM stack AS k WHERE k.id IN (SELECT unnest($leaves))
    UNION ALL
    SELECT w.leaf, k.id, k.parent_id, k.user_stack_id FROM walk AS w JOIN stack AS k ON k.id = w.parent_id
)
SELECT w.leaf, f.function, f.file, f.line
FROM walk AS w JOIN frame AS f ON f.id = w.id
WHERE w.user_stack_id = w.id
ORDER BY w.leaf, f.depth DESC
"""
_ALLOCATED = """
WITH RECURSIVE
allocated AS (
    SELECT stack_id, sum(size_bytes) AS bytes FROM memory_event
    WHERE artifact_id = $artifact_id AND device = $device AND action = 'alloc' AND stack_id IS NOT NULL
    GROUP BY stack_id
),
walk AS (
    SELECT k.id AS leaf, k.id, k.parent_id, k.user_stack_id FROM stack AS k JOIN allocated AS a ON a.stack_id = k.id
    UNION ALL
    SELECT w.leaf, k.id, k.parent_id, k.user_stack_id FROM walk AS w JOIN stack AS k ON k.id = w.parent_id
),
passed AS (
    SELECT DISTINCT w.leaf, f.function, f.file, f.line FROM walk AS w JOIN frame AS f ON f.id = w.id
    WHERE w.user_stack_id = w.id
)
SELECT p.function, p.file, p.line, CAST(sum(a.bytes) AS BIGINT)
FROM passed AS p JOIN allocated AS a ON a.stack_id = p.leaf
GROUP BY p.function, p.file, p.line
"""


@dataclass(frozen=True)
class _Subject:
    artifact_id: int
    device: int
    proc_id: int | None
    rank: int | None


def derive_allocator(con: duckdb.DuckDBPyConnection) -> None:
    subjects = [_Subject(*row) for row in con.execute(_DEVICES).fetchall()]
    if not subjects:
        return
    row = con.execute(_SIZES).fetchone()
    told = row[0] if row else None
    for subject in subjects:
        held = read_held(con, subject.artifact_id, subject.device)
        _replay(con, subject, held, told)
        _pin(con, subject, held)


def _replay(con: duckdb.DuckDBPyConnection, subject: _Subject, held: Sequence[HeldSegment], told: int | None) -> None:
    facts = dict(
        con.execute(
            "SELECT key, min(value) FROM fact WHERE artifact_id = ? AND scope = 'allocator' GROUP BY key",
            [subject.artifact_id],
        ).fetchall()
    )
    setting = facts.get("PYTORCH_CUDA_ALLOC_CONF", "")
    (n_events,) = con.execute(
        "SELECT count(*) FROM memory_event WHERE artifact_id = ? AND device = ?",
        [subject.artifact_id, subject.device],
    ).fetchone() or (0,)
    if n_events > _MAX_EVENTS:
        _insert_replay(con, subject, setting, f"a history of {n_events} events is longer than what is replayed")
        return
    history = read_history(con, subject.artifact_id, subject.device)
    if not history.n_allocs:
        _insert_replay(con, subject, setting, "no allocation is recorded", history)
        return
    settings = read_settings(facts)
    found = _fit(history, settings, held, told)
    if history.is_ambiguous and not found.is_exact:
        doubtful = read_history(con, subject.artifact_id, subject.device, doubt_as_flush=True)
        other = _fit(doubtful, settings, held, told)
        found = other if is_closer(other, found) else found
    _insert_replay(con, subject, setting, found.reason, found.history, found)
    if found.accepted:
        _insert_what_ifs(con, subject, setting, found)


def _fit(history: History, settings: AllocatorSettings, held: Sequence[HeldSegment], told: int | None) -> Fit:
    learn_pools(history, held)
    return fit(history, settings, rewind(history, held), told)


def _insert_replay(
    con: duckdb.DuckDBPyConnection,
    subject: _Subject,
    setting: str,
    reason: str,
    history: History | None = None,
    found: Fit | None = None,
) -> None:
    values: dict[str, Any] = {
        **vars(subject),
        "accepted": not reason,
        "reason": reason,
        "setting": setting,
        "complete": found is not None and not found.runs,
        "n_events": history.n_events if history else 0,
        "n_allocations": history.n_allocs if history else 0,
    }
    if found is not None:
        values |= {
            "at_address_ratio": round(found.check.share_at_address, 6),
            "reserved_error_ratio": round(found.reserved_error, 6),
            "peak_reserved_bytes": found.room.peak,
            "room_low_bytes": found.room.low,
            "room_high_bytes": found.room.high,
        }
    _insert(con, "allocator_replay", [values])


def _insert_what_ifs(con: duckdb.DuckDBPyConnection, subject: _Subject, setting: str, found: Fit) -> None:
    own = {
        **vars(subject),
        "setting": setting,
        "recorded": True,
        "row": found.own.failed_row,
        "peak_reserved_bytes": found.own.peak_reserved,
        "fits": found.own.fits,
        "spare_bytes": found.own.spare,
        "assumes": "",
        "deviation_ratio": round(found.reserved_error, 6),
    }
    texts = ALTERNATIVES if found.history.n_events < _MANY_EVENTS else _OFTEN
    others = [
        {
            **own,
            "setting": tried.setting,
            "recorded": False,
            "row": tried.failed_row if tried.failed_row is not None and tried.failed_row >= 0 else None,
            "peak_reserved_bytes": tried.peak_reserved,
            "fits": tried.fits,
            "spare_bytes": tried.spare,
            "assumes": tried.assumes,
        }
        for tried in what_ifs(found, [text for text in texts if text != setting])
    ]
    _insert(con, "replay", [own, *others])


def _pin(con: duckdb.DuckDBPyConnection, subject: _Subject, held: Sequence[HeldSegment]) -> None:
    failed = con.execute(_FAILURE, [subject.artifact_id, subject.device]).fetchone()
    event_row, requested, stream, pool_id = failed or (None, None, None, DEFAULT_POOL)
    usable = [
        s
        for s in held
        if s.pool_id == pool_id
        and (stream is None or s.stream == stream)
        and s.small == (requested is not None and requested <= SMALL_REQUEST)
    ]
    if requested is None:  # nothing failed: what would a request need that no free run holds
        requested = 1 + max((b.size for s in usable for b in s.blocks if b.is_free), default=0)
    stacks = {b.stack_id for s in usable if any(b.is_free for b in s.blocks) for b in s.blocks if not b.is_free}
    code = _code(con, subject, sorted(k for k in stacks if k is not None)[:_MAX_STACKS])
    pins = find_pins(usable, requested, code, most=_MAX_PINS)
    _insert(con, "allocator_pin", [_pin_row(subject, event_row, pin) for pin in pins])
    con.execute(
        "UPDATE allocator_pin AS p SET allocated_ns = b.allocated_ns FROM memory_block AS b "
        "WHERE b.artifact_id = p.artifact_id AND b.row = p.row AND b.artifact_id = ? AND p.device = ?",
        [subject.artifact_id, subject.device],
    )


def _pin_row(subject: _Subject, event_row: int | None, pin: Pin) -> dict[str, Any]:
    site = pin.site
    return {
        "artifact_id": subject.artifact_id,
        "device": subject.device,
        "row": pin.block.row,
        "event_row": event_row,
        "site_rank": site.rank,
        "place": _named(site.frame),
        "unlocked_bytes": site.unlocked,
        "held_bytes": site.held,
        "n_blocks": len(site.blocks),
        "size_bytes": pin.block.size,
        "joined_bytes": pin.joined,
        "empties_segment": pin.empties,
    }


def _named(frame: Frame | None) -> str | None:
    if frame is None:
        return None
    function, file, line = frame
    return function if file is None else f"{function} ({file}:{line})"


def _code(con: duckdb.DuckDBPyConnection, subject: _Subject, stacks: Sequence[int]) -> Code:
    if not stacks:
        return Code({}, {})
    frames: dict[int, list[Frame]] = defaultdict(list)
    for leaf, *frame in con.execute(_OWN_FRAMES, {"leaves": list(stacks)}).fetchall():
        frames[leaf].append((frame[0], frame[1], frame[2]))
    where = {"artifact_id": subject.artifact_id, "device": subject.device}
    allocated = {(f, file, line): size for f, file, line, size in con.execute(_ALLOCATED, where).fetchall()}
    return Code({leaf: tuple(own) for leaf, own in frames.items()}, allocated)


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    names = list(rows[0])
    marks = ", ".join("?" for _ in names)
    values = [[row[name] for name in names] for row in rows]
    con.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", values)
