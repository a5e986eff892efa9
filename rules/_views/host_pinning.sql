-- Where the job first says that it locks host memory for copies to the device (offloaded weights, optimizer states), in
-- its log or in its settings. At most one row. A data loader's pin_memory alone is none: what it stages is small.
CREATE TEMP VIEW host_pinning AS
WITH
said AS (
    SELECT
        artifact_id,
        row,
        line,
        message,
        1 AS place
    FROM log
    WHERE class = 'mem.host.pinned'
    UNION ALL
    SELECT
        artifact_id,
        NULL,
        line,
        key || ' = ' || value,
        2
    FROM fact
    WHERE lower(key) SIMILAR TO '(.*[._-])?offload.*pin_memory' AND lower(value) = 'true'
)
SELECT
    artifact_id,
    row,
    line,
    message
FROM said
QUALIFY row_number() OVER (ORDER BY place, artifact_id, row, line, message) = 1;
