"""Random numbers, complex numbers and scans in exported models: what they compute, beside PyTorch, in float64."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import tacc
import torch
import torch.nn.functional as F
from comparison import EXACT, check_against_torch, nodes_of, run_graph, torch_interpreter
from torch import nn
from torch_models import BATCH, TorchModel

Compute = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Drawn(nn.Module):
    """What is drawn in each spelling, 64 x 64 numbers a sample."""

    def __init__(self):
        super().__init__()
        self.head, self.mean = nn.Linear(64, 1), nn.Parameter(torch.ones(64))

    def forward(self, x):
        samples = x.shape[0]
        drawn = {
            "rand": torch.rand(samples, 64, 64),
            "rand_like": torch.rand_like(x),
            "uniform_": torch.empty_like(x).uniform_(-1.0, 3.0),
            "randn": torch.randn((samples, 64, 64)),
            "randn_like": torch.randn_like(x),
            "normal": torch.normal(2.0, 3.0, (samples, 64, 64)),
            "normal of tensors": torch.normal(self.mean.expand(samples, 64, 64), 2.0),
            "normal_": torch.empty(64, samples, 64).normal_(),
            "Normal": torch.distributions.Normal(x, 1.0).rsample() - x,
            "bernoulli": torch.bernoulli(torch.full_like(x, 0.25)),
            "bernoulli_": torch.empty_like(x).uniform_().lt(0.25).float(),
            "exponential_": torch.empty_like(x).exponential_(2.0),
            "gumbel_softmax": F.gumbel_softmax(torch.zeros_like(x), hard=True),
            "randint": torch.randint(-2, 3, (samples, 64, 64)).float(),
            "randint_like": torch.randint_like(x, 5),
            "merged samples": torch.randn(samples * 64, 64),
            "the same of all samples": torch.rand(64, 64),
        }
        return {"loss": self.head(drawn["randn"]).square().mean(), "x": x * 1.0, **drawn}


MOMENTS = {
    "rand": (0.5, 1 / 12),
    "rand_like": (0.5, 1 / 12),
    "uniform_": (1.0, 16 / 12),
    "randn": (0.0, 1.0),
    "randn_like": (0.0, 1.0),
    "normal": (2.0, 9.0),
    "normal of tensors": (1.0, 4.0),
    "normal_": (0.0, 1.0),
    "Normal": (0.0, 1.0),
    "bernoulli": (0.25, 0.1875),
    "bernoulli_": (0.25, 0.1875),
    "exponential_": (0.5, 0.25),
    "gumbel_softmax": (1 / 64, 63 / 64**2),
    "randint": (0.0, 2.0),
    "randint_like": (2.0, 2.0),
    "merged samples": (0.0, 1.0),
    "the same of all samples": (0.5, 1 / 12),
}


def test_what_is_drawn(tmp_path: Path):
    torch.manual_seed(0)
    batch = {"x": torch.rand(BATCH, 64, 64)}
    exported = tacc.export_model(Drawn(), batch, tmp_path)
    assert exported.any_batch and exported.splittable and not exported.samples_meet
    assert exported.coverage.share == 1.0
    assert exported.frozen == ["mean"]  # no gradient flows to what is drawn with it
    made, _ = run_graph(exported, batch)
    for name, (mean, variance) in MOMENTS.items():
        drawn = made[name]
        deviation = math.sqrt(variance / drawn.numel())
        assert abs(drawn.mean().item() - mean) < 4 * deviation, name
        assert drawn.var().item() == pytest.approx(variance, rel=0.15), name
    assert set(made["randint"].unique().tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert made["exponential_"].min() > 0
    assert len({(made[name].double().flatten()[:512] * torch.arange(512)).sum().item() for name in MOMENTS}) == len(MOMENTS)  # each draws its own
    assert not torch.equal(made["randn"][0], made["randn"][1])


class Autoencoder(nn.Module):
    """A variational one."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
        return {"loss": F.mse_loss(self.decoder(z), x) + 0.1 * divergence.mean(), "z": z}


def test_gradients_flow_around_what_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model = TorchModel(Autoencoder(), {"x": torch.randn(BATCH, 6)})
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert exported.splittable
    (node,) = (node for node in nodes_of(exported) if node.op == "random")
    noise = torch_interpreter.run_random(node, torch.tensor(0), torch.arange(BATCH))
    monkeypatch.setattr(torch, "randn_like", lambda like: noise)
    check_against_torch(exported, model, EXACT)


class Filter(nn.Module):
    def __init__(self, compute: Compute):
        super().__init__()
        self.first, self.last, self.compute = nn.Linear(6, 8), nn.Linear(8, 3), compute
        self.weights = nn.Parameter(torch.randn(5, 8, 2))
        self.register_buffer("turns", torch.polar(torch.ones(5, 4), torch.rand(5, 4)))

    def forward(self, x, labels):
        h = self.compute(self, self.first(x))
        return {"loss": F.cross_entropy(self.last(h).mean(1), labels), "h": h}


def _rotary(m: nn.Module, h: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.view_as_complex(h.reshape(*h.shape[:-1], -1, 2)) * m.turns).flatten(-2)


def _spectral_convolution(m: nn.Module, h: torch.Tensor) -> torch.Tensor:
    """As of a Fourier neural operator."""
    spectrum = torch.fft.rfft(h, dim=1)
    weighted = torch.einsum("bsi,si->bsi", spectrum, torch.view_as_complex(m.weights)[:3])
    return torch.fft.irfft(weighted, n=h.shape[1], dim=1)


def _spectrogram(m: nn.Module, h: torch.Tensor) -> torch.Tensor:
    bins = torch.stft(h.flatten(1), 14, 14, window=torch.hann_window(14, dtype=torch.float32).to(h.dtype), return_complex=True).abs()
    return bins[:, :, :3].transpose(1, 2)


def _arithmetic(m: nn.Module, h: torch.Tensor) -> torch.Tensor:
    z = torch.complex(h, h.sin()) * torch.polar(h.exp(), h) / (1 + 0.5j) + h - 2.0
    return (-z * z.conj() / (2 + h.square())).real + (z * 1j).imag + z.angle()


COMPLEX: dict[str, tuple[Compute, set[str]]] = {
    "fnet": (lambda m, h: torch.fft.fft2(h).real, {"aten.fft_fft2.default"}),
    "spectral convolution": (_spectral_convolution, {f"aten.{op}.default" for op in ("fft_rfft", "fft_irfft", "einsum")} | {"aten.slice.Tensor"}),
    "magnitudes": (lambda m, h: torch.fft.fft(h).abs(), {"aten.fft_fft.default", "aten.abs.default"}),
    "there and back": (lambda m, h: torch.fft.ifft(torch.fft.fft(h) * 2.0).real, {"aten.fft_fft.default", "aten.fft_ifft.default"}),
    "spectrogram": (_spectrogram, {"aten.pad.default", "aten.stft.default", "aten.abs.default"}),
    "rotary": (_rotary, set()),
    "arithmetic": (_arithmetic, {"aten.angle.default"}),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name: str, tmp_path: Path):
    compute, of_libtorch = COMPLEX[name]
    torch.manual_seed(0)
    model = TorchModel(Filter(compute), {"x": torch.randn(BATCH, 5, 6), "labels": torch.arange(BATCH) % 3})
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert exported.any_batch
    assert exported.splittable == (name in ("fnet", "there and back", "rotary"))  # of the others' operators it is not known that samples stay apart
    said = " ".join(exported.notes)
    assert {word for word in said.replace(",", "").split() if word.startswith("aten.")} == of_libtorch
    check_against_torch(exported, model, EXACT)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x):
        return {"loss": (torch.fft.fft(x) * self.filter).abs().mean()}


class Returns(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return {"loss": self.head(x.real).mean(), "spectrum": torch.fft.fft(self.head(x.real))}


def test_complex_numbers_that_come_or_stay(tmp_path: Path):
    with pytest.raises(tacc.InputError, match=r"parameter filter has complex numbers.*torch\.view_as_complex"):
        tacc.export_model(Weighted(), {"x": torch.ones(BATCH, 4)}, tmp_path)
    with pytest.raises(tacc.InputError, match=r"the model returns complex numbers as 'spectrum'; return torch\.view_as_real"):
        tacc.export_model(Returns(), {"x": torch.ones(BATCH, 4)}, tmp_path)
    with pytest.raises(tacc.InputError, match=r"the batch's x has complex numbers; give pairs"):
        tacc.export_model(Returns(), {"x": torch.ones(BATCH, 4, dtype=torch.complex64)}, tmp_path)


SCANS: dict[str, Compute] = {
    "cumprod": lambda m, h: h.cumprod(-1),
    "logcumsumexp": lambda m, h: (3 * h).logcumsumexp(1),
    "cummax": lambda m, h: h.cummax(1).values,
    "cummin": lambda m, h: h.cummin(-1).values * h,
}


@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str, tmp_path: Path):
    torch.manual_seed(0)
    model = TorchModel(Filter(SCANS[name]), {"x": torch.randn(BATCH, 5, 6), "labels": torch.arange(BATCH) % 3})
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert exported.coverage.ops["aten"] == 1
    check_against_torch(exported, model, EXACT)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)


class Chosen(Head):
    def forward(self, x):
        y = torch.multinomial(self.head(x)[0].softmax(-1), 2)
        return {"loss": self.head(x).mean() + y.sum()}


class Shuffled(Head):
    def forward(self, x):
        y = self.head(x)[:, torch.randperm(4)]
        return {"loss": y.mean()}


class Masked(Head):
    def forward(self, x):
        y = self.head(x)[x > 0.5]
        return {"loss": y.mean()}


class Found(Head):
    def forward(self, x):
        y = (x > 0.5).nonzero()
        return {"loss": self.head(x).mean() + y.sum()}


REFUSED: dict[type[Head], tuple[str, str]] = {
    Chosen: ("aten.multinomial.default", "draws random numbers"),
    Shuffled: ("aten.randperm.default", "those of torch.rand, randn, randint"),
}


def line_of(kind: type[Head]) -> str:
    """The one that computes y."""
    lines, first = inspect.getsourcelines(kind)
    number = next(i for i, text in enumerate(lines, first) if text.strip().startswith("y = "))
    return f"{__file__}:{number}, in forward: {lines[number - first].strip()}: "


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_says_why_and_where(kind: type[Head], tmp_path: Path):
    op, why = REFUSED[kind]
    with pytest.raises(tacc.UnsupportedOpsError) as error:
        tacc.export_model(kind(), {"x": torch.rand(BATCH, 4, 4)}, tmp_path)
    assert [refused.op for refused in error.value.ops] == [op]
    assert f"{line_of(kind)}{op}: " in str(error.value) and why in str(error.value)
    assert not (tmp_path / "model.graph").exists()


@pytest.mark.parametrize("kind", [Masked, Found])
def test_results_whose_size_depends_on_values_are_refused(kind: type[Head], tmp_path: Path):
    with pytest.raises(tacc.InputError) as error:
        tacc.export_model(kind(), {"x": torch.rand(BATCH, 4, 4)}, tmp_path)
    assert line_of(kind) in str(error.value)
    assert "torch.where" in str(error.value) and "topk" in str(error.value)
