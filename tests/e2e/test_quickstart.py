"""What README says of `make quickstart`, at small size and by the same commands: it learns the Python standard library's sources, to one nat under the
unigram entropy and more; its losses are those of transformers; transformers loads and continues it."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from cluster import BUILD, ROOT
from shell import Shell

QUICKSTART = ROOT / "examples/quickstart"
STEPS = 150
PARITY_STEPS = 40
SEQ_LEN = 64
VOCABULARY = 1024


def run(*command) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def check_model(folder: Path, model: Path) -> subprocess.CompletedProcess:
    """As the Makefile does after the training."""
    return run(sys.executable, QUICKSTART / "check_model.py", "--build", BUILD, "--model", model, "--data", folder / "data/eval", "--seq-len", SEQ_LEN)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> Path:
    """examples/quickstart, smaller, trained."""
    folder = tmp_path_factory.mktemp("quickstart")
    prepared = run(sys.executable, "-m", "tacc", "data", "prepare", "--train-tokenizer", VOCABULARY, "--input", Path(sysconfig.get_paths()["stdlib"]) / "asyncio",
                   "--include", "*.py", "--out", folder / "data", "--eval-fraction", "0.1", "--seq-len", SEQ_LEN)
    assert prepared.returncode == 0, prepared.stderr
    config = json.loads((QUICKSTART / "model/config.json").read_text())
    config |= {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCABULARY,
               "max_position_embeddings": 2 * SEQ_LEN}
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(config))
    job = yaml.safe_load((QUICKSTART / "job.yaml").read_text())
    job["data"]["seq_len"] = SEQ_LEN
    job["train"] |= {"max_steps": STEPS, "learning_rate": 5e-3, "eval_steps": STEPS}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    shell = Shell(folder)
    shell.run("submit", "--local", "--follow", "--threads", "1", "--memory", "2GiB", folder / "job.yaml")
    shell.nothing_left()
    return folder


def test_one_nat_under_the_unigram_entropy(quickstart):
    checked = check_model(quickstart, quickstart / "runs/quickstart/hf")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert re.match(r"held-out loss \d\.\d\d nats; unigram entropy \d\.\d\d nats", checked.stdout), checked.stdout


def test_a_model_that_learned_nothing_fails_the_check(quickstart, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(quickstart / "model")).save_pretrained(tmp_path)
    checked = check_model(quickstart, tmp_path)
    assert checked.returncode == 1
    assert re.search(r"^error: .* nats under the unigram entropy of .*, wanted at least 1$", checked.stderr, re.M), checked.stderr


def test_the_pipeline_of_the_readme(quickstart):
    from transformers import pipeline

    assert 'pipeline("text-generation", "examples/quickstart/runs/quickstart/hf")' in (ROOT / "README.md").read_text()
    complete = pipeline("text-generation", str(quickstart / "runs/quickstart/hf"))
    prompt = "def read_file(path):\n"
    text = complete(prompt, max_new_tokens=20, min_new_tokens=1)[0]["generated_text"]  # It samples, and might end at once.
    assert text.startswith(prompt) and len(text) > len(prompt)


def test_losses_are_those_of_transformers(quickstart):
    """The first of them, both from the same weights, with the learning rates of the job."""
    parity = run(sys.executable, ROOT / "bench/quickstart_parity.py", "--build", BUILD, "--quickstart", quickstart, "--steps", PARITY_STEPS)
    assert parity.returncode == 0, parity.stdout + parity.stderr
    assert len(re.findall(r"^\| \d+ \|", parity.stdout, re.M)) == PARITY_STEPS


def test_a_residual_kept_in_bfloat16_learns_as_much(quickstart):
    """Three seeds, kept in float32 and in bfloat16: held-out losses lie far closer together than seeds do."""
    compared = run(sys.executable, ROOT / "bench/narrow_residual.py", "--build", BUILD, "--quickstart", quickstart, "--data", quickstart / "data", "--steps",
                   STEPS, "--seeds", 3, "--seq-len", SEQ_LEN, "--workers", 1)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert len(re.findall(r"^\| \d \| bfloat16 \|", compared.stdout, re.M)) == 3
