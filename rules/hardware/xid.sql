/*
title = "The driver reported a fault of a GPU (Xid)"
severity = "critical"
scope = "job"
proves = """
The kernel log holds an Xid message of the NVIDIA driver whose code stands for a fault of the GPU, its memory, its links
or its firmware. Codes that programs cause by their own memory accesses are given as symptoms."""
cannot_prove = """
That this fault hit this job, where the kernel log has another clock than the job's files: a kernel log keeps the history
of its host. A code of an application does not say which instruction was wrong."""
message = "GPU {pci} reported Xid {xid}: {meaning}{detail}"
fix = "Take the GPU out of service: drain the host, reset or replace the GPU, run dcgmi diag -r 3; then rerun from the last checkpoint on another host."
causes = [{ state = "device-lost", of = "device" }]
requires = [{ state = "device-lost", of = "device" }]
references = ["https://docs.nvidia.com/deploy/xid-errors/index.html"]

[variant.kernel]
needs = ["log_event.kernel"]
strength = "strong"

[variant.log]
needs = ["log_event"]
strength = "strong"
says = "The kernel's message stands in a log of the job, where its lines may be incomplete."
*/
-- variant: kernel
SELECT *
FROM gpu_fault
ORDER BY ts_ns, artifact_id, row;
-- variant: log
SELECT *
FROM gpu_fault
ORDER BY ts_ns, artifact_id, row;
