-- Xid messages that matter to the job, the first of each GPU, with what their code stands for. A row is one GPU; what was
-- reported before the job began is a row of its own. Codes that programs cause are there only where the GPU shows no fault
-- of its own, and not when they name another process.
CREATE TEMP VIEW gpu_fault AS
WITH
meaning AS (
    SELECT * FROM (VALUES
        (8, 'the GPU stopped processing'),
        (13, 'an exception of the graphics engine, caused by a program'),
        (31, 'a page fault in GPU memory, caused by a program'),
        (32, 'an invalid or corrupted command buffer'),
        (38, 'an error of the driver firmware'),
        (43, 'the GPU stopped a program after its fault'),
        (48, 'a double-bit error of GPU memory that could not be corrected'),
        (61, 'a breakpoint of the internal microcontroller'),
        (62, 'a halt of the internal microcontroller'),
        (64, 'a defective page or row could not be retired'),
        (69, 'a wrong class or method, caused by a program'),
        (74, 'an error of the NVLink'),
        (79, 'the GPU has fallen off the bus'),
        (92, 'many single-bit errors of GPU memory'),
        (94, 'a contained error of GPU memory that could not be corrected'),
        (95, 'an uncontained error of GPU memory'),
        (109, 'a context switch timed out'),
        (119, 'the GPU system processor (GSP) did not answer'),
        (120, 'an error of the GPU system processor (GSP)'),
        (121, 'an error of the chip-to-chip link'),
        (140, 'an unrecovered error of GPU memory'),
        (143, 'the GPU could not be initialised')
    ) AS t (xid, meaning)
),
fault AS (
    SELECT
        x.*,
        x.class LIKE 'hw.%' AND x.role = 'primary' AS is_hardware
    FROM driver_xid AS x
    WHERE x.timing <> 'after'
      AND (
          (x.class LIKE 'hw.%' AND x.role = 'primary')
          -- 45 only clears away what another code has stopped.
          OR (x.class = 'cuda.application' AND x.role IN ('primary', 'symptom') AND NOT x.is_foreign AND x.timing <> 'before')
      )
),
witness AS (
    -- Whether the job itself met a fault of a device.
    SELECT count(*) > 0 AS job_met_it
    FROM log
    WHERE source <> 'kernel' AND message NOT LIKE '%NVRM: %'
      AND role IN ('primary', 'symptom', 'secondary')
      AND (class LIKE 'hw.%' OR class LIKE 'cuda.%' OR class IN ('comm.cuda', 'comm.timeout', 'comm.heartbeat', 'env.driver'))
)
SELECT
    f.artifact_id,
    f.row,
    CASE WHEN NOT f.is_foreign AND f.pid IS NOT NULL THEN coalesce(p.id, f.proc_id) ELSE f.proc_id END AS proc_id,
    CASE WHEN NOT f.is_foreign AND f.pid IS NOT NULL THEN coalesce(p.rank, f.rank) END AS rank,
    f.ts_ns,
    f.line,
    f.host,
    f.pci,
    f.xid,
    coalesce(m.meaning, 'a fault of the driver or the GPU') AS meaning,
    CASE
        WHEN f.timing = 'before' THEN '; that was before this job began'
        WHEN f.timing = 'unknown' THEN '; whether it was during this job is not known'
        ELSE ''
    END AS detail,
    CASE
        WHEN f.timing = 'before' THEN 'info'
        WHEN e.well AND NOT w.job_met_it THEN 'medium'
        WHEN NOT f.is_hardware THEN 'high'
        -- Rates of corrected errors and commands of drivers hurt, but by themselves end nothing.
        WHEN f.xid IN (8, 32, 38, 92) THEN 'high'
    END AS severity,
    CASE WHEN NOT f.is_hardware THEN 'symptom' END AS role,
    -- The driver's word on what a program did: the program's own error is what brought it about.
    CASE WHEN NOT f.is_hardware THEN []::VARCHAR[] END AS causes,
    CASE WHEN NOT f.is_hardware THEN ['context-poisoned'] END AS requires,
    CASE WHEN f.xid IN (8, 32, 38, 92) OR (f.timing = 'unknown' AND NOT w.job_met_it) THEN 'indication' END AS strength,
    CASE WHEN NOT f.is_hardware THEN 'Look for the first CUDA error of the process; run once under compute-sanitizer. Only when the same GPU repeats it with other programs is the GPU to blame.' END AS fix,
    f.xid AS key
FROM fault AS f
LEFT JOIN meaning AS m ON m.xid = f.xid
LEFT JOIN proc AS p ON CAST(p.pid AS VARCHAR) = f.pid
CROSS JOIN witness AS w
CROSS JOIN ended_well AS e
QUALIFY row_number() OVER (
    PARTITION BY f.host, f.pci, f.timing = 'before'
    -- The first fault of the hardware; what programs cause is asked only where there is none.
    ORDER BY (NOT f.is_hardware), f.ts_ns NULLS LAST, f.artifact_id, f.row
) = 1;
