-- Where the backward function that anomaly mode named stands in graphs without values: a row is one function of one process.
CREATE TEMP VIEW suspect_place AS
SELECT
    s.proc_id,
    n.text AS function,
    min_by(
        CASE
            WHEN s.source = 'graph' AND s.first_parameter_id IS NOT NULL
                THEN '; through it come the gradients of ' || s.n_parameters || ' parameters, the nearest ' || p.text
                    || coalesce('; ' || i.text || ', which ran before it, can give an infinity, and from that comes a NaN', '')
            WHEN s.forward_op_id IS NOT NULL AND s.source = 'execution'
                THEN '; by the execution trace it belongs to ' || f.text
                    || CASE WHEN s.n_candidates = 1 THEN ', the only one there' ELSE ', one of ' || s.n_candidates || ' there' END
            WHEN s.forward_op_id IS NOT NULL
                THEN '; by the trace it belongs to ' || f.text
                    || CASE WHEN s.n_candidates = 1 THEN ', the only one of a step' ELSE ', one of ' || s.n_candidates || ' in a step' END
            WHEN s.source = 'graph' THEN '; it stands ' || s.n_candidates || ' times in the graph of the loss'
            ELSE '; it runs ' || s.n_candidates || CASE s.n_candidates WHEN 1 THEN ' time' ELSE ' times' END || ' in what the trace recorded'
        END,
        CASE s.source WHEN 'trace' THEN 0 WHEN 'graph' THEN 1 ELSE 2 END
    ) AS place,
    min(f.text) AS forward_op,
    list({'artifact_id': s.artifact_id, 'row': s.row, 'table': CASE s.source WHEN 'trace' THEN 'slice' ELSE 'node' END,
        'note': 'the function in ' || CASE s.source WHEN 'execution' THEN 'an execution trace' ELSE 'a ' || s.source END} ORDER BY s.artifact_id, s.row) AS evidence
FROM suspect AS s
JOIN string AS n ON n.id = s.function_id
LEFT JOIN string AS f ON f.id = s.forward_op_id
LEFT JOIN string AS p ON p.id = s.first_parameter_id
LEFT JOIN string AS i ON i.id = s.infinite_id
GROUP BY s.proc_id, n.text;
