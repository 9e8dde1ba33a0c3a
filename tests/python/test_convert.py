"""`python -m tacc convert`."""

import contextlib
import io
import json
import pickle
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tacc.__main__ import main


def run(*args):
    """In this process: importing PyTorch for each case takes seconds."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["convert", *map(str, args)])
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def fails(*args):
    result = run(*args)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.startswith("error: ")
    return result.stderr


def model_dir(path, state=None, config=None):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **(config or {})}))
    (path / "tokenizer.model").write_bytes(b"\0tokens")
    if state is not None:
        torch.save(state, path / "pytorch_model.bin")
    return path


def same(got, want):
    assert set(got) == set(want)
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape
        assert torch.equal(
            got[name].contiguous().view(-1).view(torch.uint8), tensor.contiguous().view(-1).view(torch.uint8)
        ), name


@pytest.mark.parametrize("zip_format", [True, False])
def test_single_file(tmp_path, zip_format):
    base = torch.randn(6, 4)
    state = {
        "f32": torch.randn(3, 5),
        "bf16": torch.randn(7).bfloat16(),
        "i64": torch.arange(4),
        "scalar": torch.tensor(float("nan")),
        "empty": torch.empty(0, 3),
        "transposed": base.t(),
        "row_0": base[0],
        "rows": base[:3],
    }
    source = model_dir(tmp_path / "in")
    torch.save(state, source / "pytorch_model.bin", _use_new_zipfile_serialization=zip_format)
    torch.save({"lr": 1}, source / "training_args.bin")
    result = run(source, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    same(load_file(tmp_path / "out" / "model.safetensors"), state)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.model",
    ]
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == b"\0tokens"


def test_sharded_with_index(tmp_path):
    source = model_dir(tmp_path / "in")
    parts = [{"a": torch.randn(4), "b": torch.randn(2, 2)}, {"c": torch.randn(3)}]
    weight_map = {}
    for i, part in enumerate(parts):
        name = f"pytorch_model-0000{i + 1}-of-00002.bin"
        torch.save(part, source / name)
        weight_map |= {tensor: name for tensor in part}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    subprocess.run([sys.executable, "-m", "tacc", "convert", source, "--out", tmp_path / "out"], check=True)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * (4 + 4 + 3)
    assert not list((tmp_path / "out").glob("*.bin*"))
    got = {name: load_file(tmp_path / "out" / file)[name] for name, file in index["weight_map"].items()}
    same(got, parts[0] | parts[1])

    weight_map["d"] = "pytorch_model-00001-of-00002.bin"
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "names tensors that its files do not hold: d" in fails(source, "--out", tmp_path / "out2")
    (source / "pytorch_model-00002-of-00002.bin").unlink()
    assert "names files that are not there: pytorch_model-00002-of-00002.bin" in fails(
        source, "--out", tmp_path / "out2"
    )
    assert not (tmp_path / "out2").exists()


@pytest.mark.parametrize("head_first", [True, False])
def test_tied_weights(tmp_path, head_first):
    shared = torch.randn(8, 4)
    names = ["lm_head.weight", "model.embed_tokens.weight"]
    state = {name: shared for name in (names if head_first else reversed(names))}
    source = model_dir(tmp_path / "untied", state)
    assert run(source, "--out", tmp_path / "untied.out").returncode == 0
    same(load_file(tmp_path / "untied.out" / "model.safetensors"), state)

    source = model_dir(tmp_path / "tied", state, {"tie_word_embeddings": True})
    assert run(source, "--out", tmp_path / "tied.out").returncode == 0
    same(load_file(tmp_path / "tied.out" / "model.safetensors"), {"model.embed_tokens.weight": shared})
    with safe_open(tmp_path / "tied.out" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "lm_head.weight": "model.embed_tokens.weight"}


def test_transformers_model_keeps_its_logits(tmp_path):
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    for tied in (True, False):
        config = LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            vocab_size=50,
            tie_word_embeddings=tied,
        )
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        source = tmp_path / f"in-{tied}"
        source.mkdir()
        config.save_pretrained(source)
        torch.save(model.state_dict(), source / "pytorch_model.bin")
        assert run(source, "--out", tmp_path / f"out-{tied}").returncode == 0
        back = AutoModelForCausalLM.from_pretrained(tmp_path / f"out-{tied}").eval()
        ids = torch.arange(10)[None]
        assert torch.equal(back(ids).logits, model(ids).logits)


def test_a_pickle_that_runs_code_is_not_read(tmp_path):
    marker = tmp_path / "ran"

    class Attack:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    source = model_dir(tmp_path / "in", {"w": Attack()})
    assert "holds more than weights, so it is not read" in fails(source, "--out", tmp_path / "out")
    (source / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Attack()}))
    fails(source, "--out", tmp_path / "out")
    assert not marker.exists() and not (tmp_path / "out").exists()


def test_bad_input_is_named(tmp_path):
    out = tmp_path / "out"
    assert "no such folder" in fails(tmp_path / "none", "--out", out)
    source = model_dir(tmp_path / "in")
    assert "has neither pytorch_model.bin nor pytorch_model.bin.index.json" in fails(source, "--out", out)
    for state, want in (
        ([1, 2], "holds a list, not a dictionary of tensors"),
        ({"w": torch.ones(2), "step": 3}, "entry 'step' is a int, not a tensor"),
        ({"w": torch.eye(3).to_sparse()}, "is sparse"),
    ):
        torch.save(state, source / "pytorch_model.bin")
        assert want in fails(source, "--out", out)
    whole = (
        torch.save({"w": torch.ones(1000)}, source / "pytorch_model.bin"),
        (source / "pytorch_model.bin").read_bytes(),
    )[1]
    for damaged in (whole[: len(whole) // 2], b"", b"not weights at all"):
        (source / "pytorch_model.bin").write_bytes(damaged)
        assert "pytorch_model.bin: " in fails(source, "--out", out)
    (source / "pytorch_model.bin").write_bytes(whole)
    (source / "config.json").unlink()
    assert "has no config.json" in fails(source, "--out", out)
    (source / "model.safetensors").write_bytes(b"")
    assert "already has safetensors" in fails(source, "--out", out)
    assert not out.exists()
