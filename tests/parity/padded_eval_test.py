"""Held-out loss of mixtures with their auxiliary loss, where the last batch is not full: the rows that fill it up do not
enter the router's statistics, so the loss is transformers' of the samples that there are, on any layout."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import TRAINING_CASES, Case
from references import build, loss_of, save
from training import BUILD, ROOT

sys.path.append(str(ROOT / "tests"))

from bare_ranks import Training

BATCH, SAMPLES = 4, 9  # the last batch has one sample and three rows of padding
MIXTRAL = next(c for c in TRAINING_CASES if c.name == "grouped heads" and c.family == "mixtral")
OLMOE = next(c for c in TRAINING_CASES if c.name == "plain" and c.family == "olmoe")
LAYOUTS = {
    "one rank": {"fsdp": {"size": 1}},
    "dp": {"dp": {"size": 2}, "fsdp": {"size": 1}},
    "ep": {"ep": {"size": 2, "buffer_factor": 8.0}, "fsdp": {"size": 1}},
    "tp and fsdp": {"tp": {"size": 2}, "fsdp": {"size": 2}},
    "pp": {"pp": {"size": 2, "num_micro_batches": 2}, "fsdp": {"size": 1}},
    "cp": {"cp": {"size": 2}, "fsdp": {"size": 1}},
}


def _case(case: Case) -> Case:
    """With sizes that each layout divides."""
    sizes = {"vocab_size": 96, "num_attention_heads": 4, "hidden_size": 32, "num_key_value_heads": 2, "intermediate_size": 24}
    experts = "num_experts" if "num_experts" in case.config else "num_local_experts"
    return Case(case.family, case.name, case.config | sizes | {experts: 6, "router_aux_loss_coef": 0.5}, BATCH, 16)


@pytest.fixture(scope="module", params=[MIXTRAL, OLMOE], ids=lambda case: case.family)
def inputs(request, tmp_path_factory) -> tuple[Path, Case, float]:
    """Model, data, and the loss by transformers."""
    from tacc.shards import DatasetWriter

    case, folder = _case(request.param), tmp_path_factory.mktemp("padded")
    module = build(case, seed=1)
    save(case, module, folder / "model")
    tokens = np.random.default_rng(0).integers(0, case.vocab_size, size=(SAMPLES, case.seq_len))
    writer = DatasetWriter(folder / "data", case.vocab_size)
    writer.append(tokens.flatten())
    writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=case.seq_len)
    total = count = 0.0
    with torch.no_grad():
        for batch in torch.from_numpy(tokens).split(BATCH):
            targets = torch.cat([batch[:, 1:], torch.full_like(batch[:, :1], -1)], dim=1)
            total += loss_of(module, module(batch), targets).item() * (targets >= 0).sum().item()
            count += (targets >= 0).sum().item()
    return folder, case, total / count


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_does_not_count(inputs, layout: str):
    folder, case, wanted = inputs
    dist = LAYOUTS[layout]
    world = int(np.prod([axis["size"] for axis in dist.values()]))
    data_ranks = dist.get("dp", dist.get("ep", dist["fsdp"]))["size"]
    training = Training(BUILD, folder, case.vocab_size, case.seq_len, 2 * BATCH, 1, world=world, saves=False, evaluates=True, dist=dist,
                        learning_rate=0.0, weights="pretrained", micro_batch=0 if "pp" in dist else BATCH // data_ranks)
    with training.start() as ranks:
        evals = [event for event in ranks.events() if event["event"] == "eval"]
    assert [e["target_tokens"] for e in evals] == [SAMPLES * (case.seq_len - 1)]
    assert evals[0]["eval_loss"] == pytest.approx(wanted, rel=1e-6)
