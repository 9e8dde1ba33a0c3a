"""Each optimizer, schedule and group of parameters trains as torch.optim's and transformers' do: losses and weights of twenty steps, from the same
weights, on the same batches. fp32: our distance from a float64 run of the reference is at most twice that of the reference's own fp32 run, plus 1e-7
of the norm."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from cases import TRAINING_CASES, Case
from references import KeepDouble, build, in_double, loss_of, save, stored
from safetensors.torch import load_file
from torch import nn
from training import NUM_STEPS, _merge_rows, batches, pretrained, run_steps, write_data
from transformers import optimization

Groups = list[dict]


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", algorithm 2."""

    def __init__(self, groups: Groups, lr: float, betas: tuple[float, float]):
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = m.lerp(p.grad, 1 - beta1).sign()
                p.mul_(1 - lr * group["weight_decay"]).sub_(direction, alpha=lr)
                m.lerp_(p.grad, 1 - beta2)


@pytest.fixture(scope="module", autouse=True)
def muon_in_full_precision():
    """torch.optim.Muon multiplies in bfloat16 whatever the parameters are; ours does so where the job computes in it. So the same code without that cast."""
    import torch.optim._muon as module

    source = inspect.getsource(module._zeropower_via_newtonschulz)
    assert ".bfloat16()" in source
    own = module._zeropower_via_newtonschulz
    exec(source.replace(".bfloat16()", ".clone()"), module.__dict__)
    yield
    module._zeropower_via_newtonschulz = own


def is_hidden(name: str, p: nn.Parameter) -> bool:
    return p.dim() == 2 and "embed" not in name and "lm_head" not in name and "wte" not in name and "wpe" not in name


def muon(adjust: str | None) -> Callable[[Groups, float], list[torch.optim.Optimizer]]:
    def make(groups: Groups, lr: float) -> list[torch.optim.Optimizer]:
        hidden = [group | {"params": [p for p in group["params"] if p.is_hidden]} for group in groups]
        others = [group | {"params": [p for p in group["params"] if not p.is_hidden]} for group in groups]
        return [
            torch.optim.Muon([g for g in hidden if g["params"]], lr=lr, momentum=0.9, adjust_lr_fn=adjust),
            torch.optim.AdamW([g for g in others if g["params"]], lr=lr),
        ]

    return make


@dataclass
class Trial:
    name: str
    train: dict  # fields of our job
    make: Callable[[Groups, float], list[torch.optim.Optimizer]]
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    schedule: tuple[str, dict] | None = None  # transformers' name and kwargs
    factors: tuple[float, ...] = ()
    family: str = "llama"


def one(of: type, **options) -> Callable[[Groups, float], list[torch.optim.Optimizer]]:
    return lambda groups, lr: [of(groups, lr=lr, **options)]


ADAMW = one(torch.optim.AdamW)
WARMUP = 4


def scheduled(name: str, ours: dict, **kwargs) -> Trial:
    """AdamW under a schedule."""
    train = {"optim": "OPTIM_ADAMW", "lr_scheduler_type": f"LR_SCHEDULER_TYPE_{name.upper()}", "warmup_steps": WARMUP} | ours
    return Trial(name, train, ADAMW, schedule=(name, kwargs))


TRIALS = [
    Trial("adam", {"optim": "OPTIM_ADAM"}, one(torch.optim.Adam)),
    Trial("sgd", {"optim": "OPTIM_SGD"}, one(torch.optim.SGD), learning_rate=0.1),
    Trial("sgd with momentum", {"optim": "OPTIM_SGD", "momentum": 0.9, "dampening": 0.2}, one(torch.optim.SGD, momentum=0.9, dampening=0.2), 0.05),
    Trial("sgd with nesterov", {"optim": "OPTIM_SGD", "momentum": 0.9, "nesterov": True}, one(torch.optim.SGD, momentum=0.9, nesterov=True), 0.05),
    Trial("lion", {"optim": "OPTIM_LION", "adam_beta2": 0.99}, one(Lion, betas=(0.9, 0.99)), 2e-4),
    Trial("adafactor", {"optim": "OPTIM_ADAFACTOR"}, one(optimization.Adafactor, scale_parameter=False, relative_step=False)),
    Trial("adafactor, transposed", {"optim": "OPTIM_ADAFACTOR"}, one(optimization.Adafactor, scale_parameter=False, relative_step=False), family="gpt2"),
    Trial("muon", {"optim": "OPTIM_MUON", "momentum": 0.9}, muon(None), 5e-3),
    Trial("muon as adamw", {"optim": "OPTIM_MUON", "momentum": 0.9, "adjust_lr_fn": "ADJUST_LR_FN_MATCH_RMS_ADAMW"}, muon("match_rms_adamw")),
    scheduled("constant_with_warmup", {"lr_scheduler_type": "LR_SCHEDULER_TYPE_CONSTANT"}),
    scheduled("cosine_with_min_lr", {"lr_scheduler_type": "LR_SCHEDULER_TYPE_COSINE", "min_lr_ratio": 0.2}, min_lr_rate=0.2),
    scheduled("cosine_with_restarts", {"lr_scheduler_kwargs": {"num_cycles": 3}}, num_cycles=3),
    scheduled("polynomial", {"lr_scheduler_kwargs": {"power": 2.0}, "min_lr_ratio": 0.1}, power=2.0, lr_end=1e-4),
    scheduled("inverse_sqrt", {}),
    scheduled(
        "warmup_stable_decay",
        {"lr_scheduler_kwargs": {"num_decay_steps": 8, "decay_type": "1-sqrt"}, "min_lr_ratio": 0.1},
        num_decay_steps=8, decay_type="1-sqrt", min_lr_ratio=0.1,
    ),
    Trial("a table", {"optim": "OPTIM_ADAMW", "lr_factors": [0.1, 1.0, 0.5, 0.25]}, ADAMW, factors=(0.1, 1.0, 0.5, 0.25)),
    Trial(
        "groups",
        {"optim": "OPTIM_ADAMW", "param_groups": {"*.mlp.*": {"learning_rate": 1e-2, "weight_decay": 0.0}, "*norm*": {"weight_decay": 0.3}}},
        ADAMW,
    ),
]


def groups_of(trial: Trial, module: nn.Module) -> Groups:
    """As Trainer has them: matrices decay. Groups of the job have values of their own."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, p in module.named_parameters():
        p.is_hidden = is_hidden(name, p)
        lr, decay = trial.learning_rate, trial.weight_decay if p.dim() >= 2 and not name.endswith("bias") else 0.0
        for pattern, own in trial.train.get("param_groups", {}).items():
            if pattern.strip("*") in name:
                lr, decay = own.get("learning_rate", lr), own.get("weight_decay", decay)
        groups.setdefault((lr, decay), []).append(p)
    return [{"params": params, "lr": lr, "weight_decay": decay} for (lr, decay), params in groups.items()]


def reference(case: Case, trial: Trial, module: nn.Module, steps: list, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses, and weights as they are stored."""
    losses = []
    module = copy.deepcopy(module)
    mode = KeepDouble() if dtype is torch.float64 else contextlib.nullcontext()
    if dtype is torch.float64:
        module = in_double(case, module)
    with mode:
        optimizers = trial.make(groups_of(trial, module), trial.learning_rate)
        schedulers = []
        for optimizer in optimizers:
            if trial.schedule is not None:
                name, kwargs = trial.schedule
                schedulers.append(optimization.get_scheduler(name, optimizer, WARMUP, NUM_STEPS, scheduler_specific_kwargs=kwargs))
            elif trial.factors:
                schedulers.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: trial.factors[min(step, len(trial.factors) - 1)]))
        for tokens, targets in steps:
            loss = loss_of(module, module(tokens), targets)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            for step in (*optimizers, *schedulers):
                step.step()
            losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64), {name: w.double() for name, w in stored(module).items()}


def ours(case: Case, trial: Trial, model: Path, data: Path, folder: Path) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    train = {"weight_decay": trial.weight_decay, **trial.train}
    steps = run_steps(case, pretrained(model), data, folder, "fp32", NUM_STEPS, trial.learning_rate, 1.0, train)
    saved = load_file(folder / f"checkpoints/step-{NUM_STEPS:08}.a1/rank-00000.safetensors")
    weights = {name.removeprefix("weights/"): w.double() for name, w in saved.items() if name.startswith("weights/")}
    return torch.tensor([step["loss"] for step in steps], dtype=torch.float64), _merge_rows(weights)


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_optimizer(trial: Trial, tmp_path: Path):
    case = next(case for case in TRAINING_CASES if case.family == trial.family)
    data = write_data(case, tmp_path / "data")
    module = build(case, 0)
    save(case, module, tmp_path / "model")
    steps = batches(case, data)
    exact_losses, exact = reference(case, trial, module, steps, torch.float64)
    own_losses, own = reference(case, trial, module, steps, torch.float32)
    our_losses, weights = ours(case, trial, tmp_path / "model", data, tmp_path / "run")
    assert set(weights) == set(exact)
    assert exact_losses[-1] <= 0.98 * exact_losses[0], "the loss must fall, or the test says little"
    first = flat({name: w.double() for name, w in stored(module).items()})
    for what, got, reference_own, wanted, norm in (
        ("losses", our_losses, own_losses, exact_losses, exact_losses.norm()),
        # Of what the training changed: the rest is the model's own.
        ("weights", flat(weights), flat(own), flat(exact), (flat(exact) - first).norm()),
    ):
        distance, of_own = (got - wanted).norm().item(), (reference_own - wanted).norm().item()
        print(f"{trial.name}: {what}: {distance / norm:.2e} / {of_own / norm:.2e}")
        assert distance <= 2 * of_own + 1e-7 * norm, what
