"""Recurrent layers, one by one. PyTorch's own decomposition of several layers loses the dropout between them."""

from __future__ import annotations

import operator
from typing import Any

import torch

_ATEN = torch.ops.aten
_OPS = tuple(getattr(_ATEN, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


def split_layers(program: torch.export.ExportedProgram) -> None:
    """Makes of each recurrent op with dropout between its layers an op for each layer, and the dropouts."""
    for node in list(program.graph.nodes):
        if node.target in _OPS and node.args[4] > 1 and node.args[5] > 0 and node.args[6]:
            _split(program.graph, node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _split(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    x, states, params, has_biases, num_layers, rate, train, bidirectional, batch_first = node.args
    place = {key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta}

    def call(target: Any, *args: Any) -> torch.fx.Node:
        made = graph.call_function(target, args)
        made.meta.update(place)
        return made

    directions, per_layer = 1 + bidirectional, len(params) // num_layers
    lasts: list[list[torch.fx.Node]] = [[] for _ in (states if isinstance(states, (list, tuple)) else [states])]
    with graph.inserting_before(node):
        for i in range(num_layers):
            if i > 0:  # A dropout's samples are in dim 0.
                x = x if batch_first else call(_ATEN.transpose.int, x, 0, 1)
                x = call(_ATEN.dropout.default, x, rate, True)
                x = x if batch_first else call(_ATEN.transpose.int, x, 0, 1)
            own = (0, i * directions, (i + 1) * directions)
            state = [call(_ATEN.slice.Tensor, s, *own) for s in states] if isinstance(states, (list, tuple)) else call(_ATEN.slice.Tensor, states, *own)
            of_layer = params[i * per_layer : (i + 1) * per_layer]
            layer = call(node.target, x, state, of_layer, has_biases, 1, 0.0, train, bidirectional, batch_first)
            x = call(operator.getitem, layer, 0)
            for j, last in enumerate(lasts):
                last.append(call(operator.getitem, layer, j + 1))
        results = [x, *(call(_ATEN.cat.default, last, 0) for last in lasts)]
    for user in list(node.users):
        results[user.args[1]].meta["val"] = user.meta["val"]
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)
