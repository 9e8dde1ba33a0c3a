"""Optimizers, groups of parameters, a table of learning rates and averaged weights, from a job file to a Hugging Face folder; kill and resume."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from cluster import Cluster, write_data, write_job
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as c:
        yield c


def train(cluster: Cluster, path: Path) -> str:
    job = cluster.submit(path)
    assert cluster.finish(job).returncode == 0, cluster.events(job)
    return job


def weights_of_export(cluster: Cluster, job: str) -> dict[str, torch.Tensor]:
    return load_file(Path(cluster.json("get", job)["exported_path"]) / "model.safetensors")


FSDP = {"dp": {"size": 1}, "fsdp": {"size": 2}}


@pytest.mark.parametrize("section", [
    {"optim": "sgd", "learning_rate": 0.3, "momentum": 0.9, "nesterov": True},
    {"optim": "adafactor", "learning_rate": 0.003},
    {"optim": "muon", "learning_rate": 0.01, "param_groups": {"*embed_tokens*": {"learning_rate": 0.003}}},
    {"optim": "lion_32bit", "learning_rate": 0.0005, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},
], ids=lambda section: section["optim"])
def test_an_optimizer_trains(cluster, tmp_path, section):
    job = train(cluster, write_job(tmp_path, name="trains", workers=2, train={"max_steps": 20, **section}, dist=FSDP))
    points = cluster.points(job)
    assert points[-1]["loss"] < 0.97 * points[0]["loss"]


def test_a_table_is_the_learning_rate(cluster, tmp_path):
    factors = [1.0, 0.5, 0.25, 0.125]
    (tmp_path / "factors.txt").write_text("\n".join(map(str, factors)))
    for name, section in [("list", {"lr_factors": factors}), ("file", {"lr_factors_path": str(tmp_path / "factors.txt")})]:
        job = train(cluster, write_job(tmp_path, name=name, workers=1, train={"max_steps": 6, **section}))
        got = [point["learning_rate"] for point in cluster.points(job)]
        assert got == pytest.approx([0.003 * factor for factor in [*factors, 0.125, 0.125]])


def test_killed_ranks_go_on_to_the_same_bits(cluster, tmp_path):
    def job(name: str) -> Path:
        section = {"max_steps": 120, "optim": "adafactor", "learning_rate": 0.001, "deterministic": True, "ema_decay": 0.9}
        return write_job(tmp_path / name, name=name, workers=2, train=section, dist=FSDP, checkpoint={"save_steps": 10}, max_restarts=100)

    calm = train(cluster, job("calm"))
    killed = cluster.submit(job("killed"))
    cluster.wait(lambda: int(cluster.json("get", killed).get("step", 0)) >= 30, "step 30")
    worker = cluster.workers["w0"].popen.pid
    for pid in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    cluster.finish(killed)
    assert len(cluster.json("get", killed)["restarts"]) == 1
    wanted, got = weights_of_export(cluster, calm), weights_of_export(cluster, killed)
    assert wanted.keys() == got.keys() and all(torch.equal(wanted[name], got[name]) for name in wanted)


def test_the_average_is_evaluated_and_exported(cluster, tmp_path):
    data = write_data(tmp_path / "held-out")
    section = {"max_steps": 8, "eval_steps": 8, "lr_scheduler_type": "constant"}

    def run(name: str, more: dict) -> str:
        return train(cluster, write_job(tmp_path, name=name, workers=2, train=section | more, data={"eval_path": str(data)}, dist=FSDP))

    plain, averaged = run("plain", {}), run("averaged", {"ema_decay": 0.5})
    assert [p["loss"] for p in cluster.points(averaged)] == [p["loss"] for p in cluster.points(plain)]  # of the weights themselves
    assert cluster.json("get", averaged)["last_eval"]["eval_loss"] != cluster.json("get", plain)["last_eval"]["eval_loss"]
    folder = Path(cluster.json("get", averaged)["exported_path"])
    checkpoint = next(folder.parent.glob("step-00000008.a*"))
    saved: dict[str, torch.Tensor] = {}
    for file in checkpoint.glob("rank-*.safetensors"):
        for name, value in load_file(file).items():
            if name.startswith("ema/"):
                saved.setdefault(name.removeprefix("ema/"), []).append(value.flatten())
    for name, weight in weights_of_export(cluster, averaged).items():
        assert torch.equal(torch.cat(saved[name]).to(weight.dtype).sort().values, weight.flatten().sort().values)


def test_another_optimizer_is_refused(cluster, tmp_path):
    checkpoint = {"dir": str(tmp_path / "runs")}
    train(cluster, write_job(tmp_path, name="other", workers=1, train={"max_steps": 4, "optim": "lion"}, checkpoint=checkpoint))
    again = cluster.submit(write_job(tmp_path, name="other", workers=1, train={"max_steps": 8}, checkpoint=checkpoint))
    assert cluster.finish(again).returncode != 0
    assert "it was written by a job with another optimizer" in json.dumps(cluster.events(again))


@pytest.mark.parametrize("section, message", [
    ({"param_groups": {"*embed_toknes*": {"weight_decay": 0}}}, 'train.param_groups: no parameter is named "*embed_toknes*"'),
    ({"param_groups": {"*": {"weight_decay": 0}, "*head*": {"weight_decay": 0.1}}}, "is in two groups"),
], ids=["no such parameter", "two groups"])
def test_groups_that_are_wrong_are_named(cluster, tmp_path, section, message):
    refused = cluster.ctl("submit", write_job(tmp_path, name="wrong", workers=1, train=section), check=False)
    assert refused.returncode == 2 and message in refused.stderr
