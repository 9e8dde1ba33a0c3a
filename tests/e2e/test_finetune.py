"""Fine-tuning a pretrained model by taccctl: adapters as peft reads them, merged models, parameters that are frozen; resumes and kills."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cluster import ROOT, TINY_MODEL, Cluster, write_data, write_job
from safetensors.torch import load_file, save_file

LORA = {"target_modules": ["q_proj", "o_proj", "up_proj"], "r": 4, "lora_alpha": 16, "lora_dropout": 0.1}
TRAIN = {"lr_scheduler_type": "constant", "learning_rate": 0.02, "max_steps": 12}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as c:
        yield c


def write_base(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=64, initializer_range=0.1, bos_token_id=None, eos_token_id=0, pad_token_id=1)
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "tiny-llama")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("text") / "data")


def lora_job(folder: Path, base: Path, data: Path, *, train: dict | None = None, eval_path: Path | None = None, **changes) -> Path:
    section = {"path": str(data)} | ({"eval_path": str(eval_path)} if eval_path else {})
    return write_job(folder, model={"path": str(base), "weights": "pretrained"}, data=section, train={**TRAIN, "lora": LORA, **(train or {})}, **changes)


def train(cluster: Cluster, path: Path) -> str:
    """The id of the job, which has ended well."""
    job = cluster.submit(path)
    done = cluster.finish(job)
    assert done.returncode == 0, done.stdout + done.stderr
    return job


def exported(cluster: Cluster, job: str) -> Path:
    return Path(cluster.json("get", job)["exported_path"])


def last_checkpoint(cluster: Cluster, job: str) -> Path:
    view = cluster.json("get", job)
    return Path(view["checkpoint_dir"]) / view["checkpoints"][-1]["name"]


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def same_losses(got: list[dict], want: list[dict]) -> None:
    assert [(p["step"], p["batch_hash"]) for p in got] == [(p["step"], p["batch_hash"]) for p in want]
    assert [p["loss"] for p in got] == pytest.approx([p["loss"] for p in want], rel=1e-6)


@pytest.fixture(scope="module")
def lora(cluster, base, data, tmp_path_factory):
    """A training of adapters on two workers."""
    return train(cluster, lora_job(tmp_path_factory.mktemp("lora"), base, data, name="lora"))


def logits(model) -> torch.Tensor:
    tokens = torch.randint(2, 97, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens).logits.double()


def test_peft_loads_the_adapter_and_the_merged_model_is_the_same(cluster, base, lora, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    before = digests(base)
    points = cluster.points(lora)
    assert points[-1]["loss"] < 0.9 * points[0]["loss"]
    folder = exported(cluster, lora)
    config = json.loads((folder / "adapter_config.json").read_text())
    wanted = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 16, "lora_dropout": 0.1, "base_model_name_or_path": str(base)}
    assert wanted.items() <= config.items()
    assert config["target_modules"] == ["o_proj", "q_proj", "up_proj"]
    assert (folder / "tokenizer.json").exists() and not (folder / "config.json").exists()

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    loaded = {name.replace(".default", ""): p for name, p in model.named_parameters() if "lora_" in name}
    ours = load_file(folder / "adapter_model.safetensors")
    assert set(ours) == set(loaded) and all(torch.equal(ours[name], loaded[name]) for name in ours)
    assert (logits(model) - logits(AutoModelForCausalLM.from_pretrained(base))).norm() > 0.1

    sampled = subprocess.run([sys.executable, "-m", "tacc", "sample", str(folder), "--max-new-tokens", "5"], capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": str(ROOT / "client/python")})
    assert sampled.returncode == 0 and sampled.stdout.strip(), sampled.stderr
    merged = tmp_path / "merged"
    assert cluster.ctl("export", lora, "--merge", "--out", merged).stdout.strip() == str(merged)
    whole, info = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    assert not any(info.values()), info
    assert (logits(whole) - logits(model)).norm() <= 1e-6 * logits(model).norm()
    saved, original = load_file(merged / "model.safetensors"), load_file(base / "model.safetensors")
    changed = {name for name in original if not torch.equal(saved[name], original[name])}
    assert changed == {name for name in original if any(f".{target}.weight" in name for target in LORA["target_modules"])}
    assert digests(base) == before
    assert not cluster.warnings(lora)


def test_matrices_that_lie_transposed_in_the_files(cluster, data, tmp_path):
    """GPT-2's are [in, out], one of them square: peft's fan_in_fan_out. By default its fused q, k and v are adapted."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.1}
    GPT2LMHeadModel(GPT2Config(**shape, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0, bos_token_id=None, eos_token_id=0)).save_pretrained(tmp_path / "gpt2")
    for name, lora, targets in (("default", {"r": 4}, ["c_attn"]), ("all", {"r": 4, "target_modules": "all-linear"}, ["c_attn", "c_fc", "c_proj"])):
        job = train(cluster, lora_job(tmp_path / name, tmp_path / "gpt2", data, name=f"gpt2-{name}", train={"lora": lora, "learning_rate": 0.05}))
        points = cluster.points(job)
        assert points[-1]["loss"] < 0.98 * points[0]["loss"]
        config = json.loads((exported(cluster, job) / "adapter_config.json").read_text())
        assert config["target_modules"] == targets and config["fan_in_fan_out"] is True
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2"), exported(cluster, job))
        cluster.ctl("export", job, "--merge", "--out", tmp_path / name / "merged")
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / name / "merged")
        assert (logits(whole) - logits(model)).norm() <= 1e-6 * logits(model).norm()
        assert (logits(whole) - logits(AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2"))).norm() > 0.01


def test_the_loss_of_the_exported_adapter_is_the_held_out_one(cluster, base, tmp_path):
    import numpy as np
    from peft import PeftModel
    from test_train import held_out_loss
    from transformers import AutoModelForCausalLM

    data, held_out = write_data(tmp_path / "data"), write_data(tmp_path / "held_out", num_tokens=1024, seed=5)
    job = train(cluster, lora_job(tmp_path, base, data, name="held", eval_path=held_out))
    tokens = np.resize(np.random.default_rng(5).integers(2, 97, size=256), 1024)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), exported(cluster, job)).eval()
    lines = map(json.loads, cluster.ctl("watch", job, "-o", "json").stdout.splitlines())
    evaluation = [line for line in lines if "eval_loss" in line][-1]
    assert held_out_loss(model, tokens, 16) == pytest.approx(evaluation["eval_loss"], rel=1e-5)


def test_peft_loads_modules_that_were_trained_whole(cluster, base, data, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    section = {"lora": {"use_rslora": True, "modules_to_save": ["lm_head", "norm"]}, "max_steps": 4}
    job = train(cluster, lora_job(tmp_path, base, data, name="whole", train=section))
    adapter, original = load_file(exported(cluster, job) / "adapter_model.safetensors"), load_file(base / "model.safetensors")
    assert not torch.equal(adapter["base_model.model.lm_head.weight"], original["lm_head.weight"])
    assert sum("lora_A" in name for name in adapter) == 4 and len(adapter) == 10  # q_proj and v_proj of two layers
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), exported(cluster, job))
    cluster.ctl("export", job, "--merge", "--out", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (logits(merged) - logits(model)).norm() <= 1e-6 * logits(model).norm()
    assert torch.equal(merged.lm_head.weight, adapter["base_model.model.lm_head.weight"])


def test_a_checkpoint_holds_adapters_and_their_moments(cluster, lora):
    tensors = {}
    for file in last_checkpoint(cluster, lora).glob("*.safetensors"):
        tensors |= load_file(file)
    assert len(tensors) == 3 * 2 * 2 * 3  # modules, layers, A and B, weight and two moments
    assert all(".lora_A.weight" in name or ".lora_B.weight" in name for name in tensors)
    plan = cluster.json("get", lora)["plan"]
    adapters = 4 * sum(t.numel() for name, t in tensors.items() if name.startswith("weights/"))
    # Gradients of half of them on each rank, or whole ones.
    assert plan["memory_bytes"]["optimizer"] == adapters
    assert plan["memory_bytes"]["gradients"] <= adapters


def test_any_number_of_ranks_goes_on(cluster, base, data, lora, tmp_path):
    for name, before, after in [("two-one", 2, 1), ("one-two", 1, 2)]:
        folder, checkpoint = tmp_path / name, {"dir": str(tmp_path / name / "runs"), "save_steps": 5}
        jobs = [train(cluster, lora_job(folder, base, data, name=name, workers=workers, train={"max_steps": steps}, checkpoint=checkpoint))
                for steps, workers in [(7, before), (12, after)]]
        same_losses(cluster.points(jobs[0]) + cluster.points(jobs[1]), cluster.points(lora))


def test_killed_ranks_go_on_to_the_same_bits(cluster, base, data, tmp_path):
    train_section = {"max_steps": 200, "learning_rate": 0.001, "deterministic": True}

    def job(name: str) -> Path:
        return lora_job(tmp_path / name, base, data, name=name, train=train_section, checkpoint={"save_steps": 20}, max_restarts=100)

    calm, killed = cluster.submit(job("calm")), None
    cluster.finish(calm)
    killed = cluster.submit(job("killed"))
    cluster.wait(lambda: int(cluster.json("get", killed).get("step", 0)) >= 50, "step 50")
    worker = cluster.workers["w0"].popen.pid
    for pid in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    cluster.finish(killed)
    assert len(cluster.json("get", killed)["restarts"]) == 1
    names = ["adapter_config.json", "adapter_model.safetensors"]
    assert [digests(exported(cluster, killed))[n] for n in names] == [digests(exported(cluster, calm))[n] for n in names]


def test_another_base_is_named(cluster, data, tmp_path):
    base = write_base(tmp_path / "base")
    checkpoint = {"dir": str(tmp_path / "runs")}
    first = train(cluster, lora_job(tmp_path, base, data, name="changed", train={"max_steps": 4}, checkpoint=checkpoint))
    checkpoint_folder = last_checkpoint(cluster, first)
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"] += 0.5
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    again = cluster.submit(lora_job(tmp_path, base, data, name="changed", checkpoint=checkpoint))
    cluster.finish(again)
    assert "the model's initial weights were" in str(cluster.events(again)) and str(base) in str(cluster.events(again))
    merge = cluster.ctl("export", checkpoint_folder, "--merge", "--out", tmp_path / "merged", check=False)
    assert merge.returncode == 2 and f"{base}: its weights are not those that" in merge.stderr
    assert not (tmp_path / "merged").exists()
    assert cluster.ctl("export", checkpoint_folder, "--out", tmp_path / "adapter").returncode == 0  # needs no base


def test_a_base_that_changes_under_a_job_is_waited_for(cluster, data, tmp_path):
    base = write_base(tmp_path / "base")
    file, other = base / "model.safetensors", write_base(tmp_path / "other", seed=1) / "model.safetensors"
    good = file.read_bytes()
    section = {"max_steps": 400, "learning_rate": 0.001}
    job = cluster.submit(lora_job(tmp_path, base, data, name="moved", train=section, checkpoint={"save_steps": 20}, max_restarts=100))
    cluster.wait(lambda: int(cluster.json("get", job).get("step", 0)) >= 40, "step 40")
    os.replace(other, file)
    worker = cluster.workers["w0"].popen.pid
    for pid in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    cluster.wait(lambda: "the weights have changed since the training began" in str(cluster.events(job)), "the rank to say so")
    restored = tmp_path / "restored"
    restored.write_bytes(good)
    os.replace(restored, file)
    assert cluster.finish(job).returncode == 0
    assert cluster.points(job)[-1]["step"] == 400


def test_an_adapter_trains_on(cluster, base, data, lora, tmp_path):
    first = exported(cluster, lora)
    section = {"lora": {"init_from": str(first), "lora_dropout": 0}, "max_steps": 3}
    job = train(cluster, lora_job(tmp_path, base, data, name="on", train=section))
    points, before = cluster.points(job), cluster.points(lora)
    assert points[0]["loss"] < before[-1]["loss"] + 0.3 < before[0]["loss"]
    config = json.loads((exported(cluster, job) / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 16, 0)

    other = write_base(tmp_path / "tiny-llama", seed=1)  # of the same name and shapes
    refused = cluster.submit(lora_job(tmp_path / "other", other, data, name="other", train=section))
    cluster.finish(refused)
    assert "the adapter was trained on a base model of" in str(cluster.events(refused))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_parameters_are_exported_as_they_were(cluster, data, tmp_path, dtype):
    base = write_base(tmp_path / "base", dtype=dtype)
    frozen = ["model.embed_tokens.*", "*norm*", "model.layers.0.*"]
    changes = {"train": {**TRAIN, "freeze": frozen}, "compute": {"bf16": dtype == torch.bfloat16}}
    path = write_job(tmp_path, name="frozen", model={"path": str(base), "weights": "pretrained"}, data={"path": str(data)}, **changes)
    job = train(cluster, path)
    assert cluster.points(job)[-1]["loss"] < 0.9 * cluster.points(job)[0]["loss"]
    got, original = load_file(exported(cluster, job) / "model.safetensors"), load_file(base / "model.safetensors")
    assert set(got) == set(original)
    is_frozen = {name: "embed" in name or "norm" in name or ".layers.0." in name for name in original}
    assert {name: torch.equal(got[name], original[name]) for name in original} == is_frozen
    assert all(got[name].dtype == dtype for name in got)
    tensors = {name for file in last_checkpoint(cluster, job).glob("*.safetensors") for name in load_file(file)}
    assert not any(is_frozen[name.split("/", 1)[1]] for name in tensors)
    # What is trained is part of what a checkpoint is of.
    whole = write_job(tmp_path, name="frozen", model={"path": str(base), "weights": "pretrained"}, data={"path": str(data)}, train=TRAIN,
                      compute=changes["compute"])
    again = cluster.submit(whole)
    cluster.finish(again)
    assert "what is trained (train.freeze, train.lora) was" in str(cluster.events(again))


def test_frozen_random_weights_are_in_the_checkpoint(cluster, data, tmp_path):
    """They are in no file, so an export has them from there."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(TINY_MODEL))
    path = write_job(tmp_path, name="random", data={"path": str(data)}, train={**TRAIN, "freeze": ["model.layers.*"]})
    job = train(cluster, path)
    got = load_file(exported(cluster, job) / "model.safetensors")
    assert "model.layers.0.mlp.up_proj.weight" in got and got["model.layers.0.mlp.up_proj.weight"].std() > 0.01


@pytest.mark.parametrize("section, error", [
    ({"lora": {"target_modules": ["q_porj"]}}, "train.lora.target_modules: the model has no module 'q_porj'; the nearest is 'q_proj'"),
    ({"lora": {"target_modules": ["embed_tokens"]}}, "'embed_tokens' names model.embed_tokens, which is an embedding"),
    ({"lora": {}, "freeze": ["*norm*"]}, "train.freeze and train.lora are both given"),
    ({"lora": {"r": 0}}, "train.lora.r = 0 is too small; the smallest is 1"),
    ({"lora": {"init_from": "nowhere"}}, "does not exist; it is a folder with adapter_config.json and adapter_model.safetensors"),
    ({"freeze": ["model.embed.*"]}, "train.freeze: no parameter is named \"model.embed.*\"; the nearest is"),
])
def test_mistakes_are_named_at_submission(cluster, base, data, tmp_path, section, error):
    path = write_job(tmp_path, name="bad", model={"path": str(base), "weights": "pretrained"}, data={"path": str(data)}, train={**TRAIN, **section})
    result = cluster.ctl("submit", path, check=False)
    assert result.returncode == 2 and error in result.stderr, result.stderr


def test_adapters_need_pretrained_weights(cluster, data, tmp_path):
    path = write_job(tmp_path, name="random", data={"path": str(data)}, train={**TRAIN, "lora": {}})
    result = cluster.ctl("submit", path, check=False)
    assert result.returncode == 2 and "train.lora needs the model's own weights, but model.weights = random" in result.stderr
