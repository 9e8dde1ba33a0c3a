"""The optimizer's states, which the ranks have, in the optimizer of PyTorch: its `state_dict()` and `load_state_dict()` are as those of its own steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tacc.accelerating.handle import AcceleratedModel

_HERE = ("step", "RMS")  # Numbers that the ranks count themselves.


def taken(optimizer: torch.optim.Optimizer, module: torch.nn.Module, step: int) -> dict[str, Any] | None:
    """Takes the states out of the optimizer, as of `AcceleratedModel.full_optim_state_dict`; None: it has none.

    Args:
        optimizer: Whose states they are.
        module: Names its parameters.
        step: Updates that it has done, where its states do not say so.
    """
    names = {id(p): name for name, p in module.named_parameters()}
    found = {names[id(p)]: {"step": step, **of} for p, of in optimizer.state.items() if of and id(p) in names}
    optimizer.state.clear()
    return {"state": found} if found else None


def load(model: AcceleratedModel, states: dict[str, Any]) -> None:
    """Gives the training states that were taken."""
    kept = {name: {k: v for k, v in of.items() if k == "step" or (k not in _HERE and torch.is_tensor(v))} for name, of in states["state"].items()}
    model.load_full_optim_state_dict({"state": kept})


def read(model: AcceleratedModel, optimizer: torch.optim.Optimizer) -> dict[int, Any]:
    """The states as they are with the ranks, by the position of a parameter in the groups of one of its optimizers."""
    states = model.full_optim_state_dict()["state"]
    by_id = {id(p): name for name, p in model.module.named_parameters()}
    names = [by_id[id(p)] for group in optimizer.param_groups for p in group["params"]]
    return {i: states[name] for i, name in enumerate(names) if name in states}


def follow(optimizer: torch.optim.Optimizer, model: Callable[[], AcceleratedModel | None], is_open: Callable[[], bool]) -> Callable[[], None]:
    """Lets the optimizer's `state_dict` and `load_state_dict` be of the ranks' states, while `is_open`. Returns what ends that."""

    def saved(_: Any, state_dict: dict[str, Any]) -> None:
        if is_open() and (of := model()) is not None:
            state_dict["state"] = read(of, optimizer)

    def loaded(_: Any) -> None:
        if is_open() and (of := model()) is not None and (states := taken(optimizer, of.module, of.optimizer_step)) is not None:
            load(of, states)

    hooks = [optimizer.register_state_dict_post_hook(saved), optimizer.register_load_state_dict_post_hook(loaded)]

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return end
