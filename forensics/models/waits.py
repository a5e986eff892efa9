"""Who waits for whom in collectives, over all process groups, from what the ranks' flight recorders hold.

Reads process_group, collective, coverage; writes wait_group, wait_member, wait_culprit, wait_evidence. Ranks and calls
are the two kinds of nodes (`wait_graph`): what grows with a job is the members of its groups, never ranks times ranks.
Dumps may be missing, empty or overwritten: what a rank called last is then taken from its group's progress, or unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from forensics.formats._rank_ranges import ranks_of

if TYPE_CHECKING:
    from forensics.models.wait_graph import Culprit

_MAX_CULPRITS = 64  # of one attempt; more ranks than these are one fault of what they share
_MAX_PEERS = 9  # one more than messages list
_MAX_EVIDENCE = 9
_CITED = ("attempt", "place", "n", "number", "sequence", "rank", "row")

# A row is one group as one rank knows it; of several dumps of one rank the one that knows most. Groups of one name are
# told apart by their ranks.
_TOLD = """
CREATE OR REPLACE TEMP TABLE wait_told AS
WITH dump AS (
    SELECT p.attempt, n.text AS name, g.name_id, g.ranks, g.artifact_id, g.id AS group_id, g.proc_id, g.rank,
        g.description, g.backend, g.last_enqueued, g.last_completed, a.quality = 'complete' AS is_whole
    FROM process_group AS g
    JOIN proc AS p ON p.id = g.proc_id
    JOIN string AS n ON n.id = g.name_id
    JOIN artifact AS a ON a.id = g.artifact_id
    WHERE g.rank IS NOT NULL
      AND g.artifact_id IN (SELECT artifact_id FROM coverage WHERE capability = 'collective')
    QUALIFY row_number() OVER (
        PARTITION BY p.attempt, n.text, g.ranks, g.rank
        ORDER BY g.last_enqueued DESC NULLS LAST, g.last_completed DESC NULLS LAST, g.artifact_id, g.id
    ) = 1
)
SELECT dense_rank() OVER (ORDER BY attempt, name, ranks NULLS FIRST) - 1 AS number, * FROM dump
"""

# gloo retires what is done and leaves its state as it was.
_NOTED = """
CREATE OR REPLACE TEMP VIEW wait_noted AS
SELECT t.attempt, t.number, t.rank, t.proc_id, t.backend, c.artifact_id, c.row, c.sequence, c.p2p_sequence,
    c.peer_rank, c.operation,
    c.dtype, c.in_bytes, c.ts_ns,
    coalesce(c.is_p2p, FALSE) AS is_p2p,
    coalesce(c.state = 'completed' OR (t.backend IS DISTINCT FROM 'nccl' AND c.retired), FALSE) AS is_finished,
    coalesce(c.state = 'started' OR c.started_ns IS NOT NULL, FALSE) AS is_started
FROM collective AS c
JOIN wait_told AS t ON t.artifact_id = c.artifact_id AND t.group_id = c.group_id
"""

# last_called: number of the last collective that the rank called, NULL unknown; first_open: the first that it called
# and did not finish. The progress in pg_status counts sends and receives too where a group is used for them; entries
# that disagree with it show that.
_MEMBERS = """
CREATE OR REPLACE TEMP TABLE wait_known AS
WITH
seen AS (
    SELECT number, rank,
        bool_or(is_p2p) AS has_p2p,
        max(sequence) AS last_seen,
        max(sequence) FILTER (NOT is_p2p) AS last_call,
        min(sequence) FILTER (NOT is_p2p AND NOT is_finished) AS first_open,
        min(row) FILTER (NOT is_finished) AS first_row,
        max(p2p_sequence) FILTER (is_p2p) AS last_p2p,
        min(row) FILTER (is_p2p AND NOT is_finished) AS p2p_row,
        min_by(p2p_sequence, row) FILTER (is_p2p AND NOT is_finished) AS first_p2p
    FROM wait_noted GROUP BY number, rank
),
counted AS (
    SELECT t.number,
        NOT coalesce(bool_or(t.is_whole AND (s.has_p2p OR s.last_call <> t.last_enqueued)), FALSE) AS counts_calls
    FROM wait_told AS t LEFT JOIN seen AS s USING (number, rank) GROUP BY t.number
),
telling AS (
    SELECT artifact_id, bool_or(last_enqueued IS NOT NULL) AS tells_progress FROM wait_told GROUP BY artifact_id
),
holding AS (SELECT DISTINCT artifact_id FROM collective)
SELECT t.*, s.first_row, s.last_p2p, s.first_p2p, s.p2p_row,
    h.artifact_id IS NOT NULL AS has_entries,
    CASE
        WHEN d.counts_calls AND t.last_enqueued IS NOT NULL THEN greatest(t.last_enqueued, coalesce(s.last_seen, 0))
        WHEN s.last_seen IS NOT NULL THEN s.last_seen
        WHEN d.counts_calls AND e.tells_progress THEN 0
    END AS last_called,
    CASE
        WHEN s.first_open IS NOT NULL THEN s.first_open
        WHEN s.last_seen IS NULL AND d.counts_calls AND t.last_completed < t.last_enqueued THEN t.last_completed + 1
    END AS first_open,
    s.first_row IS NOT NULL AND s.first_row = min(s.first_row) OVER (PARTITION BY t.artifact_id) AS is_first
FROM wait_told AS t
JOIN counted AS d USING (number)
JOIN telling AS e ON e.artifact_id = t.artifact_id
LEFT JOIN seen AS s ON s.number = t.number AND s.rank = t.rank
LEFT JOIN holding AS h ON h.artifact_id = t.artifact_id
"""

_WRITE_MEMBERS = """
INSERT INTO wait_member
WITH head AS (
    SELECT k.number, k.rank, min_by(n.row, n.row) AS row, min_by(n.operation, n.row) AS operation,
        min_by(n.ts_ns, n.row) AS ts_ns, bool_or(n.is_started) AS is_started
    FROM wait_known AS k
    JOIN wait_noted AS n ON n.number = k.number AND n.rank = k.rank AND n.sequence = k.first_open AND NOT n.is_p2p
    GROUP BY k.number, k.rank
)
SELECT k.number, k.rank, k.proc_id, k.artifact_id, k.group_id, k.last_called, k.first_open, h.row, h.operation, h.ts_ns,
    h.is_started, k.is_first, k.has_entries
FROM wait_known AS k LEFT JOIN head AS h ON h.number = k.number AND h.rank = k.rank
ORDER BY k.number, k.rank
"""

_GROUPS = """
SELECT number, min(attempt) AS attempt, min(name_id) AS name_id, min(ranks) AS ranks, max(description) AS description,
    max(backend) AS backend, count(*) AS n_dumps, list(rank ORDER BY rank) AS told
FROM wait_told GROUP BY number ORDER BY number
"""

# The first collective of each group that its members called differently, and that none of them finished. Sizes and
# types may differ by design in others than those named.
_DIFFERING = """
WITH
low AS (SELECT number, min(first_open) AS sequence FROM wait_known GROUP BY number HAVING min(first_open) IS NOT NULL),
call AS (
    SELECT n.number, n.sequence, n.is_finished, n.operation
        || CASE
            WHEN n.operation IN ('all_reduce', 'broadcast', 'reduce')
                OR (n.backend = 'nccl' AND n.operation IN ('all_gather', 'reduce_scatter'))
            THEN concat(' ', n.dtype, ' ', n.in_bytes)
            ELSE ''
        END AS kind
    FROM wait_noted AS n JOIN low AS l ON l.number = n.number AND n.sequence >= l.sequence
    WHERE NOT n.is_p2p
)
SELECT number, sequence FROM call GROUP BY number, sequence
HAVING count(DISTINCT kind) > 1 AND NOT bool_or(is_finished)
QUALIFY row_number() OVER (PARTITION BY number ORDER BY sequence) = 1
ORDER BY number
"""

_PAIRS = """
SELECT number, rank, peer_rank, operation = 'recv' AS is_recv, count(*) AS n, min(row) AS row,
    bool_or(row = first_row) AS is_first
FROM (
    SELECT n.*, min(n.row) OVER (PARTITION BY n.artifact_id) AS first_row FROM wait_noted AS n WHERE NOT n.is_finished
)
WHERE is_p2p AND peer_rank IS NOT NULL AND operation IN ('send', 'recv')
GROUP BY number, rank, peer_rank, is_recv ORDER BY number, rank, peer_rank, is_recv
"""


def derive_waits(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(_TOLD)
    if con.execute("SELECT 1 FROM wait_told LIMIT 1").fetchone() is None:
        return
    con.execute(_NOTED)
    con.execute(_MEMBERS)
    con.execute(_WRITE_MEMBERS)
    _write_groups(con)
    if con.execute("SELECT 1 FROM wait_noted WHERE NOT is_finished LIMIT 1").fetchone() is not None:
        from forensics.models.wait_graph import find_culprits

        differing = con.execute(_DIFFERING).fetchall()
        pairs = con.execute(_PAIRS).fetchall()
        _write_culprits(con, find_culprits(con, differing, pairs))
    con.execute("DROP VIEW wait_noted; DROP TABLE wait_known; DROP TABLE wait_told")


def _write_groups(con: duckdb.DuckDBPyConnection) -> None:
    """The groups, and their members without a dump."""
    groups: dict[str, list[Any]] = {name: [] for name in ("number", "attempt", "name_id", "description", "backend")}
    groups.update(n_members=[], n_dumps=[])
    unseen: tuple[list[int], list[int]] = ([], [])
    for number, attempt, name_id, ranks, description, backend, n_dumps, told in con.execute(_GROUPS).fetchall():
        members = told if ranks is None else ranks_of(ranks)
        if len(members) > n_dumps:
            lacking = sorted(set(members).difference(told))
            unseen[0].extend([number] * len(lacking))
            unseen[1].extend(lacking)
        row = (number, attempt, name_id, description, backend, max(len(members), n_dumps), n_dumps)
        for column, value in zip(groups.values(), row, strict=True):
            column.append(value)
    groups["name_id"] = pa.array(groups["name_id"], pa.uint64())
    _insert(con, "wait_group", pa.table(groups))
    _insert(con, "wait_member (number, rank)", pa.table({"number": unseen[0], "rank": unseen[1]}), "number, rank")


def _write_culprits(con: duckdb.DuckDBPyConnection, found: list[Culprit]) -> None:
    kept = [culprit for culprit in found if culprit.place <= _MAX_CULPRITS]
    if not kept:
        return
    names = ("attempt", "place", "rank", "reason", "strength", "number", "sequence", "n_groups", "n_waiting", "n_peers")
    columns: dict[str, Any] = {name: [getattr(c, name) for c in kept] for name in names}
    columns["peers"] = pa.array([c.peers[:_MAX_PEERS] for c in kept], pa.list_(pa.int32()))
    for name in ("own_number", "own_sequence"):
        columns[name] = pa.array([getattr(c, name) for c in kept], pa.int64())
    columns["says"] = pa.array([c.says for c in kept], pa.string())
    table = pa.table(columns)
    _insert(con, f"wait_culprit ({', '.join(columns)})", table, ", ".join(columns))
    cited = [(c.attempt, c.place, n, *which) for c in kept for n, which in enumerate(c.cited[:_MAX_EVIDENCE])]
    columns = {name: list(values) for name, values in zip(_CITED, zip(*cited, strict=True), strict=True)}
    columns["row"] = pa.array(columns["row"], pa.int64())
    columns["sequence"] = pa.array(columns["sequence"], pa.int64())
    con.register("given_cited", pa.table(columns))
    con.execute(
        """
        INSERT INTO wait_evidence
        SELECT g.attempt, g.place, g.n, g.rank, min_by(c.artifact_id, c.row), min(c.row)
        FROM given_cited AS g
        JOIN wait_noted AS c
            ON c.number = g.number AND c.rank = g.rank
            AND CASE WHEN g.row IS NULL THEN c.sequence = g.sequence AND NOT c.is_p2p ELSE c.row = g.row END
        GROUP BY g.attempt, g.place, g.n, g.rank
        ORDER BY g.attempt, g.place, g.n
        """
    )
    con.unregister("given_cited")


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table, columns: str = "*") -> None:
    con.register("given_rows", rows)
    con.execute(f"INSERT INTO {table} SELECT {columns} FROM given_rows")
    con.unregister("given_rows")
