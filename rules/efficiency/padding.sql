/*
title = "Much of each batch is padding"
severity = "medium"
role = "performance"
proves = """
The job's own counts of tokens say that at least a quarter of what the model computed on was padding."""
cannot_prove = """
That attention skips none of it: a kernel for sequences of varying length, or one that reads a mask by blocks, does. What
packing saves is at most the share of padding, of the time that grows with the number of tokens."""
message = "{who}: {padding_ratio:percent} of the tokens of {n_steps:# batch is|# batches are} padding{volume}; without it a step takes up to {saved_ratio:percent} less, {speedup:.2f} times as many useful tokens a second"
fix = "Pack several sequences into one (a packing collator with position ids and block-diagonal attention, such as DataCollatorWithFlattening with FlashAttention), or draw batches of like lengths (group_by_length, bucketing) and pad to the longest of the batch, not to the maximum."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://arxiv.org/abs/2107.02027", "https://huggingface.co/blog/packing-with-FA2"]

[thresholds.min_padding_ratio]
value = 0.25
unit = "padding tokens / all tokens"
measured = "padding_ratio"
why = "batches of like lengths stay below; Krell et al. (arXiv 2107.02027) find half of all tokens padding where sentences are padded to the maximum"

[thresholds.min_steps]
value = 5
unit = "batches with counts"
measured = "n_steps"
why = "a single batch of one long and many short sequences says nothing of the others"

[variant.metric]
needs = ["sample"]
strength = "strong"
*/
-- variant: metric
WITH
batch AS (
    SELECT
        artifact_id,
        min(row) AS row,
        proc_id,
        line,
        min(rank) AS rank,
        min(ts_ns) AS ts_ns,
        max(value) FILTER (name IN ('padding_ratio', 'pad_ratio', 'padding_fraction', 'pad_fraction', 'padding_share')) AS ratio,
        max(value) FILTER (name IN ('padding_tokens', 'pad_tokens', 'n_padding_tokens', 'n_pad_tokens', 'num_pad_tokens', 'num_padding_tokens')) AS padding,
        max(value) FILTER (name IN ('valid_tokens', 'non_pad_tokens', 'non_padding_tokens', 'real_tokens', 'effective_tokens', 'n_valid_tokens', 'num_valid_tokens')) AS valid,
        max(value) FILTER (name IN ('total_tokens', 'n_total_tokens', 'padded_tokens', 'n_padded_tokens', 'num_total_tokens')) AS total
    FROM logged_amount
    GROUP BY artifact_id, proc_id, line, step
),
share AS (
    SELECT
        *,
        CASE
            WHEN padding IS NOT NULL AND valid IS NOT NULL THEN padding
            WHEN padding <= total THEN padding
            WHEN valid <= total THEN total - valid
            WHEN ratio <= 1 THEN ratio
        END AS wasted,
        CASE
            WHEN padding IS NOT NULL AND valid IS NOT NULL THEN padding + valid
            WHEN padding <= total OR valid <= total THEN total
            WHEN ratio <= 1 THEN 1
        END AS whole,
        coalesce(padding, valid, total) IS NOT NULL AS is_counted
    FROM batch
)
SELECT
    artifact_id,
    arg_max(row, (wasted / whole, -row)) AS row,
    arg_max(line, (wasted / whole, -row)) AS line,
    proc_id,
    min(rank) AS rank,
    arg_max(ts_ns, (wasted / whole, -row)) AS ts_ns,
    sum(wasted) / sum(whole) AS padding_ratio,
    padding_ratio AS saved_ratio,
    1 / (1 - padding_ratio) AS speedup,
    count(*) AS n_steps,
    CASE
        WHEN bool_and(is_counted) THEN printf(' (%d of %d)', sum(wasted)::BIGINT, sum(whole)::BIGINT)
        ELSE ''
    END AS volume,
    'padding' AS key
FROM share
WHERE whole > 0
GROUP BY artifact_id, proc_id
HAVING count(*) >= $min_steps AND padding_ratio >= $min_padding_ratio AND padding_ratio < 1
ORDER BY padding_ratio DESC, artifact_id, proc_id;
