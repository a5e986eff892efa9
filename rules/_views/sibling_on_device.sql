-- Processes that nvidia-smi lists on a device although they hold more on another one: ranks of the same job that also
-- opened a context here, not strangers. A row is one process on one such device.
CREATE TEMP VIEW sibling_on_device AS
WITH
held AS (
    SELECT
        artifact_id,
        device,
        entity,
        max(value) AS bytes
    FROM metric
    WHERE name = 'process.memory.used' AND entity IS NOT NULL AND device IS NOT NULL
    GROUP BY artifact_id, device, entity
)
SELECT
    h.artifact_id,
    h.device,
    h.entity,
    h.bytes
FROM held AS h
WHERE EXISTS (
    SELECT 1 FROM held AS o
    WHERE o.artifact_id = h.artifact_id AND o.entity = h.entity AND o.device <> h.device AND o.bytes > h.bytes
);
