"""Fills the pictures of a report from the case: bounded, masked, ordered. The drawing is done in `report`."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from forensics.finding import Finding
from forensics.report.pictures import Picture


def read_pictures(con: duckdb.DuckDBPyConnection, causes: Sequence[Finding] = ()) -> tuple[Picture, ...]:
    """Every picture that the case has evidence for; `causes`: what the verdict names, told where it happened."""
    from forensics.pictures import (
        capture_windows,
        device_maps,
        gradient_norms,
        last_steps,
        memory_timeline,
        provenance,
        reference_chains,
        segment_map,
        step_times,
        topology,
        wait_graph,
    )

    return (
        *provenance.read(con),
        *capture_windows.read(con),
        *wait_graph.read(con),
        *device_maps.read(con),
        *topology.read(con),
        *memory_timeline.read(con),
        *segment_map.read(con),
        *reference_chains.read(con),
        *last_steps.read(con, causes),
        *step_times.read(con),
        *gradient_norms.read(con),
    )


def process_name(rank: int | None, n_processes: int) -> str:
    """How a picture names the process it is of; nothing where there is only one."""
    return "" if n_processes < 2 else "a process of unknown rank" if rank is None else f"rank {rank}"
