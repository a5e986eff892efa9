/*
title = "Computation waits for communication"
severity = "medium"
role = "performance"
proves = """
Kernels of collectives ran while no other kernel of the device did, for at least a tenth of the time from its first to its
last work in this trace."""
cannot_prove = """
Whether the time goes into moving data or into waiting for other ranks: a kernel of a collective runs from when its own rank
is ready. Compare its duration over the ranks: it is shortest on the rank that comes last."""
message = "{who}: collectives ran alone on device {device} for {exposed_ratio:percent} of {span_ns:duration} ({overlapped_ratio:percent} of the {communication_ns:duration} of communication overlapped with computation), most of it in {op}"
fix = "Compare the same collective on all ranks: where one rank's is short, that rank comes late (see distributed-straggler); where all are long, overlap or shrink it: DDP bucket_cap_mb and gradient_as_bucket_view, FSDP forward and backward prefetch, no_sync() while gradients accumulate, bf16 compression hooks."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://hta.readthedocs.io/en/latest/source/features/comm_comp_overlap.html", "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html"]

[thresholds.min_exposed_ratio]
value = 0.1
unit = "time of collectives without computation / time from the first to the last work"
measured = "exposed_ratio"
why = "PyTorch's TensorBoard plug-in advises from a tenth of a step in communication on"

[thresholds.min_work]
value = 50
unit = "kernels, copies and fills"
why = "fewer are one small pass, whose collectives have nothing to overlap with"

[variant.trace]
needs = ["slice.device"]
strength = "strong"
*/
-- variant: trace
WITH
exposed AS (
    SELECT
        *,
        exposed_communication_ns / span_ns AS exposed_ratio,
        1 - exposed_communication_ns / communication_ns AS overlapped_ratio
    FROM device_use
    WHERE n_work >= $min_work AND communication_ns > 0 AND compute_ns > 0
      AND exposed_communication_ns >= $min_exposed_ratio * span_ns
),
heaviest AS (
    SELECT
        s.artifact_id,
        s.proc_id,
        coalesce(s.device, 0) AS device,
        n.text AS op,
        arg_max(s.row, (s.dur_ns, -s.row)) AS row
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    WHERE s.kind = 'kernel' AND (contains(lower(n.text), 'nccl') OR contains(lower(n.text), 'rccl'))
      AND s.artifact_id IN (SELECT artifact_id FROM exposed)
    GROUP BY s.artifact_id, s.proc_id, coalesce(s.device, 0), n.text
    QUALIFY row_number() OVER (
        PARTITION BY s.artifact_id, s.proc_id, coalesce(s.device, 0) ORDER BY sum(s.dur_ns) DESC, n.text
    ) = 1
)
SELECT
    e.artifact_id,
    coalesce(h.row, e.row) AS row,
    'slice' AS "table",
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.device,
    e.span_ns,
    e.communication_ns,
    e.exposed_ratio,
    e.overlapped_ratio,
    coalesce(left(h.op, 80), 'kernels of collectives') AS op,
    'device ' || e.device AS key
FROM exposed AS e
LEFT JOIN heaviest AS h
    ON h.artifact_id = e.artifact_id AND h.proc_id IS NOT DISTINCT FROM e.proc_id AND h.device = e.device
ORDER BY e.exposed_ratio DESC, e.artifact_id, e.proc_id, e.device;
