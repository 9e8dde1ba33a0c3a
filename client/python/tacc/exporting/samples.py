"""Whether the samples of a batch are computed apart, and which labels take one out of the loss. So a batch may be filled up, and what fills it does not
count. What is not seen to be so is taken for the contrary."""

from __future__ import annotations

from collections.abc import Iterable

from tacc.exporting.aten import dims_along
from tacc.exporting.extents import BATCH, Extent, product
from tacc.exporting.graph_text import Node, Value

MOVES = ("cast", "reshape", "slice", "pad", "concat", "transpose", "broadcast")  # they change no label


def samples_meet(outputs: Iterable[Value]) -> bool:
    """Whether one of these depends on more than its own sample, as in evaluation: batch norms have their running statistics then."""
    return any(samples_meet_in(node) for node in made_by(outputs))


def ignorable_targets(loss: Value, count: Value) -> set[str]:
    """The inputs that are targets of cross-entropies, of which a loss of evaluation is made without anything else that is summed over samples."""
    found: set[str] = set()
    for node in made_by([loss, count]):
        if node.op == "cross_entropy":
            if node.operands[1].dims[:1] != node.operands[0].dims[:1] or (label := input_behind(node.operands[1])) is None:
                return set()
            found.add(label)
        elif samples_meet_in(node):
            return set()
    return found


def input_behind(value: Value) -> str | None:
    """The input of which the value has only elements and constants."""
    names, stack = set(), [value.node]
    while stack:
        node = stack.pop()
        if node.op == "input":
            names.add(node.symbol)
        elif node.op in MOVES:
            stack += [v.node for v in node.operands]
        elif node.op != "constant":
            return None
    return names.pop() if len(names) == 1 else None


def made_by(values: Iterable[Value]) -> set[Node]:
    """The nodes that they are made of, in evaluation."""
    found: set[Node] = set()
    stack = [v.node for v in values]
    while stack:
        if (node := stack.pop()) not in found:
            found.add(node)
            runs = node.op == "batch_moments" and len(node.operands) > 2
            stack += [v.node for v in (node.operands[2:] if runs else node.operands)]
            if runs:
                found.discard(node)
    return found


def samples_meet_in(node: Node) -> bool:
    """Whether a result may have something of two samples."""
    given = [v for v in node.operands if places(v)]
    if not given:
        return False
    if node.op == "aten":
        met, batch = dims_along(node), places(node.operands[0])
        return met is None or len(batch) != 1 or batch[0] in met or any(places(v) != batch for v in node.results)
    if any(len(places(v)) != 1 for v in (*given, *node.results)):
        return True
    if node.op == "einsum":
        labels = node.attrs["spec"].split("->")[0].split(",")
        return len({of[places(v)[0]] for of, v in zip(labels, node.operands) if places(v)}) != 1
    if node.op == "reshape":
        return bool(_before(node.operands[0]) != _before(node.results[0]))
    if node.op in ("attention", "softmax", "layer_norm", "rms_norm") and any(places(v) != [0] or v.rank == 1 for v in given):
        return True
    along = node.attrs["dims"] if node.op == "flip" else [node.attrs.get("dim")]
    return any(place in along for v in given for place in places(v))


def places(value: Value) -> list[int]:
    """Its dims that have samples."""
    return [i for i, d in enumerate(value.dims) if not isinstance(d, int) and d.has(BATCH)]


def _before(value: Value) -> Extent:
    return product(list(value.dims[: places(value)[0]]))

