"""Why an operator with finite operands gave NaN or an infinity, as its semantics and its operands' ranges tell.

Only what the operands prove is named; else the answer is `unexplained`. Limits of types: IEEE 754, and OCP 8-bit
floating point for float8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from forensics.models.autograd_graph import Operand, Operator

# What each cause means, as one clause after "OP gave the first non-finite value".
CAUSES: Mapping[str, str] = {
    "overflow": "its result is beyond the largest value of its type",
    "log-of-zero": "it took the logarithm of zero",
    "log-of-negative": "it took the logarithm of a negative number",
    "zero-over-zero": "it divided zero by zero",
    "division-by-zero": "it divided by zero",
    "zero-count": "it divided by a count or sum that is zero",
    "eps-underflow": "it divided by a root or sum to which a constant had been added that is zero in its type",
    "negative-root": "it took the root of a negative number",
    "invalid-domain": "an operand lies outside of the domain of the function",
    "root-derivative": "the derivative of a root or norm at zero is infinite",
    "bound-derivative": "the derivative is infinite at the bound of the function's domain",
    "where-backward": "the gradient of the branch that torch.where did not take is zero times infinity",
    "inf-minus-inf": "it subtracted infinity from infinity",
    "zero-times-inf": "it multiplied zero by infinity",
    "all-masked-softmax": "a row of its operand is masked in every place, so the softmax has nothing to share out",
    "finfo-mask": "a mask at the type's largest value was added to scores, and the sum is beyond the type",
    "mask-in-sum": "an infinity that was written on purpose, as masks are, went into it instead of being left out",
    "no-alignment": "the input of a sequence is shorter than its target needs, or a step of it has probability zero",
    "no-valid-targets": "no target of the batch counts, so the mean is taken over nothing",
    "empty-reduction": "it reduced a tensor without elements",
    "single-sample": "it took the deviation of a single sample",
    "bad-data": "no recorded operator had written it, so it came from outside: the batch, or code that is not recorded",
    "unknown-writer": "what wrote it is not in the recording, so neither is where it was born",
    "unknown-operands": "what that operator read is not in the recording, so it may have been so before",
    "parameter": "a parameter was not finite when the recorded step began",
    "optimizer-step": "gradients were finite and parameters were not after the optimizer's step",
    "from-peer": "another rank had non-finite values in an earlier step, and gradients are shared",
    "unexplained": "its operands do not explain it",
}

LARGEST: Mapping[str, float] = {
    "float16": 65504.0,
    "bfloat16": 3.3895314e38,
    "float32": 3.4028235e38,
    "float64": 1.7976931348623157e308,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}
# Widened products: partial sums of float16 matrix products are kept in float32 and rounded at the end.
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "convolution", "addbmm", "addmv", "mv", "dot"}
_PRODUCTS |= {"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_scaled_mm", "einsum"}
_PRODUCTS |= {"convolution_backward", "_grouped_mm"}
_GROWING = {"exp", "exp2", "expm1", "sinh", "cosh", "logaddexp", "logsumexp", "softplus"}
_SUMS = {"sum", "mean", "cumsum", "prod", "cumprod", "var", "std", "var_mean", "norm", "linalg_vector_norm", "dot"}
_SUMS |= {"mse_loss", "smooth_l1_loss", "huber_loss", "native_layer_norm", "native_batch_norm", "native_group_norm"}
_SUMS |= {"_fused_rms_norm", "mse_loss_backward", "nll_loss_forward", "index_add", "scatter_add", "avg_pool2d"}
_CASTS = {"_to_copy", "to", "copy", "type_as", "_autocast_to_reduced_precision"}
_LOGS = {"log", "log2", "log10", "log1p", "xlogy", "binary_cross_entropy"}
_SOFTMAX = {"_softmax", "_log_softmax", "softmax", "log_softmax", "scaled_dot_product_attention"}
_SOFTMAX |= {"_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention_for_cpu"}
_DIVISIONS = {"div", "true_divide", "reciprocal", "rsqrt", "addcdiv"}
_DOMAIN = {"acos", "asin", "acosh", "atanh", "logit", "erfinv", "digamma", "lgamma", "pow", "fmod", "remainder"}
_LOSSES = re.compile(r"^(nll_loss(2d|_nd)?(_forward)?|cross_entropy_loss|nll_loss2d_forward)$")
_COUNTS = {"sum", "count_nonzero", "mean", "numel", "clamp", "clamp_min", "_to_copy"}
_ROOTS = re.compile(r"^(Sqrt|Rsqrt|LinalgVectorNorm|Norm|Cdist|EuclideanDist|PairwiseDistance|Dist|Std|Hypot|Pow)")
_BOUNDS = re.compile(r"^(Acos|Asin|Atanh|Acosh|Log|Atan2|Xlogy|Erfinv|BinaryCrossEntropy|Reciprocal)\w*Backward")
_PASSED_ON = {"sqrt", "rsqrt", "clamp", "clamp_min", "_to_copy", "to", "expand", "_unsafe_view", "pow", "abs"}
_TINY = 1e-30  # divisors that small are zero in practice
_NEAR = 0.9  # of the largest value: masks are finfo.min or half of it, sums of scores never come there by themselves


def classify(operator: Operator, operators: Mapping[int, Operator]) -> str:
    """The code, of CAUSES, for an operator that gave a non-finite value out of operands that were finite or masks."""
    function = operator.autograd or ""
    if operator.phase == "backward" and (_ROOTS.match(function) or _BOUNDS.match(function)) and _divides(operator):
        if _comes_from_where(operator, operators):
            return "where-backward"
        return "root-derivative" if _ROOTS.match(function) else "bound-derivative"
    if operator.phase == "backward" and operator.n_nan and _comes_from_where(operator, operators):
        return "where-backward"
    for judge in (_of_masks, _of_losses, _of_logs, _of_divisions, _of_reductions, _of_domains, _of_ranges):
        code = judge(operator, operators)
        if code:
            return code
    return "unexplained"


def may_be_infinite(function: str) -> bool:
    """Whether the derivative that this autograd function computes can be infinite; it is not taken so of a power,
    which mostly is a square."""
    return not function.startswith("Pow") and bool(_ROOTS.match(function) or _BOUNDS.match(function))


def _divides(operator: Operator) -> bool:
    """Where it is certain that the operator met a zero divisor: a product with a finite number cannot give it."""
    return operator.base in {"div", "mul", "pow", "reciprocal", "rsqrt", "masked_fill"} or operator.n_nan > 0


def _of_masks(operator: Operator, _: Mapping[int, Operator]) -> str | None:
    infinite = [tensor for tensor in operator.inputs if tensor.n_inf]
    if infinite and operator.n_nan:
        if operator.base in _SOFTMAX:
            return "all-masked-softmax"
        if operator.base in {"add", "sub", "rsub", "sum", "mean"}:
            return "inf-minus-inf"
        return "zero-times-inf" if operator.base in {"mul", *_PRODUCTS} else None
    if operator.base in {"add", "sub"} and operator.n_inf:
        limit = _limit(operator)
        if any((tensor.absmax or 0.0) >= _NEAR * limit for tensor in operator.inputs):
            return "finfo-mask"
    return None


def _of_losses(operator: Operator, _: Mapping[int, Operator]) -> str | None:
    if operator.base.endswith("ctc_loss") and operator.n_inf:
        return "no-alignment"
    if not _LOSSES.match(operator.base) or not operator.n_nan:
        return None
    weight = [tensor for tensor in operator.outputs if not tensor.is_bad and tensor.n == 1]
    return "no-valid-targets" if not weight or weight[0].absmax == 0 else None


def _of_logs(operator: Operator, _: Mapping[int, Operator]) -> str | None:
    if operator.base not in _LOGS:
        return None
    return "log-of-negative" if operator.n_nan else "log-of-zero"


def _of_divisions(operator: Operator, operators: Mapping[int, Operator]) -> str | None:
    if operator.base not in _DIVISIONS or not operator.inputs:
        return None
    if operator.base == "rsqrt" and operator.n_nan:
        return "negative-root"
    if len(operator.inputs) == 1 and operator.base == "div" and operator.phase == "forward":
        return "zero-over-zero" if operator.n_nan else None  # the divisor is a number, no tensor
    divisor = operator.inputs[-1]
    ways = list(_behind(divisor, operators))
    if any(node.base == "add" and len(node.inputs) == 1 and _is_narrow(node) for node in ways):
        return "eps-underflow"
    if divisor.n == 1 and divisor.absmax == 0 and any(node.base in _COUNTS for node in ways[:1]):
        return "zero-count"
    return "zero-over-zero" if operator.n_nan else _of_quotients(operator, divisor)


def _of_quotients(operator: Operator, divisor: Operand) -> str:
    """Finite by finite is infinite where the divisor is zero, or so small that the quotient is beyond the type."""
    smallest = (operator.inputs[0].absmax or 0.0) / _limit(operator)
    return "division-by-zero" if smallest < _TINY or divisor.absmax == 0 else "overflow"


def _of_reductions(operator: Operator, _: Mapping[int, Operator]) -> str | None:
    if operator.base not in _SUMS or not operator.n_nan:
        return None
    if any(tensor.n == 0 for tensor in operator.inputs):
        return "empty-reduction"
    if operator.base in {"var", "std", "var_mean"}:
        read, written = operator.inputs[0].n, operator.outputs[0].n if operator.outputs else None
        if read is not None and read == written:
            return "single-sample"
    return None


def _of_domains(operator: Operator, _: Mapping[int, Operator]) -> str | None:
    if operator.base == "sqrt" and operator.n_nan:
        return "negative-root"
    if operator.base in _DOMAIN and (operator.n_nan or operator.base != "pow"):
        return "invalid-domain"
    if operator.base == "pow" and operator.n_inf and _largest_input(operator) <= 1:
        return "division-by-zero"
    return None


def _of_ranges(operator: Operator, _: Mapping[int, Operator]) -> str | None:
    """Overflow, where the operands' ranges allow for it."""
    limit, largest = _limit(operator), _largest_input(operator)
    if operator.base in _GROWING:
        return "overflow" if largest >= 0.999 * math.log(limit) else None
    if operator.base in _CASTS:
        return "overflow" if largest > limit * (1 - 2**-12) else None
    ranges = [tensor.absmax or 0.0 for tensor in operator.inputs]
    elements = max((tensor.n or 1 for tensor in operator.inputs), default=1)
    products = math.prod(sorted(ranges)[-2:]) if len(ranges) > 1 else largest
    reachable = max(largest, products, largest**2 if operator.base in _SUMS or operator.base == "pow" else 0.0)
    if operator.base in _PRODUCTS or operator.base in _SUMS:
        reachable *= elements
    if operator.base == "pow":
        reachable = math.inf if largest > 1 else reachable
    if operator.base in {"add", "sub", "addcmul", "lerp"}:
        reachable = max(reachable, sum(ranges))
    return "overflow" if reachable >= 0.5 * limit else None


def _limit(operator: Operator) -> float:
    kinds = [tensor.dtype or "" for tensor in operator.outputs if tensor.is_bad]
    return min((LARGEST[kind] for kind in kinds if kind in LARGEST), default=LARGEST["float32"])


def _is_narrow(node: Operator) -> bool:
    """Whether it wrote a type in which usual constants are zero: 1e-8 is below the smallest float16, 6e-8."""
    return any(tensor.dtype == "float16" or (tensor.dtype or "").startswith("float8") for tensor in node.outputs)


def _largest_input(operator: Operator) -> float:
    return max((tensor.absmax or 0.0 for tensor in operator.inputs), default=0.0)


def _behind(operand: Operand, operators: Mapping[int, Operator], steps: int = 8) -> Iterator[Operator]:
    """The operators that made this operand, back to the first that is no root, bound or cast."""
    for _ in range(steps):
        node = operators.get(operand.source) if operand.source is not None else None
        if node is None:
            return
        yield node
        if node.base not in _PASSED_ON or not node.inputs:
            return
        operand = node.inputs[0]


def _comes_from_where(operator: Operator, operators: Mapping[int, Operator]) -> bool:
    """Whether the gradient that the operator read is what the backward of torch.where gave."""
    waiting = [tensor.source for tensor in operator.inputs]
    seen: set[int] = set()
    while waiting and len(seen) < 64:
        source = waiting.pop()
        node = operators.get(source) if source is not None else None
        if node is None or node.node_id in seen or node.phase != "backward":
            continue
        seen.add(node.node_id)
        if (node.autograd or "").startswith(("Where", "SWhere", "MaskedFill")):
            return True
        if node.autograd == operator.autograd or node.base in {"mul", "div", "neg", "expand", "_to_copy", "add"}:
            waiting += [tensor.source for tensor in node.inputs]
    return False
