/*
title = "A GPU was slowed down by heat or by its power supply"
severity = "high"
scope = "job"
proves = """
nvidia-smi shows a busy GPU whose clocks are held down by its own hardware (thermal slowdown, power brake) or, less
severely, by the driver for heat."""
cannot_prove = """
For how long: it is one look at one moment. How much slower the job was is in the times of its steps, rank by rank."""
message = "GPU {device} was held at {clock} by {reason} while {busy_percent:.0f} % busy{detail}"
fix = "Check cooling, inlet temperature, dust and fans of the host, the power cables and the limit of its power supply (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER); run the ranks of this host elsewhere until then."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.nvidia.com/deploy/nvidia-smi/index.html"]

[thresholds.min_busy_percent]
value = 50
unit = "% of time in which kernels ran, as nvidia-smi samples it"
measured = "busy_percent"
why = "an idle GPU lowers its clocks by itself and may show any reason; under half busy its clock hardly matters"

[variant.sample]
needs = ["sample.device"]
strength = "strong"
*/
-- variant: sample
WITH
reason AS (
    SELECT
        m.artifact_id,
        m.row,
        m.line,
        m.ts_ns,
        m.device,
        m.name,
        CASE m.name
            WHEN 'clocks_event_reasons.hw_thermal_slowdown' THEN 'its hardware, for heat'
            WHEN 'clocks_event_reasons.hw_power_brake_slowdown' THEN 'the power supply''s brake'
            WHEN 'clocks_event_reasons.hw_slowdown' THEN 'its hardware, for heat or power'
            ELSE 'the driver, for heat'
        END AS reason,
        m.name LIKE '%.hw\_%' ESCAPE '\' AS is_hardware
    FROM metric AS m
    WHERE m.name IN (
        'clocks_event_reasons.hw_thermal_slowdown', 'clocks_event_reasons.hw_power_brake_slowdown',
        'clocks_event_reasons.hw_slowdown', 'clocks_event_reasons.sw_thermal_slowdown'
    )
      AND m.value > 0
),
beside AS (
    SELECT
        artifact_id,
        device,
        ts_ns,
        max(value) FILTER (WHERE name = 'utilization.gpu') AS busy_percent,
        max(value) FILTER (WHERE name LIKE 'clocks.%sm') AS clock_mhz,
        max(value) FILTER (WHERE name = 'temperature.gpu') AS celsius
    FROM metric
    WHERE name IN ('utilization.gpu', 'clocks.sm', 'clocks.current.sm', 'temperature.gpu')
    GROUP BY artifact_id, device, ts_ns
),
failed AS (
    SELECT count(*) > 0 AS has_failed FROM reported_failure
)
SELECT
    r.artifact_id,
    r.row,
    r.line,
    r.ts_ns,
    r.device,
    r.reason,
    b.busy_percent,
    coalesce(CAST(CAST(b.clock_mhz AS BIGINT) AS VARCHAR) || ' MHz', 'a lower clock') AS clock,
    coalesce('; it is at ' || CAST(CAST(b.celsius AS BIGINT) AS VARCHAR) || ' °C', '') AS detail,
    CASE WHEN NOT r.is_hardware THEN 'medium' END AS severity,
    -- What slows a job is never put before what ended it.
    CASE WHEN f.has_failed THEN 'performance' END AS role,
    r.name AS key
FROM reason AS r
JOIN beside AS b ON b.artifact_id = r.artifact_id AND b.device = r.device AND b.ts_ns IS NOT DISTINCT FROM r.ts_ns
CROSS JOIN failed AS f
WHERE b.busy_percent >= $min_busy_percent
QUALIFY row_number() OVER (
    PARTITION BY r.device ORDER BY (NOT r.is_hardware), (r.name LIKE '%.hw\_slowdown' ESCAPE '\'), r.ts_ns, r.artifact_id, r.row
) = 1
ORDER BY r.artifact_id, r.row;
