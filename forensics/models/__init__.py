"""The derive stage: each model reads tables of the case and writes one, once, for all rules and the report."""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from forensics.models.allocator_tables import derive_allocator
from forensics.models.attempt_times import follow_attempts
from forensics.models.attempts import split_attempts
from forensics.models.captures import derive_captures
from forensics.models.clocks import align_clocks
from forensics.models.critical_path import derive_critical_paths
from forensics.models.health import derive_health
from forensics.models.intervals import derive_device_time
from forensics.models.launch_queue import derive_launch_queues
from forensics.models.memory_live import derive_live_memory
from forensics.models.outcome import derive_outcome
from forensics.models.provenance import derive_births
from forensics.models.resumed_logs import follow_resumed_logs
from forensics.models.steps import derive_steps
from forensics.models.suspects import derive_suspects
from forensics.models.testimony import set_quotes_apart
from forensics.models.waits import derive_waits

# In order: later models may read what earlier ones wrote.
DERIVATIONS: tuple[Callable[[duckdb.DuckDBPyConnection], None], ...] = (
    set_quotes_apart,
    split_attempts,
    follow_resumed_logs,
    align_clocks,
    follow_attempts,
    derive_steps,
    derive_outcome,
    derive_captures,
    derive_births,
    derive_suspects,
    derive_allocator,
    derive_live_memory,
    derive_health,
    derive_waits,
    derive_device_time,
    derive_critical_paths,
    derive_launch_queues,
)
