"""Whether a loss, and the number of what it is taken over, add up over the parts of a batch. Only then may a step be several micro-batches. What is not
seen to be so is taken for the contrary."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from tacc.exporting.extents import BATCH, Extent
from tacc.exporting.graph_text import Node, Value
from tacc.exporting.samples import places, samples_meet_in


class _Of(Enum):
    """What a value is, of a batch and of its parts, which have equally many samples."""

    FIXED = auto()  # the same of all parts
    SAMPLES = auto()  # of each sample its own, along one dim
    NUMBER = auto()  # in proportion to how many samples there are
    SUM = auto()  # that of the batch is the sum of the parts'
    MEAN = auto()  # that of the batch is the mean of the parts'
    WHOLE = auto()  # something else: only the whole batch has it


_SUMS = (_Of.SUM, _Of.NUMBER)
_LINEAR = ("reshape", "cast", "scale", "neg", "transpose", "broadcast", "slice", "concat", "pad", "reduce_sum", "stop_gradient")


def adds_up(nodes: Iterable[Node], *values: Value) -> bool:
    """Whether each of these values of the graph is, of a batch, the sum of what it is of the parts; or the same of all parts."""
    found: dict[Value, _Of] = {}
    for node in nodes:
        found.update(zip(node.results, _results(node, [found[v] for v in node.operands])))
    kinds = [found[v] for v in values]
    return all(kind in _SUMS for kind in kinds) or all(kind is _Of.FIXED for kind in kinds)


def _results(node: Node, of: list[_Of]) -> list[_Of]:
    if node.op in ("channel_sums", "batch_moments"):  # of a batch norm: a micro-batch of it is what the job says
        return [_Of.WHOLE if _Of.WHOLE in of else _Of.FIXED] * len(node.results)
    if _Of.WHOLE in of:
        kind = _Of.WHOLE
    elif not node.operands:
        kind = _leaf(node)
    elif _Of.SAMPLES in of:
        return _of_samples(node, of)
    else:
        kind = _of_numbers(node, of)
    return [_Of.SAMPLES if kind is _Of.FIXED and places(v) else kind for v in node.results]


def _leaf(node: Node) -> _Of:
    batch = places(node.results[0]) if node.results else []
    if node.op == "constant" and not isinstance(value := node.attrs["value"], (int, float)) and value.has(BATCH):
        return _Of.NUMBER if not batch and not _has_batch(value / BATCH) else _Of.WHOLE
    if len(batch) > 1 or node.op == "iota" and node.attrs["dim"] in batch:
        return _Of.WHOLE
    return _Of.FIXED


def _of_samples(node: Node, of: list[_Of]) -> list[_Of]:
    """The results of a node with operands of samples. Beside them may be what is the same for all."""
    of_rows = [v for v, kind in zip(node.operands, of) if kind is _Of.SAMPLES]
    if any(kind not in (_Of.SAMPLES, _Of.FIXED) for kind in of) or any(len(places(v)) != 1 for v in of_rows):
        return [_Of.WHOLE] * len(node.results)
    if node.op == "cross_entropy" and all(places(v) == [0] for v in of_rows) and len(of_rows) == 2:
        return [_Of.SUM, _Of.SUM, _Of.SAMPLES]
    if node.op == "reduce_sum" and places(of_rows[0])[0] in node.attrs["dims"]:
        return [_Of.SUM]
    if node.op == "einsum" and _is_sum_over_samples(node):
        return [_Of.SUM]
    return [_Of.WHOLE if samples_meet_in(node) else _Of.SAMPLES] * len(node.results)


def _is_sum_over_samples(node: Node) -> bool:
    operands, result = node.attrs["spec"].split("->")
    labels = {of[places(v)[0]] for of, v in zip(operands.split(","), node.operands) if places(v)}
    return len(labels) == 1 and all(places(v) for v in node.operands) and not labels & set(result)


def _of_numbers(node: Node, of: list[_Of]) -> _Of:
    """The result of a node whose operands have no dim of samples."""
    kinds = set(of)
    if kinds == {_Of.FIXED}:
        return _Of.FIXED
    if any(places(v) for v in node.results):
        return _Of.WHOLE
    if node.op in _LINEAR and len(kinds) == 1:
        return of[0]
    if node.op in ("add", "sub"):
        if kinds <= set(_SUMS):
            return _Of.SUM
        return _Of.MEAN if kinds <= {_Of.MEAN, _Of.FIXED} else _Of.WHOLE
    if node.op == "add_scalar":
        return _Of.MEAN if kinds == {_Of.MEAN} else _Of.WHOLE
    if node.op in ("mul", "mul_rows") and _Of.FIXED in kinds:
        return (kinds - {_Of.FIXED}).pop()
    if node.op == "mul" and kinds == {_Of.MEAN, _Of.NUMBER}:
        return _Of.SUM
    if node.op == "div" and of[1] is _Of.FIXED:
        return of[0]
    if node.op == "div" and of[0] in _SUMS and of[1] is _Of.NUMBER:
        return _Of.MEAN
    return _Of.WHOLE


def _has_batch(extent: Extent) -> bool:
    return not isinstance(extent, (int, float)) and extent.has(BATCH)
