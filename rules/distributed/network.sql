/*
title = "The connection between ranks broke"
severity = "critical"
scope = "job"
cannot_prove = """
Which of cable, switch, adapter or configuration it was. A reset or closed connection alone is what the death of a peer
looks like, so it is given as a symptom."""
message = "{who} lost its connection{peer_text}{at_step}: {said}{detail}"
fix = "Look at the links between the hosts (ibstat, ibdiagnet, ip -s link, dmesg for mlx5 and link down) and rerun with NCCL_DEBUG=INFO; take out the host that the others name."
causes = [{ state = "connection-lost", of = "group" }]
requires = [{ state = "connection-lost", of = "group" }, { state = "collective-stuck", of = "group" }, { state = "shm-full", of = "host" }, { state = "device-lost", of = "device" }, { state = "context-poisoned", of = "process" }]
references = ["https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"]

[variant.transport]
needs = ["log_event"]
strength = "strong"
proves = """
The transport itself reported a fault: an InfiniBand completion error after all retries, a port or link that went
down, or no route to a peer."""

[variant.link-down]
needs = ["log_event.kernel", "log_event"]
strength = "indication"
proves = """
The kernel of a host reported that a link of its network went down, and connections of the job broke."""
says = "The kernel reports a link that went down; that the job used it is shown only by its broken connections."

[variant.all-sides]
needs = ["log_event"]
strength = "indication"
proves = "Connections of several hosts broke although no process shows an end of its own."
says = "Hosts report each other's connections as broken and no process shows an end of its own. Logs of other ranks, if there are any, could tell of a process that died first."

[variant.echo]
needs = ["log_event"]
strength = "indication"
proves = "A connection to a peer broke."
says = "A closed connection is mostly the echo of a peer that ended."

[thresholds.min_processes]
value = 3
unit = "processes that report a broken connection"
why = "of two, either may be the one that ended; when three report it, over two hosts or more, and none shows an end of its own, the wire is likelier than a process that died without a word"
*/
-- variant: transport
SELECT
    b.artifact_id,
    b.row,
    b.proc_id,
    b.rank,
    b.step,
    b.ts_ns,
    b.line,
    b.host,
    b.said,
    b.where_in_code,
    coalesce(' to ' || b.peer, '') AS peer_text,
    '' AS detail,
    b.signature AS key
FROM severed_connection AS b
WHERE b.own_fault
ORDER BY b.ts_ns, b.artifact_id, b.row;
-- variant: link-down
WITH
met AS (
    SELECT
        b.artifact_id,
        b.row,
        b.line
    FROM severed_connection AS b
    QUALIFY row_number() OVER (ORDER BY b.artifact_id, b.row) = 1
)
SELECT
    e.artifact_id,
    e.row,
    e.ts_ns,
    e.line,
    e.host,
    briefly(e.message, 200) AS said,
    '' AS peer_text,
    '; ranks report broken connections' AS detail,
    [{'artifact_id': m.artifact_id, 'row': m.row, 'line': m.line, 'note': 'a connection that broke'}] AS evidence,
    'link-down' AS key
FROM log AS e
CROSS JOIN met AS m
WHERE e.class = 'hw.nic'
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.host ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: all-sides
WITH
ended AS (
    -- An end that a process, a launcher, a kernel or a scheduler tells of.
    SELECT count(*) AS n
    FROM log AS e
    WHERE e.role IN ('primary', 'symptom')
      AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
      AND coalesce(e.class, '') NOT IN ('comm.remote', 'comm.system', 'comm.network', 'comm.internal', 'comm.warn', 'comm.info')
),
counted AS (
    SELECT
        count(*) AS n_processes,
        -- Hosts as they are named: by themselves, or by the peers that miss them.
        greatest(count(DISTINCT host), count(DISTINCT regexp_extract(peer, '^[^<]+'))) AS n_hosts
    FROM severed_connection
)
SELECT
    l.artifact_id,
    l.row,
    l.proc_id,
    l.rank,
    l.step,
    l.ts_ns,
    l.line,
    l.host,
    l.said,
    l.where_in_code,
    coalesce(' to ' || l.peer, '') AS peer_text,
    '; ' || c.n_processes || ' processes report broken connections between ' || c.n_hosts || ' hosts and none shows an end of its own' AS detail,
    'high' AS severity,
    'all-sides' AS key
FROM severed_connection AS l
CROSS JOIN counted AS c
CROSS JOIN ended AS d
WHERE d.n = 0
  AND c.n_processes >= $min_processes
  AND c.n_hosts >= 2
QUALIFY row_number() OVER (ORDER BY l.ts_ns NULLS LAST, l.artifact_id, l.row) = 1
ORDER BY l.ts_ns, l.artifact_id, l.row;
-- variant: echo
SELECT
    b.artifact_id,
    b.row,
    b.proc_id,
    b.rank,
    b.step,
    b.ts_ns,
    b.line,
    b.host,
    b.said,
    b.where_in_code,
    coalesce(' to ' || b.peer, '') AS peer_text,
    '' AS detail,
    'symptom' AS role,
    'high' AS severity,
    b.class AS key
FROM severed_connection AS b
ORDER BY b.ts_ns, b.artifact_id, b.row;
