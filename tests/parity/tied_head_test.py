"""Tied embeddings whose files have a head too: the model is the one that transformers makes of these files, and what is
exported is that model again."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
import torch
from cases import TRAINING_CASES, Case
from references import TransformersModel, build, save
from safetensors.torch import load_file, save_file
from torch import nn
from training import BUILD, batches, pretrained, reference_run, run_rank, write_data
from transformers import AutoModelForCausalLM

NUM_STEPS = 3
TIED = next(c for c in TRAINING_CASES if c.family == "qwen3" and c.name == "tied")
BLOOM = next(c for c in TRAINING_CASES if c.family == "bloom" and c.name == "eight heads")
EMBEDDING = {"qwen3": "model.embed_tokens.weight", "bloom": "transformer.word_embeddings.weight"}


def _loaded(case: Case, folder: Path) -> nn.Module:
    """What transformers makes of a folder."""
    module = TransformersModel(case.config)
    attention = module.inner.config._attn_implementation
    module.inner = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    return module.train()


def _split(folder: Path) -> None:
    """The head in a file of its own."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: "b.safetensors" if name == "lm_head.weight" else "a.safetensors" for name in tensors}
    for file in set(files.values()):
        save_file({n: t for n, t in tensors.items() if files[n] == file}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("stored", ["other head", "other head in a file of its own", "same head", "head alone"])
@pytest.mark.parametrize("case", [TIED, BLOOM], ids=lambda c: c.family)
def test_tied_as_transformers_ties(case: Case, stored: str, tmp_path: Path):
    case = dataclasses.replace(case, config=case.config | {"tie_word_embeddings": True})
    model, run, out = tmp_path / "model", tmp_path / "run", tmp_path / "out"
    save(case, build(case, seed=3), model)
    tensors = load_file(model / "model.safetensors")
    embedding = tensors[EMBEDDING[case.family]]
    differs = stored.startswith("other head")
    tensors["lm_head.weight"] = embedding * 0.7 + 0.01 if differs else embedding.clone()
    if stored == "head alone":
        del tensors[EMBEDDING[case.family]]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    if stored.endswith("of its own"):
        _split(model)
    data = write_data(case, tmp_path / "data")
    reference = _loaded(case, model)
    weights = [reference.inner.get_input_embeddings().weight, reference.inner.get_output_embeddings().weight]
    assert (weights[0] is not weights[1]) == differs
    wanted = reference_run(case, reference, batches(case, data)[:NUM_STEPS], "fp32").losses
    losses = run_rank(case, pretrained(model), data, run, "fp32", NUM_STEPS)
    assert losses == pytest.approx(wanted, rel=2e-6)
    (summary,) = tmp_path.glob("program-*/summary.json")
    notes = json.loads(summary.read_text())["notes"]
    assert len(notes) == differs and all("stored with different values" in note for note in notes)

    checkpoint = run / f"checkpoints/step-{NUM_STEPS:08}.a1"
    subprocess.run([BUILD / "tacc-data", "export", "--checkpoint", checkpoint, "--model", model, "--out", out], check=True)
    tokens = batches(case, data)[0][0]
    with torch.no_grad():
        torch.testing.assert_close(_loaded(case, out)(tokens), reference(tokens), rtol=1e-5, atol=1e-5)
