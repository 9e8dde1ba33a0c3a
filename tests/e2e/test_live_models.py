"""Exported PyTorch models with inputs of their own, which a session drives: losses of a plain PyTorch loop, in every layout, and what they return."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tacc
import torch
from cluster import Cluster
from torch import nn

STEPS, SAMPLES = 4, 8
LEARNING_RATE = 1e-2
# Products are rounded in fp32 in another order than PyTorch's.
ROUNDING = 2e-5
LAYOUTS = {
    "one": {},
    "fsdp": {"fsdp": {"size": 2}},
    "dp": {"dp": {"size": 2}, "fsdp": {"size": 1}},
    "tp": {"fsdp": {"size": 1}, "tp": {"size": 2}},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster, tacc.Client(cluster.address) as client:
        yield client


def image_model() -> tuple[nn.Module, list[dict[str, Any]], dict[str, Any]]:
    """A ViT that classifies: pixels in f32, a label a sample."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=16, patch_size=4, num_labels=5, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                       hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2)
    batches = [{"pixel_values": torch.randn(SAMPLES, 3, 16, 16), "labels": torch.randint(0, 5, (SAMPLES,))} for _ in range(STEPS)]
    return ViTForImageClassification(config), batches, {}


def text_model() -> tuple[nn.Module, list[dict[str, Any]], dict[str, Any]]:
    """A BERT that classifies texts of which some are padded."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16,
                        num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2)
    batches = []
    for _ in range(STEPS):
        mask = (torch.arange(10)[None] < torch.randint(3, 11, (SAMPLES, 1))).long()
        batches.append({"input_ids": torch.randint(0, 64, (SAMPLES, 10)), "attention_mask": mask, "labels": torch.randint(0, 3, (SAMPLES,))})
    return BertForSequenceClassification(config), batches, {"seq_len": 10}


MODELS = {"image": image_model, "text": text_model}


@pytest.fixture(scope="module", params=MODELS)
def trained(request, tmp_path_factory) -> tuple[Path, list[dict[str, np.ndarray]], list[float], np.ndarray, dict[str, Any]]:
    """An exported model, batches of it, and what a plain PyTorch loop gives for them: the losses, and the logits of the first batch afterwards."""
    torch.manual_seed(5)
    model, batches, data = MODELS[request.param]()
    folder = tmp_path_factory.mktemp(request.param)
    exported = tacc.export_model(model.train(), batches[0], folder)
    assert exported.coverage.share == 1.0
    decayed = [{"params": list(model.parameters()), "weight_decay": 0.0}]
    optimizer, losses = torch.optim.AdamW(decayed, lr=LEARNING_RATE), []
    for batch in batches:
        optimizer.zero_grad()
        out = model(**batch)
        out.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(out.loss.item())
    with torch.no_grad():
        logits = model.eval()(**batches[0]).logits.numpy()
    return folder, [{name: value.numpy() for name, value in batch.items()} for batch in batches], losses, logits, data


def spec(folder: Path, runs: Path, layout: str, data: dict[str, Any], **train: Any) -> dict[str, Any]:
    return {
        "name": "live-model", "model": {"graph": str(folder / "model.graph")}, "data": {"client": {}, **data},
        "train": {"max_steps": STEPS, "global_batch_size": SAMPLES, "learning_rate": LEARNING_RATE, "lr_scheduler_type": "constant", **train},
        "compute": {"bf16": False}, "dist": LAYOUTS[layout], "checkpoint": {"dir": str(runs / layout)},
        "resources": {"workers": 1 if layout == "one" else 2},
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trains_as_a_pytorch_loop(client, trained, tmp_path, layout):
    folder, batches, losses, logits, data = trained
    job = client.submit(spec(folder, tmp_path, layout, data, per_device_train_batch_size=2))
    with tacc.Session(job) as session:
        got = [session.step(batch).loss for batch in batches]
        assert got == pytest.approx(losses, rel=ROUNDING)
        found = session.forward(batches[0], outputs=["logits"]).outputs["logits"]
        assert found.shape == logits.shape
        np.testing.assert_allclose(found, logits, atol=1e-3 * np.abs(logits).max())
        with pytest.raises(tacc.InputError, match="the model returns no 'logit'; it returns 'logits'"):
            session.forward(batches[0], outputs=["logit"])
        session.finish()
    assert job.wait(progress=False).phase == "finished"


def test_a_batch_must_be_that_of_the_model(client, trained, tmp_path):
    folder, batches, _, _, data = trained
    job = client.submit(spec(folder, tmp_path, "one", data))
    with tacc.Session(job) as session:
        name = next(iter(batches[0]))
        with pytest.raises(tacc.InputError, match=f"the batch has no '{name}'"):
            session.step({key: value for key, value in batches[0].items() if key != name})
        with pytest.raises(tacc.InputError, match=f"'{name}' has the shape"):
            session.step({**batches[0], name: batches[0][name][:, 1:]})
        assert np.isfinite(session.step(batches[0]).loss)  # Nothing was trained on meanwhile.
        assert session.step_number == 1
    job.cancel(now=True)


def test_a_ring_returns_no_outputs(client, tmp_path):
    """Its ranks have the tokens in another order; with Ulysses they have not."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=64, initializer_range=0.1, bos_token_id=None, eos_token_id=0, pad_token_id=1)
    model, tokens = LlamaForCausalLM(config), torch.randint(0, 97, (SAMPLES, 16))
    tacc.export_model(model, {"input_ids": tokens}, tmp_path / "llama", tokens="input_ids")
    with torch.no_grad():
        logits = model.eval()(tokens).logits.numpy()
    batch = {"tokens": tokens.numpy(), "targets": np.pad(tokens.numpy()[:, 1:], ((0, 0), (0, 1)), constant_values=-1)}
    cp = {"fsdp": {"size": 1}, "cp": {"size": 2}}
    for name, dist in (("ring", cp), ("ulysses", {**cp, "sp": {"size": 2}}), ("tp", {"fsdp": {"size": 1}, "tp": {"size": 2}})):
        job = client.submit({**spec(tmp_path / "llama", tmp_path / name, "fsdp", {"seq_len": 16}), "name": name, "dist": dist})
        with tacc.Session(job) as session:
            if name == "ring":
                with pytest.raises(tacc.TaccError, match=r"in a ring \(dist.cp\) ranks have the tokens in another order"):
                    session.forward(batch, outputs=["logits"])
                assert np.isfinite(session.forward(batch).loss)
            else:
                np.testing.assert_allclose(session.forward(batch, outputs=["logits"]).outputs["logits"], logits, atol=1e-5)
            session.finish()
        job.wait(progress=False)


class Bits(nn.Module):
    """Its loss is the weight, if all that it draws are 0 or 1 and some of each."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        bits = torch.bernoulli(x, self.probability)
        is_bit = (bits == 0) | (bits == 1)
        is_mixed = (bits.sum() > 0) & (bits.sum() < bits.numel())
        return {"loss": (self.weight * is_bit * is_mixed).mean()}


@pytest.mark.parametrize("probability", [0.12, 0.3, 0.42, 0.58, 0.84])  # times its reciprocal not 1 in fp32, but 0.3
def test_what_is_drawn_is_0_or_1_to_the_bit(client, tmp_path, probability):
    batch = {"x": torch.zeros(SAMPLES, 64)}
    tacc.export_model(Bits(probability), batch, tmp_path)
    with tacc.Session(client.submit(spec(tmp_path, tmp_path / "runs", "one", {}, max_steps=1))) as session:
        assert session.step({"x": batch["x"].numpy()}).loss == 1.0
        session.finish()
