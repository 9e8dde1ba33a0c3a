"""A job from taccctl to a Hugging Face folder, and the same losses whatever the layout."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from cluster import BUILD, TINY_MODEL, Cluster, write_data, write_job


def points(cluster: Cluster, job: str) -> list[dict]:
    """The step metrics of a job that has ended, in order of steps."""
    lines = cluster.ctl("watch", job, "-o", "json").stdout.splitlines()
    return [p for p in map(json.loads, lines) if "grad_norm" in p]


def submit_and_wait(cluster: Cluster, path, timeout: float = 120) -> str:
    result = cluster.ctl("submit", path, "-o", "json", timeout=30)
    job = json.loads(result.stdout.splitlines()[-1])["id"]
    cluster.ctl("watch", job, "-o", "json", "--timeout", timeout, timeout=timeout + 10)
    return job


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as c:
        yield c


@pytest.fixture(scope="module")
def one_rank(cluster, tmp_path_factory):
    """The losses of an undisturbed run on one worker."""
    folder = tmp_path_factory.mktemp("one")
    job = submit_and_wait(cluster, write_job(folder, name="one", workers=1))
    return points(cluster, job)


def check_same(got: list[dict], want: list[dict]) -> None:
    assert [p["step"] for p in got] == [p["step"] for p in want]
    for g, w in zip(got, want):
        assert g["batch_hash"] == w["batch_hash"]
        assert g["loss"] == pytest.approx(w["loss"], rel=1e-6)


def test_one_rank_learns_and_counts(one_rank):
    assert [p["step"] for p in one_rank] == list(range(1, 13))
    assert one_rank[-1]["loss"] < 0.9 * one_rank[0]["loss"]
    assert all(0 < p["mfu"] < 1 for p in one_rank)


@pytest.mark.parametrize("changes", [
    {"dist": {"dp": {"size": 1}, "fsdp": {"size": 2}}},
    {"dist": {"dp": {"size": 2}, "fsdp": {"size": 1}}},
    {"dist": {"dp": {"size": 1}, "fsdp": {"size": 2}}, "train": {"per_device_train_batch_size": 1}},
    {"dist": {"fsdp": {"size": 1}, "pp": {"size": 2, "num_micro_batches": 4}}},
    {"dist": {"fsdp": {"size": 2, "zero_stage": 2}, "topology": ["fsdp", "dp"]}},
    {"dist": {"fsdp": {"size": 1}, "tp": {"size": 2},
              "pins": {"model.layers.*.mlp": "[-, -, tp]", "model.layers.*.mlp.up_proj.weight": "[-, tp]", "model.norm": "[-, -, -]"}}},
])
def test_layouts_equal_one_rank(cluster, one_rank, tmp_path, changes):
    job = submit_and_wait(cluster, write_job(tmp_path, name="layout", workers=2, **changes))
    check_same(points(cluster, job), one_rank)


@pytest.mark.parametrize("layout, memory", [
    ({"fsdp": {"size": 2}}, {"gc": True, "gc_cls": "OlmoDecoderLayer"}),
    ({"fsdp": {"size": 1}, "tp": {"size": 2}}, {"gc": True, "gc_cnt": 1}),
])
def test_gradient_checkpointing_changes_no_bit(cluster, tmp_path, layout, memory):
    def run(name: str, memory: dict) -> tuple[list[dict], dict]:
        changes = {"dist": {"dp": {"size": 1}, **layout}, "memory": memory}
        job = submit_and_wait(cluster, write_job(tmp_path, name=name, workers=2, data={"seq_len": 64}, **changes))
        return points(cluster, job), cluster.json("get", job)["plan"]

    (kept, plan), (again, gc_plan) = run("kept", {"gc": False}), run("again", memory)
    assert len(kept) == 12
    assert [(p["step"], p["batch_hash"], p["loss"], p["grad_norm"]) for p in again] == [(p["step"], p["batch_hash"], p["loss"], p["grad_norm"]) for p in kept]
    assert gc_plan["memory_bytes"]["arena"] < plan["memory_bytes"]["arena"]


def test_resume_on_another_layout(cluster, one_rank, tmp_path):
    checkpoints = {"dir": str(tmp_path / "runs"), "save_steps": 4}
    first = submit_and_wait(cluster, write_job(tmp_path, name="first", workers=2, train={"max_steps": 6, "lr_scheduler_type": "constant"},
                                               checkpoint=checkpoints))
    got = points(cluster, first)
    second = submit_and_wait(cluster, write_job(tmp_path, name="first", workers=1, train={"max_steps": 12, "lr_scheduler_type": "constant"},
                                                checkpoint=checkpoints))
    got += points(cluster, second)
    reference = submit_and_wait(cluster, write_job(tmp_path, name="reference", workers=1, train={"lr_scheduler_type": "constant"}))
    check_same(got, points(cluster, reference))


def test_a_pipeline_goes_on_as_another_layout_and_back(cluster, one_rank, tmp_path):
    """Each stage writes its own weights; a resume takes what it needs of all of them."""
    checkpoints = {"dir": str(tmp_path / "runs"), "save_steps": 4}
    got = []
    for steps, changes in [(4, {"workers": 2, "dist": {"fsdp": {"size": 1}, "pp": {"size": 2, "num_micro_batches": 2}}}),
                           (8, {"workers": 2, "dist": {"dp": {"size": 1}, "fsdp": {"size": 2}}}),
                           (12, {"workers": 2, "dist": {"fsdp": {"size": 1}, "pp": {"size": 2, "schedule": "zero_bubble", "num_micro_batches": 4}}})]:
        job = submit_and_wait(cluster, write_job(tmp_path, name="stages", train={"max_steps": steps, "lr_scheduler_type": "constant"},
                                                 checkpoint=checkpoints, **changes))
        got += points(cluster, job)
    reference = submit_and_wait(cluster, write_job(tmp_path, name="reference", workers=1, train={"lr_scheduler_type": "constant"}))
    check_same(got, points(cluster, reference))
    assert cluster.json("get", job)["exported_path"]


def held_out_loss(model, tokens, seq_len: int) -> float:
    """The mean loss of a transformers model over the samples of `tokens`, one after the other."""
    import torch

    rows = torch.tensor(tokens, dtype=torch.int64).view(-1, seq_len)
    with torch.no_grad():
        logits = model(rows).logits.double()
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten()).item()


@pytest.mark.parametrize("family", ["olmo", "mixtral"])
def test_export_is_the_trained_model_in_transformers(cluster, tmp_path, family):
    """From a config.json without `architectures` and a model folder without a tokenizer: nothing is missing, and its loss is the last held-out one."""
    import numpy as np
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    model = TINY_MODEL if family == "olmo" else {
        **TINY_MODEL, "model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
        "output_router_logits": False}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({k: v for k, v in model.items() if k != "architectures"}))
    write_data(tmp_path / "held_out", num_tokens=1024, seed=5)
    job = submit_and_wait(cluster, write_job(tmp_path, name="export", workers=2, data={"eval_path": "held_out"}))
    view = cluster.json("get", job)
    exported = Path(view["exported_path"])
    assert json.loads((exported / "config.json").read_text())["architectures"] == [{"olmo": "OlmoForCausalLM", "mixtral": "MixtralForCausalLM"}[family]]
    assert PreTrainedTokenizerFast(tokenizer_file=str(exported / "tokenizer.json")).vocab_size == 97
    assert not cluster.warnings(job)

    loaded, info = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not any(info.values()), info
    tokens = np.resize(np.random.default_rng(5).integers(2, 97, size=256), 1024)
    assert view["last_eval"]["step"] == 12
    assert held_out_loss(loaded, tokens, 16) == pytest.approx(view["last_eval"]["eval_loss"], rel=1e-5)

    cluster.ctl("export", job, "--out", tmp_path / "by_hand")
    assert (tmp_path / "by_hand/tokenizer.json").read_bytes() == (exported / "tokenizer.json").read_bytes()
    assert (tmp_path / "by_hand/model.safetensors").read_bytes() == (exported / "model.safetensors").read_bytes()


def test_a_model_without_a_tokenizer_is_told_at_the_start(cluster, tmp_path):
    path = write_job(tmp_path, name="bare", workers=1, train={"max_steps": 1})
    shutil.rmtree(tmp_path / "data/tokenizer")
    job = submit_and_wait(cluster, path)
    assert [e for e in cluster.events(job) if e["type"] == "warning" and "no_tokenizer" in e["message"]]
    assert not Path(cluster.json("get", job)["exported_path"], "tokenizer.json").exists()


def test_finished_job_again_says_how_to_go_on(cluster, tmp_path):
    path = write_job(tmp_path, name="again", workers=1)
    submit_and_wait(cluster, path)
    result = cluster.ctl("submit", "--follow", path)
    assert "max_steps" in result.stdout + result.stderr


def test_other_initial_weights_are_another_training(cluster, tmp_path):
    """From random weights, then by the same name from those that were exported: a fine-tune, which must not go on with the first run's states."""
    submit_and_wait(cluster, write_job(tmp_path, name="weights", workers=1, train={"max_steps": 2}))
    shutil.copytree(tmp_path / "runs/weights/hf", tmp_path / "tuned")
    for steps in (2, 4):
        changed = cluster.submit(write_job(tmp_path, name="weights", workers=1, model={"path": "tuned", "weights": "pretrained"}, train={"max_steps": steps}))
        assert cluster.finish(changed).returncode == 2
        reason = cluster.json("get", changed)["reason"]
        assert f"the model's initial weights were {tmp_path}/model (random, " in reason and f"and are now {tmp_path}/tuned (pretrained, " in reason
        assert "name or checkpoint.dir of its own" in reason
    # By a name of their own they are trained, and go on from another place.
    submit_and_wait(cluster, write_job(tmp_path, name="tune", workers=1, model={"path": "tuned", "weights": "pretrained"}, train={"max_steps": 2}))
    (tmp_path / "tuned").rename(tmp_path / "moved")
    job = submit_and_wait(cluster, write_job(tmp_path, name="tune", workers=1, model={"path": "moved", "weights": "pretrained"}, train={"max_steps": 3}))
    assert [p["step"] for p in points(cluster, job)] == [3]


def test_another_config_of_the_same_shapes_is_another_training(cluster, tmp_path):
    """It must not go on with the first one's states. What changes no mathematics goes on, and is what is exported, whatever becomes of the model's folder."""
    submit_and_wait(cluster, write_job(tmp_path, name="config", workers=1, train={"max_steps": 2}))
    config = tmp_path / "model/config.json"
    for changes, difference in [({"rope_theta": 500}, "rope_theta was 10000.0 and is now 500.0"), ({"clip_qkv": 8.0}, "clip_qkv was not given and is now 8.0"),
                                ({"hidden_act": "gelu"}, "hidden_act was silu and is now gelu"),
                                ({"num_attention_heads": 2, "num_key_value_heads": 2}, "num_attention_heads was 4 and is now 2")]:
        config.write_text(json.dumps({**TINY_MODEL, **changes}))
        for steps in (2, 4):
            changed = cluster.submit(write_job(tmp_path, name="config", workers=1, train={"max_steps": steps}))
            assert cluster.finish(changed).returncode == 2
            reason = cluster.json("get", changed)["reason"]
            assert f"{config} describes another model than was trained: " in reason and difference in reason and "checkpoint.dir of its own" in reason, reason
    same = json.dumps({"transformers_version": "5.0.0", "use_cache": False, "dtype": "float32", **dict(reversed(TINY_MODEL.items()))})
    config.write_text(same)
    job = submit_and_wait(cluster, write_job(tmp_path, name="config", workers=1, train={"max_steps": 3}))
    assert [p["step"] for p in points(cluster, job)] == [3]
    config.write_text(same[:50])
    cluster.ctl("export", job, "--out", tmp_path / "by_hand")
    assert (tmp_path / "by_hand/config.json").read_text() == same == Path(cluster.json("get", job)["exported_path"], "config.json").read_text()


def test_a_config_that_changes_during_training_is_not_exported(cluster, tmp_path):
    job = cluster.submit(write_job(tmp_path, name="torn", workers=1, train={"max_steps": 2000}, checkpoint={"save_steps": 1000}))
    cluster.wait(lambda: cluster.json("get", job).get("step", 0) > 0, "a step")
    (tmp_path / "model/config.json").write_text('{"model_type": "ol')
    assert cluster.finish(job).returncode == 0
    view = cluster.json("get", job)
    assert view["restarts"] == [] and json.loads(Path(view["exported_path"], "config.json").read_text()) == TINY_MODEL
    assert [e["message"] for e in cluster.events(job) if "config_changed" in e["message"]]


def test_float16_from_a_scale_too_large(cluster, one_rank, tmp_path):
    """Tensor parallel, so that sums over ranks are of float16. A few steps are skipped, which nobody is warned of; MFU is over the probe's peak of float16."""
    compute = {"fp16": True, "grad_scaler": {"init_scale": 2.0**26}}
    job = submit_and_wait(cluster, write_job(tmp_path, name="half", workers=2, compute=compute, dist={"fsdp": {"size": 1}, "tp": {"size": 2}}))
    got = points(cluster, job)
    skipped = sum(p.get("skipped", 0) for p in got)
    assert 0 < skipped < 10 and got[-1]["loss_scale"] == 2.0**26 / 2**skipped
    assert got[0]["loss"] == pytest.approx(one_rank[0]["loss"], rel=1e-3) and got[-1]["loss"] < got[0]["loss"]
    assert all(0 < p["mfu"] < 1 for p in got)
    view = cluster.json("get", job)
    assert view["plan"]["precision"] == "f16" and view["skipped_steps"] == skipped
    assert not cluster.warnings(job)


def test_a_traced_job(cluster, one_rank, tmp_path):
    """The trace of one step of all ranks lies beside the checkpoints; the losses are those of any run."""
    runs = tmp_path / "runs"
    job = submit_and_wait(cluster, write_job(tmp_path, name="traced", workers=2, train={"trace_step": 3}, checkpoint={"dir": str(runs)}))
    check_same(points(cluster, job), one_rank)
    assert [e["message"] for e in cluster.events(job) if e["type"] == "trace"] == [f"trace of step 3 in {runs}/trace.json"]
    slices = [e for e in json.loads((runs / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["pid"] for e in slices} == {0, 1}
    assert {"call", "phase", "module", "node", "collective"} <= {e["cat"] for e in slices}


def test_a_traced_job_has_its_prediction_beside_it(cluster, tmp_path):
    """Of the layout that ran; one of another layout is told apart, on the page and to the caller."""
    runs = tmp_path / "runs"
    path = write_job(tmp_path, name="predicted", workers=2, train={"trace_step": 3}, checkpoint={"dir": str(runs)},
                     dist={"fsdp": {"size": 1}, "pp": {"size": 2, "num_micro_batches": 4}})
    submit_and_wait(cluster, path)
    measured, predicted, page = runs / "trace.json", runs / "trace.predicted.json", tmp_path / "page.html"

    def layouts(trace):
        return {e["args"]["labels"] for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "process_labels"}

    def draw(*traces):
        command = [BUILD / "tacc-plan", "draw", "--html", page] + [word for trace in traces for word in ("--trace", trace)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr

    assert layouts(predicted) == layouts(measured) and len(layouts(measured)) == 1
    assert "pp=2" in layouts(measured).pop() and draw(predicted, measured) == "" and "layouts differ" not in page.read_text()
    # By the service's workers, of another layout.
    other = tmp_path / "other.json"
    cluster.ctl("plan", path, "--set", "dist.pp.size=1", "--set", "dist.fsdp.size=2", "--trace", other)
    warning = draw(other, measured)
    assert "layouts differ" in warning and "fsdp=2" in warning and "pp=2" in warning
    assert "layouts differ" in page.read_text()


def test_tf32_is_refused_where_there_is_none(cluster, tmp_path):
    job = cluster.submit(write_job(tmp_path, name="tf32", workers=1, compute={"tf32": True}))
    assert cluster.finish(job).returncode == 2  # bad input
    assert "compute.tf32: the job's devices" in cluster.json("get", job)["reason"]
