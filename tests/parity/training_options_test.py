"""Training in fp16 with a loss scale, and with clipped gradients, as the reference implementations do it. The bounds are those of `training_comparison`."""

from __future__ import annotations

import copy
import statistics
from pathlib import Path

import pytest
import torch
from cases import SMALL_IN_FP16, TRAINING_CASES, Case
from references import build, save, stored
from training import NUM_STEPS, batches, our_run, pretrained, reference_run, run_steps, write_data
from training_comparison import QUANTITIES, distances, losses, over_draws

FP16_CASES = ("grouped heads, llama3 rope", "all multipliers")
CLIPPED = [case for case in TRAINING_CASES if (case.family, case.name) in (("llama", "grouped heads, llama3 rope"), ("qwen2", "tied"), ("olmoe", "plain"))]


@pytest.mark.parametrize(
    "case", [case for case in TRAINING_CASES if case.name in FP16_CASES] + SMALL_IN_FP16, ids=lambda c: f"{c.family}: {c.name}"
)
def test_training_in_fp16(case: Case, tmp_path: Path):
    data, model = write_data(case, tmp_path / "data"), tmp_path / "model"
    steps = batches(case, data)
    draws = []
    for seed in range(3):
        module = build(case, seed)
        save(case, module, model)
        reference = {p: reference_run(case, copy.deepcopy(module), steps, p) for p in ("fp32", "fp16")}
        ours = {p: our_run(case, stored(module), model, data, tmp_path / f"{p}-{seed}", p) for p in ("fp32", "fp16")}
        draws.append((distances(ours, "fp16"), distances(reference, "fp16")))
    failures = []
    for name in QUANTITIES:
        distance, own = over_draws(case, draws, name)
        print(f"{name}: {distance:.2e} / {own:.2e}")
        if distance > 1.5 * own:
            failures.append(f"fp16 {name}: {distance} > 1.5 x {own}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("case", CLIPPED, ids=lambda c: f"{c.family}: {c.name}")
def test_training_with_clipping(case: Case, tmp_path: Path):
    """Against torch.nn.utils.clip_grad_norm_, with a bound that every step's gradient exceeds. As in bf16, the root of the mean square over draws of the
    weights: how near one draw's f32 run happens to come to the exact one says little."""
    data = write_data(case, tmp_path / "data")
    steps = batches(case, data)
    by_quantity = {quantity: [] for quantity in ("loss", "grad_norm")}  # Of each draw: ours, the reference's, the length.
    for seed in range(3):
        folder = tmp_path / f"draw-{seed}"
        module = build(case, seed)
        save(case, module, folder / "model")
        largest = reference_run(case, copy.deepcopy(module), steps, "fp64", max_grad_norm=1e9)
        bound = 0.3 * min(largest.norms)
        exact, own = (reference_run(case, copy.deepcopy(module), steps, p, bound) for p in ("fp64", "fp32"))
        assert min(exact.norms) > bound
        assert (losses(largest) - losses(exact)).norm() > 100 * 1e-7 * losses(exact).norm(), "the bound changes nothing"
        ours = run_steps(case, pretrained(folder / "model"), data, folder / "run", "fp32", NUM_STEPS, max_grad_norm=bound)
        for quantity, of in (("loss", lambda run: run.losses), ("grad_norm", lambda run: run.norms)):
            wanted = torch.tensor(of(exact), dtype=torch.float64)
            got = torch.tensor([event[quantity] for event in ours], dtype=torch.float64)
            reference = torch.tensor(of(own), dtype=torch.float64)
            by_quantity[quantity].append([x.norm().item() for x in (got - wanted, reference - wanted, wanted)])
    for quantity, of_draws in by_quantity.items():
        got, own, length = (statistics.fmean(x * x for x in column) ** 0.5 for column in zip(*of_draws))
        print(f"{case.family} {quantity}: {got / length:.2e} / {own / length:.2e}")
        assert got <= 2 * own + 1e-7 * length, quantity
