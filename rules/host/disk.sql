/*
title = "A file system is full, over quota or read-only"
severity = "critical"
scope = "job"
cannot_prove = """
What filled it, and, without a path in the message, which file system it was. Shared memory is a file system too; its
messages are left to host-shm where they name it."""
message = "{who} could not write{at_step}: {said}{detail}"
fix = "{remedy}"
causes = [{ state = "disk-full", of = "host" }]
references = ["https://docs.kernel.org/admin-guide/sysrq.html", "https://man7.org/linux/man-pages/man3/errno.3.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
The operating system refused a write because the file system or the user's quota is full, or because it is mounted
read-only."""

[variant.evicted]
needs = ["log_event.scheduler"]
strength = "strong"
proves = "Kubernetes evicted the pod for lack of local storage."

[variant.unwritten]
needs = ["log_event"]
strength = "indication"
proves = "torch.save could not write its file to the end."
says = "The writer of torch.save stopped half-way and does not say why: mostly the file system is full or a quota is reached, seldom a mount that broke."
*/
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.host,
    e.said,
    e.where_in_code,
    coalesce('; ' || m.mount || ' is ' || m.used_percent || ' % full', '') || coalesce('; in ' || e.where_in_code, '') AS detail,
    CASE
        WHEN e.signature = 'disk-quota-exceeded' THEN 'Free space under your quota (quota -s, lfs quota), or write to a scratch file system; keep fewer checkpoints.'
        WHEN e.class = 'storage.read-only' THEN 'Write to a mounted volume, or ask why the file system turned read-only (dmesg): after I/O errors the kernel remounts it so.'
        ELSE 'Free space (df -h, df -i, du -x), keep fewer checkpoints (save_total_limit), and move TMPDIR and caches to a larger volume.'
    END AS remedy,
    CASE
        WHEN m.mount IS NOT NULL
            THEN [{'artifact_id': m.artifact_id, 'row': m.row, 'line': m.line, 'note': 'a file system that is nearly full'}]
    END AS evidence,
    e.signature AS key
FROM reported_failure AS e
LEFT JOIN full_mount AS m ON e.class = 'storage.full'
WHERE e.class IN ('storage.full', 'storage.read-only')
  AND e.role = 'primary'
  -- Messages about shared memory say 'no space' as well.
  AND NOT EXISTS (
      SELECT 1 FROM log AS o
      WHERE o.artifact_id = e.artifact_id AND o.class = 'mem.shm' AND o.role <> 'noise' AND o.line BETWEEN e.line - 5 AND e.line + 5
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: unwritten
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.host,
    e.said,
    e.where_in_code,
    coalesce('; ' || m.mount || ' is ' || m.used_percent || ' % full', '') || coalesce('; in ' || e.where_in_code, '') AS detail,
    'Look at free space and quota of the file system that is written to (df -h, df -i, quota -s); keep fewer checkpoints (save_total_limit), save to a temporary name and rename when done.' AS remedy,
    CASE
        WHEN m.mount IS NOT NULL
            THEN [{'artifact_id': m.artifact_id, 'row': m.row, 'line': m.line, 'note': 'a file system that is nearly full'}]
    END AS evidence,
    CASE WHEN m.mount IS NOT NULL THEN 'strong' END AS strength,
    e.signature AS key
FROM reported_failure AS e
LEFT JOIN full_mount AS m ON TRUE
WHERE e.class = 'ckpt.unwritten'
  AND e.role = 'primary'
  AND NOT e.completed
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: evicted
SELECT
    e.artifact_id,
    e.row,
    e.ts_ns,
    e.line,
    e.host,
    briefly(e.message, 200) AS said,
    '' AS detail,
    'Mount a volume for checkpoints and caches, or raise requests and limits of ephemeral-storage; what a container writes outside volumes counts.' AS remedy,
    e.fields ->> 'resource' AS key
FROM log AS e
WHERE e.class = 'sched.evicted'
  AND e.role = 'primary'
  AND regexp_matches(coalesce(e.fields ->> 'resource', ''), 'storage|inodes|disk')
QUALIFY row_number() OVER (ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
