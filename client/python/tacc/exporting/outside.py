"""Tensors that a model computes with and that are none of its own, as those of another model that its loss calls: constants of a graph."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode

from tacc.exporting.results import ExportError
from tacc.exporting.source import innermost


class Outside(TorchFunctionMode):  # type: ignore[misc]
    """Looks, while a model is traced, for such tensors: its own are fake ones then.

    Raises ExportError: one wants a gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}
        """By id: the first line that uses it, and the tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for thing in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(thing, torch.Tensor) and not isinstance(thing, (FakeTensor, FunctionalTensor)) and id(thing) not in self.tensors:
                self._note(thing)
        return func(*args, **(kwargs or {}))

    def _note(self, tensor: torch.Tensor) -> None:
        line = innermost("".join(traceback.format_stack()))
        if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
            raise ExportError(
                f"{line}: this computes with a parameter of shape {list(tensor.shape)} that is none of the model's, as of another model in the loss (a "
                "GAN's discriminator): the ranks would have it as it is now, and send no gradient to it. Train both as one module that returns one loss; or, if it "
                "is not trained, say so by requires_grad_(False); or let the model return no loss and compute it in the loop, where gradients go on to the ranks"
            )
        self.tensors[id(tensor)] = (line, tensor)
