"""The memory of ranks that train an exported model with batches of a client is what the plan said, as that of the families' is (test_memory.py)."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tacc
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/e2e")]
from bare_ranks import idle_bytes, peak_bytes  # noqa: E402
from cluster import BUILD, Cluster, rank_of  # noqa: E402
from exported_training import Trained, batch_like, optimizer_for, spec  # noqa: E402
from test_memory import check  # noqa: E402
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration  # noqa: E402

# isort: split
from image_models import classified, resnet50  # noqa: E402
from torch_models import TorchModel  # noqa: E402


def resnet() -> TorchModel:
    """Of 25 million parameters, and images of 96 pixels."""
    return classified(resnet50(width=64), 96)


def bert(attention: str = "sdpa") -> TorchModel:
    """With dropout, of texts that may be padded."""
    config = BertConfig(vocab_size=8000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    module = BertForMaskedLM._from_config(config, attn_implementation=attention).train()
    ids = torch.randint(3, 64, (2, 128))
    return TorchModel(module, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})


MODELS = {"resnet": resnet, "bert": bert}


@pytest.fixture(scope="module")
def exported_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[TorchModel, tacc.Exported]]:
    folder = tmp_path_factory.mktemp("models")

    @cache
    def of(name: str) -> tuple[TorchModel, tacc.Exported]:
        model = MODELS[name]()
        return model, tacc.export_model(model.module, model.batch, folder / name, **model.options)

    return of


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_memory_is_the_prediction(tmp_path: Path, exported_of: Callable[[str], tuple[TorchModel, tacc.Exported]], name: str, workers: int):
    """Of training, and of what the model returns, once a client asks for that."""
    model, exported = exported_of(name)
    batch = batch_like(model.batch, torch.Generator().manual_seed(5))
    arrays = {i.name: batch[i.path[0]].numpy() for i in exported.inputs}
    trained = Trained(exported, optimizer_for(model.module), "fp32", [arrays], [], [], exported.outputs[0], arrays[exported.inputs[0].name], {})
    with Cluster(tmp_path / "cluster", workers=workers, memory=str(4 << 30)) as cluster, tacc.Client(cluster.address) as client:
        job = client.submit(spec(trained, "measured", tmp_path, {"fsdp": {"size": workers}}, workers))
        with tacc.Session(job) as session:
            for _ in range(2):
                session.step(arrays)
            session.micro_batch(arrays)
            session.update()
            memory = job.status().plan.memory_bytes
            check_peaks(cluster, memory["total"] - memory["idle"])
            for _ in range(4):  # Answers are kept for some time.
                session.forward(arrays, outputs=[trained.returned])
            check_peaks(cluster, memory["total"] - memory["idle"] + memory["outputs"])
            session.finish()


def planned_bytes(model: TorchModel, folder: Path) -> int:
    """Of one rank that trains the model."""
    exported = tacc.export_model(model.module, model.batch, folder)
    trained = Trained(exported, optimizer_for(model.module), "fp32", [], [], [], "", np.empty(0), {})
    (folder / "job.json").write_text(json.dumps(spec(trained, "planned", folder, {"fsdp": {"size": 1}}, 1)))
    run = subprocess.run([BUILD / "taccctl", "plan", "--local", folder / "job.json", "-o", "json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    total: int = json.loads(run.stdout.splitlines()[0])["memory"]["total_bytes"]
    return total


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padded_texts_take_what_others_do(tmp_path: Path, attention: str):
    """And the biases of their keys: no layer holds the scores of its queries, heads x keys."""
    padded = bert(attention)
    whole = TorchModel(padded.module, {name: tensor for name, tensor in padded.batch.items() if name != "attention_mask"})
    samples, layers, heads, length = 8, 4, 4, 128
    biases, scores = samples * length * 4, samples * heads * length * length * 4
    more = planned_bytes(padded, tmp_path / "padded") - planned_bytes(whole, tmp_path / "whole")
    print(f"{more} bytes more; biases of a layer {biases}, scores {scores}")
    assert more <= 2 * layers * biases < scores / 8


def test_a_trained_bias_is_of_no_sample(tmp_path: Path):
    """T5's bias of distances, beside its padding: a further layer holds no samples x heads x queries x keys, forward or backward."""
    samples, heads, length = 8, 8, 256

    def planned(layers: int) -> int:
        config = T5Config(d_model=32, d_kv=4, d_ff=32, num_layers=layers, num_heads=heads, vocab_size=32, dropout_rate=0.0, decoder_start_token_id=0)
        ids = torch.randint(0, 32, (samples, length))
        batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids}
        return planned_bytes(TorchModel(T5ForConditionalGeneration(config), batch), tmp_path / str(layers))

    more, scores = (planned(4) - planned(2)) / 2, samples * heads * length * length * 4
    print(f"{more} bytes a layer of encoder and decoder; scores of one of its three attentions {scores}")
    assert more < scores


def check_peaks(cluster: Cluster, predicted: int) -> None:
    for worker in cluster.workers.values():
        check(peak_bytes(rank_of(worker)) - idle_bytes(BUILD), predicted)
