/*
title = "A kernel accessed memory that is not its own"
severity = "critical"
scope = "job"
cannot_prove = """
Which kernel it was: the error surfaces at a later call unless CUDA_LAUNCH_BLOCKING=1 was set. An index out of range, a
tensor that was freed while a stream still used it, and a bug of a custom kernel look the same."""
message = "{who}: {said}{detail}"
fix = "Run once with CUDA_LAUNCH_BLOCKING=1 to see the call, then compute-sanitizer --tool memcheck python …; look first at custom kernels, at indices that are not checked, and at tensors shared between streams without record_stream."
causes = [{ state = "context-poisoned", of = "process" }]
requires = [{ state = "context-poisoned", of = "process" }, { state = "device-lost", of = "device" }]
references = [
  "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
  "https://docs.nvidia.com/compute-sanitizer/",
]

[variant.result]
needs = ["slice.return_code"]
strength = "proof"
proves = """
A CUDA call of the process returned the error of a kernel that read or wrote an address outside its allocations, or a
misaligned one. Every later CUDA call of the process returns an error."""

[variant.error]
needs = ["log_event"]
strength = "strong"
proves = """
A kernel of the process read or wrote an address outside its allocations (or a misaligned one), as the CUDA runtime
reports. Every later CUDA call of the process returns an error."""

[variant.kernel-log]
needs = ["log_event.kernel"]
strength = "indication"
proves = "A kernel read or wrote an address outside its allocations, as the driver reports in the kernel log."
says = "Only the driver's message is there, without an error of the job itself."

[variant.launch-failure]
needs = ["log_event"]
strength = "indication"
proves = """
The CUDA runtime reports an unspecified launch failure: a kernel of the process did not run to its end."""
says = "An unspecified launch failure is mostly an access out of bounds, but a failing GPU gives the same words."
*/
-- variant: result
WITH
first_error AS (
    SELECT f.*
    FROM failed_call AS f
    WHERE f.return_code IN (700, 716, 717, 718, 719)
    QUALIFY row_number() OVER (PARTITION BY f.proc_id ORDER BY (f.return_code = 719), f.ts_ns, f.artifact_id, f.row) = 1
),
last_kernel AS (
    SELECT
        e.artifact_id,
        e.row,
        k.row AS kernel_row,
        k.name
    FROM first_error AS e
    JOIN kernel AS k ON k.artifact_id = e.artifact_id AND k.proc_id = e.proc_id AND k.ts_ns <= e.ts_ns + coalesce(e.dur_ns, 0)
    QUALIFY row_number() OVER (PARTITION BY e.artifact_id, e.row ORDER BY k.ts_ns DESC, k.row DESC) = 1
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.call || ' returned ' || e.return_code || ' (' || e.meaning || ')' AS said,
    coalesce(' in ' || e.place, '') || CASE WHEN e.n_later > 0 THEN '; ' || e.n_later || ' later calls returned the same' ELSE '' END
    || coalesce('; the last kernel recorded before it is ' || briefly(k.name, 200), '') AS detail,
    e.place AS where_in_code,
    -- A failing GPU gives 719 as well.
    CASE WHEN e.return_code = 719 THEN 'high' END AS severity,
    CASE WHEN e.return_code = 719 THEN 'indication' END AS strength,
    CASE
        WHEN k.kernel_row IS NOT NULL
            THEN [{'artifact_id': e.artifact_id, 'row': k.kernel_row, 'note': 'the last kernel recorded before it'}]
    END AS evidence,
    e.return_code AS key
FROM first_error AS e
LEFT JOIN last_kernel AS k ON k.artifact_id = e.artifact_id AND k.row = e.row
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: error
WITH
driver_word AS (
    SELECT
        x.artifact_id,
        x.row,
        x.line,
        x.xid
    FROM driver_xid AS x
    WHERE x.xid IN (13, 31) AND NOT x.is_foreign AND x.timing IN ('during', 'unknown')
    QUALIFY row_number() OVER (ORDER BY x.artifact_id, x.row) = 1
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.host,
    e.said,
    e.where_in_code,
    coalesce('; it surfaced in ' || e.where_in_code, '') || coalesce('; the driver reported Xid ' || x.xid, '') AS detail,
    CASE
        WHEN x.xid IS NOT NULL
            THEN [{'artifact_id': x.artifact_id, 'row': x.row, 'line': x.line, 'note': 'the driver''s message about it'}]
    END AS evidence,
    e.signature AS key
FROM reported_failure AS e
LEFT JOIN driver_word AS x ON TRUE
WHERE e.class IN ('cuda.illegal-access', 'cuda.kernel-bug')
  AND e.role = 'primary'
QUALIFY row_number() OVER (
    PARTITION BY e.proc_id, e.attempt
    ORDER BY (e.where_in_code IS NULL AND e.ts_ns IS NULL), e.ts_ns NULLS LAST, e.artifact_id, e.row
) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: kernel-log
SELECT
    x.artifact_id,
    x.row,
    x.proc_id,
    p.rank,
    x.ts_ns,
    x.line,
    x.host,
    briefly(x.message, 200) AS said,
    '' AS detail,
    'xid-' || x.xid AS key
FROM driver_xid AS x
LEFT JOIN proc AS p ON CAST(p.pid AS VARCHAR) = x.pid
WHERE x.xid IN (13, 31)
  AND x.timing = 'during'
  AND NOT x.is_foreign
QUALIFY row_number() OVER (PARTITION BY x.host, x.pci ORDER BY x.ts_ns NULLS LAST, x.artifact_id, x.row) = 1
ORDER BY x.ts_ns, x.artifact_id, x.row;
-- variant: launch-failure
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.host,
    e.said,
    e.where_in_code,
    coalesce('; it surfaced in ' || e.where_in_code, '') AS detail,
    'high' AS severity,
    e.signature AS key
FROM reported_failure AS e
WHERE e.class = 'cuda.launch-failure'
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
