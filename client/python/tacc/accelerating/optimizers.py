"""An optimizer of PyTorch as the training's: its class and options as fields of `train`, and what it says at each update."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tacc.errors import InputError

# Groups with the same learning rate may have others later: each gets a peak of its own, by a difference that fp32 does not see.
_APART = 2.0**-40


def _adam(group: Mapping[str, Any]) -> dict[str, Any]:
    return {"adam_beta1": group["betas"][0], "adam_beta2": group["betas"][1], "adam_epsilon": group["eps"]}


def _lion(group: Mapping[str, Any]) -> dict[str, Any]:
    return {"adam_beta1": group["betas"][0], "adam_beta2": group["betas"][1]}


def _sgd(group: Mapping[str, Any]) -> dict[str, Any]:
    return {"momentum": group["momentum"], "dampening": group["dampening"], "nesterov": group["nesterov"]}


def _adafactor(group: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _muon(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "momentum": group["momentum"], "nesterov": group["nesterov"], "ns_steps": group["ns_steps"], "adjust_lr_fn": group["adjust_lr_fn"] or "original"
    }


# Class -> train.optim, its fields, and options of a group that must have these values.
_KNOWN: dict[str, tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]], dict[str, Any]]] = {
    "AdamW": ("adamw", _adam, {"amsgrad": False, "maximize": False, "decoupled_weight_decay": True}),
    "Adam": ("adam", _adam, {"amsgrad": False, "maximize": False, "decoupled_weight_decay": False}),
    "SGD": ("sgd", _sgd, {"maximize": False}),
    "Lion": ("lion", _lion, {}),
    "Muon": ("muon", _muon, {"ns_coefficients": (3.4445, -4.775, 2.0315), "eps": 1e-7}),
    "Adafactor": ("adafactor", _adafactor, {
        "scale_parameter": False, "relative_step": False, "warmup_init": False, "beta1": None, "decay_rate": -0.8, "clip_threshold": 1.0,
        "eps": (1e-30, 1e-3),
    }),
}


_CONSTANT = "a job keeps them as they are at its first step; of a scheduler, as OneCycleLR or CyclicLR, give cycle_momentum=False"
_OF_TORCH = ("AdamW", "Adam", "SGD", "Muon")


def find_optimizer(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer | None:
    """The optimizer of this process that has these parameters; None: there is none.

    Raises InputError: there are several.
    """
    own = {id(p) for p in parameters}
    found = [
        thing for thing in gc.get_objects()
        if issubclass(type(thing), torch.optim.Optimizer) and any(id(p) in own for group in getattr(thing, "param_groups", ()) for p in group["params"])
    ]
    if len(found) > 1:
        kinds = ", ".join(type(o).__name__ for o in found)
        raise InputError(f"several optimizers have the model's parameters ({kinds}); say which one trains it: tacc.accelerate(..., optimizer=)")
    return found[0] if found else None


class Groups:
    """The groups of an optimizer, as `train` has them.

    Args:
        optimizer: The user's.
        names: Of the parameters of the model, by id.
        trained: Of these, those that the graph trains.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str], trained: set[str]):
        kind = type(optimizer).__name__
        if kind not in _KNOWN or (kind == "Adafactor" and type(optimizer).__module__.startswith("torch.")):
            raise InputError(f"the optimizer is {kind}; a job trains with {', '.join(_KNOWN)} (Lion of any package, Adafactor of transformers)")
        if kind in _OF_TORCH and not type(optimizer).__module__.startswith("torch."):
            raise InputError(f"the optimizer is {type(optimizer).__module__}.{kind}; a job trains with torch.optim.{kind}, and another class may do otherwise")
        self._optimizer = optimizer
        self._optim, self._fields, self._fixed = _KNOWN[kind]
        self._peaks: list[float] = []
        self._names: list[list[str]] = []
        seen: dict[str, int] = {}
        for i, group in enumerate(optimizer.param_groups):
            of_group = []
            for p in group["params"]:
                if id(p) not in names:
                    raise InputError(f"the optimizer's group {i} has a parameter of shape {list(p.shape)} that is none of the model's")
                of_group.append(names[id(p)])
                seen[names[id(p)]] = i
            self._names.append([name for name in of_group if name in trained])
            peak = float(group.get("initial_lr", group["lr"])) or 1.0
            while peak in self._peaks:
                peak *= 1 + _APART
            self._peaks.append(peak)
        self.left = sorted(trained - set(seen))
        """Parameters that the optimizer has not: they are not trained, as PyTorch would not."""
        self.trained = {i for i, name in names.items() if name in trained and name in seen}
        """By id, the parameters that are trained."""
        self._requires_grad = [(name, p, p.requires_grad) for group in optimizer.param_groups for p in group["params"] for name in [names[id(p)]]]
        if cycled := [i for i, group in enumerate(optimizer.param_groups) if group.get("max_momentum") != group.get("base_momentum")]:
            raise InputError(f"a scheduler cycles the momentum or betas of the optimizer's group {cycled[0]}: {_CONSTANT}")
        self._hyper = self._options()

    def _options(self) -> list[dict[str, Any]]:
        """What of the groups may not change while the job runs."""
        found = []
        for i, group in enumerate(self._optimizer.param_groups):
            for name, wanted in self._fixed.items():
                value = group.get(name, wanted)
                if value != wanted and tuple(value if isinstance(value, (list, tuple)) else [value]) != wanted:
                    raise InputError(f"the optimizer has {name}={value!r} in group {i}; a job has {name}={wanted!r} alone")
            found.append({**self._fields(group), "weight_decay": float(group["weight_decay"])})
        return found

    def train(self) -> dict[str, Any]:
        """Fields of `train`."""
        common = [{k: v for k, v in options.items() if k != "weight_decay"} for options in self._hyper]
        if different := [i for i, options in enumerate(common) if options != common[0]]:
            raise InputError(f"group {different[0]} of the optimizer has {common[different[0]]}, group 0 {common[0]}; only lr and weight_decay may differ")
        fields = {"optim": self._optim, "learning_rate": self._peaks[0], "lr_scheduler_type": "constant", "weight_decay": 0.0, **common[0]}
        groups: dict[str, Any] = {}
        for i, of_group in enumerate(self._names):
            options = {"learning_rate": self._peaks[i], "weight_decay": self._hyper[i]["weight_decay"]}
            whole = len(self._names) == 1 and not self.left
            for pattern in ["*"] if whole else of_group:
                groups[pattern] = options
        if groups:
            fields["param_groups"] = groups
        if self.left:
            fields["freeze"] = self.left
        return fields

    def check_states(self, names: Iterable[str]) -> None:
        """InputError: by the states that the ranks keep, they do not do what the optimizer would."""
        if self._optim != "muon":
            return
        matrices = {name.partition("/")[2] for name in names if name.startswith("momentum_buffer/")}
        if other := [name for of_group in self._names for name in of_group if name not in matrices]:
            raise InputError(
                f"Muon has the parameter {other[0]}: a job makes updates of matrices inside the model orthogonal, each for itself, and not those of tables "
                "of embeddings, of heads and of several matrices in one parameter; leave such to another optimizer"
            )

    def learning_rates(self) -> dict[float, float]:
        """By peak, what the optimizer says now.

        Raises InputError: it says other things too.
        """
        if len(self._optimizer.param_groups) != len(self._peaks):
            raise InputError("the optimizer has other groups than when the training began; a job keeps those that it has")
        if changed := [name for name, p, was in self._requires_grad if p.requires_grad is not was]:
            raise InputError(f"requires_grad of {changed[0]} has changed since the training began; a job trains what it began with. Close it, and accelerate again")
        if (now := self._options()) != self._hyper:
            i = next(i for i, options in enumerate(now) if options != self._hyper[i])
            raise InputError(f"group {i} of the optimizer has {now[i]} now; the job began with {self._hyper[i]}, and only lr may change: {_CONSTANT}")
        return {peak: float(group["lr"]) for peak, group, names in zip(self._peaks, self._optimizer.param_groups, self._names) if names}
