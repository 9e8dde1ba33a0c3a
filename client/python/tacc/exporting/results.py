"""What `tacc.export_model` gives, and its errors; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacc.errors import InputError


@dataclass(frozen=True)
class Unmapped:
    """An op that has no row.

    Attributes:
        op: Its name, "aten.cumsum.default".
        reason: Why no row has it.
        source: The line of the model's code, "FILE:LINE, in FUNCTION: CODE"; may be empty.
        module: The module that calls it.
    """

    op: str
    reason: str
    source: str
    module: str


class UnsupportedOpsError(InputError):
    """The model computes with ops that a graph cannot have. `ops` has one entry for each call."""

    def __init__(self, ops: list[Unmapped]):
        self.ops = ops
        groups: dict[tuple[str, str, str], list[Unmapped]] = {}
        for op in ops:
            groups.setdefault((op.op, op.reason, op.source), []).append(op)
        lines = ["the model has ops that a graph cannot have yet; write these lines otherwise:"]
        for (name, reason, source), calls in groups.items():
            where = source or f"in module {calls[0].module or '(the model itself)'}"
            times = f" ({len(calls)} times)" if len(calls) > 1 else ""
            lines.append(f"  {where}: {name}: {reason}{times}")
        super().__init__("\n".join(lines))


class ExportError(InputError):
    """The model cannot be a graph. The message names the line of the model that is the reason."""


@dataclass(frozen=True)
class Coverage:
    """Of one forward pass of the example.

    Attributes:
        ops: How many nodes of each op the graph has.
        flops: Floating-point operations of all nodes; an `aten` counts its results' elements.
        aten_flops: Of these, those of nodes `aten`.
    """

    ops: dict[str, int] = field(default_factory=dict)
    flops: float = 0.0
    aten_flops: float = 0.0

    @property
    def share(self) -> float:
        """The part of the computation that is in ops of the graph, 0 to 1."""
        return 1.0 - self.aten_flops / self.flops if self.flops else 1.0


@dataclass(frozen=True)
class GraphInput:
    """An input of the graph that a batch gives.

    Attributes:
        name: Of the input.
        path: Where in the batch it is: keys and positions, one behind the other.
        dtype: Of the graph: "i64", "i32", "f32" or "bool".
        dims: As the text form has them: ["B", "S"], ["B", "3", "224", "224"].
        limit: Of ids and labels: their numbers are 0 to below it, as PyTorch asks; None: any.
        ignored: A number beside these that is allowed, a label that does not count.
    """

    name: str
    path: tuple[Any, ...]
    dtype: str
    dims: list[str]
    limit: int | None = None
    ignored: int | None = None


@dataclass(frozen=True)
class Exported:
    """What `export_model` made.

    Attributes:
        folder: Where it is: model.graph, model.safetensors, and export.json, which has what follows here.
        inputs: Of the graph, what a batch gives.
        outputs: Names of what the model returns beside its loss, each an output of the graph.
        parameters: Names in model.safetensors of what is trained, as those of the model's state_dict.
        buffers: Names of what is not trained and saved with the model.
        changed_buffers: Of these, what each micro-batch of a training changes, as the running statistics of batch norms.
        tables: Names in model.safetensors that the model has not: fixed tables that it computes.
        aliases: Names of the state_dict that share another name's tensor -> that name.
        frozen: Parameters that are not trained: those with requires_grad=False, and those on which the loss does not depend.
        seq_len: Tokens of a sample of the example; 0: there is no sequence.
        any_batch: Whether a micro-batch may have any number of samples.
        any_length: Whether a sample may have any number of tokens.
        splittable: Whether the loss of a batch follows from those of its parts, as a mean over samples or targets does. If not, a step is one micro-batch.
        samples_meet: Whether what the model returns of a sample depends on the other samples, in evaluation too.
        units: Of the graph's nodes, the module paths up to the first number, as `layers.0`, in order: the layers whose weights FSDP gathers
            together, and whose activations `memory.gc` drops.
        targets: Inputs whose samples do not count in the loss where they are -100; none, if the loss has more than cross-entropies of them.
        notes: What the user should know, a sentence or two each.
        coverage: Which part of the computation are ops of the graph.
    """

    folder: Path
    inputs: list[GraphInput]
    outputs: list[str]
    parameters: list[str] = field(repr=False)
    buffers: list[str] = field(repr=False)
    changed_buffers: list[str] = field(repr=False)
    tables: list[str] = field(repr=False)
    aliases: dict[str, str] = field(repr=False)
    frozen: list[str] = field(repr=False)
    seq_len: int
    any_batch: bool
    any_length: bool
    splittable: bool
    samples_meet: bool
    targets: list[str]
    units: list[str] = field(repr=False)
    notes: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
