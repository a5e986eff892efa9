-- What kernels and drivers say of GPUs that left their bus, the first message of each. A row is one GPU. Messages from after
-- the job had said that it was done, or from before it began, are left out. A job that ended well did without that GPU.
CREATE TEMP VIEW gpu_lost_report AS
WITH
pcie AS (
    SELECT count(*) AS n FROM log WHERE class = 'hw.pcie'
),
lost AS (
    SELECT
        x.artifact_id,
        x.row,
        x.ts_ns,
        x.line,
        x.host,
        x.pci,
        x.message,
        x.timing
    FROM driver_xid AS x
    WHERE x.class = 'hw.gpu-lost' AND x.role = 'primary' AND x.timing IN ('during', 'unknown')
    UNION ALL
    SELECT
        e.artifact_id,
        e.row,
        e.ts_ns,
        e.line,
        e.host,
        e.fields ->> 'pci' AS pci,
        e.message,
        'unknown' AS timing
    FROM log AS e
    WHERE e.signature = 'gpu-lost' AND e.role = 'primary'
)
SELECT
    l.artifact_id,
    l.row,
    l.ts_ns,
    l.line,
    l.host,
    coalesce(l.pci, '(unnamed)') AS pci,
    left(l.message, 200) AS said,
    CASE WHEN p.n > 0 THEN '; the kernel counts ' || p.n || ' messages about PCIe errors' ELSE '' END AS detail,
    CASE WHEN w.well THEN 'medium' END AS severity,
    'gpu-lost' AS key
FROM lost AS l
CROSS JOIN pcie AS p
CROSS JOIN ended_well AS w
QUALIFY row_number() OVER (PARTITION BY l.host, l.pci ORDER BY l.ts_ns NULLS LAST, l.artifact_id, l.row) = 1;
