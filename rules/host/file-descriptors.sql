/*
title = "The process ran out of file descriptors"
severity = "critical"
proves = """
The operating system refused another open file, or a file descriptor that one process sent to another did not arrive,
which is what happens when the receiver has none left."""
cannot_prove = """
What holds the descriptors. With the file_descriptor sharing strategy of torch.multiprocessing every tensor that came
from a worker holds one as long as anything refers to its storage, a NumPy view included."""
message = "{who} ran out of file descriptors{at_step}: {said}{detail}"
fix = "Do not keep what the loader yields (copy: tensor.clone(), array.copy()); torch.multiprocessing.set_sharing_strategy('file_system'); raise the limit with ulimit -n 65536."
causes = [{ state = "rank-failed", of = "rank" }, { state = "input-stalled", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
WITH
limit_known AS (
    SELECT max(number) AS n_files FROM fact WHERE regexp_matches(lower(key), 'ulimit( -n|.*open files)|nofile')
)
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
    l.n_files AS limit_files,
    coalesce('; the limit is ' || CAST(l.n_files AS BIGINT) || ' open files', '') AS detail,
    e.signature AS key
FROM reported_failure AS e
CROSS JOIN limit_known AS l
WHERE e.class = 'os.limits'
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
