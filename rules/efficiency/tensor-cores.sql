/*
title = "Matrix products run without tensor cores"
severity = "medium"
role = "performance"
proves = """
Matrix products and convolutions ran in kernels of the ordinary cores, by their names, and took at least a tenth of the
computing time of a device that has tensor cores."""
cannot_prove = """
That the result may be rounded as tensor cores do: TF32 keeps 10 bits of each factor's mantissa. Kernels whose names tell
nothing are not counted."""
message = "{who}: {simt_ratio:percent} of the computing time of device {device}{device_name} went into matrix products without tensor cores ({n_kernels:# kernel|# kernels}, most in {op})"
fix = "{advice}"
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html", "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html"]

[thresholds.min_simt_ratio]
value = 0.1
unit = "time of such kernels / time in which any computation ran"
measured = "simt_ratio"
why = "a tenth of the time is what makes a cost grave (severities in rules/README.md)"

[thresholds.min_work]
value = 50
unit = "kernels, copies and fills"
why = "fewer are one small pass or a warm-up"

[thresholds.min_capability]
value = 7
unit = "compute capability"
why = "tensor cores came with 7.0 (Volta), their TF32 mode with 8.0 (Ampere)"

[variant.trace]
needs = ["slice.device"]
strength = "strong"
*/
-- variant: trace
WITH
named AS (
    SELECT
        id,
        text,
        lower(text) AS name
    FROM string
    WHERE id IN (SELECT DISTINCT name_id FROM slice WHERE kind = 'kernel')
),
simt AS (
    -- Words of cuBLAS, CUTLASS and cuDNN for kernels on ordinary cores; beside them those for tensor cores, which rule it out.
    SELECT
        id,
        text,
        contains(name, 'fp16') OR contains(name, 'bf16') OR contains(name, 'hgemm') AS is_half,
        CASE
            WHEN contains(name, 'volta_') OR contains(name, 'turing_') OR contains(name, 'sm70') OR contains(name, 'sm75') THEN 7
            WHEN contains(name, 'ampere_') OR contains(name, 'cutlass_80') OR contains(name, 'sm80') THEN 8
            WHEN contains(name, 'sm90') OR contains(name, 'hopper') THEN 9
        END AS by_name
    FROM named
    WHERE (
        contains(name, '_sgemm') OR contains(name, '_hgemm') OR contains(name, 'simt_') OR contains(name, '_scudnn')
        OR contains(name, 'magma_sgemm') OR contains(name, 'maxwell_')
    )
      AND NOT regexp_matches(name, 'tensorop|tf32|h884|s884|h1688|s1688|16816|hmma|wgmma|gmma|xmma')
),
ran AS (
    SELECT
        k.artifact_id,
        k.proc_id,
        coalesce(k.device, 0) AS device,
        count(*) AS n_kernels,
        sum(k.dur_ns) AS total_ns,
        max(s.by_name) AS by_name,
        sum(k.dur_ns) FILTER (s.is_half) AS half_ns,
        arg_max(s.text, (k.dur_ns, s.text)) AS op,
        arg_max(k.row, (k.dur_ns, -k.row)) AS row
    FROM slice AS k
    JOIN simt AS s ON s.id = k.name_id
    WHERE k.kind = 'kernel'
    GROUP BY k.artifact_id, k.proc_id, coalesce(k.device, 0)
),
property AS (
    SELECT
        artifact_id,
        split_part(key, '.', 2) AS device,
        max(number) FILTER (split_part(key, '.', 3) = 'computeMajor') AS major,
        max(value) FILTER (split_part(key, '.', 3) = 'name') AS name
    FROM fact
    WHERE scope = 'device' AND key LIKE 'device.%'
    GROUP BY artifact_id, split_part(key, '.', 2)
)
SELECT
    r.artifact_id,
    r.row,
    'slice' AS "table",
    r.proc_id,
    u.rank,
    u.ts_ns,
    r.device,
    coalesce(' (' || p.name || ')', '') AS device_name,
    r.total_ns / u.compute_ns AS simt_ratio,
    r.n_kernels,
    left(r.op, 80) AS op,
    CASE
        WHEN 2 * r.half_ns >= r.total_ns
            THEN 'The inputs are of half precision already: make the sizes of the products multiples of 8 (pad the vocabulary, heads and batch), and check their alignment.'
        WHEN coalesce(p.major, r.by_name) < 8
            THEN 'Compute in half precision: torch.autocast("cuda", torch.float16) with a GradScaler, on this generation there are no tensor cores for float32.'
        ELSE 'torch.set_float32_matmul_precision("high") and torch.backends.cudnn.allow_tf32 = True, or torch.autocast("cuda", torch.bfloat16).'
    END AS advice,
    'device ' || r.device AS key
FROM ran AS r
JOIN device_use AS u
    ON u.artifact_id = r.artifact_id AND u.proc_id IS NOT DISTINCT FROM r.proc_id AND u.device = r.device
LEFT JOIN property AS p ON p.artifact_id = r.artifact_id AND p.device = r.device::VARCHAR
WHERE u.n_work >= $min_work AND coalesce(p.major, r.by_name) >= $min_capability
  AND r.total_ns >= $min_simt_ratio * u.compute_ns
  AND NOT contains(coalesce(p.name, ''), 'AMD') AND NOT contains(coalesce(p.name, ''), 'GTX 16')
ORDER BY simt_ratio DESC, r.artifact_id, r.proc_id, r.device;
