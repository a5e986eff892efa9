/*
title = "The processes of the job are set up so that they cannot meet"
severity = "critical"
scope = "job"
cannot_prove = """
Where the wrong setting comes from: the launcher, the script or the scheduler. A rendezvous that times out may also have
lost a process that died before it came; without a word of such an end it is given as weaker."""
message = "{what}: {said}{detail}"
fix = "{remedy}"
causes = [{ state = "config-contradictory", of = "job" }, { state = "connection-lost", of = "group" }]
requires = [{ state = "shm-full", of = "host" }, { state = "rank-gone", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/elastic/run.html", "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"]

[variant.refused]
needs = ["log_event"]
strength = "strong"
proves = "The setting that is cited was refused: by NCCL, the launcher or the rendezvous."

[variant.interfaces]
needs = ["log_event"]
strength = "strong"
proves = "NCCL uses interfaces by which the hosts cannot reach each other."
says = "The interfaces are those that NCCL printed; that nothing routes between them is read from their kind or equal addresses."

[variant.rendezvous]
needs = ["log_event"]
strength = "indication"
proves = "The processes did not all meet at the rendezvous in time."
says = "The processes did not meet in time; whether one could not or one had died is not shown."
*/
-- variant: refused
WITH
refused AS (
    SELECT
        e.*,
        CASE
            WHEN e.signature = 'nccl-duplicate-gpu' THEN 'shared-gpu'
            WHEN e.class = 'env.rank-mapping' THEN 'no-such-gpu'
            WHEN e.class = 'code.distributed-setup' THEN 'not-set-up'
            WHEN e.signature = 'nccl-no-interface' THEN 'no-interface'
            WHEN e.signature = 'address-in-use' THEN 'port-taken'
            WHEN e.class = 'comm.usage' THEN 'usage'
        END AS kind
    FROM reported_failure AS e
    WHERE e.role = 'primary'
      AND (
          e.class IN ('env.rank-mapping', 'code.distributed-setup')
          OR e.signature IN ('nccl-no-interface', 'address-in-use')
          OR (e.class = 'comm.usage' AND e.exception IS NOT NULL)
      )
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    r.line,
    r.host,
    r.where_in_code,
    CASE r.kind
        WHEN 'shared-gpu' THEN 'Two ranks use one GPU'
        WHEN 'no-such-gpu' THEN 'A rank asks for a GPU that it cannot see'
        WHEN 'not-set-up' THEN 'The process group is used before it is set up'
        WHEN 'no-interface' THEN 'NCCL found no network interface'
        WHEN 'port-taken' THEN 'The address of the rendezvous is taken'
        ELSE 'NCCL refused how it is used'
    END AS what,
    CASE
        WHEN r.kind = 'shared-gpu' AND (r.fields ->> 'first_rank') IS NOT NULL
            THEN 'ranks ' || (r.fields ->> 'first_rank') || ' and ' || (r.fields ->> 'second_rank') || ' are both on device ' || coalesce(r.fields ->> 'pci', '?')
        ELSE r.said
    END AS said,
    CASE
        WHEN v.value IS NOT NULL AND r.kind IN ('shared-gpu', 'no-such-gpu') THEN '; CUDA_VISIBLE_DEVICES is ' || v.value
        ELSE ''
    END AS detail,
    CASE r.kind
        WHEN 'shared-gpu' THEN 'Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the process group is set up, and pass no fixed cuda:0.'
        WHEN 'no-such-gpu' THEN 'Start no more processes per host than GPUs are visible (--nproc_per_node), and use LOCAL_RANK, not RANK, for the device.'
        WHEN 'not-set-up' THEN 'Start the job with torchrun, or set MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, and call init_process_group first.'
        WHEN 'no-interface' THEN 'Set NCCL_SOCKET_IFNAME to an interface that every host has and that routes between them.'
        WHEN 'port-taken' THEN 'Choose another --master_port (or --rdzv_endpoint=HOST:0), and end what is left of an earlier run.'
        ELSE 'Rerun with NCCL_DEBUG=WARN, which names the argument that is wrong.'
    END AS remedy,
    CASE WHEN r.completed THEN 'medium' END AS severity,
    CASE WHEN r.kind = 'usage' THEN 'indication' END AS strength,
    r.kind AS key
FROM refused AS r
LEFT JOIN (
    SELECT value FROM fact WHERE key = 'CUDA_VISIBLE_DEVICES'
    QUALIFY row_number() OVER (ORDER BY artifact_id, line) = 1
) AS v ON TRUE
QUALIFY row_number() OVER (PARTITION BY r.proc_id, r.attempt ORDER BY (r.kind = 'usage'), r.ts_ns NULLS LAST, r.artifact_id, r.row) = 1
ORDER BY r.ts_ns, r.artifact_id, r.row;
-- variant: interfaces
WITH
chosen AS (
    SELECT
        e.artifact_id,
        e.row,
        e.proc_id,
        e.rank,
        e.ts_ns,
        e.line,
        coalesce(e.host, 'artifact ' || e.artifact_id) AS host,
        e.fields ->> 'interface' AS interface,
        e.fields ->> 'address' AS address
    FROM log AS e
    WHERE e.signature = 'nccl-socket-interfaces' AND (e.fields ->> 'interface') IS NOT NULL
),
several AS (
    SELECT count(DISTINCT host) AS n_hosts FROM chosen
),
doubtful AS (
    SELECT
        c.*,
        (SELECT count(DISTINCT o.host) FROM chosen AS o WHERE o.address = c.address) > 1 AS has_twin,
        -- Bridges of containers and virtual machines, and the loopback, exist on every host and route between none.
        regexp_matches(c.interface, '^(lo$|virbr|docker|veth|cni|flannel|br-[0-9a-f]{6,})') AS is_local
    FROM chosen AS c
),
failed AS (
    SELECT
        artifact_id,
        row,
        line,
        said
    FROM reported_failure
    WHERE NOT completed
      AND class IN ('comm.remote', 'comm.network', 'comm.timeout', 'comm.init', 'comm.system', 'comm.internal')
    QUALIFY row_number() OVER (ORDER BY ts_ns NULLS LAST, artifact_id, row) = 1
)
SELECT
    d.artifact_id,
    d.row,
    d.proc_id,
    d.rank,
    d.ts_ns,
    d.line,
    'NCCL talks over an interface that does not reach the other hosts' AS what,
    'host ' || d.host || ' uses ' || d.interface || ' (' || d.address || ')' AS said,
    CASE WHEN d.has_twin THEN ', an address that another host has as well' ELSE '' END AS detail,
    'Set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to the interface that routes between the hosts; ^docker0,virbr0,lo leaves out those that do not.' AS remedy,
    [{'artifact_id': f.artifact_id, 'row': f.row, 'line': f.line, 'note': f.said}] AS evidence,
    d.interface AS key
FROM doubtful AS d
CROSS JOIN several AS s
CROSS JOIN failed AS f
WHERE s.n_hosts > 1
  AND (d.has_twin OR d.is_local)
QUALIFY row_number() OVER (ORDER BY d.ts_ns NULLS LAST, d.artifact_id, d.row) = 1
ORDER BY d.ts_ns, d.artifact_id, d.row;
-- variant: rendezvous
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.host,
    e.where_in_code,
    'The processes did not meet' AS what,
    e.said,
    '' AS detail,
    'Check that MASTER_ADDR and MASTER_PORT are the same everywhere, that the port is open between the hosts, and that as many nodes were started as --nnodes says; then whether one of them ended early.' AS remedy,
    CASE WHEN e.completed THEN 'medium' ELSE 'high' END AS severity,
    -- A later process of the elastic launcher reports what became of the others.
    CASE WHEN e.signature = 'rendezvous-failed' THEN 'symptom' END AS role,
    e.signature AS key
FROM reported_failure AS e
WHERE e.class = 'comm.init'
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
