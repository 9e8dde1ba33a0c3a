"""Layouts as `taccctl submit --local` runs them, each in processes of its own, one going on where another stopped: the same batches, losses,
evaluations and exported folders as one worker that was never stopped."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from cluster import write_data, write_job, write_model
from safetensors.numpy import load_file
from shell import Shell, lines

STEPS = 3  # of each layout
LOCAL = ("submit", "--local", "-o", "json", "--threads", "1", "--memory", "2GiB")
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6}
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 4,
           "num_experts_per_tok": 2, "intermediate_size": 24, "output_router_logits": True, "router_aux_loss_coef": 0.02}
# Where attention is split, the order of its sums is another one.
EXACT, SPLIT_ATTENTION = 1e-6, 1e-5
# Workers, `dist` (None: the job says nothing), and how far losses may be from one worker's from there on.
CHAIN = [
    (2, {"tp": {"size": 2}}, EXACT),
    (2, {"pp": {"size": 2, "num_micro_batches": 2}}, EXACT),
    (4, {"fsdp": {"size": 2}, "tp": {"size": 2}}, EXACT),
    (None, None, EXACT),
    (2, {"pp": {"size": 2, "schedule": "interleaved", "num_micro_batches": 4}}, EXACT),
    (2, {"cp": {"size": 2}}, SPLIT_ATTENTION),
    (2, {"sp": {"size": 2}}, SPLIT_ATTENTION),
    (2, {"pp": {"size": 2, "schedule": "zero_bubble", "num_micro_batches": 4}}, SPLIT_ATTENTION),
]


class Job:
    """A job file whose layout and number of steps change from run to run."""

    def __init__(self, folder: Path, name: str, data: Path, model: dict, **train):
        self.folder, self.name, self.train = folder, name, train
        self.shell = Shell(folder)
        write_model(folder / "model", **model)
        for part in ("data", "eval"):
            (folder / part).symlink_to(data / part)

    def write(self, max_steps: int, workers: int | None, dist: dict | None, **train) -> Path:
        path = write_job(self.folder, name=self.name, data={"eval_path": "eval"},
                         train={"max_steps": max_steps, "eval_steps": STEPS, "lr_scheduler_type": "constant",
                                **self.train, **train},
                         checkpoint={"save_steps": STEPS, "save_total_limit": 100})
        job = json.loads(path.read_text())
        del job["dist"], job["resources"]
        if dist is not None:
            job |= {"dist": dist, "resources": {"workers": workers}}
        path.write_text(json.dumps(job))
        return path

    def run(self, *layout, **train) -> "Run":
        run = Run(lines(self.shell.run(*LOCAL, self.write(*layout, **train)).stdout))
        self.shell.nothing_left()
        assert run.job["phase"] == "finished", run.job
        return run


class Run:
    def __init__(self, items: list[dict]):
        self.points = {p["step"]: p for p in items if "grad_norm" in p}
        self.evals = {p["step"]: p for p in items if "eval_loss" in p}
        self.job = items[-1]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder / "data")
    write_data(folder / "eval", num_tokens=20 * 16)
    return folder


def check_same(run: Run, wanted: Run, tolerance: float) -> None:
    for step, point in run.points.items():
        assert point["batch_hash"] == wanted.points[step]["batch_hash"]
        assert point["loss"] == pytest.approx(wanted.points[step]["loss"], rel=tolerance)
    for step, point in run.evals.items():
        assert point["target_tokens"] == wanted.evals[step]["target_tokens"]
        assert point["eval_loss"] == pytest.approx(wanted.evals[step]["eval_loss"], rel=tolerance)


def check_figures(run: Run, wanted: Run, dist: dict | None) -> None:
    """What `taccctl get` shows of the layout: predicted beside measured."""
    plan, measured = run.job["plan"], run.job["measured"]
    assert {axis: size for axis, size in plan["mesh"].items() if size > 1} == {axis: options["size"] for axis, options in (dist or {}).items()}
    # The model's work does not depend on who does it, nor do the tokens of a step.
    assert plan["flops_per_step"] == pytest.approx(wanted.job["plan"]["flops_per_step"])
    assert plan["predicted_tokens_per_second"] * plan["predicted_step_seconds"] == pytest.approx(8 * 16)
    assert 0 <= plan["predicted_communication_seconds"] <= plan["predicted_step_seconds"]
    assert (plan["predicted_communication_seconds"] > 1e-9) == (plan["world"] > 1)
    assert 0 <= measured["communication_seconds"] < measured["step_seconds"]
    assert (measured["communication_seconds"] > 0) == (plan["world"] > 1)
    for point in run.points.values():
        assert point["mfu"] == pytest.approx(plan["flops_per_step"] / point["seconds"] / plan["peak_flops_per_second"])
    # More workers than processors have no more than the processors' peak.
    assert 0.999 <= plan["peak_flops_per_second"] / wanted.job["plan"]["peak_flops_per_second"] <= 1.001 * plan["world"]
    memory = plan["memory_bytes"]
    assert measured["arena_bytes"] == memory["arena"]
    assert memory["total"] == memory["arena"] + memory["workspace"] + memory["buffers"] + memory["idle"]
    assert measured["peak_memory_bytes"] < memory["total"] + memory["checkpoint"] + (16 << 20)


def check_export(run: Run, job: Job, reference: Path, one_step: float) -> None:
    """The same files as one worker's; weights differ by the rounding of sums."""
    got = Path(run.job["exported_path"])
    step = max(run.points)
    wanted = job.folder / f"wanted-{step}"
    job.shell.run("export", reference / "runs/reference" / f"step-{step:08}.a1", "--model", reference / "model", "--out", wanted)
    assert sorted(path.name for path in got.iterdir()) == sorted(path.name for path in wanted.iterdir())
    assert (got / "config.json").read_bytes() == (wanted / "config.json").read_bytes()
    ours, theirs = load_file(got / "model.safetensors"), load_file(wanted / "model.safetensors")
    assert [(name, t.dtype, t.shape) for name, t in ours.items()] == [(name, t.dtype, t.shape) for name, t in theirs.items()]
    for name, tensor in ours.items():
        np.testing.assert_allclose(tensor, theirs[name], rtol=0, atol=0.05 * one_step, err_msg=name)


def follow_chain(tmp_path: Path, data: Path, model: dict, chain: list, learning_rate: float, micro_batch: int | None = None) -> None:
    """One worker first; then the layouts one after the other in the same checkpoint folder. `micro_batch`: of all workers together."""

    def per_device(workers: int | None) -> dict:
        return {"per_device_train_batch_size": micro_batch // (workers or 1)} if micro_batch else {}

    (tmp_path / "one").mkdir()
    (tmp_path / "chain").mkdir()
    reference = Job(tmp_path / "one", "reference", data, model, learning_rate=learning_rate).run(STEPS * len(chain), 1, {"fsdp": {"size": 1}},
                                                                                                 **per_device(1))
    losses = [point["loss"] for point in reference.points.values()]
    assert losses[-1] < 0.9 * losses[0] and len(reference.evals) == len(chain)
    job = Job(tmp_path / "chain", "chain", data, model, learning_rate=learning_rate)
    for i, (workers, dist, tolerance) in enumerate(chain):
        run = job.run(STEPS * (i + 1), workers, dist, **per_device(workers))
        assert sorted(run.points) == list(range(STEPS * i + 1, STEPS * (i + 1) + 1))
        check_same(run, reference, tolerance)
        check_figures(run, reference, dist)
        check_export(run, job, tmp_path / "one", one_step=learning_rate)


def test_each_layout_goes_on_where_another_stopped(tmp_path, data):
    follow_chain(tmp_path, data, LLAMA, CHAIN, learning_rate=1e-3)


def test_experts_go_on_on_one_worker_and_back(tmp_path, data):
    """The auxiliary loss is of a micro-batch, so all take the same."""
    chain = [(2, {"ep": {"size": 2}}, EXACT), (None, None, EXACT), (2, {"ep": {"size": 2}}, EXACT)]
    follow_chain(tmp_path, data, MIXTRAL, chain, learning_rate=3e-3, micro_batch=8)


def test_a_pipeline_interrupted_goes_on_as_another_layout(tmp_path, data):
    (tmp_path / "cut").mkdir()
    (tmp_path / "one").mkdir()
    job = Job(tmp_path / "cut", "cut", data, LLAMA, learning_rate=1e-3, eval_steps=1_000_000)
    local = job.shell.start(*LOCAL, job.write(1_000_000, 2, {"pp": {"size": 2, "num_micro_batches": 2}}))
    local.wait_for_step(2)
    local.send_signal(signal.SIGINT)
    errors = local.ended()
    assert local.returncode == 101 and "stopping after a checkpoint" in errors, errors
    stopped = local.last()["last_checkpoint"]["step"]
    run = job.run(stopped + STEPS, 4, {"fsdp": {"size": 2}, "tp": {"size": 2}})
    assert sorted(run.points) == list(range(stopped + 1, stopped + STEPS + 1))
    wanted = Job(tmp_path / "one", "one", data, LLAMA, learning_rate=1e-3, eval_steps=1_000_000).run(stopped + STEPS, 1, {"fsdp": {"size": 1}})
    check_same(run, wanted, EXACT)
