"""Extents of dims: whole numbers, or sums of products of B (samples of a micro-batch) and S (tokens of a sample), as the text form has them."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy.symbol import SymT, symbol_is_type

BATCH, SEQUENCE = sympy.symbols("B S", integer=True, positive=True)

# An int, or an expanded sympy expression of BATCH and SEQUENCE.
Extent = Any


class InexpressibleError(Exception):
    """A size depends on B or S in a way that the text form cannot say, as B // 2.

    Attributes:
        of_values: It, or a number in place of it, depends on the values of tensors.
        source: The line of the model, if it is known.
    """

    def __init__(self, what: str, *, of_values: bool = False, source: str = ""):
        super().__init__(what)
        self.of_values = of_values
        self.source = source


def simplified(extent: Extent) -> Extent:
    """The extent in the one form in which equal ones compare equal."""
    if isinstance(extent, int):
        return extent
    expanded = sympy.expand(extent)
    if expanded.is_Integer:
        return int(expanded)
    if not expanded.is_polynomial(BATCH, SEQUENCE):
        raise InexpressibleError(str(expanded))
    return expanded


def product(extents: tuple[Extent, ...] | list[Extent]) -> Extent:
    """How many elements a tensor of these dims has."""
    result: Extent = 1
    for extent in extents:
        result = result * extent
    return simplified(result)


def text(extent: Extent) -> str:
    """As the text form has it: 12*B, B*S, S+1."""
    if isinstance(extent, int):
        return str(extent)
    terms: list[str] = []
    for monomial, coefficient in sympy.Poly(extent, BATCH, SEQUENCE).terms():
        powers = [name for name, power in zip("BS", monomial) for _ in range(power)]
        factors = [] if abs(coefficient) == 1 and powers else [str(abs(coefficient))]
        sign = "-" if coefficient < 0 else "+" if terms else ""
        terms.append(sign + "*".join(factors + powers))
    return "".join(terms)


def at(extent: Extent, batch: int, sequence: int) -> int:
    """Its value for so many samples and tokens."""
    return extent if isinstance(extent, int) else int(extent.subs({BATCH: batch, SEQUENCE: sequence}))


def is_fixed(size: Any) -> bool:
    """Whether a size of an exported program is one number, whatever the inputs."""
    return isinstance(size, int) or bool(size.node.expr.is_Integer)


class Extents:
    """Reads sizes of an exported program, in which the dims of its inputs are symbols."""

    def __init__(self) -> None:
        self._meaning: dict[Any, Any] = {}  # a symbol of the program -> BATCH or SEQUENCE

    def name(self, size: Any, symbol: Any) -> None:
        """Says that this size of an input is `symbol`, BATCH or SEQUENCE, where the program left it open."""
        if not isinstance(size, int) and size.node.expr.is_Symbol:
            self._meaning[size.node.expr] = symbol

    def has(self, symbol: Any) -> bool:
        """Whether a size of the program is that symbol."""
        return symbol in self._meaning.values()

    def of(self, size: Any) -> Extent:
        """The extent of an int or a SymInt. Raises InexpressibleError."""
        if isinstance(size, int):
            return size
        expression = size.node.expr if hasattr(size, "node") else size
        if unnamed := [s for s in expression.free_symbols if s not in self._meaning]:
            of_values = any(symbol_is_type(s, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)) for s in unnamed)
            why = "depends on the values of tensors" if of_values else "is no size of an input"
            raise InexpressibleError(f"{expression} ({unnamed[0]} {why})", of_values=of_values)
        return simplified(expression.subs(self._meaning))
