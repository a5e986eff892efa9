/*
title = "Weight decay acts on what it is not meant for"
severity = "info"
proves = """
The optimizer is an adaptive one and has a weight decay above zero that is not decoupled: the decay is added to the
gradient, where the adaptive step rescales it, unlike AdamW's, which shortens the weights themselves. Or vectors (biases,
gains of norms) are in a group with weight decay, beside matrices."""
cannot_prove = """
That decoupled decay was meant, and that decayed vectors cost anything."""
message = "{what}"
fix = "Use AdamW, with norms, biases and embeddings in a group of weight_decay = 0."
scope = "job"
causes = []
references = ["https://arxiv.org/abs/1711.05101"]

[variant.recorder]
needs = ["log_event"]
strength = "proof"

[variant.settings]
needs = ["fact"]
strength = "strong"
says = "Settings name the optimizer and the decay; which parameters are in which group they do not tell."
*/
-- variant: recorder
WITH
optimizer AS (
    SELECT
        *,
        fields ->> 'optimizer' AS optimizer,
        fields ->> 'decoupled' AS decoupled,
        fields ->> 'decayed_vector' AS vector,
        TRY_CAST(fields ->> 'weight_decay' AS DOUBLE) AS weight_decay,
        TRY_CAST(fields ->> 'n_decayed' AS BIGINT) AS n_decayed,
        TRY_CAST(fields ->> 'n_decayed_vectors' AS BIGINT) AS n_vectors
    FROM log
    WHERE signature = 'recorder-optimizer-began'
    QUALIFY row_number() OVER (ORDER BY rank, artifact_id, row) = 1
),
told AS (
    SELECT
        *,
        'coupled' AS key,
        optimizer || ' adds its weight decay of ' || weight_decay || ' to the gradients, where the adaptive step rescales it' AS what
    FROM optimizer
    WHERE decoupled = 'false' AND weight_decay > 0
      AND optimizer IN ('Adam', 'NAdam', 'RAdam', 'Adamax', 'Adagrad', 'Adadelta', 'RMSprop')
    UNION ALL
    -- Sharded and flattened parameters are all vectors: then nothing is told.
    SELECT
        *,
        'vectors' AS key,
        'weight decay of ' || weight_decay || ' acts on ' || n_vectors || ' vectors among ' || n_decayed
            || ' decayed parameters, biases and gains of norms' || coalesce(', the first is ' || vector, '') AS what
    FROM optimizer
    WHERE weight_decay > 0 AND n_vectors > 0 AND n_vectors < n_decayed
)
SELECT
    artifact_id,
    row,
    line,
    NULL::INTEGER AS proc_id,
    optimizer,
    weight_decay,
    what,
    key
FROM told
ORDER BY artifact_id, row, key;
-- variant: settings
SELECT
    o.artifact_id,
    o.line,
    NULL::INTEGER AS proc_id,
    w.number AS weight_decay,
    'Adam is set with weight_decay = ' || w.number || ': the decay is part of the gradient and is rescaled with it' AS what,
    'coupled' AS key
FROM fact AS o
JOIN fact AS w ON w.artifact_id = o.artifact_id
WHERE o.scope = 'option' AND w.scope = 'option'
  AND lower(o.value) IN ('adam', 'torch.optim.adam', 'torch.optim.adam.adam')
  AND (contains(lower(o.key), 'optim') OR contains(lower(o.key), 'name'))
  AND split_part(w.key, '.', -1) = 'weight_decay' AND w.number > 0
QUALIFY row_number() OVER (ORDER BY o.artifact_id, o.line, w.line) = 1
ORDER BY o.artifact_id, o.line;
