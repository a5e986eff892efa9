/*
title = "Settings contradict each other or the machine"
severity = "medium"
scope = "job"
cannot_prove = """
That a contradiction among recorded settings had anything to do with a failure: it is context unless the library itself
refused it. Settings that the code sets later are not seen."""
message = "{what}: {said}"
fix = "{remedy}"
causes = [{ state = "config-contradictory", of = "job" }]
references = [
  "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf",
  "https://github.com/pytorch/pytorch/pull/193400",
  "https://github.com/deepspeedai/DeepSpeed/pull/5008",
]

[variant.refused]
needs = ["log_event"]
strength = "strong"
proves = "A library refused a combination of settings."

[variant.no-device]
needs = ["log_event", "fact"]
strength = "strong"
proves = "The job asked for a GPU while a setting hid all of them from it."

[variant.no-device-seen]
needs = ["log_event"]
strength = "indication"
proves = "The process asked for a GPU and saw none."
says = "Why it saw none is not on record: devices that a setting hides, a container or a job step without them, a driver that does not answer, or a build without CUDA."

[variant.recorded]
needs = ["fact"]
strength = "indication"
proves = "A setting is recorded that another one, or the machine, makes void or harmful."
says = "The settings are recorded; that the job used both, and suffered, is not shown."
*/
-- variant: refused
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.said,
    e.where_in_code,
    CASE
        WHEN e.signature = 'config-precision-both' THEN 'Two precisions are asked for at once'
        WHEN e.signature = 'compute-type-unsupported' THEN 'The device does not have the precision that is asked for'
        WHEN e.signature = 'nondeterministic-op' THEN 'Determinism is demanded of an operator that does not give it as things are set'
        ELSE 'Settings of the batch contradict each other'
    END AS what,
    CASE
        WHEN e.signature = 'config-precision-both' THEN 'Keep one of fp16 and bf16, in the arguments and in the DeepSpeed or Accelerate file alike.'
        WHEN e.signature = 'nondeterministic-op' AND contains(e.message, 'CUBLAS_WORKSPACE_CONFIG')
            THEN 'Set CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment before the process starts.'
        WHEN e.signature = 'nondeterministic-op' THEN 'Take another operator in its place, or torch.use_deterministic_algorithms(True, warn_only=True).'
        WHEN e.signature = 'compute-type-unsupported' THEN 'Use fp16 on devices before compute capability 8.0, or another device.'
        ELSE 'Let train_batch_size be micro batch × accumulation steps × world size, or set it to "auto".'
    END AS remedy,
    CASE WHEN e.completed THEN 'medium' ELSE 'critical' END AS severity,
    [] AS requires,
    e.signature AS key
FROM reported_failure AS e
WHERE e.class = 'env.config'
  AND e.role = 'primary'
  AND NOT e.moved_on
  AND NOT contains(e.message, 'UserWarning: ')
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: no-device
WITH
hidden AS (
    SELECT
        artifact_id,
        line,
        value
    FROM fact
    WHERE key IN ('CUDA_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES') AND scope = 'variable' AND trim(value) IN ('', '-1', 'NoDevFiles', 'none')
    QUALIFY row_number() OVER (ORDER BY artifact_id, line) = 1
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    'CUDA_VISIBLE_DEVICES is "' || h.value || '" and the job asked for a GPU: ' || e.said AS said,
    'All devices are hidden from the job' AS what,
    'Set CUDA_VISIBLE_DEVICES to the devices of the job, or leave it to the scheduler.' AS remedy,
    CASE WHEN e.completed THEN 'medium' ELSE 'critical' END AS severity,
    [{'artifact_id': h.artifact_id, 'line': h.line, 'note': 'the setting'}] AS evidence,
    [] AS requires,
    'no-device' AS key
FROM reported_failure AS e
CROSS JOIN hidden AS h
WHERE e.class = 'env.no-gpu'
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: no-device-seen
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    'The process asked for a GPU and saw none' AS what,
    e.said,
    'In the same place (container, job step, environment) run nvidia-smi, printenv CUDA_VISIBLE_DEVICES and python -m torch.utils.collect_env: give the container or the step its devices (--gpus all, --gres=gpu:N), or install a driver and a build of torch with CUDA.' AS remedy,
    CASE WHEN e.completed THEN 'medium' ELSE 'critical' END AS severity,
    'no-device-seen' AS key
FROM reported_failure AS e
WHERE e.class = 'env.no-gpu'
  AND e.role = 'primary'
  AND NOT e.moved_on
  AND NOT EXISTS (
      SELECT 1 FROM fact AS f
      WHERE f.key IN ('CUDA_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES') AND f.scope = 'variable' AND trim(f.value) IN ('', '-1', 'NoDevFiles', 'none')
  )
  -- What says why: environment-version.
  AND NOT EXISTS (
      SELECT 1 FROM log AS o
      WHERE o.class IN ('env.abi', 'env.library', 'env.driver', 'env.build', 'env.version', 'env.device-initialisation') AND o.role <> 'noise'
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: recorded
WITH
allocator AS (
    SELECT
        artifact_id,
        line,
        replace(value, ' ', '') AS value
    FROM fact
    WHERE key IN ('PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF')
),
host AS (
    SELECT
        min(number) FILTER (WHERE regexp_matches(lower(key), '^(cpu\(s\)|cpus|n_cpus|cpu_count|nproc|num_cpus)$')) AS n_cores,
        max(number) FILTER (WHERE regexp_matches(lower(key), '(^|\.)(world_size|nproc_per_node|nproc-per-node|num_processes)$')) AS n_processes
    FROM fact
),
contradiction AS (
    SELECT
        a.artifact_id,
        a.line,
        'Options of the allocator cancel each other' AS what,
        a.value || ': the backend cudaMallocAsync ignores max_split_size_mb, roundup_power2_divisions and garbage_collection_threshold' AS said,
        'Drop these options, or the backend.' AS remedy,
        'info' AS severity,
        'async-backend' AS key
    FROM allocator AS a
    WHERE a.value LIKE '%backend:cudaMallocAsync%' AND regexp_matches(a.value, 'max_split_size_mb|roundup_power2|garbage_collection_threshold')
    UNION ALL
    SELECT
        a.artifact_id,
        a.line,
        'Options of the allocator work against each other' AS what,
        a.value || ': a merged free block above max_split_size_mb counts as oversized and is kept from smaller requests, so an expandable segment grows instead' AS said,
        'Keep expandable_segments:True and drop max_split_size_mb.' AS remedy,
        'medium' AS severity,
        'expandable-with-split-limit' AS key
    FROM allocator AS a
    WHERE lower(a.value) LIKE '%expandable_segments:true%' AND a.value LIKE '%max_split_size_mb:%'
    UNION ALL
    SELECT
        f.artifact_id,
        f.line,
        'A debugging switch was left on' AS what,
        f.key || '=' || f.value || ' makes every kernel launch wait, which costs time and hides overlap' AS said,
        'Unset it outside debugging runs.' AS remedy,
        'info' AS severity,
        'launch-blocking' AS key
    FROM fact AS f
    WHERE f.scope = 'variable' AND f.key = 'CUDA_LAUNCH_BLOCKING' AND f.value = '1'
    UNION ALL
    SELECT
        f.artifact_id,
        f.line,
        'A path between GPUs is switched off' AS what,
        f.key || '=' || f.value AS said,
        'Unset it where the hardware has the path; keep it only as a workaround that is written down.' AS remedy,
        'info' AS severity,
        f.key AS key
    FROM fact AS f
    WHERE f.scope = 'variable' AND f.key IN ('NCCL_P2P_DISABLE', 'NCCL_IB_DISABLE', 'NCCL_SHM_DISABLE') AND f.value IN ('1', 'true')
    UNION ALL
    SELECT
        f.artifact_id,
        f.line,
        'Two precisions are asked for at once' AS what,
        f.key || ' and ' || b.key || ' are both on' AS said,
        'Keep one of the two.' AS remedy,
        'medium' AS severity,
        'both-precisions' AS key
    FROM fact AS f
    JOIN fact AS b ON b.artifact_id = f.artifact_id AND b.key = regexp_replace(f.key, 'fp16', 'bf16') AND b.key <> f.key
    WHERE regexp_matches(f.key, '(^|\.)fp16(\.enabled)?$') AND lower(f.value) IN ('true', '1') AND lower(b.value) IN ('true', '1')
    UNION ALL
    SELECT
        f.artifact_id,
        f.line,
        'More loader workers than cores' AS what,
        CAST(CAST(f.number AS BIGINT) AS VARCHAR) || ' workers in each of ' || CAST(CAST(coalesce(h.n_processes, 1) AS BIGINT) AS VARCHAR)
            || ' processes on ' || CAST(CAST(h.n_cores AS BIGINT) AS VARCHAR) || ' cores' AS said,
        'Lower num_workers until processes × workers fits the cores.' AS remedy,
        'medium' AS severity,
        'workers' AS key
    FROM fact AS f
    CROSS JOIN host AS h
    WHERE regexp_matches(lower(f.key), '(^|\.)(dataloader_)?num_workers$') AND f.number * coalesce(h.n_processes, 1) > h.n_cores
    UNION ALL
    SELECT
        f.artifact_id,
        f.line,
        'The address of the rendezvous is local to each host' AS what,
        f.key || '=' || f.value || ' in a job of ' || n.value || ' nodes' AS said,
        'Set MASTER_ADDR to a name of the first node that the others can resolve.' AS remedy,
        'medium' AS severity,
        'local-master' AS key
    FROM fact AS f
    JOIN fact AS n ON n.key IN ('nnodes', 'num_nodes', 'num_machines', 'sbatch.nodes') AND n.number > 1
    WHERE f.key = 'MASTER_ADDR' AND f.value IN ('localhost', '127.0.0.1', '::1')
    UNION ALL
    SELECT
        f.artifact_id,
        f.line,
        'Experts whose weights ZeRO-3 gathers one by one' AS what,
        f.key || '=' || f.value || ' with ' || z.key || '=3: a rank whose tokens choose other experts takes no part in gathering one, and the ranks that do wait for it until a timeout' AS said,
        'Gather the block of experts as a whole: deepspeed.utils.set_z3_leaf_modules(model, [the class of the block]) before the engine is made; or use stage 2.' AS remedy,
        'medium' AS severity,
        'experts-under-zero-3' AS key
    FROM fact AS f
    JOIN fact AS z ON regexp_matches(z.key, '(^|\.)(zero_optimization\.stage|zero_stage)$') AND z.number = 3
    WHERE regexp_matches(f.key, '(^|\.)(num_local_experts|num_experts|n_routed_experts|moe_num_experts)$') AND f.number > 1
      AND NOT EXISTS (SELECT 1 FROM fact WHERE regexp_matches(key, 'leaf_module|moe_cls_names|moe_layer_cls'))
)
SELECT
    *,
    [] AS requires
FROM contradiction
QUALIFY row_number() OVER (PARTITION BY key ORDER BY artifact_id, line) = 1
ORDER BY artifact_id, line, key;
