"""What a loop calls of its optimizers, one after the other, and the ranks do at once: they update all parameters together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tacc.accelerating.optimizers import Groups
from tacc.errors import InputError

_ALL = (
    "the ranks update all parameters at once: let each step have step() of all optimizers, one behind the other, or give tacc.accelerate the one that trains "
    "the model, as optimizer="
)


class OptimizerCalls:
    """`step()` and `zero_grad()` of a loop's optimizers. Each counts when all of them had it, with what an optimizer said at its own.

    Args:
        optimizers: Those that train the model.
        groups: What they say.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], groups: Groups):
        self._optimizers = list(optimizers)
        self._groups = groups
        self._stepped: dict[int, dict[str, dict[float, float]]] = {}  # By id, those that have made their step, with their rates then.
        self._zeroed: set[int] = set()
        self.is_under_way = False
        """Whether an optimizer's own step is: it is to find no gradients."""

    def step(self, optimizer: torch.optim.Optimizer, *, has_gradients: bool) -> bool:
        """An optimizer makes its step. Whether the update is due: all have, or there is but one.

        Raises InputError: its gradients are not those of the others.
        """
        if len(self._optimizers) == 1:
            return True
        if not has_gradients:  # PyTorch's does nothing then.
            return False
        if id(optimizer) in self._stepped:
            raise InputError(f"{self._names(self._stepped)} made a step already, and {self._names(self._left())} did not: {_ALL}")
        if id(optimizer) in self._zeroed:
            raise InputError(f"zero_grad() of {self._names([id(optimizer)])} came before its step, and the ranks have the gradients of all: {_ALL}")
        self._stepped[id(optimizer)] = self._groups.rates(optimizer)
        return len(self._stepped) == len(self._optimizers)

    def take_rates(self) -> dict[str, dict[float, float]]:
        """Arguments of the update that is due: what each optimizer said at its step; of one without, what they all say now."""
        taken, self._stepped = list(self._stepped.values()), {}
        if not taken:
            return self._groups.rates()
        return {name: {peak: value for rates in taken for peak, value in rates[name].items()} for name in taken[0]}

    def zero(self, optimizer: torch.optim.Optimizer) -> bool:
        """An optimizer forgets its gradients. Whether all have."""
        if self._stepped and id(optimizer) not in self._stepped:
            self.check_whole(f"zero_grad() of {self._names([id(optimizer)])}")
        self._zeroed.add(id(optimizer))
        if len(self._zeroed) < len(self._optimizers):
            return False
        self._zeroed = set()
        return True

    def check_whole(self, what: str) -> None:
        """InputError: some optimizers have made a step, and `what` comes before that of the others."""
        if self._stepped:
            raise InputError(f"{self._names(self._stepped)} made a step, and {what} comes before that of {self._names(self._left())}: {_ALL}")

    def note_backward(self, *, has_gradients: bool) -> None:
        """Gradients come to those that there are, if there are.

        Raises InputError: only some optimizers have forgotten theirs.
        """
        self.is_under_way = False
        self.check_whole("a backward")
        zeroed, self._zeroed = self._zeroed, set()
        if zeroed and has_gradients:
            raise InputError(
                f"zero_grad() of {self._names(zeroed)} was called, and that of the other optimizers was not: the ranks forget the gradients of all parameters "
                "or of none; call it of all of them, or model.zero_grad()"
            )

    def forget(self) -> None:
        """There are no gradients any more."""
        self._stepped, self._zeroed, self.is_under_way = {}, set(), False

    def _left(self) -> list[int]:
        return [id(o) for o in self._optimizers if id(o) not in self._stepped]

    def _names(self, ids: Sequence[int] | set[int] | dict[int, dict[str, dict[float, float]]]) -> str:
        return ", ".join(type(o).__name__ for o in self._optimizers if id(o) in ids)
