"""The table of ATen ops: which function makes the nodes of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tacc.exporting.lowering import Lowering

Row = Callable[..., Any]
_Function = TypeVar("_Function", bound=Row)


class NoRowError(Exception):
    """A row cannot say this call in our ops; the message has the reason."""


class Table:
    """Rows by the name of the op: "aten.add.Tensor", or "aten.add" for all its overloads."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def row(self, *names: str) -> Callable[[_Function], _Function]:
        """Of a function `f(lowering, *args, **kwargs)` with the arguments of the ATen op, tensors as values of the graph."""

        def register(function: _Function) -> _Function:
            for name in names:
                if name in self._rows:
                    raise ValueError(f"two rows for {name}")
                self._rows[name] = function
            return function

        return register

    def find(self, name: str) -> Row | None:
        return self._rows.get(name) or self._rows.get(name.rpartition(".")[0])

    def names(self) -> list[str]:
        return sorted(self._rows)

    def call(self, lowering: Lowering, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        row = self.find(name)
        if row is None:
            raise NoRowError("no row has this op")
        return row(lowering, *args, **kwargs)


TABLE = Table()
row = TABLE.row
