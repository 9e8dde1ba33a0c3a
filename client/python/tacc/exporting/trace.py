"""From a module to an exported program in ATen ops, of any number of samples and tokens where the module allows it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import torch

from tacc.errors import InputError
from tacc.exporting.attributes import Kept, Key
from tacc.exporting.decompose import decompose
from tacc.exporting.example import Example
from tacc.exporting.forward import ForwardWithLoss
from tacc.exporting.functions import Functions
from tacc.exporting.outside import Outside
from tacc.exporting.recurrent import split_layers
from tacc.exporting.results import ExportError
from tacc.exporting.source import innermost

WHAT_TO_DO = (
    "a graph is one computation for every batch: what depends on the values of tensors must be computed by tensors (torch.where, a product with a mask, a "
    "fixed number by topk) and not by `if`, `while`, `.item()`, or indexing with a mask"
)


class Seen(AbstractContextManager[None]):
    """What a model's forward does beside its computation, while it is traced inside.

    Args:
        model: The model.

    Attributes:
        changed: The attributes that its forward has changed; they are as they were before again.
        outside: Tensors that are none of its own.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.changed: dict[Key, str] = {}
        self.outside = Outside()

    def __enter__(self) -> None:
        self._kept = Kept(self._model)
        self.outside.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.outside.__exit__(*error)
        self.changed |= self._kept.changed()
        self._kept.restore()


def trace(module: ForwardWithLoss, example: Example, *, any_batch: bool, any_length: bool, keeps: Callable[[str], bool]) -> torch.export.ExportedProgram:
    """Traces it. Ops for which `keeps` is true stay as they are; all others become simpler ones, where PyTorch knows how.

    Raises ExportError.
    """
    tensors = example.for_tracing(any_batch=any_batch)
    auto = torch.export.Dim.AUTO
    shapes = {}
    for leaf in example.leaves:
        dims = {}
        if leaf.is_batch and any_batch:
            dims[0] = auto
        if leaf.is_sequence and any_length:
            dims[1] = auto
        shapes[leaf.name] = dims
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with redirect_stderr(StringIO()):  # Of what it cannot trace it prints the whole graph.
                program = _program(module, tensors, shapes)
        except InputError:
            raise
        except Exception as error:
            raise ExportError(_explained(error)) from error
        _keep_gradients_stopped(program)
        table = torch.export.default_decompositions()
        for op in list(table):
            if keeps(str(op)):
                table.pop(op)
        split_layers(program)
        if not decompose(program, table, keeps):
            program = program.run_decompositions(table)
    _drop_checks(program.graph)
    return program


def _program(module: ForwardWithLoss, tensors: dict[str, torch.Tensor], shapes: dict[str, Any]) -> torch.export.ExportedProgram:
    functions = Functions()
    while True:
        with functions.traced(), _distributions_as_given():
            program = torch.export.export(module, (tensors,), dynamic_shapes=(shapes,), strict=False)
        if not functions.judge():
            return program


@contextmanager
def _distributions_as_given() -> Iterator[None]:
    """torch.distributions would look at the values of their parameters, which a trace has not."""
    validates = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validates)


def _drop_checks(graph: torch.fx.Graph) -> None:
    """Removes checks of what export has found already; they would keep alive what they look at."""
    for node in reversed(graph.nodes):
        if str(node.target).startswith(("aten._assert", "aten.sym_constrain")):
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _explained(error: Exception) -> str:
    line = _line_of(error)
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    kind = type(error).__name__
    data_dependent = "data-dependent" in str(error).lower() or "GuardOnDataDependent" in kind or "item()" in str(error)
    advice = f"; {WHAT_TO_DO}" if data_dependent else ""
    if "numpy" in said:
        advice = "; a graph has what torch computes alone: compute it by torch's functions, or before the model, in the batch"
    elif "must be Tensor, not" in said:
        advice = "; a batch has tensors or arrays where the model computes with them: give torch.tensor(...) in place of a list or a number"
    return f"{line.removesuffix(':') + ': ' if line else ''}torch.export cannot trace this: {said}{advice}"


def _line_of(error: BaseException | None) -> str:
    while error is not None:
        if line := innermost("".join(traceback.format_tb(error.__traceback__))):
            return line
        error = error.__cause__ or error.__context__
    return ""


def _keep_gradients_stopped(program: torch.export.ExportedProgram) -> None:
    """Marks what a region under torch.no_grad() makes of parameters, before decompositions dissolve the region."""
    signature = program.graph_signature
    parameters = set(signature.inputs_to_parameters)
    trained: set[Any] = set()
    graph = program.graph
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in parameters or any(n in trained for n in node.all_input_nodes):
            trained.add(node)
    for node in list(graph.nodes):
        if "set_grad_enabled" not in str(node.target) or node.args[0] is not False or node not in trained:
            continue
        for user in list(node.users):
            with graph.inserting_after(user):
                stopped = graph.call_function(torch.ops.aten.detach.default, (user,))
            stopped.meta = dict(user.meta)
            user.replace_all_uses_with(stopped, delete_user_cb=lambda u, s=stopped: u is not s)
    program.graph_module.recompile()


