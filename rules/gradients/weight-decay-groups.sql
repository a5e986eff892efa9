/*
title = "Weight decay is coupled into an adaptive optimizer"
severity = "info"
proves = """
The settings name Adam with a weight decay above zero: it adds the decay to the gradient, where the adaptive step rescales
it, unlike AdamW, which shortens the weights themselves."""
cannot_prove = """
That decoupled decay was meant, and whether norms and biases are in a group without decay."""
message = "Adam is set with weight_decay = {weight_decay}: the decay is part of the gradient and is rescaled with it"
fix = "Use AdamW, with norms, biases and embeddings in a group of weight_decay = 0."
scope = "job"
causes = []
references = ["https://arxiv.org/abs/1711.05101"]

[variant.settings]
needs = ["fact"]
strength = "strong"
*/
-- variant: settings
SELECT
    o.artifact_id,
    o.line,
    NULL::INTEGER AS proc_id,
    w.number AS weight_decay,
    'adam' AS key
FROM fact AS o
JOIN fact AS w ON w.artifact_id = o.artifact_id
WHERE o.scope = 'option' AND w.scope = 'option'
  AND lower(o.value) IN ('adam', 'torch.optim.adam', 'torch.optim.adam.adam')
  AND (contains(lower(o.key), 'optim') OR contains(lower(o.key), 'name'))
  AND split_part(w.key, '.', -1) = 'weight_decay' AND w.number > 0
QUALIFY row_number() OVER (ORDER BY o.artifact_id, o.line, w.line) = 1
ORDER BY o.artifact_id, o.line;
