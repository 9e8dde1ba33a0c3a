"""What `tacc.accelerate` decides by itself, without a job."""

from typing import Any

import pytest
import tacc
import torch
from tacc.accelerating.optimizers import Groups
from torch import nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(x))


class Last(nn.Linear):
    pass


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer(), Last(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def groups_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> Groups:
    names = {id(p): name for name, p in module.named_parameters()}
    return Groups(optimizer, names, set(names.values()))


@pytest.mark.parametrize("make", [lambda p: torch.optim.AdamW(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)], ids=["adamw", "sgd"])
@pytest.mark.parametrize("kind", ["one cycle", "cyclic"])
def test_a_scheduler_of_momentum_is_refused_at_once(make, kind):
    def schedule(optimizer: torch.optim.Optimizer, **options: Any) -> Any:
        if kind == "one cycle":
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5, **options)
        return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2, **options)

    module = Layers()
    optimizer = make(module.parameters())
    schedule(optimizer)
    with pytest.raises(tacc.InputError, match=r"a scheduler cycles the momentum or betas of the optimizer's group 0: .* give cycle_momentum=False"):
        groups_of(module, optimizer)
    optimizer = make(module.parameters())
    of_rates = schedule(optimizer, cycle_momentum=False)
    groups = groups_of(module, optimizer)
    for _ in range(4):
        assert list(groups.learning_rates().values()) == [optimizer.param_groups[0]["lr"]]
        optimizer.step()
        of_rates.step()
