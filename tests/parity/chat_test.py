"""Fine-tuning on conversations: the loss of each step is transformers' with labels of -100 for what is not learned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from cases import Case
from references import build, save
from training import BUILD, SEED, pretrained, run_steps
from transformers import AutoModelForCausalLM

NUM_STEPS = 6
TALKS = [
    [
        {"role": "user", "content": f"What is {i} times {i}?"},
        {"role": "assistant", "content": f"{i * i}."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because " + "I counted. " * (i % 5)},
    ]
    for i in range(40)
]


def prepare(folder: Path, seq_len: int, *options: str) -> Path:
    (folder / "talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in TALKS))
    command = [sys.executable, "-m", "tacc", "data", "prepare", "--chat", "--train-tokenizer", "300", "--processes", "1"]
    command.append("--no-separate-documents")  # As the plain run of transformers below, which knows of no documents.
    more = ["--input", folder / "talks.jsonl", "--out", folder / "data", "--seq-len", str(seq_len)]
    subprocess.run([*command, *more, *options], check=True)
    return folder / "data"


def test_losses_are_those_of_transformers_with_masked_labels(tmp_path: Path):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 320, **sizes}
    config |= {"num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": None, "eos_token_id": 0}
    case = Case("llama", "chat", config, 3, 200)
    data = prepare(tmp_path, case.seq_len)
    save(case, build(case, seed=3), tmp_path / "model")
    steps = run_steps(case, pretrained(tmp_path / "model"), data, tmp_path / "run", "fp32", NUM_STEPS, 0.0)

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
    from data_folder import read_columns

    columns = {name: torch.from_numpy(column) for name, column in read_columns(data).items()}
    assert 0 < columns["loss_mask"].sum() < len(columns["loss_mask"]) / 2
    options = ["--data", data, "--global-batch-size", case.batch, "--seed", SEED, "--step", 1, "--num-steps", NUM_STEPS, "--json"]
    command = [str(word) for word in (BUILD / "tacc-data", "show", *options)]
    batches = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for step, shown in zip(steps, map(json.loads, batches), strict=True):
        rows = [slice(k * case.seq_len, (k + 1) * case.seq_len) for k in shown["samples"]]
        tokens, learned = (torch.stack([columns[name][row] for row in rows]) for name in ("tokens", "loss_mask"))
        assert tokens.tolist() == shown["tokens"]
        labels = torch.where(learned > 0, tokens, -100)
        assert step["target_tokens"] == (labels[:, 1:] != -100).sum()
        with torch.no_grad():
            wanted = model(input_ids=tokens, labels=labels).loss.item()
        torch.testing.assert_close(step["loss"], wanted, rtol=1e-5, atol=0)
