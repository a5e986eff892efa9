"""Takes what notes, pages and programs quote for what it is, wherever the job left logs of its own.

Reads fact (`standing`, as formats tell it), coverage; changes roles in log_event, drops coverage by such texts. Where
no log is among the evidence, what is quoted stays: `quoting_artifacts` says whose word is an indication at most.
"""

from __future__ import annotations

import duckdb

_STANDING = "SELECT artifact_id FROM fact WHERE scope = 'note' AND key = 'standing' AND value = '{}'"
_DOCUMENT = _STANDING.format("document")
_UNPLACED = _STANDING.format("unplaced")
# Logs that carry marks of the job.
_TESTIFYING = f"""
SELECT artifact_id FROM coverage
WHERE capability = 'log_event' AND artifact_id NOT IN ({_DOCUMENT} UNION ALL {_UNPLACED})
"""


def set_quotes_apart(con: duckdb.DuckDBPyConnection) -> None:
    if not con.execute(f"SELECT count(*) FROM ({_TESTIFYING})").fetchall()[0][0]:
        return
    con.execute(
        f"""
        INSERT INTO ingest_warning
        SELECT artifact_id, NULL, min(line), 'quoted',
            count(*) || ' events that it names are taken as quoted: it is written for readers, no log of the job',
            'nothing, unless it holds the only copy of what the job wrote'
        FROM log_event
        WHERE artifact_id IN ({_DOCUMENT}) AND role IN ('primary', 'symptom', 'secondary')
        GROUP BY artifact_id
        ORDER BY artifact_id
        """
    )
    con.execute(
        f"""
        UPDATE log_event
        SET role = 'noise', fields = json_merge_patch(coalesce(fields, '{{}}'), '{{"context": "quoted"}}')
        WHERE artifact_id IN ({_DOCUMENT}) AND role <> 'noise'
        """
    )
    con.execute(f"DELETE FROM coverage WHERE artifact_id IN ({_DOCUMENT}) AND capability LIKE 'log_event%'")


def quoting_artifacts(con: duckdb.DuckDBPyConnection) -> frozenset[int]:
    """Ids of texts whose word is an indication at most: documents, and beside logs of the job what has no mark."""
    rows = con.execute(
        f"""
        {_DOCUMENT}
        UNION ALL
        SELECT artifact_id FROM ({_UNPLACED}) WHERE EXISTS ({_TESTIFYING})
        """
    ).fetchall()
    return frozenset(row[0] for row in rows)
