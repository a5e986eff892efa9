-- What keeps free memory apart that the last failed request of a snapshot could have used. A row is one device: the line
-- whose live blocks, were they all freed, would make most of it usable for what they hold, and blocks of it and of others.
CREATE TEMP VIEW pinning_line AS
WITH
described AS (
    SELECT
        p.*,
        CASE WHEN p.n_blocks = 1 THEN 'one block' ELSE p.n_blocks || ' blocks' END AS counted,
        'its ' || format_bytes(p.size_bytes) || ' touch ' || format_bytes(p.joined_bytes) || ' of free bytes'
        || CASE WHEN p.empties_segment THEN ', nothing else in the segment is live' ELSE '' END
        || coalesce(', allocated in ' || p.place, '')
        || coalesce(', ' || round((e.ts_ns - p.allocated_ns) / 1e9, 3) || ' s before the failure', '') AS place_note
    FROM allocator_pin AS p
    LEFT JOIN memory_event AS e ON e.artifact_id = p.artifact_id AND e.row = p.event_row
)
SELECT
    d.artifact_id,
    d.device,
    min_by(d.place, d.site_rank) AS place,
    min_by(d.n_blocks, d.site_rank) AS n_blocks,
    min_by(d.held_bytes, d.site_rank) AS held_bytes,
    min_by(d.unlocked_bytes, d.site_rank) AS unlocked_bytes,
    min_by(
        d.counted || ' of ' || coalesce(d.place, 'an unrecorded line') || CASE WHEN d.n_blocks = 1 THEN ' keeps ' ELSE ' keep ' END
        || format_bytes(d.unlocked_bytes) || ' of it apart',
        d.site_rank
    ) AS claim,
    list(
        {
            'artifact_id': d.artifact_id,
            'row': d.row,
            'table': 'memory_block',
            'note': d.place_note || '; freeing ' || d.counted || ' of that line makes ' || format_bytes(d.unlocked_bytes) || ' usable'
        }
        ORDER BY d.site_rank, d.joined_bytes DESC, d.row
    )[:8] AS evidence
FROM described AS d
GROUP BY d.artifact_id, d.device;
