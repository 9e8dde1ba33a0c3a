"""Ops of images mean what PyTorch's functions do: every combination of padding, stride, dilation, groups, ceil_mode,
divisors, modes and scales, our definitions (the interpreter) against PyTorch in float64."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch_interpreter

EVALUATE = Path(os.environ["TACC_BUILD"]) / "tests" / "evaluate_ops"


def line_of(op: str, operands: list[torch.Tensor], attrs: dict) -> str:
    def text(value) -> str:
        return json.dumps(value, separators=(",", ":"))

    types = [f"f64[{','.join(map(str, x.shape))}]" for x in operands]
    return " ".join([op, *types, *(f"{name}={text(value)}" for name, value in attrs.items())])


class Cases:
    """Collects ops with what PyTorch gives for them, and then asks for all of them at once."""

    def __init__(self):
        self.requests, self.wanted = [], []

    def add(self, op: str, operands: list[torch.Tensor], attrs: dict, wanted: list[torch.Tensor]):
        values = [x.flatten().tolist() for x in operands]
        self.requests.append({"op": line_of(op, operands, attrs), "operands": values})
        self.wanted.append(wanted)
        # The oracle of imported graphs as well.
        node = torch_interpreter.Node(op, attrs=attrs)
        for ours, theirs in zip(torch_interpreter._run_node(node, operands, torch.float64), wanted):
            assert torch.allclose(ours.double(), theirs.double(), rtol=0, atol=1e-12), self.requests[-1]["op"]

    def check(self, at_least: int):
        lines = "".join(json.dumps(request) + "\n" for request in self.requests)
        run = subprocess.run([EVALUATE], input=lines, capture_output=True, text=True, check=True)
        answers = [json.loads(line) for line in run.stdout.splitlines()]
        assert len(answers) == len(self.requests) >= at_least
        for request, answer, wanted in zip(self.requests, answers, self.wanted):
            assert "error" not in answer, (request["op"], answer)
            for got, tensor in zip(answer["results"], wanted):
                got = torch.tensor(got, dtype=torch.float64)
                assert got.numel() == tensor.numel(), request["op"]
                assert (got - tensor.double().flatten()).abs().max() <= 1e-12, request["op"]


def random(*dims: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(dims, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_convolution():
    cases = Cases()
    convolutions = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    transposed = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
    for n, stride, padding, dilation, groups, bias in itertools.product(
        (1, 2, 3), (1, 2), (0, 1), (1, 2), (1, 2), (False, True)
    ):
        kernel, size = (3, 2, 1)[:n], (5, 6, 4)[:n]
        window = {"stride": [stride] * n, "padding": [padding] * n, "dilation": [dilation] * n, "groups": groups}
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        x, w, b = random(2, 4, *size), random(6, 4 // groups, *kernel, seed=2), random(6, seed=3)
        operands = [x, w, b] if bias else [x, w]
        cases.add("convolution", operands, window, [convolutions[n](*operands, **options)])
        w, b = random(4, 6 // groups, *kernel, seed=4), random(6, seed=5)
        operands = [x, w, b] if bias else [x, w]
        for output_padding in range(stride):
            y = transposed[n](*operands, **options, output_padding=output_padding)
            cases.add("convolution_transposed", operands, {**window, "size": list(y.shape[2:])}, [y])
    cases.check(at_least=200)


def test_pools():
    cases = Cases()
    for kernel, stride, padding, dilation, ceil_mode, size in itertools.product(
        (2, 3), (1, 2, 3), (0, 1), (1, 2), (False, True), (6, 7)
    ):
        x = random(2, 2, size, 5)
        window = {"kernel": [kernel, 2], "stride": [stride, 2], "padding": [padding, 0], "ceil_mode": ceil_mode}
        options = {"kernel_size": (kernel, 2), "stride": (stride, 2), "padding": (padding, 0), "ceil_mode": ceil_mode}
        y, indices = F.max_pool2d(x, **options, dilation=(dilation, 1), return_indices=True)
        cases.add("max_pool", [x], {**window, "dilation": [dilation, 1]}, [y, indices])
        if dilation > 1:
            continue
        for counted, divisor in itertools.product((False, True), (None, 3)):
            attrs = {**window, "count_include_pad": counted} | ({"divisor": divisor} if divisor else {})
            y = F.avg_pool2d(x, **options, count_include_pad=counted, divisor_override=divisor)
            cases.add("avg_pool", [x], attrs, [y])
    for n in (1, 3):
        x, dims = random(2, 2, *(7, 4, 5)[:n]), [3, 2, 2][:n]
        y, indices = (F.max_pool1d, None, F.max_pool3d)[n - 1](x, dims, stride=2, padding=1, return_indices=True)
        cases.add("max_pool", [x], {"kernel": dims, "stride": [2] * n, "padding": [1] * n}, [y, indices])
        cases.add("avg_pool", [x], {"kernel": dims}, [(F.avg_pool1d, None, F.avg_pool3d)[n - 1](x, dims)])
    for size in itertools.product((1, 2, 3, 5, 7, 9), (1, 4, 5)):
        x = random(2, 2, 7, 5)
        cases.add("avg_pool", [x], {"size": list(size)}, [F.adaptive_avg_pool2d(x, size)])
    cases.check(at_least=150)


MODES = {
    "nearest": ("nearest", "nearest", "nearest"),
    "nearest_exact": ("nearest-exact",) * 3,
    "linear": ("linear", "bilinear", "trilinear"),
    "cubic": (None, "bicubic", None),
}


@pytest.mark.parametrize("mode", MODES)
def test_interpolate(mode: str):
    cases = Cases()
    aligned = (False, True) if mode in ("linear", "cubic") else (False,)
    for n, name in enumerate(MODES[mode], start=1):
        for align_corners in aligned if name else ():
            options = {"mode": name} | ({"align_corners": align_corners} if len(aligned) > 1 else {})
            attrs = {"mode": mode} | ({"align_corners": True} if align_corners else {})
            for size in itertools.product((1, 3, 5, 7, 10, 13), (2, 5, 9)[: 1 if n == 1 else 3], (3,)):
                x = random(2, 1, *(5, 6, 2)[:n])
                y = F.interpolate(x, size=size[:n], **options)
                cases.add("interpolate", [x], {**attrs, "size": list(size[:n])}, [y])
            for scale in (0.5, 0.7, 1.3, 1.5, 2.0, 2.6):
                x = random(2, 1, *(7, 5, 4)[:n])
                y = F.interpolate(x, scale_factor=scale, recompute_scale_factor=False, **options)
                cases.add("interpolate", [x], {**attrs, "size": list(y.shape[2:]), "scales": [scale] * n}, [y])
    # Where a scale is rounded across a whole number, elements are those of images in float32, on which PyTorch's ways to
    # compute it agree (in float64 they do not).
    if mode.startswith("nearest"):
        for size, wanted in itertools.product(range(1, 40), range(1, 40)):
            x = random(1, 1, 1, size).float().double()
            y = F.interpolate(x.float(), size=(1, wanted), mode=MODES[mode][1])
            cases.add("interpolate", [x], {"mode": mode, "size": [1, wanted]}, [y])
    cases.check(at_least=24)


@pytest.mark.parametrize("spatial", [(), (5,), (3, 4)], ids=str)
def test_batch_norm(spatial: tuple[int, ...]):
    """channel_sums, batch_moments and channel_affine make PyTorch's batch norm, running statistics included."""
    x, w, b = random(4, 3, *spatial), random(3, seed=2), random(3, seed=3)
    mean, variance = random(3, seed=4), random(3, seed=5).exp()
    dims = [0, *range(2, x.dim())]
    count = [4, *spatial]
    new_mean, new_variance = mean.clone(), variance.clone()
    wanted = F.batch_norm(x, new_mean, new_variance, w, b, training=True, momentum=0.3, eps=1e-3)
    sums, products = x.sum(dims), x.square().sum(dims)
    of_batch, biased = x.mean(dims), x.var(dims, correction=0)
    cases = Cases()
    cases.add("channel_sums", [x], {}, [sums, products])
    cases.add("channel_sums", [x, x.cos()], {}, [sums, (x * x.cos()).sum(dims)])
    cases.add("batch_moments", [sums, products, mean, variance], {"extents": count, "momentum": 0.3},
              [of_batch, biased, new_mean, new_variance])
    a = w / (biased + 1e-3).sqrt()
    cases.add("channel_affine", [x, a, b - of_batch * a], {}, [wanted])
    cases.check(at_least=4)
