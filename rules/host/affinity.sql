/*
title = "Ranks are bound to too few processors, or to the wrong ones"
severity = "high"
role = "performance"
scope = "job"
cannot_prove = """
What it costs where no waits were recorded; processes outside of the job are not seen. Which GPU a rank uses is taken from its local
rank where it is not recorded."""
message = "{what}"
fix = "{remedy}"
causes = [{ state = "cores-contended", of = "host" }, { state = "throughput-low", of = "job" }]
references = [
    "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#utilize-non-uniform-memory-access-numa-controls",
    "https://docs.nvidia.com/deploy/nvidia-smi/index.html",
]

[thresholds.min_wait_share]
value = 0.2
unit = "time on the run queue / time, over the ranks of the host, for high"
why = "threads that sleep and wake on a host with cores to spare wait less than a tenth"

[thresholds.max_worker_ratio]
value = 2.0
unit = "loader workers / processors that torch counts"
why = "workers that wait for files may be more than the processors"

[thresholds.min_input_ratio]
value = 0.5
unit = "time in the loader / time of the steps, for high"
why = "a tenth is grave; with half of the time the loader, not the device, sets the pace"

[thresholds.min_steps]
value = 3
unit = "measured steps after the first"
why = "the first waits for workers to start"

[variant.cores]
needs = ["fact"]
strength = "strong"
proves = """
The ranks of a host may together use fewer processors than they have threads for computing, by what each process
recorded of itself or by taskset; where waits for a processor were recorded, they took a good part of the time."""

[variant.numa]
needs = ["fact"]
strength = "strong"
proves = """
The processors that a rank may use are none of those next to its GPU, by nvidia-smi's topology or the kernel's list."""
says = "What the longer way to the GPU costs was not measured."

[variant.workers]
needs = ["log_event"]
strength = "indication"
proves = """
A data loader makes more workers than the process has processors, by torch's own count; where it measured its steps,
they wait for that loader."""
says = "The warning counts processors; whether the workers wait for files or compute, it does not know, nor does the time that steps wait for them."
*/
-- variant: cores
WITH
rank_of_host AS (
    SELECT
        a.*,
        coalesce(
            (SELECT max(f.number) FROM fact AS f WHERE f.proc_id = a.proc_id AND f.key = 'flags.threads'),
            (SELECT max(f.number) FROM fact AS f WHERE f.proc_id = a.proc_id AND f.key = 'OMP_NUM_THREADS'),
            1
        ) AS n_threads
    FROM allowed_cpus AS a
),
waited AS (
    SELECT
        proc_id,
        sum(value) FILTER (WHERE name = 'run_delay_seconds') / sum(value) FILTER (WHERE name IN ('step_seconds', 'outside_seconds')) AS share
    FROM metric
    WHERE source = 'metrics' AND name IN ('run_delay_seconds', 'step_seconds', 'outside_seconds')
    GROUP BY proc_id
),
machine AS (
    SELECT
        r.attempt,
        r.host,
        count(*) AS n_ranks,
        sum(r.n_threads) AS n_threads,
        len(list_distinct(flatten(list(r.cpus ORDER BY r.rank)))) AS n_cpus,
        max(f.number) AS n_present,
        avg(w.share) AS share,
        list({'artifact_id': r.artifact_id, 'line': r.line, 'rank': r.rank, 'told': r.told} ORDER BY r.rank) AS places
    FROM rank_of_host AS r
    LEFT JOIN waited AS w ON w.proc_id = r.proc_id
    LEFT JOIN fact AS f ON f.proc_id = r.proc_id AND f.key = 'cpus.count'
    GROUP BY r.attempt, r.host
)
SELECT
    m.places[1].artifact_id AS artifact_id,
    m.places[1].line AS line,
    m.host,
    'The ' || m.n_ranks || ' ranks' || coalesce(' of ' || m.host, '') || ' compute with ' || CAST(m.n_threads AS BIGINT) || ' threads on '
        || CASE WHEN m.n_cpus = 1 THEN 'one processor' ELSE m.n_cpus || ' processors' END || ' that they may use'
        || CASE WHEN m.n_present > m.n_cpus THEN ', of ' || CAST(m.n_present AS BIGINT) || ' that the host has' ELSE '' END
        || coalesce('; they were ready and waited for one in ' || CAST(CAST(100 * m.share AS BIGINT) AS VARCHAR) || ' % of the time', '') AS what,
    CASE WHEN m.n_present > m.n_cpus
        THEN 'Give the job more processors (SLURM --cpus-per-task, the container''s cpuset, taskset), and each rank its own.'
        ELSE 'Set OMP_NUM_THREADS to the host''s processors divided by its ranks.'
    END AS remedy,
    CASE WHEN m.share >= $min_wait_share AND (m.n_present > m.n_cpus OR m.n_threads > m.n_ranks) THEN 'high' WHEN m.n_cpus < m.n_ranks THEN 'medium' ELSE 'info' END AS severity,
    [{'artifact_id': p.artifact_id, 'line': p.line, 'note': 'rank ' || p.rank || ': ' || p.told} FOR p IN m.places[2:9]] AS evidence,
    m.host AS fault,
    'cores' AS key
FROM machine AS m
WHERE m.n_threads > m.n_cpus AND (m.share IS NULL OR m.share >= 0.5 * $min_wait_share)
ORDER BY m.attempt, m.host;

-- variant: numa
WITH
near AS (
    SELECT
        f.artifact_id,
        f.line,
        f.proc_id,
        CAST(regexp_extract(f.key, '([0-9]+)', 1) AS INTEGER) AS device,
        f.value AS told,
        p.host
    FROM fact AS f
    LEFT JOIN proc AS p ON p.id = f.proc_id
    WHERE regexp_full_match(f.key, 'GPU[0-9]{1,3} near|devices\.[0-9]{1,3}\.local_cpus')
      AND regexp_full_match(f.value, '[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*')
),
far AS (
    SELECT
        a.*,
        n.told AS near_told,
        n.artifact_id AS near_artifact_id,
        n.line AS near_line,
        coalesce(a.device, a.local_rank) AS gpu
    FROM allowed_cpus AS a
    JOIN near AS n ON n.device = coalesce(a.device, a.local_rank)
    WHERE (n.proc_id IS NULL OR n.proc_id = a.proc_id OR n.host = a.host)
      AND NOT list_has_any(a.cpus, flatten([
        range(
            CAST(split_part(part, '-', 1) AS BIGINT),
            least(CAST(coalesce(nullif(split_part(part, '-', 2), ''), split_part(part, '-', 1)) AS BIGINT), 100000) + 1
        )
        FOR part IN string_split(n.told, ',')
      ]))
    QUALIFY row_number() OVER (PARTITION BY a.proc_id ORDER BY n.artifact_id, n.line) = 1
)
SELECT
    f.artifact_id,
    f.line,
    f.proc_id,
    f.rank,
    f.host,
    f.gpu AS device,
    'Rank ' || f.rank || ' may use processors ' || f.told || '; those next to its GPU ' || f.gpu || ' are ' || f.near_told AS what,
    'Bind each rank to the NUMA node of its GPU: torchrun --numa-binding=node, numactl --cpunodebind, or the scheduler''s --gpu-bind with --cpu-bind.' AS remedy,
    'medium' AS severity,
    [{'artifact_id': f.near_artifact_id, 'line': f.near_line, 'note': 'processors next to the GPU'}] AS evidence,
    'numa' AS fault,
    'numa' AS key
FROM far AS f
ORDER BY f.attempt, f.rank;

-- variant: workers
WITH
waited AS (
    SELECT * FROM waited_input WHERE n_steps >= $min_steps AND input_ratio >= $min_input_ratio
)
SELECT
    e.artifact_id,
    e.row,
    e.line,
    e.proc_id,
    e.rank,
    e.ts_ns,
    'A loader makes ' || (e.fields ->> 'n_workers') || ' workers where torch counts ' || (e.fields ->> 'suggested') || ' processors for this process'
        || coalesce('; its steps went ' || round(100 * w.input_ratio)::BIGINT || ' % of their time into waiting for it', '') AS what,
    'Give the task more processors (SLURM: --cpus-per-task, of srun too; containers: the cpuset), or lower num_workers.' AS remedy,
    CASE WHEN w.input_ratio IS NOT NULL THEN 'high' ELSE 'info' END AS severity,
    CASE WHEN w.input_ratio IS NOT NULL THEN [{'artifact_id': w.artifact_id, 'row': w.row, 'line': w.line, 'note': 'the longest wait for input'}] END AS evidence,
    'workers' AS key
FROM log AS e
LEFT JOIN waited AS w ON w.artifact_id = e.artifact_id AND w.proc_id IS NOT DISTINCT FROM e.proc_id
WHERE e.signature = 'dataloader-too-many-workers'
  AND TRY_CAST(e.fields ->> 'n_workers' AS DOUBLE) > $max_worker_ratio * TRY_CAST(e.fields ->> 'suggested' AS DOUBLE)
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.artifact_id, e.row;
