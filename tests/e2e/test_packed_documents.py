"""Rows of several documents, from `data prepare --separate-documents` to the losses of a job: those that transformers gives for each document of the rows
(or the part of it that lies in one) by itself, with AdamW on all of them together."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import BUILD, Cluster, write_job

STEPS, ROWS, SEQ_LEN = 3, 8, 64
CONFIG = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48,
          "vocab_size": 320, "max_position_embeddings": SEQ_LEN, "rms_norm_eps": 1e-6, "initializer_range": 0.2, "eos_token_id": 0}
WORDS = "once upon a time there was small daemon it moved numbers from here to and content".split()


def make_model():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model's folder, and one corpus prepared twice: documents kept apart, and not."""
    folder = tmp_path_factory.mktemp("packed")
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randrange(1, 30))) for _ in range(400)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for name, options in (("data", ["--separate-documents"]), ("mixed", [])):
        prepared = subprocess.run([sys.executable, "-m", "tacc", "data", "prepare", "--train-tokenizer", "300", "--input", folder / "corpus.jsonl",
                                   "--out", folder / name, "--seq-len", str(SEQ_LEN), *options], capture_output=True, text=True)
        assert prepared.returncode == 0, prepared.stderr
    make_model().save_pretrained(folder / "model")
    for file in (folder / "data/tokenizer").iterdir():
        (folder / "model" / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as c:
        yield c


def rows_of(data: Path, step: int) -> list[list[int]]:
    command = [BUILD / "tacc-data", "show", "--data", data, "--seq-len", SEQ_LEN, "--global-batch-size", ROWS, "--seed", 3, "--step", step, "--json"]
    return json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout)["tokens"]


def documents_of(row: list[int], eos: int) -> list[list[int]]:
    """EOS is the last token of a document."""
    ends = [i + 1 for i, token in enumerate(row) if token == eos]
    cuts = [0, *ends, *([] if row[-1] == eos else [len(row)])]
    return [row[begin:end] for begin, end in zip(cuts, cuts[1:])]


@pytest.fixture(scope="module")
def reference(folder) -> list[float]:
    import torch

    eos = json.loads((folder / "data/index.json").read_text())["tokenizer"]["eos_token_id"]
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0)
    losses = []
    for step in range(1, STEPS + 1):
        documents = [document for row in rows_of(folder / "data", step) for document in documents_of(row, eos)]
        assert len(documents) > 2 * ROWS
        documents = [document for document in documents if len(document) > 1]
        num_targets = sum(len(document) - 1 for document in documents)
        loss = sum(model(input_ids=ids, labels=ids).loss * (ids.shape[1] - 1) for ids in (torch.tensor([document]) for document in documents)) / num_targets
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def losses_of(cluster: Cluster, folder: Path, runs: Path, data: str, dist: dict) -> list[float]:
    path = write_job(runs, name="packed", workers=2, model={"path": str(folder / "model"), "weights": "pretrained"},
                     data={"path": str(folder / data), "seq_len": SEQ_LEN}, dist=None,
                     train={"max_steps": STEPS, "global_batch_size": ROWS, "lr_scheduler_type": "constant"})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dist": {"dp": {"size": 1}, "fsdp": {"size": 1}, **dist}}))
    job = cluster.submit(path)
    assert cluster.finish(job).returncode == 0, cluster.logs()
    return [p["loss"] for p in cluster.points(job)]


@pytest.mark.parametrize("axis", ["fsdp", "tp", "cp", "sp"])
def test_packed_rows_give_what_their_documents_give(cluster, folder, reference, tmp_path, axis):
    losses = losses_of(cluster, folder, tmp_path, "data", {axis: {"size": 2}})
    assert losses == pytest.approx(reference, rel=1e-5)


def test_documents_that_are_not_kept_apart_give_something_else(cluster, folder, reference, tmp_path):
    losses = losses_of(cluster, folder, tmp_path, "mixed", {"fsdp": {"size": 2}})
    assert abs(losses[0] / reference[0] - 1) > 1e-3
