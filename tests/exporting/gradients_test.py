"""Gradients that a model's own code makes otherwise than by its forward: the graph has them too, or the model is refused with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tacc
import torch
import torch.nn.functional as F
from comparison import EXACT, check_against_torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import BATCH, TorchModel


class Sign(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class SignInside(Sign):
    """One that lets no gradient through where the value is large."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gradient = gradient.clone()
        gradient[x.abs() > 0.3] = 0
        return gradient


class Reverse(torch.autograd.Function):
    """As of domain-adversarial training."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.factor * gradient, None


class Product(torch.autograd.Function):
    """Its backward is the derivative of its forward."""

    @staticmethod
    def forward(x, y):
        return x @ y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient @ y.T, x.T @ gradient


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1e-3, 1e-3)


class Computes(nn.Module):
    def __init__(self, middle: Callable[[nn.Module, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.first, self.last, self.middle = nn.Linear(4, 8), nn.Linear(8, 4), middle

    def forward(self, x, y):
        return {"loss": F.mse_loss(self.last(self.middle(self, self.first(x))), y)}


class SpectralNorm(Computes):
    def __init__(self):
        super().__init__(lambda _, x: x)
        nn.utils.parametrizations.spectral_norm(self.first)


BOUND = Sign.apply
COMPUTED = {
    "straight through": lambda: Computes(lambda _, x: BOUND(x)),
    "straight through inside": lambda: Computes(lambda _, x: SignInside.apply(x)),
    "reversal": lambda: Computes(lambda _, x: Reverse.apply(x, 0.5)),
    "the derivative": lambda: Computes(lambda m, x: m.first(Product.apply(x, m.last.weight.T))),
    "checkpoint": lambda: Computes(lambda m, x: checkpoint(m.first, m.last(x), use_reentrant=True)),
    "checkpoint, not reentrant": lambda: Computes(lambda m, x: checkpoint(m.first, m.last(x), use_reentrant=False)),
    "spectral norm": SpectralNorm,
}


def batch() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    return {"x": torch.randn(BATCH, 4, generator=random), "y": torch.randn(BATCH, 4, generator=random)}


@pytest.mark.parametrize("name", COMPUTED)
def test_gradients_are_pytorchs(name: str, tmp_path: Path):
    torch.manual_seed(0)
    model = TorchModel(COMPUTED[name](), batch())
    check_against_torch(tacc.export_model(model.module, model.batch, tmp_path), model, EXACT)


def line_of(code: str) -> str:
    return next(f"{__file__}:{i}, in " for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.strip().startswith(code))


class ClipsInside(Computes):
    def __init__(self):
        super().__init__(lambda _, x: x)

    def forward(self, x, y):
        x = Clipped.apply(self.first(x))
        return {"loss": F.mse_loss(self.last(x), y)}


def test_a_backward_that_no_graph_has_is_refused_with_its_line(tmp_path: Path):
    with pytest.raises(tacc.ExportError) as error:
        tacc.export_model(ClipsInside(), batch(), tmp_path)
    assert str(error.value).startswith(line_of("x = Clipped.apply(") + "forward: x = Clipped.apply(self.first(x)): Clipped is a torch.autograd.Function")
    assert ".detach()" in str(error.value)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_modules_are_refused(register: str, tmp_path: Path):
    model = COMPUTED["reversal"]()
    handle = getattr(model.last, register)(lambda *_: None)
    with pytest.raises(tacc.InputError, match=rf"last has a hook on its backward \({register}\)"):
        tacc.export_model(model, batch(), tmp_path)
    handle.remove()
    tacc.export_model(model, batch(), tmp_path)


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher, self.gate, self.head = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, y):
        with torch.no_grad():
            taught = self.teacher(x)
        return {"loss": F.mse_loss(self.student(x) * (self.gate(x) > 0), taught) + F.mse_loss(self.head(x).detach(), y)}


def test_parameters_without_a_gradient_are_frozen(tmp_path: Path):
    torch.manual_seed(0)
    model = TorchModel(Teacher(), batch())
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert exported.parameters == ["student.weight", "student.bias"]
    assert sorted(exported.frozen) == [f"{name}.{kind}" for name in ("gate", "head", "teacher") for kind in ("bias", "weight")]
    check_against_torch(exported, model, EXACT)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        y = self.head(x) * x.max().item()
        return {"loss": y.mean()}


class Masked(Scaled):
    def forward(self, x):
        kept = self.head(x)[x > 0]
        return {"loss": kept.mean()}


@pytest.mark.parametrize("kind, code", [(Scaled, "y = self.head(x) * "), (Masked, "kept = self.head(x)[")])
def test_what_depends_on_values_is_refused_with_its_line(kind: type[nn.Module], code: str, tmp_path: Path):
    with pytest.raises(tacc.InputError) as error:
        tacc.export_model(kind(), {"x": torch.ones(BATCH, 4)}, tmp_path)
    assert line_of(code) in str(error.value)
    assert "torch.where" in str(error.value)
