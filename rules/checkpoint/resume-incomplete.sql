/*
title = "A resumed run lacks a part of its state"
severity = "high"
cannot_prove = """
Whether the part was never saved or only not loaded, but for what is stored; the code that saves tells. Stored: an optimizer
without state (SGD without momentum) and a schedule that is computed from the step lack nothing. Random states are left out:
few jobs save them, and without them order and dropout differ, no more. A schedule or an optimizer that is begun
anew on purpose looks the same."""
message = "{who} resumed{at_step} without {what}: {how}"
fix = "{remedy}"
references = [
    "https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html",
    "https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.state_dict",
]

[thresholds.min_first_step]
value = 2
unit = "first step of a run that resumes"
why = "jobs count from 0 or 1"

[thresholds.same]
value = 0.01
unit = "difference / value"
why = "rates are printed with three digits"

[thresholds.apart]
value = 0.1
unit = "difference / value"
why = "a schedule moves by less between two logged steps near a restart"

[thresholds.min_scale_ratio]
value = 4.0
unit = "larger / smaller loss scale"
why = "a scaler halves or doubles once between two logged steps"

[thresholds.min_epochs_back]
value = 0.5
unit = "epochs"
why = "below it the epoch may be rounded"

[thresholds.min_jump]
value = 1.2
unit = "first loss after the restart / loss before it"
why = "batches move a loss by less; an optimizer that begins anew takes steps of full length with averages of one gradient"

[thresholds.min_lost_steps]
value = 20
unit = "steps of the attempt before"
why = "jobs that fail while they start have nothing to resume"

[variant.recorder]
needs = ["log_event", "sample"]
strength = "proof"
proves = """
The optimizer keeps state, and had none, or none that had seen a step, when a run took its first step in the middle of
the job."""

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = "The library says what it could not restore."

[variant.metrics]
needs = ["sample"]
strength = "strong"
proves = """
The learning rate, the loss scale or the epoch of a restarted run begins with the first value of the attempt before,
and not with its last."""

[variant.stored]
needs = ["checkpoint", "sample"]
strength = "indication"
proves = """
The file of a whole training state (it tells its step) that was saved where the run goes on has no key of an optimizer, a
scheduler or a scaler, and no file beside it has."""
says = "What the file holds is known; that the run was loaded from it follows from its step alone."

[variant.restart]
needs = ["sample"]
strength = "indication"
proves = "An attempt counts from its start again although the one before had saved checkpoints."
says = "That the attempt before had saved is known from its log; where this one looked for it is not."
*/
-- variant: recorder
WITH
run AS (
    SELECT
        m.proc_id,
        min(m.step) AS first_step
    FROM metric AS m
    WHERE m.source = 'metrics' AND m.step IS NOT NULL
    GROUP BY m.proc_id
)
SELECT
    e.artifact_id,
    e.row,
    e.line,
    e.proc_id,
    e.rank,
    CAST(e.fields ->> 'first_step' AS BIGINT) AS step,
    e.ts_ns,
    'the state of its optimizer' AS what,
    (e.fields ->> 'optimizer') || ' had state of ' || (e.fields ->> 'n_states') || ' parameters'
        || CASE WHEN (e.fields ->> 'n_states') <> '0' THEN ', which had seen no step,' ELSE '' END
        || ' before that step, and keeps some from the next one on'
        || CASE WHEN s.step_before IS NOT NULL THEN '; the attempt before had come to step ' || s.earlier_last_step ELSE '' END AS how,
    'Save optimizer.state_dict() (and those of scheduler and scaler) with the model, and load it before the first step.' AS remedy,
    'optimizer' AS key
FROM log AS e
JOIN run AS r ON r.proc_id = e.proc_id
LEFT JOIN resumed_run AS s ON s.proc_id = e.proc_id AND s.name = 'loss'
WHERE e.signature = 'recorder-optimizer-began' AND (e.fields ->> 'keeps_state') = 'true'
  AND r.first_step >= $min_first_step
  AND ((e.fields ->> 'n_states') = '0' OR (e.fields ->> 'steps_before') = '0')
ORDER BY e.ts_ns, e.artifact_id, e.row;

-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.line,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    CASE e.signature
        WHEN 'resume-optimizer-missing' THEN 'the state of its optimizer'
        WHEN 'resume-scheduler-missing' THEN 'the state of its learning rate schedule'
        WHEN 'resume-random-missing' THEN 'the state of its random numbers'
        ELSE 'the place in its data'
    END AS what,
    e.message AS how,
    CASE e.signature
        WHEN 'resume-optimizer-missing' THEN 'Save the whole state, not the weights alone; to begin anew on purpose, load only the weights.'
        WHEN 'resume-scheduler-missing' THEN 'Save and load the schedule with the optimizer.'
        WHEN 'resume-random-missing' THEN 'Save the random state of every rank and resume on as many ranks; without it dropout and order differ.'
        ELSE 'Save at the end of an epoch, or use a loader with a state (torchdata StatefulDataLoader).'
    END AS remedy,
    -- Order and dropout that differ are no fault of the weights.
    CASE WHEN e.signature IN ('resume-random-missing', 'resume-data-position') AND e.exception IS NULL THEN 'medium' ELSE 'high' END AS severity,
    CASE WHEN e.exception IS NOT NULL THEN ['rank-failed'] ELSE [] END AS causes,
    e.signature AS key
FROM log AS e
WHERE e.class = 'ckpt.partial' AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.signature ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;

-- variant: metrics
WITH
anew AS (
    SELECT
        r.*,
        CASE
            WHEN r.name = 'learning_rate' AND abs(r.first_value - r.earlier_first_value) <= $same * abs(r.earlier_first_value)
                AND abs(r.first_value - r.value_before) > $apart * greatest(abs(r.value_before), abs(r.first_value))
                -- The values after it follow those after the first start, one by one.
                AND (SELECT bool_and(abs(r.first_values[i] - r.earlier_first_values[i]) <= $same * abs(r.earlier_first_values[i]))
                    FROM range(1, least(len(r.first_values), len(r.earlier_first_values), 5) + 1) AS n(i))
            THEN 'scheduler'
            WHEN r.name = 'loss_scale' AND r.first_value = r.earlier_first_value
                AND greatest(r.value_before, r.first_value) >= $min_scale_ratio * least(r.value_before, r.first_value)
            THEN 'scaler'
            WHEN r.name = 'epoch' AND r.first_value < r.value_before - $min_epochs_back
                AND r.first_value <= r.earlier_first_value + $min_epochs_back
            THEN 'data'
        END AS part
    FROM resumed_run AS r
    WHERE r.first_step >= $min_first_step AND r.first_step > r.earlier_first_step AND r.value_before IS NOT NULL
)
SELECT
    a.artifact_id,
    a.row,
    a.line,
    a.proc_id,
    a.rank,
    a.first_step AS step,
    a.ts_ns,
    CASE a.part
        WHEN 'scheduler' THEN 'the state of its learning rate schedule'
        WHEN 'scaler' THEN 'the state of its loss scaler'
        ELSE 'the place in its data'
    END AS what,
    CASE a.part
        WHEN 'scheduler' THEN 'the learning rate begins at ' || printf('%.3g', a.first_value) || ' again, as at step ' || a.earlier_first_step || '; it was '
            || printf('%.3g', a.value_before) || ' at step ' || a.step_before
        WHEN 'scaler' THEN 'the loss scale is ' || printf('%.6g', a.first_value) || ' again, as at the first start; it was ' || printf('%.6g', a.value_before)
            || ' at step ' || a.step_before
        ELSE 'the epoch is ' || printf('%.4g', a.first_value) || ' again; it was ' || printf('%.4g', a.value_before) || ' at step ' || a.step_before
            || ', so samples of that epoch come again'
    END AS how,
    CASE a.part
        WHEN 'scheduler' THEN 'Save and load scheduler.state_dict(), or make the scheduler with last_epoch set to the step that was loaded.'
        WHEN 'scaler' THEN 'Save and load scaler.state_dict().'
        ELSE 'Save the epoch and the number of batches seen; call sampler.set_epoch and skip these, or use a loader with a state.'
    END AS remedy,
    CASE a.part WHEN 'scaler' THEN 'medium' ELSE 'high' END AS severity,
    [{'artifact_id': a.before_artifact_id, 'row': a.before_row, 'line': a.before_line, 'note': 'before the restart'}] AS evidence,
    a.part AS key
FROM anew AS a
WHERE a.part IS NOT NULL
ORDER BY a.ts_ns, a.artifact_id, a.row;

-- variant: stored
WITH
resumed AS (
    SELECT
        r.*,
        -- A file that tells step 39 was saved after it.
        s.artifact_id AS state_artifact_id,
        s.path,
        o.optimizer,
        o.scheduler,
        o.scaler
    FROM resumed_run AS r
    JOIN stored_part AS s ON s.saved_step IN (r.first_step - 1, r.first_step) AND s.is_whole AND s.run IS NOT DISTINCT FROM r.run
    JOIN (
        SELECT folder, saved_step, bool_or(optimizer) AS optimizer, bool_or(scheduler) AS scheduler, bool_or(scaler) AS scaler
        FROM stored_part GROUP BY folder, saved_step
    ) AS o ON o.folder = s.folder AND o.saved_step = s.saved_step
    WHERE r.first_step >= $min_first_step AND r.first_step > r.earlier_first_step AND r.value_before IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY r.proc_id, r.name ORDER BY s.saved_step DESC, s.artifact_id) = 1
),
lacking AS (
    SELECT *, CASE
        WHEN name = 'loss' AND NOT optimizer THEN 'optimizer'
        WHEN name = 'learning_rate' AND optimizer AND NOT scheduler
            AND abs(value_before - earlier_first_value) > $apart * greatest(abs(value_before), abs(earlier_first_value)) THEN 'schedule'
        WHEN name = 'loss_scale' AND optimizer AND NOT scaler THEN 'scaler'
    END AS part
    FROM resumed
)
SELECT
    l.state_artifact_id AS artifact_id,
    0 AS row,
    'checkpoint' AS "table",
    l.proc_id,
    l.rank,
    l.first_step AS step,
    l.ts_ns,
    CASE l.part
        WHEN 'optimizer' THEN 'the state of its optimizer'
        WHEN 'schedule' THEN 'the state of its learning rate schedule'
        ELSE 'the state of its loss scaler'
    END AS what,
    l.path || ', saved at this place, holds none'
        || CASE WHEN l.part = 'optimizer' THEN '; the loss is ' || printf('%.4g', l.first_value) || ' then, after ' || printf('%.4g', l.value_before) ELSE '' END AS how,
    CASE l.part
        WHEN 'optimizer' THEN 'Save optimizer.state_dict() (and those of scheduler and scaler) with the model, and load it before the first step.'
        WHEN 'schedule' THEN 'Save and load scheduler.state_dict(), or make the scheduler with last_epoch set to the step that was loaded.'
        ELSE 'Save and load scaler.state_dict().'
    END AS remedy,
    CASE WHEN l.part = 'optimizer' AND l.first_value > $min_jump * l.value_before AND l.value_before > 0 THEN 'high' ELSE 'medium' END AS severity,
    [{'artifact_id': l.artifact_id, 'row': l.row, 'line': l.line, 'note': 'where the run goes on'}] AS evidence,
    'stored ' || l.part AS key
FROM lacking AS l
WHERE l.part IS NOT NULL
  AND NOT EXISTS (
      SELECT 1 FROM log AS e
      WHERE e.proc_id = l.proc_id AND e.signature = 'recorder-optimizer-began' AND (e.fields ->> 'keeps_state') = 'false'
  )
ORDER BY l.ts_ns, l.rank, l.part;

-- variant: restart
WITH
saved AS (
    SELECT
        attempt,
        max_by(artifact_id, ts_ns) AS artifact_id,
        max_by(line, ts_ns) AS line
    FROM log
    WHERE class = 'ckpt.saved' AND role <> 'noise' AND ts_ns IS NOT NULL
    GROUP BY attempt
)
SELECT
    r.artifact_id,
    r.row,
    r.line,
    r.proc_id,
    r.rank,
    r.first_step AS step,
    r.ts_ns,
    'what the attempt before had saved' AS what,
    'it counts from step ' || r.first_step || ' again with a loss of ' || printf('%.4g', r.first_value) || ', after ' || printf('%.4g', r.earlier_first_value)
        || ' at the first start; the attempt before had come to step ' || r.earlier_last_step AS how,
    'Look at where the job looks for its newest checkpoint when it starts, and that this path is the same after a restart.' AS remedy,
    [{'artifact_id': s.artifact_id, 'line': s.line, 'note': 'saved'}] AS evidence,
    'all' AS key
FROM resumed_run AS r
JOIN saved AS s ON s.attempt = r.earlier_attempt
WHERE r.name = 'loss' AND r.first_step <= r.earlier_first_step
  AND r.earlier_last_step - r.earlier_first_step >= $min_lost_steps
  AND abs(r.first_value - r.earlier_first_value) <= $apart * abs(r.earlier_first_value)
  AND NOT EXISTS (SELECT 1 FROM log AS o WHERE o.class = 'ckpt.loaded' AND o.attempt = r.attempt AND o.role <> 'noise')
ORDER BY r.ts_ns, r.artifact_id, r.row;
