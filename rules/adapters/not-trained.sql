/*
title = "An adapter was saved as it was made"
severity = "high"
scope = "job"
proves = """
In the saved adapter the product of both factors is exactly zero in the named modules: it adds nothing to them. Factors
start so (one of them is zero) and leave zero with the first step that gives them a gradient."""
cannot_prove = """
Why: gradients that do not arrive, an optimizer that was not given the adapter, and a file that was saved before the first
step all leave it so."""
message = "{file}: the adapter adds nothing in {n_zero} of {n_modules:# module|# modules}, first {name}: one factor is all zeros"
fix = "Check before training that the adapter's parameters require gradients and are in the optimizer's groups; with gradient checkpointing, use_reentrant=False or model.enable_input_require_grads()."
causes = []
requires = [{ state = "gradient-blocked", of = "rank" }, { state = "weights-unmoved", of = "rank" }]
references = ["https://huggingface.co/docs/peft/developer_guides/lora"]

[variant.files]
needs = ["checkpoint"]
strength = "strong"
*/
-- variant: files
WITH
told AS (
    SELECT
        artifact_id,
        count(*) FILTER (WHERE delta_norm IS NOT NULL) AS n_modules,
        count(*) FILTER (WHERE delta_norm = 0) AS n_zero,
        min(row) FILTER (WHERE delta_norm = 0) AS row
    FROM adapter_module
    GROUP BY artifact_id
),
last_saved AS (
    SELECT
        f.*,
        t.n_modules,
        t.n_zero,
        t.row AS module_row
    FROM checkpoint_file AS f
    JOIN told AS t ON t.artifact_id = f.artifact_id
    WHERE coalesce(f.saved_step, 1) > 0 AND f.damage IS NULL
    -- What a step that came later saved tells more; files without a step stand each for itself.
    QUALIFY f.saved_step IS NULL OR row_number() OVER (
        PARTITION BY f.run, f.file, f.saved_step IS NULL ORDER BY f.saved_step DESC, f.artifact_id
    ) = 1
)
SELECT
    l.artifact_id,
    m.b_row AS row,
    'checkpoint_tensor' AS "table",
    b.byte,
    l.saved_step AS step,
    l.path AS file,
    l.n_zero,
    l.n_modules,
    n.text AS name,
    n.text AS module,
    CASE WHEN l.n_zero < l.n_modules THEN 'medium' END AS severity,
    CASE WHEN l.n_zero < l.n_modules THEN 'indication' END AS strength,
    l.n_zero || ' of ' || l.n_modules AS key
FROM last_saved AS l
JOIN adapter_module AS m ON m.artifact_id = l.artifact_id AND m.row = l.module_row
JOIN string AS n ON n.id = m.name_id
JOIN checkpoint_tensor AS b ON b.artifact_id = l.artifact_id AND b.row = m.b_row
WHERE l.n_zero > 0
ORDER BY l.n_zero DESC, l.artifact_id;
