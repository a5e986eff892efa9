/*
title = "A slower attention kernel ran than could have"
severity = "medium"
role = "performance"
scope = "job"
proves = """
Which attention kernel ran, or which one was refused, where that is on record: by the kernels of two runs, by the memory
that each kernel takes, by the operators of a trace, or by what PyTorch or a library says."""
cannot_prove = """
What it costs, unless times or memory of both are on record. That a faster kernel takes these inputs: a mask, a type, a head
size or the device may rule it out, and the message names the reason only where one is on record."""
message = "{what}{reason}"
fix = "Make the call eligible: no attn_mask where is_causal=True or unpadded sequences say the same, float16 or bfloat16, a head size that is a multiple of 8 up to 256, a build and a device that flash supports; or FlexAttention for other masks. with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) prints why flash is refused."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html"]

[thresholds.min_memory_ratio]
value = 2.0
unit = "memory of the kernel that was chosen / memory of a faster one"
why = "flash and the memory-efficient kernel lie within a tenth of each other; the math path holds the scores several times over"

[variant.record]
needs = ["log_event|slice"]
strength = "strong"
*/
-- variant: record
WITH
masked AS (
    SELECT min(key || ' = ' || value) AS told
    FROM fact
    WHERE scope = 'option' AND contains(lower(key), 'attn_mask') AND lower(value) NOT IN ('null', 'none', 'false', '')
),
replaced AS (
    -- Two runs of one job: one by flash, the other by another kernel.
    SELECT
        y.artifact_id, y.row, y.line, y.proc_id, y."table", 1 AS preference, 'high' AS severity,
        -- Another kernel draws other random numbers and rounds otherwise: where results differ as well, it is a cause.
        CASE WHEN EXISTS (SELECT 1 FROM backend_comparison AS d WHERE d.has_failed) THEN 'cause' ELSE 'performance' END AS role,
        b.path || ' ran ' || y.kernel || ' (' || y.kind || ') where ' || a.path || ' ran ' || x.kernel || ' (' || x.kind || ')' AS what,
        coalesce('; ' || m.told || ', and flash takes no mask', '') AS reason,
        ['kernel-replaced', 'throughput-low'] AS causes
    FROM attention_choice AS x
    JOIN attention_choice AS y ON y.artifact_id <> x.artifact_id AND y."table" = x."table"
    JOIN artifact AS a ON a.id = x.artifact_id
    JOIN artifact AS b ON b.id = y.artifact_id
    CROSS JOIN masked AS m
    WHERE x.kind IN ('flash', 'cudnn') AND y.kind IN ('efficient', 'math') AND x."table" = 'log_event'
    ORDER BY y.kind DESC, y.artifact_id, x.artifact_id
    LIMIT 1
),
dear AS (
    SELECT
        e.artifact_id, e.row, e.line, e.proc_id, 'log_event' AS "table", 2 AS preference, 'performance' AS role, 'high' AS severity,
        'Attention took ' || (e.fields ->> 'auto_bytes')::BIGINT // 1048576 || ' MiB, as much as the math path, where '
        || (SELECT min((o.fields ->> 'auto_bytes')::BIGINT) FROM log AS o WHERE o.class = e.class) // 1048576 || ' MiB suffice' AS what,
        CASE WHEN e.fields ->> 'unsupported' IS NOT NULL THEN '; flash does not take this call' ELSE '' END || coalesce('; ' || m.told, '') AS reason,
        ['throughput-low'] AS causes
    FROM log AS e
    CROSS JOIN masked AS m
    WHERE e.class = 'compile.attention-memory' AND e.role <> 'noise'
      AND (e.fields ->> 'auto_bytes')::BIGINT * 1.1 >= (e.fields ->> 'math_bytes')::BIGINT
      AND (e.fields ->> 'auto_bytes')::BIGINT >= $min_memory_ratio * (SELECT min((o.fields ->> 'auto_bytes')::BIGINT) FROM log AS o WHERE o.class = e.class)
    ORDER BY (e.fields ->> 'auto_bytes')::BIGINT DESC, e.artifact_id, e.row
    LIMIT 1
),
said AS (
    SELECT
        e.artifact_id, e.row, e.line, e.proc_id, 'log_event' AS "table",
        CASE WHEN e.exception IS NULL OR e.exception LIKE '%Warning' THEN 4 ELSE 0 END AS preference,
        CASE WHEN e.exception IS NULL OR e.exception LIKE '%Warning' THEN 'performance' ELSE 'cause' END AS role,
        CASE WHEN e.exception IS NULL OR e.exception LIKE '%Warning' THEN 'medium' ELSE 'critical' END AS severity,
        left(split_part(e.message, chr(10), 1), 200) AS what,
        coalesce('; because of ' || coalesce(
            CASE WHEN e.fields ->> 'mask' IS NOT NULL THEN 'the mask' END, e.fields ->> 'dtype', e.fields ->> 'architecture', e.fields ->> 'head_size',
            CASE WHEN e.fields ->> 'causal' IS NOT NULL THEN 'causal attention of unequal lengths' END, e.fields ->> 'dropout',
            -- The error names no reason: the warnings above it do.
            (
                SELECT arg_min(left(regexp_replace(split_part(o.message, chr(10), 1), '^.{0,300}?Warning: | ?\(Triggered internally.{0,200}', '', 'g'), 200), o.row) FROM log AS o
                WHERE o.artifact_id = e.artifact_id AND o.class = e.class AND o.line < e.line AND o.role <> 'noise'
                  AND coalesce(o.fields ->> 'mask', o.fields ->> 'dtype', o.fields ->> 'architecture', o.fields ->> 'head_size', o.fields ->> 'causal', o.fields ->> 'dropout') IS NOT NULL
            )
        ), '') AS reason,
        CASE WHEN e.exception IS NULL OR e.exception LIKE '%Warning' THEN ['throughput-low'] ELSE ['rank-failed'] END AS causes
    FROM log AS e
    WHERE e.class = 'compile.attention-fallback' AND e.role <> 'noise' AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
    QUALIFY row_number() OVER (ORDER BY preference, (e.fields ->> 'mask' IS NULL AND e.fields ->> 'dtype' IS NULL), e.artifact_id, e.row) = 1
),
traced AS (
    SELECT
        artifact_id, row, line, proc_id, "table", 3 AS preference, 'performance' AS role, 'medium' AS severity,
        'scaled_dot_product_attention ran its math path ' || n_rows || CASE n_rows WHEN 1 THEN ' time' ELSE ' times' END AS what,
        '' AS reason,
        ['throughput-low'] AS causes
    FROM attention_choice
    WHERE "table" = 'slice' AND kind = 'math' AND has_device
    ORDER BY artifact_id
    LIMIT 1
)
SELECT
    *,
    what AS key
FROM (SELECT * FROM replaced UNION ALL BY NAME SELECT * FROM dear UNION ALL BY NAME SELECT * FROM said UNION ALL BY NAME SELECT * FROM traced)
ORDER BY preference, artifact_id, row
LIMIT 1;
