/*
title = "A link between GPUs reported errors that it could not correct"
severity = "critical"
scope = "job"
cannot_prove = """
Which end of the link, or the bridge or switch between, is at fault. Without a common clock it is not shown that it was
during this job."""
message = "{where_found} reported an error of an NVLink: {said}{detail}"
fix = "Look at the error counters of the links (nvidia-smi nvlink -e, nvidia-smi nvlink -s), reset the GPUs and restart the fabric manager; drain the host if it returns, reseat or replace the GPU or bridge that the link names."
causes = [{ state = "device-lost", of = "device" }]
references = ["https://docs.nvidia.com/deploy/xid-errors/index.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
The CUDA runtime or NCCL reports an error of an NVLink that was not corrected; what was on its way was lost."""

[variant.kernel]
needs = ["log_event.kernel"]
strength = "strong"
proves = """
The driver (Xid 74 and its successors) or the NVSwitch driver (a fatal SXid) reports an error of an NVLink that was
not corrected; what was on its way was lost."""
*/
-- variant: log
SELECT *
FROM severed_link
ORDER BY ts_ns, artifact_id, row;
-- variant: kernel
SELECT *
FROM severed_link
ORDER BY ts_ns, artifact_id, row;
