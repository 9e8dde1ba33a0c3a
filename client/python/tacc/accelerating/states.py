"""States of a training by the names of parameters: put together of what the ranks keep, and taken apart for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tacc.errors import InputError
from tacc.exporting.results import Exported
from tacc.live.session import Session

_AT_A_TIME = 16  # States of a command, whose answer is held whole.
_ROWS = re.compile(r"^(?P<name>.*)\[(?P<entries>:,)?(?P<begin>\d+):(?P<end>\d+)\]$")


def assembled(session: Session, kind: str) -> dict[str, torch.Tensor]:
    """All states of a kind ("weights", "exp_avg"), by parameter. Rows that a program has as a parameter of their own are put together."""
    names = [name for name in session.state_names() if name.startswith(f"{kind}/")]
    found: dict[str, torch.Tensor] = {}
    rows: dict[str, list[tuple[int, int, np.ndarray[Any, Any]]]] = {}
    for first in range(0, len(names), _AT_A_TIME):
        for name, values in session.read(names[first : first + _AT_A_TIME]).items():
            own = name.removeprefix(f"{kind}/")
            if part := _ROWS.match(own):
                rows.setdefault(part["name"], []).append((int(part["begin"]), 1 if part["entries"] else 0, values))
            else:
                found[own] = as_tensor(values)
    for name, parts in rows.items():
        parts.sort(key=lambda part: part[0])
        found[name] = as_tensor(np.concatenate([values for _, _, values in parts], axis=parts[0][1]))
    return found


def weights_of(module: torch.nn.Module, exported: Exported, session: Session, *, averaged: bool = False) -> dict[str, Any]:
    """The module's state_dict with the weights as they are now, or with the averages of those that have one. InputError: none has."""
    own: dict[str, Any] = module.state_dict()
    now = assembled(session, "weights")
    if averaged:
        averages = assembled(session, "ema")
        if not averages:
            raise InputError('the job keeps no average of the weights: give tacc.accelerate config={"train": {"ema_decay": 0.999}}')
        now |= averages
    for name, tensor in own.items():
        source = exported.aliases.get(name, name)
        own[name] = now[source].to(tensor.dtype).reshape(tensor.shape) if source in now else tensor.detach().clone()
    return own


def as_tensor(values: np.ndarray[Any, Any]) -> torch.Tensor:
    """What a session gives as a tensor: bits of bfloat16 are that."""
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if values.dtype == np.uint16 else tensor


def with_states(session: Session) -> set[str]:
    """The parameters that the optimizer has states of."""
    return {_whole(name.partition("/")[2]) for name in session.state_names() if not name.startswith("weights/")}


def named_states(session: Session, states: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of the states those that the ranks have: others are the module's alone, as buffers that the graph has as tables."""
    whole = {_whole(name) for name in session.state_names()}
    return {name: tensor for name, tensor in states.items() if name in whole}


def _whole(name: str) -> str:
    """Of the rows of a parameter, the parameter."""
    part = _ROWS.match(name)
    return part["name"] if part else name
