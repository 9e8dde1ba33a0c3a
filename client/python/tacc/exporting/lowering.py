"""From an exported program to the text form: each ATen node becomes the nodes that its row of the table makes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from tacc.exporting.aten import add_aten_node, changing_op
from tacc.exporting.builder import Builder
from tacc.exporting.extents import BATCH, Extent, Extents, InexpressibleError
from tacc.exporting.foreign import RefusedError, is_of_libtorch, library_of
from tacc.exporting.graph_text import Value
from tacc.exporting.limits import Limit, Lookup
from tacc.exporting.results import Unmapped
from tacc.exporting.source import module_path, source_line
from tacc.exporting.table import NoRowError, Table

# A graph is in f32: which products are computed in fewer bits is the job's to say (compute.bf16).
DTYPES = {
    torch.float64: "f32",
    torch.float32: "f32",
    torch.bfloat16: "f32",
    torch.float16: "f32",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i32",
    torch.int8: "i32",
    torch.uint8: "i32",
    torch.bool: "bool",
}


def is_complex(node: torch.fx.Node) -> bool:
    """Whether it makes complex numbers."""
    made = node.meta.get("val")
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in (made if isinstance(made, (list, tuple)) else [made]))


def name_of_row(node: torch.fx.Node) -> str:
    """Under which the table has it: the op's name, behind `complex.` if it takes or makes complex numbers."""
    name = str(node.target) if isinstance(node.target, torch._ops.OpOverload) else getattr(node.target, "__name__", str(node.target))
    return f"complex.{name}" if any(map(is_complex, [node, *node.all_input_nodes])) else name


class Lowering(Builder):
    """Makes a graph of FX nodes, in order. Rows call its methods; `node` is the FX node that is being lowered."""

    def __init__(self, table: Table, extents: Extents, prefix: str, add_table: Callable[[torch.Tensor], Value]):
        super().__init__()
        self.add_table = add_table  # a tensor of fixed values as a value of the graph, f32
        self._table = table
        self.extents = extents
        self.prefix = prefix  # of paths of modules, which export puts before the model's
        self.node: torch.fx.Node = None
        self.fixed: frozenset[str] = frozenset()  # names of parameters that are not trained
        self.means: dict[Value, tuple[Value, Value]] = {}  # a mean -> the sum and the number of what it is taken of
        self.lookups: list[Lookup] = []  # of ids in tables, and of targets among classes
        self.unmapped: list[Unmapped] = []  # nodes `aten`
        self.foreign: dict[str, str | None] = {}  # ops of other libraries among them -> the library, where it is known
        self.refused: list[Unmapped] = []  # what cannot be a node at all
        self._values: dict[torch.fx.Node, Any] = {}
        self._num_dropouts = 0
        self.shared: dict[str, list[Value]] = {}  # what a row has made for all its calls

    def run(self, graph: torch.fx.Graph, leaf: Callable[[torch.fx.Node], Value | None]) -> list[Any]:
        """Lowers the graph, whose placeholders `leaf` makes; returns what its output node returns."""
        for node in graph.nodes:
            self.node = node
            self.module, self.source = module_path(node, self.prefix), source_line(node)
            if node.op == "placeholder":
                self._values[node] = leaf(node)
            elif node.op == "call_function":
                try:
                    self._values[node] = self._call(node)
                except InexpressibleError as error:
                    error.source = error.source or self.source
                    raise
            elif node.op == "output":
                return [self._argument(a) for a in node.args[0]]
        return []

    def _call(self, node: torch.fx.Node) -> Any:
        target = changing_op(node) or node.target
        name = str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, torch.SymFloat, int, float, bool)):
            return None
        if node.target is operator.getitem:
            made = self._values[node.args[0]]
            return None if made is None else made[node.args[1]]
        if any(isinstance(n.meta.get("val"), torch.Tensor) and self._values[n] is None for n in node.all_input_nodes):
            return self._stand_in(node)  # It works on what a refused op makes.
        args = tuple(self._argument(a) for a in node.args)
        kwargs = {key: self._argument(a) for key, a in node.kwargs.items()}
        try:
            return self._table.call(self, name_of_row(node), args, kwargs)
        except NoRowError as error:
            reason = str(error)
        try:
            made = add_aten_node(self, node, args, kwargs)
        except RefusedError as error:
            self.refused.append(Unmapped(name, str(error), self.source, self.module))
            return self._stand_in(node)
        self.unmapped.append(Unmapped(name, reason, self.source, self.module))
        if not is_of_libtorch(node.target):
            self.foreign[name] = library_of(node.target)
        return made

    def _stand_in(self, node: torch.fx.Node) -> Any:
        """Values for what a refused op makes, so that all refused ones are found at once."""
        made = node.meta["val"]

        def value_for(v: Any) -> Value | None:
            return self.constant(0, *self.type_of(v)) if isinstance(v, torch.Tensor) and (v.is_complex() or v.dtype in DTYPES) else None

        return [value_for(v) for v in made] if isinstance(made, (list, tuple)) else value_for(made)

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            value = argument.meta.get("val")
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                raise InexpressibleError(f"{value} (a number that depends on the values of tensors)", of_values=True, source=source_line(argument))
            if isinstance(value, (int, float, bool, torch.SymInt)):
                return self.extents.of(value) if not isinstance(value, float) else value
            return self._values[argument]
        if isinstance(argument, torch.SymInt):
            return self.extents.of(argument)
        if isinstance(argument, (list, tuple)):
            return [self._argument(a) for a in argument]
        return argument

    # What rows ask.

    def type_of(self, value: torch.Tensor) -> tuple[str, list[Extent]]:
        """Of complex numbers that of their pairs."""
        if value.is_complex():
            return "f32", [*(self.extents.of(d) for d in value.shape), 2]
        if value.dtype not in DTYPES:
            raise NoRowError(f"a graph has no elements of type {value.dtype}")
        return DTYPES[value.dtype], [self.extents.of(d) for d in value.shape]

    @property
    def result(self) -> tuple[str, list[Extent]]:
        """Type and dims of what the FX node makes; of several, of the first."""
        value = self.node.meta["val"]
        return self.type_of(value[0] if isinstance(value, (list, tuple)) else value)

    @property
    def dtype(self) -> str:
        return self.result[0]

    @property
    def dims(self) -> list[Extent]:
        return self.result[1]

    def complex_operands(self, node: torch.fx.Node) -> set[Value]:
        """Those of its operands that are complex numbers. Raises NoRowError if one of them is an operand of real numbers too."""
        complex_ones = {self._values[n] for n in node.all_input_nodes if is_complex(n)}
        if any(self._values[n] in complex_ones for n in node.all_input_nodes if not is_complex(n)):
            raise NoRowError("takes the same numbers as complex ones and as pairs of real ones")
        return complex_ones

    def is_complex(self, argument: int) -> bool:
        """Whether the FX node's argument is a complex tensor."""
        given = self.node.args[argument]
        return isinstance(given, torch.fx.Node) and is_complex(given)

    def looks_up(self, ids: Value, rows: Extent, ignored: int | None = None) -> None:
        """Notes that these are numbers from 0 to below `rows`, or the one that is ignored."""
        if isinstance(rows, int):
            self.lookups.append(Lookup(ids, Limit(rows, None if ignored is not None and 0 <= ignored < rows else ignored)))

    # Inputs that the rank gives, and randomness.

    def rank_input(self, name: str) -> Value:
        """`step`, the updates already done, or `sample`, the numbers of the rows in the global batch."""
        if name not in self.shared:
            dims = [] if name == "step" else [BATCH]
            self.shared[name] = self.add("input", [], [("i64", dims)], symbol=name, name=name, module="")
        return self.shared[name][0]

    def next_dropout(self) -> int:
        """A number by which a dropout draws other elements than the others do."""
        self._num_dropouts += 1
        return self._num_dropouts - 1
