"""Dropout in processes of their own: a mask depends on the step, the sample and the place, so the layout changes no loss. Stages of a pipeline
that have no tokens know their samples by number alone."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TACC_BUILD", ROOT / "build"))
sys.path += [str(ROOT / "tests"), str(ROOT / "client/python")]

from bare_ranks import Training  # noqa: E402

SEQ, VOCAB, BATCH, STEPS = 16, 61, 8, 4
BLOOM = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "vocab_size": VOCAB, "hidden_size": 32, "n_layer": 4, "n_head": 4,
         "hidden_dropout": 0.15, "initializer_range": 0.1}
OLMO = {"model_type": "hf_olmo", "architectures": ["OLMoForCausalLM"], "vocab_size": VOCAB, "d_model": 32, "n_layers": 4, "n_heads": 4,
        "mlp_hidden_size": 64, "max_sequence_length": SEQ, "rope": True, "residual_dropout": 0.1, "embedding_dropout": 0.1,
        "attention_dropout": 0.0, "weight_tying": False, "init_std": 0.1}
# Of attention's probabilities too, whose element goes by head and two positions.
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB, "n_embd": 32, "n_layer": 4, "n_head": 4,
        "n_positions": SEQ, "attn_pdrop": 0.2, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "initializer_range": 0.1}
# Grouped heads and windows; dropped nowhere else.
STARCODER2 = {"model_type": "starcoder2", "architectures": ["Starcoder2ForCausalLM"], "vocab_size": VOCAB, "hidden_size": 32,
              "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
              "max_position_embeddings": SEQ, "sliding_window": 5, "attention_dropout": 0.3, "initializer_range": 0.1}
MODELS = {"bloom": BLOOM, "hf_olmo": OLMO, "gpt2": GPT2, "starcoder2": STARCODER2}
LAYOUTS = {
    "1f1b": {"pp": {"size": 2, "num_micro_batches": 4}, "fsdp": {"size": 1}},
    "stages without tokens and targets": {"pp": {"size": 4, "num_micro_batches": 4}, "fsdp": {"size": 1}},
    "interleaved": {"pp": {"size": 2, "schedule": "PIPELINE_SCHEDULE_INTERLEAVED", "num_micro_batches": 4}, "fsdp": {"size": 1}},
    "zero_bubble of fsdp": {"pp": {"size": 2, "schedule": "PIPELINE_SCHEDULE_ZERO_BUBBLE", "num_micro_batches": 2}, "fsdp": {"size": 2}},
    "ring": {"pp": {"size": 2, "num_micro_batches": 2}, "cp": {"size": 2}, "fsdp": {"size": 1}},
    "tp": {"tp": {"size": 2}, "fsdp": {"size": 1}},
    "ulysses": {"sp": {"size": 2}, "fsdp": {"size": 2}},
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    from tacc.shards import DatasetWriter

    folder = tmp_path_factory.mktemp("dropout")
    writer = DatasetWriter(folder / "data", VOCAB)
    writer.append(np.random.default_rng(0).integers(0, VOCAB, size=64 * SEQ))
    writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=SEQ)
    return folder


def train(inputs: Path, model: str, dist: dict) -> list[dict]:
    folder = inputs / model
    if not folder.exists():
        (folder / "model").mkdir(parents=True)
        (folder / "model/config.json").write_text(json.dumps(MODELS[model]))
        (folder / "data").symlink_to(inputs / "data")
    world = int(np.prod([axis["size"] for axis in dist.values()]))
    training = Training(BUILD, folder, VOCAB, SEQ, BATCH, STEPS, world=world, saves=False, evaluates=True, dist=dist)
    with training.start() as ranks:
        return [event for event in ranks.events() if event["event"] in ("step", "eval")]


@pytest.fixture(scope="module")
def one_rank(inputs) -> dict[str, list[dict]]:
    return {model: train(inputs, model, {"fsdp": {"size": 1}}) for model in MODELS}


def test_dropout_changes_the_losses_of_training_alone(inputs, one_rank, tmp_path):
    (tmp_path / "data").symlink_to(inputs / "data")
    (tmp_path / "model").mkdir()
    for model, rate in (("bloom", "hidden_dropout"), ("starcoder2", "attention_dropout")):
        (tmp_path / "model/config.json").write_text(json.dumps({**MODELS[model], rate: 0.0}))
        with Training(BUILD, tmp_path, VOCAB, SEQ, BATCH, 1, saves=False).start() as ranks:
            without = next(event for event in ranks.events() if event["event"] == "step")
        assert abs(without["loss"] / one_rank[model][0]["loss"] - 1) > 1e-4


CASES = [("bloom", layout) for layout in LAYOUTS] + [("hf_olmo", "stages without tokens and targets")]
CASES += [("gpt2", layout) for layout in ("zero_bubble of fsdp", "ring", "tp", "ulysses")]
CASES += [("starcoder2", layout) for layout in ("interleaved", "ring", "tp", "ulysses")]


@pytest.mark.parametrize("model, layout", CASES)
def test_layouts_equal_one_rank(inputs, one_rank, model: str, layout: str):
    got = train(inputs, model, LAYOUTS[layout])
    tolerance = 1e-5 if "cp" in LAYOUTS[layout] else 1e-6  # a ring sums attention in another order
    assert [e["event"] for e in got] == [e["event"] for e in one_rank[model]] and len(got) == STEPS + 1
    for event, wanted in zip(got, one_rank[model]):
        assert event.get("batch_hash") == wanted.get("batch_hash")
        key = "loss" if event["event"] == "step" else "eval_loss"
        assert event[key] == pytest.approx(wanted[key], rel=tolerance)
