"""`tacc.accelerate` in loops whose optimizer, model or second model moves beside the training: as PyTorch does, or refused with what to do."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tacc
import torch
from cluster import Cluster
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

ONE: dict[str, Any] = {"resources": {"workers": 1}}
FSDP: dict[str, Any] = {"resources": {"workers": 2}, "dist": {"dp": {"size": 1}, "fsdp": {"size": 2}}}
STEPS = 5
ROUNDING = 2e-5  # Of losses in float32, whose sums are taken in another order.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def folders(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TACC_ADDRESS", cluster.address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # No bias before the norm: its gradient would be rounding, of which Adam makes whole steps.
        self.hidden, self.norm, self.head = nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": functional.mse_loss(self.head(torch.tanh(self.norm(self.hidden(x)))), y)}


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def batches(count: int = STEPS) -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(2)
    return [{"x": torch.randn(8, 4, generator=random), "y": torch.randn(8, 2, generator=random)} for _ in range(count)]


def expect_close(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-6, check_dtype=False, msg=lambda m, name=name: f"{name}: {m}")


# --- Losses and numbers of a whole batch --------------------------------------------------------------------------------


class Pair(nn.Module):
    """Returns its loss behind what it has computed, and takes a number for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.head(torch.tanh(self.hidden(x)))
        return out, functional.mse_loss(out, y) + weight * out.square().mean()


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
def test_a_model_returns_its_loss_in_a_tuple(config):
    def loop(model: Any) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for number, batch in enumerate(batches()):
            out, loss = model(**batch, weight=torch.tensor(0.1 * number))
            (loss + 0.1 * out.abs().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    plain, model = made(Pair), tacc.accelerate(made(Pair), config=config)
    with model:
        assert loop(model) == pytest.approx(loop(plain), rel=ROUNDING)
        expect_close(model.state_dict(), plain.state_dict())
        with pytest.raises(tacc.InputError, match="the batch has 6 samples; the first one had 8"):
            model(**{name: value[:6] for name, value in batches(1)[0].items()}, weight=torch.tensor(0.1))


# --- Schedulers of momentum ---------------------------------------------------------------------------------------------


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
}
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=STEPS + 1),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2, base_momentum=0.5),
}


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_schedule_moves_the_momentum(optimizer, schedule, config):
    def loop(model: Any) -> list[float]:
        named = dict(model.named_parameters())
        groups = [{"params": [p for n, p in named.items() if n.startswith("head")]}, {"params": [p for n, p in named.items() if not n.startswith("head")]}]
        updates = OPTIMIZERS[optimizer](groups)
        moves = SCHEDULES[schedule](updates)
        losses = []
        for batch in batches():
            loss = model(**batch)["loss"]
            loss.backward()
            updates.step()
            moves.step()
            updates.zero_grad()
            losses.append(float(loss.detach()))
        return losses

    plain, module = made(Regressor), made(Regressor)
    want = loop(plain)
    with tacc.accelerate(module, config=config) as model:
        assert loop(model) == pytest.approx(want, rel=ROUNDING)
        expect_close(model.state_dict(), plain.state_dict())


# --- State of a forward in attributes -----------------------------------------------------------------------------------


class Annealed(Regressor):
    count = 0

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count += 1
        return {"loss": super().forward(x, y)["loss"] * 0.9**self.count}


class Logged(Regressor):
    calls = 0

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        self.seen = x
        return super().forward(x, y)


class AnnealedByBuffer(Regressor):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count.add_(1)
        return {"loss": super().forward(x, y)["loss"] * 0.9**self.count}


def sgd_losses(model: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches():
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_state_in_an_attribute_is_refused_before_there_is_a_job():
    model = tacc.accelerate(made(Annealed), config=ONE)
    with pytest.raises(tacc.InputError, match=r"test_loops\.py:\d+: self\.count \+= 1: forward keeps count of Annealed .*register_buffer"):
        sgd_losses(model)
    with pytest.raises(tacc.InputError, match="the job begins at the model's first forward"):
        _ = model.job


@pytest.mark.parametrize("kind", [Logged, AnnealedByBuffer])
def test_what_is_no_state_or_a_buffer_trains(kind):
    want = sgd_losses(made(kind))
    with tacc.accelerate(made(kind), config=ONE) as model:
        assert sgd_losses(model) == pytest.approx(want, rel=ROUNDING)


# --- Who reads parameters -----------------------------------------------------------------------------------------------


def averaging(model: Any) -> tuple[list[torch.Tensor], AveragedModel, list[float]]:
    """Averages by hand and by PyTorch, and what a loop logs of the weights."""
    averaged = AveragedModel(getattr(model, "module", model), multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    by_hand = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for batch in batches():
        model(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, p in zip(by_hand, model.parameters()):
                mean.mul_(0.5).add_(p.data, alpha=0.5)
        averaged.update_parameters(getattr(model, "module", model))
        norms.append(float(sum(p.detach().norm() for p in model.parameters())))
    return by_hand, averaged, norms


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
def test_averages_are_of_the_weights_as_they_are(config):
    plain, module = made(Regressor), made(Regressor)
    want = averaging(plain)
    with tacc.accelerate(module, config=config) as model:
        got = averaging(model)
        assert got[2] == pytest.approx(want[2], rel=ROUNDING)
        expect_close(dict(enumerate(got[0])), dict(enumerate(want[0])))
        expect_close(got[1].module.state_dict(), want[1].module.state_dict())
        assert all(type(p) is nn.Parameter for p in got[1].parameters())
        expect_close(copy.deepcopy(module).state_dict(), plain.state_dict())
        with torch.no_grad():  # The module itself computes with them.
            torch.testing.assert_close(module.eval()(**batches()[0])["loss"], plain.eval()(**batches()[0])["loss"], rtol=1e-4, atol=1e-6)
        model.train()
        plain.train()
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        plain(**batches()[0])["loss"].backward()
        optimizer.step()
        model.step(**batches()[0])
    expect_close(module.state_dict(), plain.state_dict())  # It has them at the end, without a word.


# --- Two models ---------------------------------------------------------------------------------------------------------


def generator() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))


def discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def adversarial(makes: Any, judges: nn.Module) -> list[float]:
    of_makes, of_judges = torch.optim.SGD(makes.parameters(), lr=0.1), torch.optim.SGD(judges.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(STEPS):
        noise, real = torch.randn(8, 3, generator=random), torch.randn(8, 4, generator=random)
        fake = makes(noise)
        of_judges.zero_grad()
        loss = functional.softplus(-judges(real)).mean() + functional.softplus(judges(fake.detach())).mean()
        loss.backward()
        of_judges.step()
        of_makes.zero_grad()
        fooled = functional.softplus(-judges(fake)).mean()
        fooled.backward()
        of_makes.step()
        losses += [float(loss.detach()), float(fooled.detach())]
    return losses


def test_an_accelerated_generator_trains_with_a_discriminator_of_the_loop():
    want = adversarial(made(generator), made(discriminator))
    with tacc.accelerate(made(generator), config=ONE) as model:
        assert adversarial(model, made(discriminator)) == pytest.approx(want, rel=ROUNDING)


def test_gradients_that_would_be_lost_between_two_models_are_refused():
    with tacc.accelerate(made(discriminator), config=ONE) as model, pytest.raises(tacc.InputError, match=r"requires a gradient, which the ranks do not"):
        adversarial(made(generator), model)
    judges = made(discriminator)
    model = tacc.accelerate(made(generator), config=ONE, loss=lambda fake, batch: functional.softplus(-judges(fake)).mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(tacc.InputError, match=r"test_loops\.py:\d+.*a parameter of shape \[8, 4\] that is none of the model's.*Train both as one module"):
        model(torch.randn(8, 3))
    shared = made(generator)
    with tacc.accelerate(shared, config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
        other = tacc.accelerate(nn.Sequential(shared[0], nn.Linear(8, 1)), config=ONE)
        of_other = torch.optim.SGD(other.parameters(), lr=0.1)
        with pytest.raises(tacc.InputError, match=r"0\.weight is trained by another job already"):
            other(torch.randn(8, 3))
        del of_other


def test_a_teacher_that_moves_is_refused():
    """In loss= it is a constant of the graph."""
    teacher = made(generator).requires_grad_(False)
    model = tacc.accelerate(made(generator), config=ONE, loss=lambda out, batch: functional.mse_loss(out, teacher(batch[0])))
    with model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        noise = torch.randn(8, 3)
        for _ in range(2):
            model(noise).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        for old, new in zip(teacher.parameters(), model.parameters()):
            old.lerp_(new.detach(), 0.1)
        with pytest.raises(tacc.InputError, match=r"test_loops\.py:\d+.*a tensor that is none of the model's was changed here"):
            model(noise)
