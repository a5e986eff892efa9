"""Where non-finite values were born in a recorded step, what they reached, and by which way.

A birth is an operator that gave a NaN or an infinity although nothing it read was one; or a tensor that came in so.
Infinities that are written on purpose, as attention masks are, are no births: the operator that makes a NaN of them is.
Where the recording lacks what would show it, the first place that it has stands for the birth and is said to be that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from forensics.models.autograd_graph import Operand, Operator, RecordedGraph, forward_of
from forensics.models.nonfinite_causes import classify

# These write infinities that they are given, or hand on those that were.
_WRITERS = {"masked_fill", "where", "fill", "full", "full_like", "new_full", "triu", "tril", "scalar_tensor", "copy"}
_WRITERS |= {"to", "_to_copy", "clone", "lift_fresh", "constant_pad_nd", "masked_scatter", "index_put", "scatter"}
_MASKABLE = _WRITERS | {"add", "sub", "mul", "minimum", "maximum", "expand", "_unsafe_view", "cat", "index", "slice"}
_MASKABLE |= {"_softmax", "_log_softmax", "logsumexp", "topk", "sort", "max", "amax", "min", "amin", "logical_not"}
_MASKABLE |= {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math"}
_MASKABLE |= {"_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention"}
_READERS = {"lift_fresh", "tensor", "from_file", "empty", "_pin_memory", "frombuffer"}  # their values come from outside
_MAKERS = _WRITERS | {"zeros", "ones", "arange", "rand", "randn", "randint", "normal", "uniform", "bernoulli", "eye"}
_MAKERS |= {"linspace", "empty", "tensor", "zeros_like", "ones_like", "rand_like", "randn_like", "exponential", "zero"}
_FILLS = _WRITERS - {"to", "_to_copy", "clone", "copy"}  # a cast that overflows writes an infinity nobody gave


@dataclass
class Birth:
    """`kind` as in the schema: operator | data | parameter | unrecorded. `reached`: node → distance from the birth."""

    node: Operator
    kind: str
    cause: str
    operand: Operand
    reached: dict[int, int] = field(default_factory=dict)
    path: list[int] = field(default_factory=list)
    reaches_loss: bool = False
    reaches_end: bool = False  # of a recording that does not tell which gradients are whose
    parameters: list[str] = field(default_factory=list)  # in the order in which their gradients became non-finite

    @property
    def is_harmful(self) -> bool:
        return self.reaches_loss or self.reaches_end or bool(self.parameters)


def find_births(recorded: RecordedGraph) -> list[Birth]:
    """All births of one graph in the order of execution, each with what it reached."""
    tails = _losses(recorded)
    births = _followed(recorded, list(_births(recorded)), tails)
    if not any(birth.is_harmful for birth in births):
        births += _followed(recorded, list(_spent_masks(recorded, tails)), tails)
    return _without_backwards_of(recorded, births)


def _followed(recorded: RecordedGraph, births: list[Birth], tails: list[int]) -> list[Birth]:
    """The births, each with what it reached."""
    trained = _gradients(recorded)
    ends = list(recorded.operators)[-2:]  # the last two: a layer's gradients of weight and bias
    last = next((n.node_id for n in reversed(recorded.operators.values()) if n.phase == "forward"), None)
    for birth in births:
        birth.reached = _reached(recorded, birth.node.node_id)
        birth.reaches_loss = any(node in birth.reached for node in tails)
        names = [name for node, name in trained if node in birth.reached]
        birth.parameters = list(dict.fromkeys(names))
        birth.reaches_end = last in birth.reached or (not trained and any(node in birth.reached for node in ends))
        goals = [*tails, last, *(node for node, _ in trained), *ends]
        goal = next((node for node in goals if node in birth.reached), None)
        birth.path = _path(recorded, birth, goal)
    return births


def _spent_masks(recorded: RecordedGraph, tails: list[int]) -> Iterator[Birth]:
    """Where nothing else explains a loss that is not finite: the first operator that took in an infinity meant as mask.

    Operators that pass masks on by design are left out: what makes a sum or a mean of them is at fault.
    """
    operators = recorded.operators
    waiting = [node for node in tails if operators[node].is_bad]
    behind = set(waiting)
    for node in waiting:
        sources = {t.source for t in operators[node].inputs if t.is_bad and t.source in operators}
        waiting += [source for source in sources - behind if source is not None]
        behind |= {source for source in sources if source is not None}
    for node in sorted(behind):
        operator = operators[node]
        if operator.base not in _MASKABLE and operator.is_bad and any(tensor.is_bad for tensor in operator.inputs):
            yield Birth(operator, "operator", "mask-in-sum", next(t for t in operator.outputs if t.is_bad))
            return


def _without_backwards_of(recorded: RecordedGraph, births: list[Birth]) -> list[Birth]:
    """The backward of an operator that is a harmful birth reads the same operand: one fault, no birth of its own."""
    by_node = {birth.node.node_id: birth for birth in births if birth.kind == "operator" and birth.is_harmful}
    kept = []
    for birth in births:
        forward = forward_of(recorded, birth.node)
        first = by_node.get(forward.node_id) if forward else None
        if birth.kind != "operator" or first is None:
            kept.append(birth)
            continue
        first.reached = birth.reached | first.reached
        first.parameters = list(dict.fromkeys([*first.parameters, *birth.parameters]))
    return kept


def _births(recorded: RecordedGraph) -> Iterator[Birth]:
    operators = recorded.operators
    masks: set[int] = set()  # nodes whose infinities were written on purpose
    known: set[object] = set()  # tensors that came in non-finite
    for node in operators.values():
        bad = [tensor for tensor in node.inputs if tensor.is_bad]
        deliberate = [tensor for tensor in bad if _is_mask(tensor, node, masks)]
        for tensor in bad:
            source = operators.get(tensor.source) if tensor.source is not None else None
            if tensor in deliberate or (source is not None and (source.is_bad or tensor.inferred)):
                continue
            key = tensor.name or (tensor.shape, tensor.n_nan, tensor.n_inf)
            kind = _origin(tensor, node)
            if key not in known and kind not in known and not _is_late(node, operators, tensor):
                yield Birth(node, kind, _CAUSE_OF[kind], tensor)
            known.add(key)
            if kind == "parameter":
                known.add(kind)  # one stands for all: they became so in the same update
        if not node.is_bad or len(deliberate) < len(bad):
            continue
        written = next(tensor for tensor in node.outputs if tensor.is_bad)
        if node.n_nan == 0 and (deliberate or node.base in _FILLS):
            masks.add(node.node_id)
        elif node.inputs:
            yield Birth(node, "operator", classify(node, operators), written)
        elif node.n_nan and node.base in _READERS:
            yield Birth(node, "data", "bad-data", written)
        elif node.n_nan == 0 and node.base in _MAKERS:
            masks.add(node.node_id)  # made out of nothing: a constant
        else:
            yield Birth(node, "unrecorded", "unknown-operands", written)


_CAUSE_OF = {"parameter": "parameter", "data": "bad-data", "unrecorded": "unknown-writer"}


def _origin(tensor: Operand, node: Operator) -> str:
    """Where a non-finite tensor came from that no recorded operator gave: no gradient comes from outside."""
    if tensor.name:
        return "parameter"
    return "unrecorded" if node.phase == "backward" or tensor.source is not None else "data"


def _is_mask(tensor: Operand, node: Operator, masks: set[int]) -> bool:
    """Infinities without a NaN, written on purpose, or given from outside to an operator that takes masks."""
    if tensor.n_nan:
        return False
    if tensor.source in masks:
        return True
    return tensor.source is None and tensor.name is None and node.phase == "forward" and node.base in _MASKABLE


def _is_late(node: Operator, operators: dict[int, Operator], tensor: Operand) -> bool:
    """Of a backward, or of a recording without data flow: what came before may have made it."""
    if node.phase == "forward" and any(
        t.source is not None and not t.inferred for other in operators.values() for t in other.inputs
    ):
        return False
    before = [other for other in operators.values() if other.node_id < node.node_id and other.is_bad]
    return bool(before) and tensor.name is None


def _reached(recorded: RecordedGraph, start: int) -> dict[int, int]:
    """Distance, in edges over which a non-finite tensor flows, of every operator that has one because of `start`."""
    distance = {start: 0}
    waiting = [start]
    for node in waiting:
        for _, other, data in recorded.graph.out_edges(node, data=True):
            if other not in distance and data["tensor"].is_bad and recorded.operators[other].is_bad:
                distance[other] = distance[node] + 1
                waiting.append(other)
    return distance


def _losses(recorded: RecordedGraph) -> list[int]:
    """Forward operators that give one number which no other forward operator reads, the last of them first."""
    operators = recorded.operators
    forward = [node for node in operators.values() if node.phase == "forward"]
    tails = [
        node.node_id
        for node in forward
        if any(tensor.n == 1 for tensor in node.outputs)
        and not any(operators[other].phase == "forward" for other in recorded.graph.successors(node.node_id))
    ]
    if not recorded.graph.number_of_edges():  # without data flow every one looks unread
        return [node.node_id for node in forward[-1:] if any(tensor.n in (1, None) for tensor in node.outputs)]
    return tails[::-1]


def _gradients(recorded: RecordedGraph) -> list[tuple[int, str]]:
    """(backward operator, parameter) where its output has the shape of a parameter that its forward operator read."""
    owned: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
    for node in recorded.operators.values():
        if node.phase == "forward" and node.sequence is not None:
            named = [(t.name, t.shape) for t in node.inputs if t.name and t.shape is not None]
            owned.setdefault(node.sequence, []).extend(named)
    found = []
    for node in recorded.operators.values():
        if node.phase != "backward" or node.sequence is None or not node.is_bad:
            continue
        shapes = [t.shape for t in node.outputs if t.is_bad]
        for name, shape in owned.get(node.sequence, []):
            if any(_fits(shape, other) for other in shapes):
                found.append((node.node_id, name))
    return found


def _fits(parameter: tuple[int, ...], gradient: tuple[int, ...] | None) -> bool:
    """Equal but for a transposition, and for dimensions of size 1 that are summed away later."""
    if gradient is None:
        return False
    return sorted(n for n in parameter if n != 1) == sorted(n for n in gradient if n != 1)


def _path(recorded: RecordedGraph, birth: Birth, goal: int | None) -> list[int]:
    """The shortest way from the birth to `goal`, both included."""
    if goal is None:
        return []
    way = [goal]
    while way[-1] != birth.node.node_id:
        here = birth.reached[way[-1]]
        sources = (t.source for t in recorded.operators[way[-1]].inputs if t.is_bad and t.source is not None)
        way.append(next(node for node in sources if birth.reached.get(node) == here - 1))
    return way[::-1]
