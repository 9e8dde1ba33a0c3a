"""Sizes that divide nothing, trained by ranks in processes of their own: three of them, a vocabulary of 50,257, dims of 1; and the overflow of
experts' buffers, as a step reports it."""

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

SEQ, VOCAB, BATCH, STEPS = 8, 50257, 6, 4
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": 10, "intermediate_size": 1,
         "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "max_position_embeddings": SEQ,
         "initializer_range": 0.3}
MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 64, "hidden_size": 16, "intermediate_size": 8,
           "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 6, "num_experts_per_tok": 2,
           "max_position_embeddings": SEQ, "initializer_range": 0.3}
LAYOUTS = {
    "fsdp": {"fsdp": {"size": 3}},
    "zero 1": {"fsdp": {"size": 3, "zero_stage": 1}},
    "zero 2": {"fsdp": {"size": 3, "zero_stage": 2}},
    "dp": {"dp": {"size": 3}, "fsdp": {"size": 1}},
}


def train(folder: Path, config: dict, dist: dict) -> list[dict]:
    if not (folder / "model").exists():
        from tacc.shards import DatasetWriter

        (folder / "model").mkdir(parents=True)
        (folder / "model/config.json").write_text(json.dumps(config))
        writer = DatasetWriter(folder / "data", config["vocab_size"])
        writer.append(np.random.default_rng(0).integers(0, config["vocab_size"], size=24 * SEQ))
        writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=SEQ)
    world = int(np.prod([axis["size"] for axis in dist.values()]))
    training = Training(BUILD, folder, config["vocab_size"], SEQ, BATCH, STEPS, world=world, saves=False, evaluates=True, dist=dist)
    with training.start() as ranks:
        return [event for event in ranks.events() if event["event"] in ("step", "eval")]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("odd")
    return folder, train(folder, LLAMA, {"fsdp": {"size": 1}})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_ranks_equal_one(one_rank, layout: str):
    folder, wanted = one_rank
    got = train(folder, LLAMA, LAYOUTS[layout])
    assert len(got) == STEPS + 1 and wanted[-2]["loss"] < wanted[0]["loss"]
    for event, one in zip(got, wanted):
        assert event.get("batch_hash") == one.get("batch_hash")
        for key in ("loss", "grad_norm", "eval_loss"):
            assert (key in event) == (key in one)
            if key in one:
                assert event[key] == pytest.approx(one[key], rel=1e-6 if key != "grad_norm" else 1e-5)


def test_steps_report_what_finds_no_place_with_an_expert(tmp_path):
    small = train(tmp_path / "small", MIXTRAL, {"ep": {"size": 2, "buffer_factor": 1.0}, "fsdp": {"size": 1}})
    large = train(tmp_path / "large", MIXTRAL, {"ep": {"size": 2, "buffer_factor": 6.0}, "fsdp": {"size": 1}})
    slots = BATCH * SEQ * MIXTRAL["num_experts_per_tok"] * MIXTRAL["num_hidden_layers"]
    assert all(0 < event["expert_overflow"] < slots for event in small if event["event"] == "step")
    assert all(event["expert_overflow"] == 0 for event in large if event["event"] == "step")
