"""Weights go through: what a rank loads, writes into a checkpoint and exports is, bit for bit and name for name, what the
model's folder held. One model of each family, one step with a learning rate of zero."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from cases import TRAINING_CASES, Case
from references import build, save
from safetensors.torch import load_file
from training import BUILD, pretrained, run_rank, write_data

FIRST_CASES = {case.family: case for case in reversed(TRAINING_CASES)}


@pytest.mark.parametrize("case", FIRST_CASES.values(), ids=lambda c: c.family)
def test_export_is_what_was_loaded(case: Case, tmp_path: Path):
    model, run, out = tmp_path / "model", tmp_path / "run", tmp_path / "out"
    save(case, build(case, seed=13), model)
    run_rank(case, pretrained(model), write_data(case, tmp_path / "data"), run, "fp32", 1, 0.9, learning_rate=0.0)
    checkpoint = run / "checkpoints/step-00000001.a1"
    subprocess.run([BUILD / "tacc-data", "export", "--checkpoint", checkpoint, "--model", model, "--out", out], check=True)
    wanted, got = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert set(got) == set(wanted)
    for name, weight in wanted.items():
        assert got[name].shape == weight.shape and torch.equal(got[name], weight), name
    assert (out / "config.json").read_bytes() == (model / "config.json").read_bytes()
