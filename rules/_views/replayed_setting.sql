-- Other settings of the allocator, tried on the requests of a snapshot that the model reproduces. A row is one setting of
-- one device; `rest` orders them: what needs nothing else set first, then expandable segments, whose use depends on
-- no sizes.
CREATE TEMP VIEW replayed_setting AS
SELECT
    r.artifact_id,
    r.device,
    r.setting,
    r.fits,
    r.spare_bytes,
    r.peak_reserved_bytes,
    o.peak_reserved_bytes AS recorded_peak_bytes,
    r.proc_id,
    r.rank,
    CASE WHEN r.setting = '' THEN 'the default settings' ELSE r.setting END AS named,
    CASE
        WHEN r.setting = '' THEN 'Unset PYTORCH_CUDA_ALLOC_CONF and run again.'
        ELSE 'Set PYTORCH_CUDA_ALLOC_CONF=' || r.setting || ' and run again.'
    END AS fix,
    CASE WHEN r.setting = '' THEN 'the defaults' ELSE r.setting END
    || CASE
        WHEN r.fits AND r.spare_bytes IS NULL THEN ': fits'
        WHEN r.fits THEN ': fits, ' || format_bytes(r.spare_bytes) || ' to spare'
        WHEN r.fits IS NULL THEN ': not known, since the room on the device is not'
        ELSE ': does not fit' || coalesce(', ' || format_bytes(-r.spare_bytes) || ' lack', '')
    END
    || '; peak of reserved bytes ' || format_bytes(r.peak_reserved_bytes)
    || CASE WHEN r.assumes = '' THEN '' ELSE ' (assumes ' || r.assumes || ')' END AS note,
    row_number() OVER (
        PARTITION BY r.artifact_id, r.device, r.fits
        ORDER BY r.assumes LIKE '%fraction%', r.setting <> 'expandable_segments:True', r.spare_bytes DESC, r.setting
    ) AS rest,
    r.assumes NOT LIKE '%fraction%' AS alone,
    a.room_high_bytes IS NOT NULL AS refused,
    CASE WHEN a.complete THEN 'strong' ELSE 'indication' END AS strength
FROM replay AS r
JOIN replay AS o ON o.artifact_id = r.artifact_id AND o.device = r.device AND o.recorded
JOIN allocator_replay AS a ON a.artifact_id = r.artifact_id AND a.device = r.device
WHERE NOT r.recorded;
