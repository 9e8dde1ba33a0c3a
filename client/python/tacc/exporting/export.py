"""`tacc.export_model`: a PyTorch model as a graph in text form with its weights, which a job trains."""

from __future__ import annotations

import json
import operator
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tacc.errors import InputError
from tacc.exporting.attributes import check_attributes
from tacc.exporting.coverage import coverage_of
from tacc.exporting.dim_names import name_dims
from tacc.exporting.example import Example, Leaf
from tacc.exporting.extents import BATCH, SEQUENCE, Extents, InexpressibleError, is_fixed, text
from tacc.exporting.foreign import note_on
from tacc.exporting.forward import ForwardWithLoss, Loss, LossWithModel, with_batched_experts, without_cache
from tacc.exporting.functions import check_hooks
from tacc.exporting.fused import split_fused
from tacc.exporting.graph_text import Node, Value, Word, units_of
from tacc.exporting.limits import limits_of_inputs
from tacc.exporting.losses import sum_and_count
from tacc.exporting.lowering import Lowering, is_complex, name_of_row
from tacc.exporting.mixtures import form_mixtures
from tacc.exporting.patterns.attention import find_attention
from tacc.exporting.patterns.constant_values import ConstantValues
from tacc.exporting.patterns.constants import fold_constants
from tacc.exporting.patterns.gelu import find_gelu
from tacc.exporting.patterns.rms_norm import find_rms_norm
from tacc.exporting.patterns.rotary import find_rotary
from tacc.exporting.patterns.stochastic_depth import find_stochastic_depth
from tacc.exporting.patterns.table_lookup import find_table_lookups
from tacc.exporting.results import Exported, ExportError, GraphInput, UnsupportedOpsError
from tacc.exporting.rows import TABLE
from tacc.exporting.samples import ignorable_targets, made_by, samples_meet
from tacc.exporting.source import without_prefix
from tacc.exporting.splitting import adds_up
from tacc.exporting.tokens import next_token_loss, token_example
from tacc.exporting.trace import WHAT_TO_DO, Seen, trace
from tacc.exporting.weighted_rows import ROW_WEIGHTS
from tacc.exporting.weights import init_of, write_safetensors

GRAPH, WEIGHTS, DESCRIPTION, CONFIG = "model.graph", "model.safetensors", "export.json", "config.json"
_FOURIER = re.compile(r"aten\.(fft_i?[rh]?fft[2n]?|i?stft)\.")
_PREFIX = "model"  # of paths of modules: ForwardWithLoss calls it so


def export(
    model: torch.nn.Module, example: Any, folder: str | Path, *, loss: Loss | None, tokens: str | None
) -> Exported:
    """See `tacc.export_model`."""
    return export_graph(model, example, loss=loss, tokens=tokens).write(Path(folder))


@dataclass
class ExportedGraph:
    """A model's graph, not written yet.

    Attributes:
        text: In the text form.
        tensors: Those of `model.safetensors`, where they are.
        description: What it is; its folder is not where it is yet.
        structure: Of what the model returns, for tree_unflatten of torch.utils._pytree.
        leaves: Of that structure, in order: the name of the graph's output; None: no tensor. "loss": the model's own loss.
        config: The text of config.json, of a model of transformers: what is trained comes back as a folder for `from_pretrained`.
        output_dims: Of each output that the model returns, as the text form has them: ["B", "S", "64"].
        outside: Tensors that it has as constants and that are none of the model's, each with the line that uses it.
    """

    text: str
    tensors: dict[str, torch.Tensor]
    description: Exported
    structure: Any
    leaves: list[str | None]
    config: str | None
    output_dims: dict[str, list[str]]
    outside: list[tuple[str, torch.Tensor]]

    def write(self, folder: Path) -> Exported:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / GRAPH).write_text(self.text, encoding="utf-8")
        write_safetensors(folder / WEIGHTS, self.tensors)
        if self.config is not None:
            (folder / CONFIG).write_text(self.config, encoding="utf-8")
        exported = replace(self.description, folder=folder)
        (folder / DESCRIPTION).write_text(json.dumps(_plain(exported), indent=1) + "\n", encoding="utf-8")
        return exported


def export_graph(
    model: torch.nn.Module, example: Any, *, loss: Loss | None, tokens: str | None = None, by_samples: bool = False, weighs_rows: bool = False,
    makes_up_parts: bool = False,
) -> ExportedGraph:
    """As `tacc.export_model`, without a folder. With `by_samples` several micro-batches weigh as many samples as they have, not targets. With
    `weighs_rows` the graph may have the input `row_weights`, as `weighted_rows` says. With `makes_up_parts` the loss is a sum over samples, and whoever
    trains the graph makes up for the parts of which a step is the mean."""
    if tokens is not None:
        if loss is not None:
            raise InputError("tokens= and loss= exclude one another: the loss of token data is that of the next token")
        example, loss = token_example(example, tokens), next_token_loss
    check_hooks(model)
    names = {} if tokens is None else {tokens: "tokens", "targets": "targets"}
    batch = Example(model, example, has_loss=loss is not None, names=names)
    notes: list[str] = []
    seen = Seen(model)
    with without_cache(model), with_batched_experts(model):
        try:
            made = _export(
                model, batch, loss, notes, seen, is_tokens=tokens is not None, by_samples=by_samples, weighs_rows=weighs_rows, makes_up_parts=makes_up_parts
            )
        finally:  # Also of one that cannot be traced for what an attribute keeps.
            if seen.changed:
                check_attributes(ForwardWithLoss(model, batch, loss), model, seen.changed, batch.tensors)
    if made.lowering.refused:
        raise UnsupportedOpsError(made.lowering.refused)
    description = _description(model, Path(), batch, made, notes)
    outside = list(seen.outside.tensors.values())
    return ExportedGraph(made.lowering.text(), made.tensors, description, made.structure, made.leaves, _config_json(model), made.outputs, outside)


def _config_json(model: torch.nn.Module) -> str | None:
    """As the model's own save_pretrained writes it; None: it is none of transformers."""
    config = getattr(model, "config", None)
    if config is None or not (hasattr(model, "save_pretrained") and hasattr(config, "to_diff_dict")):
        return None
    fields = {**config.to_diff_dict(), "architectures": [type(model).__name__]}
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    fields["dtype"] = str(dtype).removeprefix("torch.")
    return json.dumps(fields, indent=2, sort_keys=True) + "\n"


@dataclass
class _Made:
    lowering: Lowering
    inputs: list[GraphInput]
    outputs: dict[str, list[str]]  # of each: its dims
    changed: list[str]  # buffers
    tensors: dict[str, torch.Tensor]  # of model.safetensors
    roles: dict[str, str]  # of each: parameter, frozen, buffer or table
    structure: Any  # of what the model returns
    leaves: list[str | None]  # of it: names of outputs
    splittable: bool
    samples_meet: bool
    targets: list[str]


def _export(model: torch.nn.Module, example: Example, loss: Loss | None, notes: list[str], seen: Seen, **options: bool) -> _Made:
    """Of any number of samples and tokens if the model can be, else of fewer kinds of batches."""
    tries = [(True, True), (True, False), (False, False)] if example.seq_len is not None else [(True, False), (False, False)]
    for any_batch, any_length in tries:
        try:
            return _Exporter(model, example, loss, seen, **options).run(any_batch=any_batch, any_length=any_length)
        except InexpressibleError as error:
            where = f"{error.source}: " if error.source else ""
            if error.of_values:
                raise ExportError(f"{where}the model computes a size or a number, {error}: {WHAT_TO_DO}") from error
            notes.append(f"{where}the model computes a size, {error}, that a graph cannot say for any {'length' if any_length else 'number of samples'}")
    raise ExportError(notes[-1])


class _Exporter:
    def __init__(
        self, model: torch.nn.Module, example: Example, loss: Loss | None, seen: Seen, *, is_tokens: bool, by_samples: bool, weighs_rows: bool,
        makes_up_parts: bool,
    ):
        self._module = ForwardWithLoss(model, example, loss, around=seen)
        self._example = example
        self._is_tokens = is_tokens
        self._by_samples = by_samples
        self._weighs_rows = weighs_rows
        self._is_sum = isinstance(loss, LossWithModel) and loss.is_sum
        self._makes_up_parts = makes_up_parts
        self._extents = Extents()
        self._tensors: dict[str, torch.Tensor] = {}
        self._roles: dict[str, str] = {}
        self._values: dict[str, Value] = {}
        self._inputs: list[GraphInput] = []
        self._changed: list[str] = []
        self._owners = _owners(model)
        self._fixed = frozenset(name for name, p in model.named_parameters() if not p.requires_grad)

    def run(self, *, any_batch: bool, any_length: bool) -> _Made:
        program = trace(self._module, self._example, any_batch=any_batch, any_length=any_length, keeps=_stays)
        self._signature = program.graph_signature
        self._state = {**program.state_dict, **program.constants}
        graph = program.graph
        placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        self._leaves = dict(zip(self._signature.user_inputs, self._example.leaves))
        for name, leaf in self._leaves.items():
            shape = placeholders[name].meta["val"].shape
            if any_batch and leaf.is_batch and is_fixed(shape[0]):
                raise InexpressibleError("the number of samples as a plain number (len() of a tensor is one)")
            for dim, symbol, is_open in ((0, BATCH, leaf.is_batch), (1, SEQUENCE, leaf.is_sequence)):
                if is_open:
                    self._extents.name(shape[dim], symbol)
        values = ConstantValues(self._extents, self._constants(placeholders))
        find_attention(graph, values, frozenset(placeholders[name] for name in self._signature.inputs_to_parameters))
        find_rotary(graph, values)
        find_rms_norm(graph)
        find_gelu(graph)
        find_stochastic_depth(graph)
        find_table_lookups(graph, values)
        fold_constants(graph, values, _has_row)

        self._g = Lowering(TABLE, self._extents, _PREFIX, self._table)
        self._g.fixed = self._fixed
        returned = self._g.run(graph, self._placeholder)
        outputs = self._end(program, returned)
        returned_by = self._module.returned
        return _Made(
            self._g, self._inputs, outputs, self._changed, self._tensors, self._roles, returned_by.structure, returned_by.names,
            self._splittable, self._samples_meet, self._targets,
        )

    def _constants(self, placeholders: Mapping[str, torch.fx.Node]) -> dict[torch.fx.Node, torch.Tensor]:
        targets = {**self._signature.inputs_to_buffers, **self._signature.inputs_to_lifted_tensor_constants}
        changed = set(self._signature.buffers_to_mutate.values())
        fixed = {name: target for name, target in targets.items() if name in placeholders and target not in changed}
        return {placeholders[name]: self._state[target].detach().cpu() for name, target in fixed.items()}

    def _placeholder(self, node: torch.fx.Node) -> Value | None:
        if node.name in self._leaves:
            return self._input(node, self._leaves[node.name])
        signature = self._signature
        for targets, role in ((signature.inputs_to_parameters, "parameter"), (signature.inputs_to_buffers, "buffer")):
            if node.name in targets:
                return self._state_value(node, targets[node.name], role) if node.users else None
        if node.name in signature.inputs_to_lifted_tensor_constants and node.users:
            return self._g.cast(self._table(self._state[signature.inputs_to_lifted_tensor_constants[node.name]]), self._g.type_of(node.meta["val"])[0])
        return None

    def _input(self, node: torch.fx.Node, leaf: Leaf) -> Value:
        if is_complex(node):
            raise InputError(f"the batch's {leaf.name} has complex numbers; give pairs of real ones, torch.view_as_real(...), and make complex ones of them in the forward")
        dtype, dims = self._g.type_of(node.meta["val"])
        declared = "i32" if self._is_tokens else dtype
        self._inputs.append(GraphInput(leaf.name, leaf.path, declared, [text(d) for d in dims]))
        value = self._g.add("input", [], [(declared, dims)], symbol=leaf.name, name=leaf.name, module="")[0]
        return self._g.cast(value, dtype)

    def _state_value(self, node: torch.fx.Node, target: str, role: str) -> Value:
        """Of a parameter or a buffer; of one that has several names, the first."""
        name = self._name_of(target)
        if name not in self._values:
            tensor = self._state[target]
            if tensor.is_complex() and (role == "parameter" or target in self._signature.buffers_to_mutate.values()):
                raise InputError(
                    f"{role} {name} has complex numbers, which the training does not store; keep pairs of real ones, torch.view_as_real(...), and let the "
                    "forward make complex ones of them: torch.view_as_complex(...)"
                )
            if tensor.is_complex():  # The file and the graph have the pairs of a buffer as a table.
                self._values[name] = self._table(tensor)
                return self._values[name]
            self._values[name] = self._param(name, tensor, role, module=name.rpartition(".")[0])
        return self._g.cast(self._values[name], self._g.type_of(node.meta["val"])[0])

    def _name_of(self, target: str) -> str:
        name = without_prefix(target, _PREFIX)
        return self._owners.get(name, name)

    def _param(self, name: str, tensor: torch.Tensor, role: str, module: str) -> Value:
        if tensor.numel() == 0:
            raise InputError(f"{role} {name} has the shape {list(tensor.shape)}, which is empty")
        self._tensors[name], self._roles[name] = tensor, role
        init = init_of(tensor)
        if init is None and role == "parameter":
            raise InputError(f"parameter {name} has values that are not finite (NaN or infinity); load or initialize the model's weights")
        attrs: dict[str, Any] = {"init": init} if init is not None and (role == "parameter" or not init.startswith("normal")) else {}
        if role != "parameter":
            attrs["role"] = Word("buffer")
        return self._g.add("param", [], [("f32", tuple(tensor.shape))], symbol=name, name=name, module=module, **attrs)[0]

    def _table(self, tensor: torch.Tensor) -> Value:
        """Of complex numbers their pairs."""
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj()).contiguous()
        return self._param(f"tables.{sum(role == 'table' for role in self._roles.values())}", tensor, "table", "")

    def _end(self, program: torch.export.ExportedProgram, returned: list[Any]) -> dict[str, list[str]]:
        """Adds the outputs; returns the dims of those that the model returns beside its loss, by name."""
        num_changed = len(self._signature.output_specs) - len(self._signature.user_outputs)
        names = list(self._module_output_names(program))
        for name, node in zip(names, program.graph.output_node().args[0][num_changed:]):
            if isinstance(node, torch.fx.Node) and is_complex(node):
                raise InputError(f"the model returns complex numbers as {name!r}; return torch.view_as_real(...) of them")
        values = dict(zip(names, returned[num_changed:]))
        g = self._g
        g.module = g.source = ""
        changed = self._changed_buffers(program, returned[:num_changed])
        has_batch = any("B" in i.dims for i in self._inputs)
        weighs = self._weighs_rows and has_batch and all(i.name != ROW_WEIGHTS for i in self._inputs)
        raw = g.cast(values.pop("loss"), "f32")
        loss, count = sum_and_count(g, raw, has_batch=has_batch, by_samples=self._by_samples, is_sum=self._is_sum, weighs_rows=weighs)
        if any(node.op == "input" and node.symbol == ROW_WEIGHTS for node in made_by([loss])):
            self._inputs.append(GraphInput(ROW_WEIGHTS, (ROW_WEIGHTS,), "f32", ["B"]))
        outputs = [("loss", loss), ("target_tokens", count), *((n, v) for n, v in values.items() if isinstance(v, Value))]
        for name, value in [*outputs, *((f"buffer:{name}", value) for name, value in changed.items())]:
            g.add("output", [value], [], symbol=name)
        g.drop_unused()
        form_mixtures(g)
        split_fused(g)
        name_dims(g)
        g.drop_unused()
        g.move_params()
        self._keep_params(g.nodes_of(loss, with_gradient=True))
        self._changed = list(changed)
        self._samples_meet = samples_meet(value for _, value in outputs[2:])
        self._targets = sorted(ignorable_targets(loss, count))
        self._splittable = adds_up(g.nodes, *((raw, count) if self._makes_up_parts else (loss, count)))
        for node in g.nodes:
            if node.op == "output" and node.symbol == "loss" and not self._splittable:
                node.attrs["splittable"] = False
        self._limit_inputs()
        return {name: [text(d) for d in value.dims] for name, value in outputs[2:]}

    def _limit_inputs(self) -> None:
        """Notes at inputs which numbers they may have."""
        limits = limits_of_inputs(self._g.nodes, self._g.lookups)
        self._inputs = [replace(given, **vars(limits[given.name])) if given.name in limits else given for given in self._inputs]
        for node in self._g.nodes:
            if node.op == "input" and node.symbol in limits:
                node.attrs.update({k: v for k, v in vars(limits[node.symbol]).items() if v is not None})

    def _changed_buffers(self, program: torch.export.ExportedProgram, changed: list[Any]) -> dict[str, Value]:
        """By name, what becomes of the buffers that a forward in training changes, as the running statistics of batch norms."""
        g = self._g
        placeholders = {target: name for name, target in self._signature.inputs_to_buffers.items()}
        nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        values: dict[str, Value] = {}
        for spec, value in zip(self._signature.output_specs, changed):
            if spec.kind is not torch.export.graph_signature.OutputKind.BUFFER_MUTATION:
                raise ExportError(f"the model's forward changes its input {spec.target} in place; let it work on a copy: x = x.clone()")
            old = self._state_value(nodes[placeholders[spec.target]], spec.target, "buffer")
            new = g.cast(value, "f32")
            if new is not g.cast(old, "f32"):
                values[self._name_of(spec.target)] = new
        return values

    def _keep_params(self, of_loss: set[Node]) -> None:
        """Leaves out the tensors that the graph does not read. Those that the loss does not train are buffers to it."""
        kept: dict[str, bool] = {}
        for node in self._g.nodes:
            if node.op != "param":
                continue
            name = node.symbol.partition("[")[0]
            kept[name] = node in of_loss or kept.get(name, False)
            if self._roles[name] == "parameter" and (name in self._fixed or node not in of_loss):
                node.attrs["role"] = Word("buffer")
        for name, is_in_loss in kept.items():
            if self._roles[name] == "parameter" and (name in self._fixed or not is_in_loss):
                self._roles[name] = "frozen"
        self._tensors = {name: t for name, t in self._tensors.items() if name in kept}

    def _module_output_names(self, program: torch.export.ExportedProgram) -> list[str]:
        return list(program.call_spec.out_spec.context)  # of the dict that ForwardWithLoss returns


def _stays(op: str) -> bool:
    """Whether the op is not made of simpler ones: those with a row; and Fourier transforms, whose parts PyTorch traces for one number of samples only."""
    return TABLE.find(op) is not None or _FOURIER.match(op) is not None


def _has_row(node: torch.fx.Node) -> bool:
    return node.target is operator.getitem or TABLE.find(name_of_row(node)) is not None


def _owners(model: torch.nn.Module) -> dict[str, str]:
    """Each name of a parameter or a buffer -> the first name of its tensor."""
    first: dict[int, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def _description(model: torch.nn.Module, folder: Path, example: Example, made: _Made, notes: list[str]) -> Exported:
    in_graph = set(made.tensors)
    if unused := [name for name, _ in model.named_parameters() if name not in in_graph]:
        notes.append(f"the graph leaves out {', '.join(unused)}: nothing that the model returns depends on them")
    of_libtorch = Counter(op.op for op in made.lowering.unmapped if op.op not in made.lowering.foreign)
    if of_libtorch:
        listed = ", ".join(name if n == 1 else f"{name} ({n} times)" for name, n in sorted(of_libtorch.items()))
        notes.append(f"LibTorch computes {listed}, which the graph has no op for: as a rule whole on every rank, however the batch is split")
    if made.lowering.foreign:
        notes.append(note_on(made.lowering.foreign))
    any_batch, any_length = (any(s in i.dims for i in made.inputs) for s in ("B", "S"))
    # Others may have the same extent and no tokens; which they are is not known.
    dims = {i.name: i.dims for i in made.inputs}
    fixed = [leaf.name for leaf in example.leaves if leaf.is_sequence and leaf.name in dims and "S" not in dims[leaf.name]]
    any_length = any_length and not fixed
    if not any_batch:
        notes.append(f"a micro-batch has always {example.batch_size} samples, the same on all ranks")
    elif example.seq_len is not None and not any_length:
        of = f": the model fixes the length of {', '.join(map(repr, fixed))}" if fixed else ""
        notes.append(f"a sample has always {example.seq_len} tokens{of}")
    return Exported(
        folder=folder,
        inputs=made.inputs,
        outputs=list(made.outputs),
        parameters=[n for n in made.tensors if made.roles[n] == "parameter"],
        buffers=[n for n in made.tensors if made.roles[n] == "buffer"],
        changed_buffers=made.changed,
        tables=[n for n in made.tensors if made.roles[n] == "table"],
        aliases={name: first for name, first in _owners(model).items() if name != first and first in in_graph},
        frozen=[n for n in made.tensors if made.roles[n] == "frozen"],
        seq_len=example.seq_len or 0,
        any_batch=any_batch,
        any_length=any_length,
        splittable=made.splittable,
        samples_meet=made.samples_meet,
        targets=made.targets,
        units=units_of(made.lowering.nodes),
        notes=notes,
        coverage=coverage_of(made.lowering, batch=max(example.batch_size, 2), sequence=example.seq_len or 1),
    )


def _plain(exported: Exported) -> dict[str, Any]:
    """As JSON has it."""
    plain = {k: v for k, v in vars(exported).items() if k != "folder"}
    plain["inputs"] = [vars(i) | {"path": list(i.path)} for i in exported.inputs]
    plain["coverage"] = vars(exported.coverage)
    return plain


