"""Models that start random, with and without dropout, and the hand-written graph train; a run repeats itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from cases import TRAINING_CASES, Case
from training import NUM_STEPS, ROOT, run_rank, write_data


def _changed(name: str, **config) -> Case:
    case = next(c for c in TRAINING_CASES if c.name == name)
    return dataclasses.replace(case, config=case.config | config)


CASES = {
    "normal": _changed("plain"),
    "cut normal": _changed("as OLMo-1B", init_fn="mitchell"),
    "residual and embedding dropout": _changed("as OLMo-1B", residual_dropout=0.1, embedding_dropout=0.1, init_std=0.2),
    "hidden dropout": _changed("eight heads", hidden_dropout=0.2, initializer_range=0.1),
    "dropout of attention": _changed("plain GPT-2", attn_pdrop=0.1, initializer_range=0.1),
    "sinks, biases of experts": _changed("alternating windows, yarn", initializer_range=0.1),
    "norms of 1 + weight, windows": _changed("windows and soft caps", initializer_range=0.1),
}


@pytest.mark.parametrize("name", CASES)
def test_random_weights_train(name: str, tmp_path: Path):
    case = CASES[name]
    data = write_data(case, tmp_path / "data")
    (tmp_path / "config.json").write_text(json.dumps(case.config))
    model = {"path": str(tmp_path), "weights": "WEIGHTS_RANDOM"}
    losses = run_rank(case, model, data, tmp_path / "first", "fp32", NUM_STEPS)
    assert losses[-1] < losses[0]
    assert run_rank(case, model, data, tmp_path / "again", "fp32", NUM_STEPS) == losses


def test_example_graph_trains(tmp_path: Path):
    case = Case("graph", "mlp", {"vocab_size": 8192}, 2, 32)
    data = write_data(case, tmp_path / "data")
    model = {"graph": str(ROOT / "examples/graph/mlp.graph"), "weights": "WEIGHTS_RANDOM"}
    losses = run_rank(case, model, data, tmp_path / "run", "fp32", NUM_STEPS)
    assert losses[-1] < 0.9 * losses[0]
