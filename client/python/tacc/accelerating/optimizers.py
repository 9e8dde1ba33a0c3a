"""Optimizers of PyTorch as the training's: their classes and options as fields of `train`, and what they say at each update."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tacc.accelerating.remote_tensors import without_reading
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

# Fields that go with each update: what schedulers move beside the learning rate.
_MOMENTA = ("adam_beta1", "momentum")
_OF_TORCH = ("AdamW", "Adam", "SGD", "Muon")
# Those whose step depends on how many there were before it.
_COUNTING = ("adamw", "adam", "adafactor")


def as_list(given: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None) -> list[torch.optim.Optimizer]:
    """The optimizers that are given. InputError: it is none."""
    found = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    if other := [thing for thing in found if not isinstance(thing, torch.optim.Optimizer)]:
        raise InputError(f"optimizer= has a {type(other[0]).__name__}; wanted an optimizer of PyTorch, or a list of such")
    return found


def find_optimizers(parameters: Iterable[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    """The optimizers of this process that have some of these parameters, in the order of these."""
    order = {id(p): i for i, p in enumerate(parameters)}
    if len(_with_parameters(order)) > 1:
        gc.collect()  # A scheduler keeps an optimizer that nobody has any more until then, as that of a notebook's cell which runs again.
    return _with_parameters(order)


def _with_parameters(order: Mapping[int, int]) -> list[torch.optim.Optimizer]:
    found: list[tuple[int, int, torch.optim.Optimizer]] = []
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.optim.Optimizer):
            own = [order[id(p)] for group in getattr(thing, "param_groups", ()) for p in group["params"] if id(p) in order]
            if own:
                found.append((min(own), len(found), thing))
    return [optimizer for _, _, optimizer in sorted(found)]


def check_apart(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """InputError: two optimizers have the same parameter."""
    owners: dict[int, torch.optim.Optimizer] = {}
    for optimizer in optimizers:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if owners.setdefault(id(p), optimizer) is not optimizer:
                kinds = ", ".join(type(o).__name__ for o in optimizers)
                raise InputError(
                    f"several optimizers have the model's parameters ({kinds}), and two of them the one of shape {list(p.shape)}; say which one trains it, or "
                    "which ones do, each other parameters: tacc.accelerate(..., optimizer=)"
                )


def _known(optimizer: torch.optim.Optimizer) -> tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]], dict[str, Any]]:
    """Of its class, as in `_KNOWN`. InputError: a job has no such one."""
    kind, module = type(optimizer).__name__, type(optimizer).__module__
    if kind not in _KNOWN or (kind == "Adafactor" and module.startswith("torch.")):
        raise InputError(f"the optimizer is {kind}; a job trains with {', '.join(_KNOWN)} (Lion of any package, Adafactor of transformers)")
    if kind in _OF_TORCH and not module.startswith("torch."):
        raise InputError(f"the optimizer is {module}.{kind}; a job trains with torch.optim.{kind}, and another class may do otherwise")
    return _KNOWN[kind]


@dataclass
class _Group:
    """A group of an optimizer.

    Attributes:
        optimizer: Whose.
        index: In its `param_groups`.
        words: What messages call it.
        optim: As `train.optim` has it.
        names: Of its parameters that are trained.
        peak: Of its learning rate; no other group has the same.
        options: What may not change while the job runs.
        momentum: A field of `train`, where it may; or none.
    """

    optimizer: torch.optim.Optimizer
    index: int
    words: str
    optim: str
    names: list[str]
    peak: float
    options: dict[str, Any]
    momentum: dict[str, float]

    @property
    def now(self) -> dict[str, Any]:
        """As it is in the optimizer."""
        found: dict[str, Any] = self.optimizer.param_groups[self.index]
        return found


class Groups:
    """The groups of the optimizers, as `train` has them.

    Args:
        optimizers: The user's. Their steps are one update; no parameter is in two of them.
        names: Of the parameters of the model, by id.
        trained: Of these, those that the graph trains.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str], trained: set[str]):
        kinds = {id(optimizer): _known(optimizer) for optimizer in optimizers}
        # Whose momentum goes with the updates: Muon's, which scripts warm up, else that of the first one.
        self._optim = next((optim for optim, _, _ in kinds.values() if optim == "muon"), kinds[id(optimizers[0])][0])
        self._kinds = kinds
        self._groups: list[_Group] = []
        self._sizes = [(optimizer, len(optimizer.param_groups)) for optimizer in optimizers]
        self._requires_grad: list[tuple[str, torch.nn.Parameter, bool]] = []
        seen: set[str] = set()
        for optimizer in sorted(optimizers, key=lambda o: kinds[id(o)][0] != self._optim):
            for i, group in enumerate(optimizer.param_groups):
                whose = "the optimizer" if len(optimizers) == 1 else type(optimizer).__name__
                for p in group["params"]:
                    if id(p) not in names:
                        raise InputError(f"{whose}'s group {i} has a parameter of shape {list(p.shape)} that is none of the model's")
                    seen.add(names[id(p)])
                    self._requires_grad.append((names[id(p)], p, p.requires_grad))
                of_group = [name for p in group["params"] if (name := names[id(p)]) in trained]
                options, momentum = self._options(optimizer, i)
                peak = self._peak(float(group.get("initial_lr", group["lr"])) or 1.0)
                self._groups.append(_Group(optimizer, i, f"group {i} of {whose}", kinds[id(optimizer)][0], of_group, peak, options, momentum))
        self.left = sorted(trained - seen)
        """Parameters that no optimizer has: they are not trained, as PyTorch would not."""
        self.trained = {i for i, name in names.items() if name in trained and name in seen}
        """By id, the parameters that are trained."""
        self.counting = {name for group in self._groups if group.optim in _COUNTING for name in group.names}
        """Parameters whose updates depend on how many there were before."""
        self._momentum = self._groups[0].momentum

    def _peak(self, wanted: float) -> float:
        while any(group.peak == wanted for group in self._groups):
            wanted *= 1 + _APART
        return wanted

    def _options(self, optimizer: torch.optim.Optimizer, index: int) -> tuple[dict[str, Any], dict[str, float]]:
        """Of a group what may not change while the job runs, and its momentum, if that goes with the updates: a field of `train`, or none."""
        optim, fields, fixed = self._kinds[id(optimizer)]
        group = optimizer.param_groups[index]
        for name, wanted in fixed.items():
            value = group.get(name, wanted)
            if value != wanted and tuple(value if isinstance(value, (list, tuple)) else [value]) != wanted:
                whose = "the optimizer" if len(self._sizes) == 1 else type(optimizer).__name__
                raise InputError(f"{whose} has {name}={value!r} in group {index}; a job has {name}={wanted!r} alone")
        options = {**fields(group), "weight_decay": float(group["weight_decay"])}
        moved = [name for name in _MOMENTA if name in options and optim == self._optim]
        return options, {name: float(options.pop(name)) for name in moved}

    def train(self) -> dict[str, Any]:
        """Fields of `train`. InputError: a job has not what the optimizers are together."""
        fields: dict[str, Any] = {}
        firsts: dict[str, _Group] = {}
        for group in self._groups:
            first = firsts.setdefault(group.optim, group)
            own, wanted = ({k: v for k, v in of.options.items() if k != "weight_decay"} for of in (group, first))
            if own != wanted:
                raise InputError(f"{group.words} has {own}, {first.words} {wanted}; only lr, weight_decay and momentum (betas[0]) may differ")
            own |= first.momentum
            if first is group and (different := [name for name in own if name in fields and fields[name] != own[name]]):
                other = next(of for of in firsts.values() if different[0] in {**of.options, **of.momentum})
                raise InputError(
                    f"{type(group.optimizer).__name__} has {different[0]} = {own[different[0]]}, {type(other.optimizer).__name__} "
                    f"{fields[different[0]]}: a job has one for all its optimizers; give both the same, or another kind, as Muon with AdamW"
                )
            fields = {**own, **fields}
        fields = {"optim": self._optim, "learning_rate": self._groups[0].peak, "lr_scheduler_type": "constant", "weight_decay": 0.0, **fields}
        groups: dict[str, Any] = {}
        for group in self._groups:
            kind = {} if group.optim == self._optim else {"optim": group.optim}
            options = {"learning_rate": group.peak, "weight_decay": group.options["weight_decay"], **kind}
            whole = len(self._groups) == 1 and not self.left
            for pattern in ["*"] if whole else group.names:
                groups[pattern] = options
        if groups:
            fields["param_groups"] = groups
        if self.left:
            fields["freeze"] = self.left
        return fields

    def check_states(self, names: Iterable[str]) -> None:
        """InputError: by the states that the ranks keep, they do not do what the optimizer would."""
        matrices = {name.partition("/")[2] for name in names if name.startswith("momentum_buffer/")}
        if other := [name for group in self._groups if group.optim == "muon" for name in group.names if name not in matrices]:
            raise InputError(
                f"Muon has the parameter {other[0]}: a job makes updates of matrices inside the model orthogonal, each for itself, and not those of tables "
                "of embeddings, of heads and of several matrices in one parameter; leave such to another optimizer, as optimizer=[muon, adamw]"
            )

    def rates(self, optimizer: torch.optim.Optimizer | None = None) -> dict[str, dict[float, float]]:
        """What an optimizer says now, or all of them, as arguments of an update: `learning_rates`, and `momenta` that are not the job's own, each by peak.

        Raises InputError: it says other things too.
        """
        if any(len(of.param_groups) != size for of, size in self._sizes if optimizer in (None, of)):
            raise InputError("the optimizer has other groups than when the training began; a job keeps those that it has")
        with without_reading():
            changed = [name for name, p, was in self._requires_grad if p.requires_grad is not was]
        if changed:
            raise InputError(f"requires_grad of {changed[0]} has changed since the training began; a job trains what it began with. Close it, and accelerate again")
        rates: dict[float, float] = {}
        momenta: dict[float, float] = {}
        for group in self._groups:
            if optimizer not in (None, group.optimizer):
                continue
            options, momentum = self._options(group.optimizer, group.index)
            if options != group.options:
                may = "lr and momentum (betas[0])" if group.optim == self._optim else "lr"
                raise InputError(f"{group.words} has {options} now; the job began with {group.options}; only {may} may change")
            if group.names:
                rates[group.peak] = float(group.now["lr"])
                if momentum and momentum != self._momentum:
                    momenta[group.peak] = next(iter(momentum.values()))
        if self._optim == "sgd" and momenta and 0.0 in (self._momentum["momentum"], *momenta.values()):
            raise InputError("SGD has the momentum 0 in some steps or groups and another one in others: a job keeps momenta of all parameters or of none")
        return {"learning_rates": rates, "momenta": momenta}
