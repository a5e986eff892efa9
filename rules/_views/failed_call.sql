-- CUDA calls that returned an error, as Nsight Systems records results; a row is one call. Runtime and driver use the same
-- numbers for these. Left out: cudaErrorNotReady (600), the answer of queries, and calls that ask whether a stream is being
-- captured, whose error 906 says so and harms nothing.
-- place: the NVTX ranges around the call, outermost first; n_later: errors of the same code that follow in the process.
CREATE TEMP VIEW failed_call AS
WITH
meaning AS (
    SELECT * FROM (VALUES
        (2, 'out of memory'),
        (214, 'uncorrectable ECC error encountered'),
        (220, 'uncorrectable NVLink error detected'),
        (700, 'an illegal memory access was encountered'),
        (702, 'the launch timed out and was terminated'),
        (709, 'context is destroyed'),
        (710, 'device-side assert triggered'),
        (714, 'hardware stack error'),
        (715, 'an illegal instruction was encountered'),
        (716, 'misaligned address'),
        (717, 'operation not supported on global/shared address space'),
        (718, 'invalid program counter'),
        (719, 'unspecified launch failure'),
        (900, 'operation not permitted when stream is capturing'),
        (901, 'operation failed due to a previous error during capture'),
        (902, 'operation would result in a merge of separate capture sequences'),
        (903, 'capture was not ended in the same stream as it began'),
        (904, 'capturing stream has unjoined work'),
        (905, 'dependency created on uncaptured work in another stream'),
        (906, 'operation would make the legacy stream depend on a capturing blocking stream'),
        (907, 'operation not permitted on an event last recorded in a capturing stream'),
        (908, 'attempt to terminate a thread-local capture sequence from another thread')
    ) AS t (return_code, meaning)
),
failed AS (
    SELECT
        c.*,
        regexp_replace(c.name, '(_pt[sd][sz])?(_v\d+)?$', '') AS call
    FROM runtime_call AS c
    WHERE c.return_code NOT IN (0, 600)
      AND NOT regexp_matches(c.name, '^(cuda|cu)(StreamIsCapturing|StreamGetCaptureInfo)')
),
ranges AS (
    SELECT
        f.artifact_id,
        f.row,
        string_agg(n.text, ' > ' ORDER BY r.ts_ns, r.row) AS place
    FROM failed AS f
    JOIN slice AS r
        ON r.artifact_id = f.artifact_id AND r.proc_id = f.proc_id AND r.thread = f.thread
        AND r.kind IN ('annotation', 'cpu_op') AND r.ts_ns <= f.ts_ns
        AND (r.dur_ns IS NULL OR r.ts_ns + r.dur_ns >= f.ts_ns)
    JOIN string AS n ON n.id = r.name_id
    GROUP BY f.artifact_id, f.row
)
SELECT
    f.artifact_id,
    f.row,
    f.proc_id,
    f.rank,
    f.step,
    f.ts_ns,
    f.dur_ns,
    f.thread,
    f.call,
    f.return_code,
    coalesce(m.meaning, 'error ' || f.return_code) AS meaning,
    left(g.place, 300) AS place,
    count(*) OVER (
        PARTITION BY f.artifact_id, f.proc_id, f.return_code ORDER BY f.ts_ns, f.row ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
    ) - 1 AS n_later
FROM failed AS f
LEFT JOIN meaning AS m ON m.return_code = f.return_code
LEFT JOIN ranges AS g ON g.artifact_id = f.artifact_id AND g.row = f.row;
