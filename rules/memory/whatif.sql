/*
title = "Another allocator setting would have needed less memory"
severity = "info"
role = "performance"
cannot_prove = """
What the job would have done after the failure, and that a person should change the allocator rather than the job. Frees
stay where the record has them; streams that would have finished earlier or later are not modelled."""
message = "{who}{at_step}: {claim}"
fix = "Set PYTORCH_CUDA_ALLOC_CONF as named and run again."
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"]

[thresholds.min_spare_ratio]
value = 0.05
unit = "bytes to spare / peak of reserved bytes"
measured = "spare_bytes / peak_reserved_bytes"
why = "what the context and the driver hold back differs by a few hundred MiB from start to start; less would not fit reliably"

[thresholds.min_saving_ratio]
value = 0.25
unit = "bytes saved / peak of reserved bytes, where memory was refused until the cache was given back"
why = "a change of the allocator is worth a run from a quarter on; less is within what lengths of another batch move"

[thresholds.min_idle_saving_ratio]
value = 0.5
unit = "the same, where nothing was ever refused"
why = "what is cached on a device with room does no harm to this job; from half on it is missing for others"

[thresholds.min_saving_bytes]
value = 1073741824
unit = "bytes saved at the peak"
why = "below a GiB nothing else fits into what is saved"

[variant.failure]
needs = ["memory_segment", "memory_event.oom"]
strength = "strong"
proves = """
A model of the caching allocator that reproduces this record (addresses and reserved bytes, see allocator_replay) was
given the same requests under other settings, with the memory that this process could get. Under the one named here it
serves every recorded request, the failed one among them."""

[variant.saving]
needs = ["memory_segment", "memory_event"]
strength = "strong"
proves = """
A model of the caching allocator that reproduces this record (addresses and reserved bytes, see allocator_replay) was
given the same requests under other settings. Under the one named here it reserves less at the peak."""
says = "No request failed; the peak of reserved bytes alone is compared."
*/
-- variant: failure
WITH
failed AS (
    SELECT e.*
    FROM memory_event AS e
    WHERE e.action = 'oom'
    QUALIFY row_number() OVER (PARTITION BY e.artifact_id, e.device ORDER BY e.row) = 1
),
summed AS (
    SELECT
        f.artifact_id,
        f.device,
        count(*) AS n_tried,
        count(*) FILTER (WHERE s.fits) AS n_fitting,
        string_agg(s.note, '; ' ORDER BY s.setting) AS notes
    FROM failed AS f
    JOIN replayed_setting AS s ON s.artifact_id = f.artifact_id AND s.device = f.device
    GROUP BY f.artifact_id, f.device
)
SELECT
    f.artifact_id,
    f.row,
    f.proc_id,
    f.rank,
    f.step,
    f.ts_ns,
    f.device,
    'with ' || s.named || ' the request of ' || format_bytes(f.size_bytes) || ' that failed would have fitted, with '
    || format_bytes(s.spare_bytes) || ' to spare (of ' || n.n_tried || ' other settings ' || n.n_fitting || ' fit)' AS claim,
    f.size_bytes AS requested_bytes,
    s.setting,
    s.setting AS key,
    s.spare_bytes,
    s.peak_reserved_bytes,
    n.n_fitting,
    n.n_tried,
    s.fix,
    s.strength,
    n.notes AS text
FROM failed AS f
JOIN replayed_setting AS s ON s.artifact_id = f.artifact_id AND s.device = f.device
JOIN summed AS n ON n.artifact_id = f.artifact_id AND n.device = f.device
WHERE s.fits AND s.rest = 1 AND s.spare_bytes >= $min_spare_ratio * s.peak_reserved_bytes
ORDER BY f.ts_ns, f.artifact_id, f.row;
-- variant: saving
SELECT
    s.artifact_id,
    NULL AS row,
    s.proc_id,
    s.rank,
    s.device,
    'with ' || s.named || ' the peak of reserved bytes would have been ' || format_bytes(s.peak_reserved_bytes)
    || ' instead of ' || format_bytes(s.recorded_peak_bytes) AS claim,
    s.setting,
    s.setting AS key,
    s.peak_reserved_bytes,
    s.recorded_peak_bytes,
    s.fix,
    s.strength
FROM replayed_setting AS s
WHERE s.fits AND s.alone
  AND NOT EXISTS (SELECT 1 FROM memory_event AS e WHERE e.artifact_id = s.artifact_id AND e.device = s.device AND e.action = 'oom')
  AND s.recorded_peak_bytes - s.peak_reserved_bytes >= greatest(
      CASE WHEN s.refused THEN $min_saving_ratio ELSE $min_idle_saving_ratio END * s.recorded_peak_bytes, $min_saving_bytes
  )
QUALIFY row_number() OVER (PARTITION BY s.artifact_id, s.device ORDER BY s.peak_reserved_bytes, s.setting) = 1
ORDER BY s.artifact_id, s.device;
