-- What to do against each class of cause of a non-finite value (birth.cause); in remedy, OP stands for the operator.
-- Causes that leave nothing better to say than the rule does are missing.
CREATE TEMP VIEW nonfinite_remedy AS
SELECT
    c.cause,
    v.remedy
FROM (
    VALUES
    (['log-of-zero', 'log-of-negative', 'bound-derivative'],
     'Keep what OP reads away from the bound: log_softmax or logsigmoid of the logits instead of the log of a probability, else clamp_min(eps) before it.'),
    (['zero-over-zero', 'division-by-zero', 'zero-count'],
     'Guard the divisor of OP: clamp_min(1) for a count, an eps for a sum, or leave the term out; and look why nothing was counted in the batch of that step on this rank.'),
    (['eps-underflow'],
     'Give OP an eps that its type can hold (float16 keeps nothing below 6e-8 and is coarse below 6e-5), or compute this term in float32.'),
    (['root-derivative'],
     'Keep the root away from zero: sqrt(x + eps), or leave zeros out before it. A torch.where or nan_to_num after it does not help its backward.'),
    (['negative-root', 'invalid-domain'],
     'Clamp what OP reads into its domain, and look what took it out: rounding near the bound, or a wrong sign.'),
    (['where-backward'],
     'Put a safe value into the branch that is not taken before the function is computed (torch.where inside as well as outside): its gradient is computed there too.'),
    (['zero-times-inf', 'inf-minus-inf'],
     'OP met an infinity that was written on purpose, as masks are: leave one place of each row unmasked, take rows that are masked throughout out of the batch, or mask after OP.'),
    (['overflow'],
     'Keep what OP reads small or its type wide: subtract the maximum before an exp, scale scores before their product, run this operator in float32 or bfloat16; and look where the large values come from.'),
    (['all-masked-softmax'],
     'Leave one place of each row unmasked, or take rows that are masked throughout out of the batch: an empty sequence, or padding on the wrong side.'),
    (['finfo-mask'],
     'Add one mask only, or give a boolean one (masked_fill, or attn_mask of type bool): two masks at the type''s largest value add up to an infinity.'),
    (['no-valid-targets'],
     'Leave out batches whose targets are all ignore_index, or divide the summed loss by max(number of targets, 1).'),
    (['empty-reduction', 'single-sample'],
     'Leave out what has no elements, or one only, before OP: look at the batch of that step on this rank.'),
    (['bad-data'],
     'Look at the batch of that step on this rank: check inputs with isfinite when they are loaded, and drop or repair the sample.')
) AS v(causes, remedy)
CROSS JOIN unnest(v.causes) AS c(cause);
