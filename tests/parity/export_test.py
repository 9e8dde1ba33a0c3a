"""Weights go through: what a rank loads, writes into a checkpoint and exports is, bit for bit and name for name, what the
model's folder held. One model of each family, one step with a learning rate of zero."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from cases import TRAINING_CASES, Case
from references import build, make_tokens, save
from safetensors.torch import load_file
from training import BUILD, pretrained, run_rank, write_data

FIRST_CASES = {case.family: case for case in reversed(TRAINING_CASES)}


@pytest.mark.parametrize("case", FIRST_CASES.values(), ids=lambda c: c.family)
def test_export_is_what_was_loaded(case: Case, tmp_path: Path):
    model, run, out = tmp_path / "model", tmp_path / "run", tmp_path / "out"
    save(case, build(case, seed=13), model)
    run_rank(case, pretrained(model), write_data(case, tmp_path / "data"), run, "fp32", 1, learning_rate=0.0)
    checkpoint = run / "checkpoints/step-00000001.a1"
    subprocess.run([BUILD / "tacc-data", "export", "--checkpoint", checkpoint, "--model", model, "--out", out], check=True)
    wanted, got = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert set(got) == set(wanted)
    for name, weight in wanted.items():
        assert got[name].shape == weight.shape and torch.equal(got[name], weight), name
    assert (out / "config.json").read_bytes() == (model / "config.json").read_bytes()


OWN_REFERENCES = ("hf_olmo", "chatglm", "baichuan")  # transformers has no class of theirs


@pytest.mark.parametrize("case", [c for c in FIRST_CASES.values() if c.family not in OWN_REFERENCES], ids=lambda c: c.family)
def test_transformers_loads_it(case: Case, tmp_path: Path):
    """Whose files have some weights under other names than its classes do, and a mixture's experts in other tensors."""
    from transformers import AutoModelForCausalLM

    module = build(case, seed=13)
    save(case, module, tmp_path)
    kernels = {"attn_implementation": module.inner.config._attn_implementation}
    kernels |= {"experts_implementation": "eager"} if case.has_experts else {}
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True, **kernels)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    (tokens, _), = make_tokens(case, seed=7)
    with torch.no_grad():
        assert torch.equal(loaded(tokens, use_cache=False).logits, module(tokens))
