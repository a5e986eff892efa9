-- Attention kernels that an artifact shows to have run: a row is one artifact, `kind` flash, cudnn, efficient or math
-- (the fastest of them), from lists of kernels in texts and from the operators of profiler traces.
-- n_rows: how often; has_device: kernels of a device are on record too, so that a fused kernel could have run.
CREATE TEMP VIEW attention_choice AS
WITH
ran AS (
    SELECT
        artifact_id,
        row,
        line,
        proc_id,
        'log_event' AS "table",
        CASE
            WHEN fields ->> 'flash' IS NOT NULL THEN 'flash'
            WHEN fields ->> 'cudnn' IS NOT NULL THEN 'cudnn'
            WHEN fields ->> 'efficient' IS NOT NULL THEN 'efficient'
            ELSE 'math'
        END AS kind,
        coalesce(fields ->> 'flash', fields ->> 'cudnn', fields ->> 'efficient', fields ->> 'math') AS kernel,
        true AS has_device
    FROM log
    WHERE class = 'compile.attention-kernel' AND role <> 'noise'
    UNION ALL BY NAME
    SELECT
        s.artifact_id,
        s.row,
        NULL AS line,
        s.proc_id,
        'slice' AS "table",
        CASE n.text
            WHEN 'aten::_scaled_dot_product_attention_math' THEN 'math'
            WHEN 'aten::_scaled_dot_product_flash_attention' THEN 'flash'
            WHEN 'aten::_scaled_dot_product_cudnn_attention' THEN 'cudnn'
            ELSE 'efficient'
        END AS kind,
        n.text AS kernel,
        EXISTS (SELECT 1 FROM slice AS k WHERE k.artifact_id = s.artifact_id AND k.kind = 'kernel') AS has_device
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    WHERE n.text IN (
        'aten::_scaled_dot_product_attention_math', 'aten::_scaled_dot_product_flash_attention',
        'aten::_scaled_dot_product_efficient_attention', 'aten::_scaled_dot_product_cudnn_attention'
    )
)
SELECT
    *,
    count(*) OVER (PARTITION BY artifact_id) AS n_rows
FROM (SELECT *, list_position(['flash', 'cudnn', 'efficient', 'math'], kind) AS rank_of_kind FROM ran)
QUALIFY row_number() OVER (PARTITION BY artifact_id ORDER BY rank_of_kind, row) = 1;
