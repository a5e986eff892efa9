"""How the GPUs of a host reach each other, as `nvidia-smi topo -m` printed it."""

from __future__ import annotations

import re

import duckdb

from forensics.redact import mask
from forensics.report.pictures import DeviceTopology

MAX_DEVICES = 16
_PAIR = re.compile(r"GPU(\d{1,3}) GPU(\d{1,3})")
_NEAR = re.compile(r"GPU(\d{1,3}) near")


def read(con: duckdb.DuckDBPyConnection) -> list[DeviceTopology]:
    """Of the first table; hosts of one job are mostly alike."""
    rows = con.execute(
        """
        SELECT f.artifact_id, a.path, f.key, min(f.value)
        FROM fact AS f JOIN artifact AS a ON a.id = f.artifact_id
        WHERE f.scope = 'device' AND f.key LIKE 'GPU%' GROUP BY ALL ORDER BY f.artifact_id, f.key
        """
    ).fetchall()
    of_first = [row for row in rows if row[0] == rows[0][0]]
    pairs = {(int(m[1]), int(m[2])): str(value) for _, _, key, value in of_first if (m := _PAIR.fullmatch(key))}
    near = {int(m[1]): mask(value) for _, _, key, value in of_first if (m := _NEAR.fullmatch(key))}
    numbers = sorted({number for pair in pairs for number in pair})
    if len(numbers) < 2:
        return []
    shown = numbers[:MAX_DEVICES]
    paths = tuple(tuple("" if a == b else pairs.get((a, b)) or pairs.get((b, a), "") for b in shown) for a in shown)
    return [
        DeviceTopology(
            mask(of_first[0][1]),
            tuple(f"GPU{number}" for number in shown),
            paths,
            tuple(near.get(number, "") for number in shown),
            len(numbers) - len(shown),
        )
    ]
