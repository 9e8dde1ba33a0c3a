"""Decomposes the few ops of a program that have no row, each where it stands. `ExportedProgram.run_decompositions` traces the whole program anew for
them, twice, which is two thirds of the time of exporting a model of many layers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

# Recurrent layers are made of ops that change what they have just computed; to try them would fix the sizes that are open.
_MADE_OF_CHANGES = ("aten.rnn_", "aten.lstm.", "aten.gru.")


def decompose(program: torch.export.ExportedProgram, table: Mapping[Any, Callable[..., Any]], keeps: Callable[[str], bool]) -> bool:
    """Decomposes ops in the program's own graph, by `table` or as PyTorch composes them, but for those of which `keeps` is true. Inlines regions that
    only turn gradients on or off.

    Returns False, with no op decomposed, if that does not do: when an op changes its operand, or is made of ops that do, or there are other regions.
    """
    graph = program.graph
    regions = []
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
            regions.append(node)
    bodies = [_body(program, region) for region in regions]
    if any(body is None for body in bodies):
        return False
    graphs = [graph, *(body.graph for body in bodies if body is not None)]
    if any(_changes_operand(node) for g in graphs for node in g.nodes):
        return False
    for region, body in zip(regions, bodies):
        if body is not None:
            _inline_region(graph, region, body)
    composed = [node for node in graph.nodes if _is_composed(node, table) and not keeps(str(node.target))]
    traced = [_traced(node, table) for node in composed]
    if any(calls is None for calls in traced):
        return False
    replacements: dict[torch.fx.Node, Any] = {}
    for node, calls in zip(composed, traced):
        if calls is not None:
            module, operands = calls
            _inline(graph, node, module, [replacements.get(operand, operand) for operand in operands], replacements)
    for node in list(graph.nodes):
        if _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return True


def _body(program: torch.export.ExportedProgram, region: torch.fx.Node) -> torch.fx.GraphModule | None:
    """Of a region under torch.no_grad() or enable_grad() that has no region of its own."""
    if "set_grad_enabled" not in str(region.target) or any(user.target is not operator.getitem for user in region.users):
        return None
    attribute = region.args[1]
    body = getattr(program.graph_module, str(attribute.target)) if isinstance(attribute, torch.fx.Node) else None
    if not isinstance(body, torch.fx.GraphModule) or any(node.op in ("get_attr", "call_module") for node in body.graph.nodes):
        return None
    return body


def _changes_operand(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and (node.target._schema.is_mutable or str(node.target).startswith(_MADE_OF_CHANGES))


def _is_composed(node: torch.fx.Node, table: Mapping[Any, Callable[..., Any]]) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or isinstance(node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    return node.target in table or node.target._can_decompose()


def _changes_nothing(node: torch.fx.Node) -> bool:
    """Whether it is a call that gives back its operand, as casts to the same type do when they are traced."""
    name = str(node.target)
    if name == "aten.dropout.default":
        return node.args[1] == 0.0 or node.args[2] is False
    if not name.startswith(("aten.to.", "aten.contiguous.")) or not isinstance(node.args[0], torch.fx.Node):
        return False
    before = node.args[0].meta["val"]
    return isinstance(before, torch.Tensor) and before.dtype == node.meta["val"].dtype


def _inline_region(graph: torch.fx.Graph, region: torch.fx.Node, body: torch.fx.GraphModule) -> None:
    inputs = [node for node in body.graph.nodes if node.op == "placeholder"]
    copies: dict[torch.fx.Node, Any] = dict(zip(inputs, region.args[2:]))
    with graph.inserting_before(region):
        results = graph.graph_copy(body.graph, copies)
    for user in list(region.users):
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(region)


def _traced(node: torch.fx.Node, table: Mapping[Any, Callable[..., Any]]) -> tuple[torch.fx.GraphModule, list[torch.fx.Node]] | None:
    """The call in simpler ops, and the nodes that are its inputs; None if it cannot be traced by itself, or its ops change their operands."""
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    operands = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)))
    target: Any = node.target

    def call(*values: Any) -> Any:
        value_of = dict(zip(operands, values))
        args, kwargs = pytree.tree_unflatten([value_of.get(leaf, leaf) if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves], spec)
        return target(*args, **kwargs)

    try:
        with torch.no_grad():
            module = make_fx(call, decomposition_table=dict(table))(*(operand.meta["val"] for operand in operands))
    except RuntimeError:  # It can be traced with the whole program alone.
        return None
    return None if any(_changes_operand(made) for made in module.graph.nodes) else (module, operands)


def _inline(
    graph: torch.fx.Graph, node: torch.fx.Node, module: torch.fx.GraphModule, operands: list[torch.fx.Node], replacements: dict[torch.fx.Node, Any]
) -> None:
    """Puts the module's ops in the node's place, and notes what stands for the node now."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    copies: dict[torch.fx.Node, Any] = dict(zip(inputs, operands))
    place = {key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta}
    with graph.inserting_before(node):
        result = graph.graph_copy(module.graph, copies)
    for made in module.graph.nodes:
        if made.op == "call_function":
            copies[made].meta.update(place)
    parts = {node: result} if isinstance(result, torch.fx.Node) else {user: result[user.args[1]] for user in node.users}
    for old, new in parts.items():
        old.replace_all_uses_with(new)
        replacements[old] = new
        if old is not node:
            graph.erase_node(old)
    graph.erase_node(node)
