"""Runs tacc-rank as its daemon does: start file, commands on stdin, events on stdout."""

import hashlib
import html
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TACC_BUILD", ROOT / "build"))
sys.path.insert(0, str(ROOT / "client/python"))
sys.path.insert(0, str(ROOT / "worker/run_folder"))

from read_metrics import read_lines, read_scalars  # noqa: E402

SEQ, BATCH, VOCAB = 16, 12, 97
MODEL = {
    "architectures": ["OlmoForCausalLM"], "model_type": "olmo", "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48, "vocab_size": VOCAB,
    "max_position_embeddings": 64, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1, "initializer_range": 0.05,
}


def declared(message: str) -> set[str]:
    """The fields of a message of the API. Those of an event become one, by their names."""
    text = re.sub("//.*", "", (ROOT / "proto/tacc/v1/coordinator.proto").read_text())
    body = re.search(rf"^message {message} {{$(.*?)^}}$", text, re.M | re.S)[1]
    return set(re.findall(r"^ +(?:optional |repeated )?[\w.]+ (\w+) = \d+", body, re.M))


EVENT_FIELDS = {"step": declared("StepMetrics") | {"event"}, "eval": declared("EvalMetrics") | {"event"}}
VERSION = subprocess.run([BUILD / "tacc-rank", "--version"], check=True, capture_output=True,
                         text=True).stdout.split()[1]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A model directory and data: a short cycle of tokens, which a small model learns in a few steps."""
    from tacc.shards import DatasetWriter

    folder = tmp_path_factory.mktemp("inputs")
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(MODEL))
    (folder / "model/tokenizer.json").write_text("{}")
    for name, count in (("data", 4096), ("eval", 500)):
        writer = DatasetWriter(folder / name, VOCAB)
        writer.append(np.resize(np.random.default_rng(0).integers(2, VOCAB, size=256), count))
        writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=SEQ)
    return folder


def compile_program(inputs: Path, *, dp: int = 1, fsdp: int = 1, pp: int = 1, schedule: str = "1F1B",
                    accumulation: int = 1, max_steps: int = 12, fsdp_options: dict | None = None,
                    topology: tuple[str, ...] = (), init_scale: float = 0) -> Path:
    """The program of the first stage; those of the others lie beside it. `init_scale`: in float16, with that loss scale, which doubles after 3
    steps."""
    options = "".join(f"-{key}-{value}" for key, value in {**(fsdp_options or {}), "order": "-".join(topology), "scale": init_scale}.items())
    out = inputs / f"program-{dp}-{fsdp}-{pp}-{schedule}-{accumulation}-{max_steps}{options}"
    if not out.exists():
        world = dp * fsdp * pp
        pipeline = {"pp": {"size": pp, "schedule": f"PIPELINE_SCHEDULE_{schedule}"}} if pp > 1 else {}
        request = {
            "job": {"name": "t", "model": {"path": str(inputs / "model"), "weights": "WEIGHTS_RANDOM"},
                    "data": {"path": str(inputs / "data"), "seq_len": SEQ},
                    "train": {"max_steps": max_steps, "global_batch_size": BATCH, "learning_rate": 3e-3, "seed": 3,
                              "per_device_train_batch_size": BATCH // (dp * fsdp) // accumulation},
                    "compute": {"fp16": True, "grad_scaler": {"init_scale": init_scale, "growth_interval": 3}} if init_scale else {"bf16": False},
                    "dist": {"dp": {"size": dp}, "fsdp": {"size": fsdp, **(fsdp_options or {})}, **pipeline,
                                                              "topology": topology}},
            "world": world,
            "device": {"name": "cpu", "kind": "cpu", "threads": 1, "memory_bytes": 4 << 30,
                       "matmul_flops_per_second": {"f32": 1e11, "bf16": 1e11, "f16": 1e11},
                       "memory_bytes_per_second": 1e10, "link_bytes_per_second": 1e9, "link_latency_seconds": 1e-4},
            "data": {"vocab_size": VOCAB, "num_tokens": 4096, "eval_tokens": 500},
        }
        path = inputs / f"{out.name}.json"
        path.write_text(json.dumps(request))
        subprocess.run([BUILD / "tacc-plan", "compile", "--request", path, "--out", out], check=True)
    return out / "stage0.program"


def stage_of(layout: dict, rank: int) -> int:
    """The rank's coordinate on the mesh axis pp."""
    for axis in reversed(layout["axes"]):
        rank, coordinate = divmod(rank, layout["mesh"][axis])
        if axis == "pp":
            return coordinate
    return 0


class Attempt:
    """The ranks of one attempt."""

    def __init__(self, inputs: Path, folder: Path, program: Path, *, world: int = 1, attempt: int = 1,
                 max_steps: int = 12, resume: str = "", export: str = "", save_steps: int = 4,
                 failpoints: dict[int, str] | None = None, changes: dict | None = None, options: dict[int, list] | None = None):
        folder.mkdir(exist_ok=True)
        self.events: list[list[dict]] = [[] for _ in range(world)]
        self.ranks = []
        layout = json.loads((program.parent / "summary.json").read_text())
        for rank in range(world):
            stage = program.with_name(f"stage{stage_of(layout, rank)}.program")
            start = {
                "version": VERSION, "job": "t-1", "attempt": attempt, "rank": rank, "world": world, "device": "cpu",
                "threads": 1, "memory_bytes": 4 << 30, "advertise": "127.0.0.1", "program": str(stage),
                "model_dir": str(inputs / "model"),
                "weights": "random", "seed": 3,
                "data": {"path": str(inputs / "data"), "eval_path": str(inputs / "eval"), "seq_len": SEQ,
                         "global_batch_size": BATCH},
                "train": {"max_steps": max_steps, "eval_steps": 6, "deterministic": True}, "compute": {"tf32": False},
                "checkpoint": {"dir": str(folder), "save_steps": save_steps, "resume": resume, "export": export},
                "identity": {"model": "a", "seed": 3}, "collective_timeout_seconds": 60, **(changes or {}),
            }
            path = folder.parent / f"start-{folder.name}-{attempt}-{rank}.json"
            path.write_text(json.dumps(start))
            env = {**os.environ, "OMP_WAIT_POLICY": "passive"}
            binary = BUILD / "tacc-rank"  # It has no failpoints.
            if rank in (failpoints or {}):
                binary, env["TACC_FAILPOINTS"] = BUILD / "failpoints/tacc-rank", failpoints[rank]
            self.ranks.append(subprocess.Popen([binary, "--start", path, *(options or {}).get(rank, [])],
                                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env))

    def send(self, **command) -> None:
        for rank in self.ranks:
            try:
                rank.stdin.write(json.dumps(command) + "\n")
                rank.stdin.flush()
            except BrokenPipeError:
                pass

    def run(self, on_event=None) -> list[int]:
        """Reads all events; returns the exit codes."""
        for line in self.ranks[0].stdout:
            event = json.loads(line)
            self.events[0].append(event)
            if event["event"] == "listening":
                rendezvous = {"command": "rendezvous", "host": "127.0.0.1", "port": event["port"], "secret": event["secret"]}
                for rank in self.ranks[1:]:
                    rank.stdin.write(json.dumps(rendezvous) + "\n")
                    rank.stdin.flush()
            if on_event is not None:
                on_event(event)
        codes = [self.ranks[0].wait(60)]
        for index, rank in enumerate(self.ranks[1:], 1):
            if codes[0] < 0:
                rank.kill()  # As the coordinator does when one rank has died.
            self.events[index] = [json.loads(line) for line in rank.stdout]
            codes.append(rank.wait(60))
        for rank in self.ranks:
            for stream in (rank.stdin, rank.stdout, rank.stderr):
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        for event in sum(self.events, []):
            assert set(event) <= EVENT_FIELDS.get(event["event"], set(event)), "a field that nobody reads"
        return codes

    def of(self, kind: str, rank: int = 0) -> list[dict]:
        """Not that the machine is busy, which is not the ranks' doing."""
        return [e for e in self.events[rank] if e["event"] == kind and e.get("code") != "busy_cpu"]

    def losses(self) -> dict[int, float]:
        return {e["step"]: e["loss"] for e in self.of("step")}


def read_weights(checkpoint: Path) -> dict[str, np.ndarray]:
    """The logical tensors, put together from the slices as the manifest says."""
    from safetensors.numpy import load_file

    manifest = json.loads((checkpoint / "manifest.json").read_text())
    files = {f["name"]: load_file(checkpoint / f["name"]) for f in manifest["files"]}
    tensors = {}
    for name, tensor in manifest["tensors"].items():
        merged = tensor.get("merged_dims", 1)  # leading dims that the slices take as one
        whole = np.full([math.prod(tensor["shape"][:merged]), *tensor["shape"][merged:]], np.nan, np.float32)
        for s in tensor["slices"]:
            index = tuple(slice(o, o + n) for o, n in zip(s["offset"], s["shape"]))
            whole[index] = files[s["file"]][name]
        tensors[name] = whole.reshape(tensor["shape"])
    return tensors


def newest(folder: Path) -> str:
    """The newest checkpoint; one may be there whose event was not written any more."""
    return max(p.name for p in folder.iterdir() if p.name.startswith("step-"))


def digest(checkpoint: Path) -> str:
    tensors = read_weights(checkpoint)
    return hashlib.sha256(b"".join(tensors[n].tobytes() for n in sorted(tensors))).hexdigest()


def train(inputs: Path, folder: Path, **options) -> Attempt:
    layout = {k: options.pop(k) for k in ("dp", "fsdp", "pp", "schedule", "accumulation", "fsdp_options", "topology") if k in options}
    program = compile_program(inputs, **layout, max_steps=12)
    attempt = Attempt(inputs, folder, program, world=layout.get("dp", 1) * layout.get("fsdp", 1) * layout.get("pp", 1),
                      **options)
    assert attempt.run() == [0] * len(attempt.ranks), attempt.events
    return attempt


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory) -> tuple[Attempt, Path]:
    """An undisturbed run on one rank."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(inputs, folder, export=str(folder.parent / "hf")), folder


@pytest.fixture(scope="module")
def two(inputs, tmp_path_factory) -> tuple[Attempt, Path]:
    """The same on two ranks with sharded parameters."""
    folder = tmp_path_factory.mktemp("two") / "run"
    return train(inputs, folder, fsdp=2), folder


def test_events_of_one_rank(whole):
    attempt, folder = whole
    kinds = [e["event"] for e in attempt.events[0]]
    # A checkpoint is written while training goes on: its event comes when it does.
    assert [k for k in kinds if k != "checkpoint"] == (["started", "ready"] + ["step"] * 6 + ["eval"] + ["step"] * 6
                                                       + ["eval", "exported", "report", "finished"])
    for checkpoint in attempt.of("checkpoint"):
        before = attempt.events[0][:attempt.events[0].index(checkpoint)]
        assert sum(e["event"] == "step" for e in before) >= checkpoint["step"]
    assert kinds[-4] == "checkpoint"
    assert all(isinstance(e["time"], float) for e in attempt.events[0])
    step = attempt.of("step")[0]
    assert set(step) == {"event", "time", "step", "loss", "grad_norm", "learning_rate", "tokens", "target_tokens",
                         "seconds", "data_wait_seconds", "communication_seconds", "tokens_per_second", "batch_hash",
                         "skipped"}
    assert step["step"] == 1 and step["tokens"] == 192 and step["target_tokens"] == 180 and step["skipped"] == 0
    losses = list(attempt.losses().values())
    assert losses[0] == pytest.approx(np.log(VOCAB), rel=0.05)
    assert losses[-1] < 0.9 * losses[0]
    # 500 tokens are 31 samples: 15 targets each.
    assert [e["target_tokens"] for e in attempt.of("eval")] == [31 * 15] * 2
    assert attempt.of("ready")[0]["step"] == 0
    assert [e["path"] for e in attempt.of("checkpoint")] == [f"step-{n:08}.a1" for n in (4, 8, 12)]
    assert (folder.parent / "hf/model.safetensors").exists()


def history(folder: Path) -> tuple[list, dict]:
    """What a run's folder says of each step, but for times: lines, and what TensorBoard would show."""
    timed = ("time", "seconds", "data_wait_seconds", "communication_seconds", "tokens_per_second", "mfu")
    lines = [{k: v for k, v in line.items() if k not in timed} for line in read_lines(folder)]
    scalars = {tag: points for tag, points in read_scalars(folder).items() if tag.startswith(("train/", "eval/loss"))}
    return lines, scalars


def test_the_folder_keeps_the_metrics(inputs, whole, tmp_path):
    attempt, folder = whole
    lines = read_lines(folder)
    assert [("eval" if "eval_loss" in line else "step", line["step"]) for line in lines] == (
        [("step", s) for s in range(1, 7)] + [("eval", 6)] + [("step", s) for s in range(7, 13)] + [("eval", 12)])
    for line, event in zip(lines, [e for e in attempt.events[0] if e["event"] in ("step", "eval")]):
        # 4096 tokens are 256 samples.
        assert line == {**{k: v for k, v in event.items() if k != "event"}, "epoch": pytest.approx(line["step"] * BATCH / 256)}
    scalars = read_scalars(folder)
    assert scalars["train/loss"] == {s: pytest.approx(loss, rel=1e-6) for s, loss in attempt.losses().items()}
    assert scalars["eval/loss"] == {e["step"]: pytest.approx(e["eval_loss"], rel=1e-6) for e in attempt.of("eval")}
    assert {"train/grad_norm", "train/learning_rate", "train/epoch", "perf/tokens_per_second", "perf/step_seconds"} <= scalars.keys()
    assert "perf/mfu" not in scalars
    known = Attempt(inputs, tmp_path / "run", compile_program(inputs),
                    changes={"run": {"flops_per_step": 1e6, "peak_flops_per_second": 1e9}})
    assert known.run() == [0]
    for line in read_lines(tmp_path / "run"):
        assert "eval_loss" in line or line["mfu"] == pytest.approx(1e6 / (line["seconds"] * 1e9))
    assert len(read_scalars(tmp_path / "run")["perf/mfu"]) == 12


@pytest.mark.parametrize("eos, is_fine", [(0, True), ([5, 0], True), (None, True), (2, False), ([2, 3], False)])
def test_a_model_that_ends_texts_elsewhere_is_a_warning(inputs, tmp_path, eos, is_fine):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({**MODEL, "eos_token_id": eos}))
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs), max_steps=1, changes={"model_dir": str(tmp_path / "model")})
    assert attempt.run() == [0]
    warnings = attempt.of("warning")
    if is_fine:
        assert warnings == []
    else:
        assert [w["code"] for w in warnings] == ["eos_mismatch"]
        assert json.dumps(eos).replace(" ", "") in warnings[0]["message"] and "end with 0" in warnings[0]["message"]


def test_metrics_that_cannot_be_written_are_one_warning(inputs, tmp_path):
    (tmp_path / "run/metrics.jsonl").mkdir(parents=True)
    attempt = train(inputs, tmp_path / "run")
    (warning,) = attempt.of("warning")
    assert warning["code"] == "metrics_failed" and str(tmp_path / "run/metrics.jsonl") in warning["message"]
    assert list(attempt.losses()) == list(range(1, 13))
    assert not (tmp_path / "run/tensorboard").exists()


def test_metrics_are_written_once_they_can_be(inputs, tmp_path):
    """What was in the way at the start goes after some steps: no point is missing."""
    in_the_way = tmp_path / "run/metrics.jsonl"
    in_the_way.mkdir(parents=True)
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs, max_steps=100_000), max_steps=100_000, save_steps=0)

    def clear_and_stop(event):
        if event["event"] == "step" and event["step"] == 3:
            in_the_way.rmdir()
            attempt.send(command="stop")

    assert attempt.run(clear_and_stop) == [0]
    assert [w["code"] for w in attempt.of("warning")] == ["metrics_failed"]
    steps = list(attempt.losses())
    assert [line["step"] for line in read_lines(tmp_path / "run") if "loss" in line] == steps
    assert len(list((tmp_path / "run/tensorboard").iterdir())) == 1
    assert list(read_scalars(tmp_path / "run")["train/loss"]) == steps


def test_what_is_no_metric_is_kept_aside_with_a_warning(inputs, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text("notes\n")
    attempt = train(inputs, tmp_path / "run")
    (warning,) = attempt.of("warning")
    assert warning["code"] == "metrics_damaged" and str(tmp_path / "run/metrics.jsonl.damaged") in warning["message"]
    assert (tmp_path / "run/metrics.jsonl.damaged").read_text() == "notes\n"
    assert [line["step"] for line in read_lines(tmp_path / "run") if "loss" in line] == list(attempt.losses())


def test_batch_hash_is_that_of_data_show(inputs, whole):
    shown = subprocess.run([BUILD / "tacc-data", "show", "--data", inputs / "data", "--seq-len", str(SEQ),
                            "--global-batch-size", str(BATCH), "--seed", "3", "--step", "5", "--json"],
                           check=True, capture_output=True, text=True)
    assert json.loads(shown.stdout)["batch_hash"] == whole[0].of("step")[4]["batch_hash"]


@pytest.mark.parametrize("layout", [{"fsdp": 2}, {"dp": 2}, {"fsdp": 3}, {"accumulation": 4},
                                    {"fsdp": 2, "accumulation": 2}, {"pp": 2, "accumulation": 4},
                                    {"fsdp": 2, "accumulation": 2, "fsdp_options": {"zero_stage": 1}},
                                    {"fsdp": 2, "accumulation": 2, "fsdp_options": {"zero_stage": 2}},
                                    {"fsdp": 2, "fsdp_options": {"reshard_after_forward": False}},
                                    {"pp": 2, "fsdp": 2, "schedule": "ZERO_BUBBLE", "accumulation": 3},
                                    {"pp": 2, "fsdp": 2, "accumulation": 3, "topology": ("fsdp", "pp")}], ids=str)
def test_layouts_equal_one_rank(inputs, whole, two, tmp_path, layout):
    attempt = two[0] if layout == {"fsdp": 2} else train(inputs, tmp_path / "run", **layout)
    want = whole[0]
    for step, loss in want.losses().items():
        assert attempt.losses()[step] == pytest.approx(loss, rel=1e-6), step
    assert [e["batch_hash"] for e in attempt.of("step")] == [e["batch_hash"] for e in want.of("step")]
    assert attempt.of("eval")[-1]["eval_loss"] == pytest.approx(want.of("eval")[-1]["eval_loss"], rel=1e-6)


@pytest.mark.parametrize("layout", [{}, {"fsdp": 3}, {"accumulation": 4}, {"pp": 2, "accumulation": 3}], ids=str)
def test_an_evaluation_of_some_batches_is_the_same_in_any_layout(inputs, two, tmp_path, layout):
    attempt = train(inputs, tmp_path / "run", changes={"eval": {"max_batches": 2}}, **layout)
    # 2 x 12 of the 31 samples.
    assert [e["target_tokens"] for e in attempt.of("eval")] == [24 * 15] * 2
    want = train(inputs, tmp_path / "want", fsdp=2, changes={"eval": {"max_batches": 2}})
    for got, one in zip(attempt.of("eval"), want.of("eval")):
        assert got["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-6)
    assert attempt.of("eval")[0]["eval_loss"] != two[0].of("eval")[0]["eval_loss"]


def collectives_of(program: Path) -> int:
    """Hits of the failpoint in_collective in a step; evaluations have theirs besides."""
    text = program.read_text()
    graphs = dict(re.findall(r"^graph (\S+) \{\n(.*?)^\}", text, re.M | re.S))
    calls = re.findall(r"^  call (\S+)", re.search(r"^step \{\n(.*?)^\}", text, re.M | re.S).group(1), re.M)
    return sum(len(re.findall(r"= (?:all_gather|reduce_scatter|all_reduce|wait)\b", graphs[call])) for call in calls)


@pytest.mark.parametrize("rank, point", [(0, "in_collective, 11 steps of them"), (1, "in_collective, 12 steps of them"),
                                         (1, "before_shard_write=kill@2"), (0, "after_shard_write=kill@2")])
def test_killed_run_resumes_to_the_same_bits(inputs, two, tmp_path, rank, point):
    undisturbed, undisturbed_folder = two
    program = compile_program(inputs, fsdp=2)
    if point.startswith("in_collective"):
        # Evaluations take the place of one or two steps.
        point = f"in_collective=kill@{int(point.split()[1]) * collectives_of(program) + 5}"
    folder = tmp_path / "run"
    first = Attempt(inputs, folder, program, world=2, failpoints={rank: point})
    codes = first.run()
    assert codes[rank] == -signal.SIGKILL
    # The second checkpoint is not begun before the first is complete: from step 8 on one is there.
    assert max(first.losses()) >= 8
    last = newest(folder)
    assert last and all(e["path"] <= last for e in first.of("checkpoint"))
    second = Attempt(inputs, folder, program, world=2, attempt=2, resume=last)
    assert second.run() == [0, 0], second.events
    assert second.of("ready")[0]["resumed_from"] == last
    joined = {**{s: x for s, x in first.losses().items() if s <= second.of("ready")[0]["step"]}, **second.losses()}
    assert joined == undisturbed.losses()
    assert digest(folder / "step-00000012.a2") == digest(undisturbed_folder / "step-00000012.a1")
    assert history(folder) == history(undisturbed_folder)
    assert not [p for p in folder.iterdir() if p.name.startswith(".tmp")]


def test_the_users_binary_has_no_failpoints(inputs, tmp_path, monkeypatch):
    """It trains to the end, and says why nothing happens."""
    monkeypatch.setenv("TACC_FAILPOINTS", "before_load=kill;before_shard_write=kill")
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs), max_steps=4)
    said = attempt.ranks[0].stderr.readline()
    assert attempt.run() == [0]
    assert said.startswith("TACC_FAILPOINTS is ignored"), said


@pytest.mark.parametrize("point", ["before_manifest=kill@2", "before_rename=kill@2", "after_rename=kill@2"])
def test_a_commit_cut_short_leaves_a_usable_checkpoint(inputs, whole, tmp_path, point):
    program = compile_program(inputs)
    folder = tmp_path / "run"
    assert Attempt(inputs, folder, program, failpoints={0: point}).run() == [-signal.SIGKILL]
    last = newest(folder)
    assert last == ("step-00000008.a1" if point.startswith("after_rename") else "step-00000004.a1")
    second = Attempt(inputs, folder, program, attempt=2, resume=last)
    assert second.run() == [0]
    assert digest(folder / "step-00000012.a2") == digest(whole[1] / "step-00000012.a1")


def test_training_goes_on_while_a_checkpoint_is_written(inputs, two, tmp_path):
    attempt = train(inputs, tmp_path / "run", fsdp=2, failpoints={1: "before_shard_write=sleep:1@1"})
    first = attempt.of("checkpoint")[0]
    at = attempt.events[0].index(first)
    # Up to the next checkpoint, which waits for this one.
    assert [e["step"] for e in attempt.events[0][:at] if e["event"] == "step"] == list(range(1, 9))
    assert first["stall_seconds"] < 0.5 and first["seconds"] > 1
    for name in ("step-00000004.a1", "step-00000008.a1", "step-00000012.a1"):
        assert digest(tmp_path / "run" / name) == digest(two[1] / name)


def test_a_pipeline_goes_on_as_another_layout_and_back(inputs, whole, tmp_path):
    """Each stage writes its own weights; a resume takes what it needs from all of them."""
    folder, losses, resume = tmp_path / "run", {}, ""
    for attempt, layout in enumerate([{"pp": 2, "accumulation": 2}, {"fsdp": 2}, {"pp": 2, "accumulation": 4}], 1):
        # The schedule of the learning rate is that of all steps.
        program = compile_program(inputs, **layout)
        run = Attempt(inputs, folder, program, world=2, attempt=attempt, max_steps=4 * attempt, resume=resume)
        assert run.run() == [0, 0], run.events
        losses |= run.losses()
        resume = f"step-{4 * attempt:08}.a{attempt}"
    assert losses == pytest.approx(whole[0].losses(), rel=1e-6)
    got, want = read_weights(folder / resume), read_weights(whole[1] / "step-00000012.a1")
    assert got.keys() == want.keys()
    for name in want:
        # Where a gradient is all but zero the order of its sums decides AdamW's sign: compared as a whole.
        assert np.linalg.norm(got[name] - want[name]) <= 1e-3 * np.linalg.norm(want[name]), name


STAGES_INSIDE = {"pp": 2, "fsdp": 2, "accumulation": 3, "topology": ("fsdp", "pp"), "fsdp_options": {"zero_stage": 1}}


@pytest.mark.parametrize("writer, reader", [({"fsdp": 2}, {}), (STAGES_INSIDE, {}), ({"fsdp": 2}, STAGES_INSIDE)], ids=str)
def test_resume_on_another_layout(inputs, two, tmp_path, writer, reader):
    written, folder = two if writer == {"fsdp": 2} else (train(inputs, tmp_path / "first", **writer), tmp_path / "first")
    read = train(inputs, tmp_path / "one", attempt=2, resume=str(folder / "step-00000004.a1"), **reader)
    assert read.of("ready")[0]["step"] == 4 and read.of("ready")[0]["resumed_from"] == "step-00000004.a1"
    for step, loss in read.losses().items():
        assert loss == pytest.approx(written.losses()[step], rel=1e-6)
    assert [e["batch_hash"] for e in read.of("step")] == [e["batch_hash"] for e in written.of("step")[4:]]


def test_a_damaged_checkpoint_ends_the_attempt_on_every_rank(inputs, two, tmp_path):
    """Which one to take in its place is the coordinator's to say: it knows the job's."""
    shutil.copytree(two[1], tmp_path / "run")
    shard = tmp_path / "run/step-00000012.a1/rank-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    second = Attempt(inputs, tmp_path / "run", compile_program(inputs, fsdp=2), world=2, attempt=2,
                     resume="step-00000012.a1")
    assert second.run() == [1, 1], second.events
    assert [w["code"] for rank in (0, 1) for w in second.of("warning", rank)] == ["checkpoint_damaged"], second.events
    for rank in (0, 1):
        failed = second.of("failed", rank)[0]
        assert failed["code"] == "checkpoint_damaged" and str(shard) in failed["message"], failed
    # A checkpoint that the user named is refused instead.
    third = Attempt(inputs, tmp_path / "run", compile_program(inputs), attempt=3, resume=str(shard.parent))
    assert third.run() == [2]
    assert third.of("failed")[0]["code"] == "bad_input" and str(shard) in third.of("failed")[0]["message"]


def test_a_checkpoint_that_cannot_be_read_is_not_damaged(inputs, two, tmp_path):
    shutil.copytree(two[1], tmp_path / "run")
    shard = tmp_path / "run/step-00000012.a1/rank-00001.safetensors"
    shard.unlink()
    shard.symlink_to(shard)  # ELOOP, for root too
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs, fsdp=2), world=2, attempt=2, resume="step-00000012.a1")
    assert attempt.run() == [1, 1], attempt.events
    for rank in (0, 1):
        assert attempt.of("warning", rank) == []
        failed = attempt.of("failed", rank)[0]
        assert failed["code"] == "unavailable" and str(shard) in failed["message"], failed


def test_data_that_cannot_be_read_for_a_while(inputs, whole, tmp_path):
    """The attempt ends on every rank with a code that another attempt may cure; the next one ends with the same bits."""
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs, fsdp=2), world=2, failpoints={1: "read_data=errno:EIO@40"})
    assert attempt.run() == [1, 1], attempt.events
    for rank in (0, 1):
        failed = attempt.of("failed", rank)[0]
        assert failed["code"] == "unavailable" and "rank 1: " in failed["message"] and "Input/output error" in failed["message"], failed
    assert 0 < len(attempt.of("step")) < 12


def test_stop_and_checkpoint_commands(inputs, tmp_path):
    program = compile_program(inputs, fsdp=2, max_steps=100_000)
    attempt = Attempt(inputs, tmp_path / "run", program, world=2, max_steps=100_000, save_steps=100_000,
                      changes={"train": {"max_steps": 100_000, "eval_steps": 100_000, "deterministic": False}})

    def react(event):
        if event["event"] == "step" and event["step"] == 3:
            attempt.send(command="checkpoint")
        if event["event"] == "checkpoint" and event["step"] < 30:
            attempt.send(command="no such thing")
            attempt.send(command="stop")

    assert attempt.run(react) == [0, 0]
    checkpoints = [e["step"] for e in attempt.of("checkpoint")]
    stopped = attempt.of("stopped")[0]["step"]
    assert len(checkpoints) == 2 and checkpoints[0] >= 3 and checkpoints[1] == stopped
    assert attempt.of("stopped", 1)[0]["step"] == stopped
    assert "no such thing" in attempt.of("log")[0]["message"]


def test_end_of_stdin_ends_the_rank(inputs, tmp_path):
    program = compile_program(inputs, max_steps=100_000)
    attempt = Attempt(inputs, tmp_path / "run", program, max_steps=100_000)

    def close(event):
        if event["event"] == "step" and event["step"] == 2:
            attempt.ranks[0].stdin.close()

    assert attempt.run(close) == [1]


def test_a_checkpoint_that_cannot_be_written_is_a_warning(inputs, tmp_path):
    attempt = train(inputs, tmp_path / "run", fsdp=2, failpoints={1: "after_shard_write=error@1"})
    assert attempt.of("warning", 1)[0]["code"] == "checkpoint_failed"
    assert [e["step"] for e in attempt.of("checkpoint")] == [8, 12]
    assert not [p for p in (tmp_path / "run").iterdir() if p.name.startswith(".tmp")]


def test_a_folder_that_is_lost_while_training(inputs, tmp_path):
    """What a lost mount leaves of a claimed folder is a bare one: nothing is put there, and all goes on when it is back."""
    run, away = tmp_path / "run", tmp_path / "away"
    run.mkdir()
    (run / "job.json").write_text("{}")
    checkpoint = {"dir": str(run), "claimed": True, "save_steps": 1_000_000, "resume": "", "export": ""}
    attempt = Attempt(inputs, run, compile_program(inputs, max_steps=100_000), max_steps=100_000, changes={"checkpoint": checkpoint})

    landed = []

    def lose_and_mount(event):
        if event["event"] == "step" and event["step"] == 3:
            run.rename(away)
            run.mkdir()
            attempt.send(command="checkpoint")
        if event["event"] in ("warning", "checkpoint") and event.get("code") != "busy_cpu" and away.exists():
            landed.extend(run.iterdir())
            shutil.rmtree(run)
            away.rename(run)
            attempt.send(command="stop")

    assert attempt.run(lose_and_mount) == [0]
    assert not landed
    (warning,) = attempt.of("warning")
    assert warning["code"] == "checkpoint_failed"
    assert f"{run}/job.json: No such file" in warning["message"] and "mount it again" in warning["message"], warning
    (saved,) = attempt.of("checkpoint")
    assert sorted(p.name for p in run.iterdir()) == ["job.json", "metrics.jsonl", "report.html", saved["path"], "tensorboard"]
    assert [line["step"] for line in read_lines(run) if "loss" in line] == list(attempt.losses())

    bare = tmp_path / "bare"
    late = Attempt(inputs, bare, compile_program(inputs), changes={"checkpoint": {**checkpoint, "dir": str(bare)}})

    def mount(event):
        if event["event"] == "warning" and "tried again" in event["message"] and not landed:
            landed.extend(bare.iterdir())
            (bare / "job.json").write_text("{}")

    assert late.run(mount) == [0]
    assert not landed
    warnings = late.of("warning")
    assert {w["code"] for w in warnings} == {"checkpoint_failed", "metrics_failed"}
    assert str(bare / "job.json") in warnings[-1]["message"] and "missing" not in warnings[-1]["message"], warnings
    assert [e["step"] for e in late.of("checkpoint")] == [12]


def test_a_rank_that_another_has_taken_the_folder_from_ends(inputs, tmp_path):
    """It says who, waits for nobody, and saves nothing more."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "job.json").write_text("{}")
    checkpoint = {"dir": str(run), "claimed": True, "service": "mine", "save_steps": 1_000_000, "resume": "", "export": ""}
    attempt = Attempt(inputs, run, compile_program(inputs, max_steps=100_000), max_steps=100_000, attempt=2, changes={"checkpoint": checkpoint})
    theirs = {"service": "theirs", "job": "t-1", "attempt": 3, "host": "elsewhere", "pid": 7, "since": 0}

    def take(event):
        if event["event"] == "step" and event["step"] == 3:
            mine = json.loads((run / "writer.json").read_text())
            assert (mine["service"], mine["job"], mine["attempt"], mine["pid"]) == ("mine", "t-1", 2, attempt.ranks[0].pid)
            (run / "writer.json").write_text(json.dumps(theirs))
            attempt.send(command="checkpoint")

    assert attempt.run(take) == [1]
    (failed,) = attempt.of("failed")
    assert failed["code"] == "unavailable", failed
    assert failed["message"] == (
        f"checkpoint.dir {run} is used by job t-1 of another service (attempt 3, pid 7 on elsewhere, since 1970-01-01 00:00:00 UTC), which has "
        "taken it over from attempt 2 of job t-1: this attempt ends, and saves nothing more there")
    assert not attempt.of("checkpoint") and not list(run.glob("step-*"))
    assert json.loads((run / "writer.json").read_text()) == theirs

    # One that is to start there does not.
    again = Attempt(inputs, run, compile_program(inputs), attempt=3, changes={"checkpoint": checkpoint})
    assert again.run() == [1]
    assert not again.of("ready") and again.of("failed")[0]["code"] == "unavailable"


def test_the_last_checkpoint_waits_for_room(inputs, tmp_path):
    """On all ranks, of which one finds none: the steps are not made again."""
    program = compile_program(inputs, fsdp=2)
    attempt = Attempt(inputs, tmp_path / "run", program, world=2)
    limits = resource.prlimit(attempt.ranks[1].pid, resource.RLIMIT_FSIZE)
    resource.prlimit(attempt.ranks[1].pid, resource.RLIMIT_FSIZE, (8 << 10, limits[1]))

    def make_room(event):
        if event["event"] == "warning" and "tried again" in event["message"]:
            resource.prlimit(attempt.ranks[1].pid, resource.RLIMIT_FSIZE, limits)

    assert attempt.run(make_room) == [0, 0]
    assert [e["step"] for e in attempt.of("step")] == list(range(1, 13))
    warning = attempt.of("warning")[0]  # Rank 0's own shard was written.
    assert warning["code"] == "checkpoint_failed" and "File too large; what was trained is still in memory" in warning["message"], warning
    assert warning["message"].startswith("rank 1: the last checkpoint, of step 12, could not be written: "), warning
    assert [e["step"] for e in attempt.of("checkpoint")] == [12]
    assert len(attempt.of("warning", 1)) >= 3  # Of steps 4, 8 and 12.


def test_a_stop_waits_for_room(inputs, tmp_path):
    program = compile_program(inputs, fsdp=2, max_steps=100_000)
    attempt = Attempt(inputs, tmp_path / "run", program, world=2, max_steps=100_000, save_steps=0)
    limits = resource.prlimit(attempt.ranks[1].pid, resource.RLIMIT_FSIZE)
    resource.prlimit(attempt.ranks[1].pid, resource.RLIMIT_FSIZE, (8 << 10, limits[1]))

    def stop_and_make_room(event):
        if event["event"] == "step" and event["step"] == 2:
            attempt.send(command="stop")
        if event["event"] == "warning" and "tried again" in event["message"]:
            resource.prlimit(attempt.ranks[1].pid, resource.RLIMIT_FSIZE, limits)

    assert attempt.run(stop_and_make_room) == [0, 0]
    (stopped,) = attempt.of("stopped")
    warning = attempt.of("warning")[0]
    said = f"rank 1: training stopped at step {stopped['step']}, but its checkpoint could not be written: "
    assert warning["message"].startswith(said) and "what was trained is still in memory" in warning["message"], warning
    assert [e["step"] for e in attempt.of("checkpoint")] == [stopped["step"]]


def test_the_last_checkpoint_is_not_in_its_own_way(inputs, tmp_path):
    """Renamed, but not forced to the disk: the next try finds it in its place."""
    attempt = train(inputs, tmp_path / "run", failpoints={0: "after_rename=errno:EIO@3"})  # Of steps 4, 8 and 12.
    first, again = (w["message"] for w in attempt.of("warning"))
    assert "Input/output error" in first and "tried again" in again, (first, again)
    assert [e["step"] for e in attempt.of("checkpoint")] == [4, 8, 12]
    assert not [p for p in (tmp_path / "run").iterdir() if p.name.startswith(".tmp")]


def test_full_disk_stops_neither_training_nor_reporting(inputs, tmp_path):
    program = compile_program(inputs)
    script = f"ulimit -S -f 8; exec {BUILD / 'tacc-rank'} --start $0"
    attempt = Attempt(inputs, tmp_path / "run", program)
    attempt.ranks[0].kill()
    attempt.run()
    start = next(tmp_path.glob("start-*.json"))
    rank = subprocess.Popen(["bash", "-c", script, start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    events = []
    for line in rank.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "warning" and "tried again" in events[-1]["message"]:  # The last checkpoint is the result.
            resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert rank.wait(60) == 0
    rank.stdin.close()
    rank.stdout.close()
    assert [e["step"] for e in events if e["event"] == "step"] == list(range(1, 13))
    warnings = [e for e in events if e["event"] == "warning" and e["code"] != "busy_cpu"]
    assert {e["code"] for e in warnings} == {"checkpoint_failed"}
    assert [f"step {step}" in warnings[i]["message"] for i, step in enumerate((4, 8, 12, 12))] == [True] * 4
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [12]


def test_ten_nonfinite_steps_stop_the_run(inputs, tmp_path):
    good = compile_program(inputs, fsdp=2)
    program = tmp_path / "bad" / good.name
    shutil.copytree(good.parent, program.parent)
    program.write_text(good.read_text().replace('init="normal(0.05)"', 'init="normal(1e38)"'))
    attempt = Attempt(inputs, tmp_path / "run", program, world=2)
    assert attempt.run() == [3, 3]
    failed = attempt.of("failed")[0]
    assert failed["code"] == "nonfinite"
    for words in ("step 10", attempt.of("step")[9]["batch_hash"], "rank 0"):
        assert words in failed["message"]
    assert [e["skipped"] for e in attempt.of("step")] == [1] * 10
    assert [e["event"] for e in attempt.events[0][-2:]] == ["failed", "report"]
    page = html.unescape((tmp_path / "run/report.html").read_text())
    assert "The training failed at step 10." in page and "nonfinite: " + failed["message"] in page
    assert "The initial weights may be broken" in failed["message"] and not saved_in(tmp_path / "run")


def changed_program(good: Path, folder: Path, pattern: str, value: str) -> Path:
    """The program of one stage with another number in its text."""
    shutil.copytree(good.parent, folder)
    program = folder / good.name
    text, count = re.subn(pattern, value, good.read_text())
    assert count > 0, pattern
    program.write_text(text)
    return program


def test_a_training_that_ends_in_nonfinite_steps_has_failed(inputs, tmp_path):
    """Before ten of them: no step follows that could show better. Nothing of it is saved or exported."""
    program = changed_program(compile_program(inputs, max_steps=6), tmp_path / "bad", r"learning_rate=[^ ]+", "learning_rate=1e30")
    attempt = Attempt(inputs, tmp_path / "run", program, max_steps=6, save_steps=2, export=str(tmp_path / "hf"))
    assert attempt.run() == [3], attempt.events
    failed = attempt.of("failed")[0]
    assert failed["code"] == "nonfinite" and "5 steps in a row, the last is step 6" in failed["message"], failed
    assert not saved_in(tmp_path / "run") and not attempt.of("checkpoint") and not (tmp_path / "hf").exists()


def test_weights_that_are_not_finite_are_neither_saved_nor_exported(inputs, tmp_path):
    """One step is enough where a gradient is 0 and nothing is added to its moment's root."""
    program = changed_program(compile_program(inputs, max_steps=1), tmp_path / "bad", r"epsilon=[^ ]+", "epsilon=0.0")
    attempt = Attempt(inputs, tmp_path / "run", program, max_steps=1, export=str(tmp_path / "hf"))
    assert attempt.run() == [3], attempt.events
    failed = attempt.of("failed")[0]
    assert failed["code"] == "nonfinite" and "weights of rank 0 hold numbers that are not finite" in failed["message"], failed
    assert not saved_in(tmp_path / "run") and not (tmp_path / "hf").exists()


def test_one_nonfinite_step_at_the_end_is_no_failure(inputs, tmp_path):
    """The batch may be to blame: the weights are those of the step before."""
    program = changed_program(compile_program(inputs, max_steps=2), tmp_path / "bad", r"learning_rate=[^ ]+", "learning_rate=1e30")
    attempt = Attempt(inputs, tmp_path / "run", program, max_steps=2)
    assert attempt.run() == [0], attempt.events
    assert [e["skipped"] for e in attempt.of("step")] == [0, 1] and saved_in(tmp_path / "run") == ["step-00000002.a1"]


def test_what_a_start_file_passes_on_is_looked_at(inputs, tmp_path):
    program = compile_program(inputs)
    attempt = Attempt(inputs, tmp_path / "run", program, changes={"identity": {"config_json": 5}})
    assert attempt.run() == [2]
    assert "identity.config_json is 5; wanted a string" in attempt.of("failed")[0]["message"]


def saved_in(folder):
    return sorted(p.name for p in folder.iterdir() if "step-" in p.name)


def test_weights_that_are_no_numbers_any_more_are_not_saved(inputs, tmp_path):
    """Broken by the first update: the checkpoints of steps 4 and 8 would be of weights that give no number."""
    good = compile_program(inputs, fsdp=2)
    program = tmp_path / "diverging" / good.name
    shutil.copytree(good.parent, program.parent)
    program.write_text(good.read_text().replace("learning_rate=0.003", "learning_rate=1e38"))
    train = {"max_steps": 40, "eval_steps": 40, "stop_if_stuck_steps": 50, "deterministic": True}
    attempt = Attempt(inputs, tmp_path / "run", program, world=2, changes={"train": train})
    assert attempt.run() == [3, 3]
    skipped = [e["skipped"] for e in attempt.of("step")]
    assert skipped == sorted(skipped) and sum(skipped) == 10
    (failed,) = attempt.of("failed")
    assert "A checkpoint of step 1 or later is of no use" in failed["message"] and "never to begin anew" in failed["message"], failed
    assert not saved_in(tmp_path / "run") and not attempt.of("checkpoint")

    # After good steps, and also where stuck runs may go on: what was saved before is named, and is all that is there.
    folder = tmp_path / "later"
    begun = Attempt(inputs, folder, good, world=2, save_steps=2, max_steps=3)
    assert begun.run() == [0, 0]
    broken = Attempt(inputs, folder, program, world=2, attempt=2, resume="step-00000003.a1",
                     changes={"train": {**train, "stop_if_stuck_steps": 0}})
    assert broken.run() == [3, 3]
    (failed,) = broken.of("failed")
    assert "of step 4 or later is of no use" in failed["message"], failed
    assert f"checkpoint.resume_from_checkpoint: {folder}/step-00000003.a1 to go on" in failed["message"], failed
    assert saved_in(folder) == ["step-00000002.a1", "step-00000003.a1"]


@pytest.mark.parametrize("rate", ["0.003", "1e-30"])
def test_a_loss_above_the_entropy_of_tokens_is_one_warning(inputs, tmp_path, rate):
    good = compile_program(inputs)
    program = tmp_path / "program" / good.name
    shutil.copytree(good.parent, program.parent)
    program.write_text(good.read_text().replace("learning_rate=0.003", f"learning_rate={rate}"))
    attempt = Attempt(inputs, tmp_path / "run", program, save_steps=0, changes={"train": {"max_steps": 505, "eval_steps": 0, "deterministic": True}})
    assert attempt.run() == [0]
    if rate == "0.003":
        assert attempt.losses()[505] < 4.2 and not attempt.of("warning")
        return
    [warning] = attempt.of("warning")
    assert warning["code"] == "loss_above_unigram_entropy" and "step 500: the mean loss of the last 50 steps is 4.6" in warning["message"], warning
    _, counts = np.unique(np.resize(np.random.default_rng(0).integers(2, VOCAB, size=256), 4096), return_counts=True)
    entropy = -sum(counts / 4096 * np.log(counts / 4096))
    assert float(re.search(r"above (\S+),", warning["message"])[1]) == pytest.approx(entropy, abs=0.02)  # A row's first token is no target.


def test_a_load_balancing_loss_is_not_held_against_the_entropy(inputs, tmp_path):
    """It is part of the loss of a mixture, which is more than a cross-entropy then."""
    mixture = {**MODEL, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
               "rms_norm_eps": 1e-5, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    shutil.copytree(inputs / "data", tmp_path / "data")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(mixture))
    program = compile_program(tmp_path)
    program.write_text(program.read_text().replace("learning_rate=0.003", "learning_rate=1e-30"))
    attempt = Attempt(inputs, tmp_path / "run", program, save_steps=0,
                      changes={"model_dir": str(tmp_path / "model"), "train": {"max_steps": 500, "eval_steps": 0, "deterministic": True}})
    assert attempt.run() == [0]
    assert attempt.losses()[500] > np.log(VOCAB) + 0.5 and not attempt.of("warning"), attempt.of("warning")


@pytest.mark.parametrize("rate, code", [("1e6", 4), ("1e-30", 0)])
def test_a_run_that_no_longer_learns_is_stopped(inputs, tmp_path, rate, code):
    good = compile_program(inputs, fsdp=2)
    program = tmp_path / "diverging" / good.name
    shutil.copytree(good.parent, program.parent)
    assert "learning_rate=0.003" in good.read_text()
    program.write_text(good.read_text().replace("learning_rate=0.003", f"learning_rate={rate}"))
    attempt = Attempt(inputs, tmp_path / "run", program, world=2, save_steps=1,
                      changes={"train": {"max_steps": 12, "eval_steps": 6, "stop_if_stuck_steps": 5, "deterministic": True}})
    assert attempt.run() == [code, code]
    if code == 0:  # The weights stand, but the gradient is there.
        assert attempt.of("finished") and max(attempt.losses()) == 12
        return
    assert [w["code"] for w in attempt.of("warning")] == ["zero_gradient"] and not attempt.of("warning", 1)
    failed = attempt.of("failed")[0]
    assert failed["code"] == "stuck" and "step 6" in failed["message"] and "train.learning_rate" in failed["message"]
    assert attempt.losses()[6] == pytest.approx(np.log(VOCAB), rel=1e-5)
    # The update of step 1 broke the weights: no checkpoint of them is left, nor named.
    assert not [p.name for p in (tmp_path / "run").iterdir() if "step-" in p.name]
    assert "A checkpoint of step 1 or later is of no use" in failed["message"]
    assert "checkpoint.resume_from_checkpoint: never to begin anew" in failed["message"]
    page = html.unescape((tmp_path / "run/report.html").read_text())
    assert "The training failed at step 6." in page and "stuck: " + failed["message"] in page

    # What broke later leaves the checkpoint of before, and names it; the weights in it learn.
    folder = tmp_path / "later"
    options = {"world": 2, "save_steps": 1}
    begun = Attempt(inputs, folder, good, max_steps=3, **options)
    assert begun.run() == [0, 0]
    shutil.rmtree(folder / "step-00000001.a1")
    shutil.rmtree(folder / "step-00000002.a1")
    broken = Attempt(inputs, folder, program, attempt=2, resume="step-00000003.a1",
                     changes={"train": {"max_steps": 12, "eval_steps": 6, "stop_if_stuck_steps": 5, "deterministic": True}}, **options)
    assert broken.run() == [4, 4]
    assert [p.name for p in folder.iterdir() if "step-" in p.name] == ["step-00000003.a1"]
    (failed,) = broken.of("failed")
    assert f"checkpoint.resume_from_checkpoint: {folder}/step-00000003.a1 to go on" in failed["message"], failed
    again = Attempt(inputs, folder, good, attempt=3, resume="step-00000003.a1", max_steps=6, **options)
    assert again.run() == [0, 0]
    assert min(step["grad_norm"] for step in again.of("step")) > 1e-3


def test_float16_finds_its_loss_scale(inputs, tmp_path):
    """From a scale that is far too large; a resume, on this layout or on another, goes on with the scale, its good steps and AdamW's count."""
    program = compile_program(inputs, fsdp=2, init_scale=2.0**30)
    whole = Attempt(inputs, tmp_path / "whole", program, world=2)
    assert whole.run() == [0, 0]
    steps = whole.of("step")
    scale, good, skipped = 2.0**30, 0, 0
    for step in steps:
        good = 0 if step["skipped"] else good + 1
        skipped += step["skipped"]
        scale = scale / 2 if step["skipped"] else scale * 2 if good == 3 else scale
        good %= 3
        assert step["loss_scale"] == scale
        assert step["skipped"] == (not np.isfinite(step["grad_norm"] if step["grad_norm"] is not None else np.inf))
    assert steps[0]["skipped"] and 4 < skipped < 10, "it is found before the last steps, after the first checkpoint"
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert not whole.of("warning"), "an overflow is nothing to warn of while the scale can fall"

    for resume in ("step-00000004.a1", "step-00000008.a1"):
        again = Attempt(inputs, tmp_path / "whole", program, world=2, attempt=2, resume=resume)
        assert again.run() == [0, 0]
        for got, want in zip(again.of("step"), steps[int(resume[5:13]):], strict=True):
            assert [got[k] for k in ("step", "loss", "loss_scale", "skipped")] == [want[k] for k in ("step", "loss", "loss_scale", "skipped")]
        assert digest(tmp_path / "whole/step-00000012.a2") == digest(tmp_path / "whole/step-00000012.a1")
        shutil.rmtree(tmp_path / "whole/step-00000012.a2")

    stages = compile_program(inputs, pp=2, accumulation=2, init_scale=2.0**30)
    other = Attempt(inputs, tmp_path / "whole", stages, world=2, attempt=3, resume="step-00000008.a1")
    assert other.run() == [0, 0]
    for got, want in zip(other.of("step"), steps[8:], strict=True):
        assert got["loss_scale"] == want["loss_scale"] and got["loss"] == pytest.approx(want["loss"], rel=1e-3)


def test_float16_goes_on_from_float32_and_back(inputs, two, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(two[1], folder)
    half = Attempt(inputs, folder, compile_program(inputs, fsdp=2, init_scale=1024.0), world=2, attempt=2, max_steps=10, resume="step-00000008.a1")
    assert half.run() == [0, 0]
    assert [e["loss_scale"] for e in half.of("step")] == [1024.0, 1024.0]
    back = Attempt(inputs, folder, compile_program(inputs, fsdp=2), world=2, attempt=3, resume="step-00000010.a2")
    assert back.run() == [0, 0]
    for step, loss in {**half.losses(), **back.losses()}.items():
        assert loss == pytest.approx(two[0].losses()[step], rel=1e-3)


def test_float16_stops_when_the_scale_is_not_to_blame(inputs, tmp_path):
    good = compile_program(inputs, init_scale=4.0)
    program = tmp_path / "bad" / good.name
    shutil.copytree(good.parent, program.parent)
    program.write_text(good.read_text().replace('init="normal(0.05)"', 'init="normal(1e38)"'))
    attempt = Attempt(inputs, tmp_path / "run", program)
    assert attempt.run() == [3]
    assert attempt.of("failed")[0]["code"] == "nonfinite"
    # 4 -> 2 -> 1, the least, and ten steps at that.
    assert [e["loss_scale"] for e in attempt.of("step")] == [2.0] + [1.0] * 10
    assert len(attempt.of("warning")) == 10


def test_float16_that_finds_no_loss_scale(inputs, tmp_path):
    """It fails where it has searched for long, whatever small limit the job has; a run that ends before that says that it made no update."""
    program = compile_program(inputs, init_scale=1e30)
    changes = {"train": {"max_steps": 60, "eval_steps": 60, "stop_if_stuck_steps": 5, "deterministic": True}}
    lost = Attempt(inputs, tmp_path / "lost", program, changes=changes, save_steps=100)
    assert lost.run() == [4], lost.events
    failed = lost.of("failed")[0]
    assert failed["code"] == "stuck" and max(lost.losses()) == 40, failed
    for words in ("40 steps, up to step 40", f"{1e30 / 2**40:g}", "bf16", "grad_scaler.init_scale"):
        assert words in failed["message"], failed

    short = Attempt(inputs, tmp_path / "short", program)
    assert short.run() == [0], short.events
    [warning] = short.of("warning")
    assert warning["code"] == "nonfinite" and "no update was made" in warning["message"] and short.of("finished")


def test_a_traced_step_is_as_any_other(inputs, two, tmp_path):
    """--trace on one rank: all are in its file. --profile beside it."""
    trace, profile = tmp_path / "trace.json", tmp_path / "profile.json"
    attempt = train(inputs, tmp_path / "run", fsdp=2, options={1: ["--trace", trace, "--profile", profile]})
    assert attempt.losses() == two[0].losses()
    assert digest(tmp_path / "run" / newest(tmp_path / "run")) == digest(two[1] / newest(two[1]))
    assert not attempt.of("trace")
    told = attempt.of("trace", rank=1)
    assert [(e["step"], e["path"]) for e in told] == [(3, str(trace))]
    events = json.loads(trace.read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    slices = [e for e in events if e["ph"] == "X"]
    end = max(e["ts"] + e["dur"] for e in slices)
    assert min(e["ts"] for e in slices) >= 0 and end * 1e-6 <= 1.5 * attempt.of("step")[2]["seconds"] + 0.01
    modules = set(re.findall(r"= einsum .* @(\S+)", compile_program(inputs, fsdp=2).read_text(), re.M))
    assert any(m.startswith("model.layers.1.") for m in modules)
    for rank in (0, 1):
        nodes = [e for e in slices if e["pid"] == rank and e["cat"] == "node"]
        assert 0 < sum(e["dur"] for e in nodes) <= end
        assert {e["args"].get("module", "") for e in nodes if e["name"] == "einsum"} == modules
        gathers = [e for e in slices if e["pid"] == rank and e["name"] == "all_gather"]
        assert gathers and all(e["cat"] == "collective" and e["args"]["sent_bytes"] > 0 for e in gathers)
    entries = json.loads(profile.read_text())["nodes"]
    # 12 steps and the evaluations.
    assert sum(e["count"] for e in entries if e["op"] == "adamw") % 12 == 0
    assert sum(e["seconds"] for e in entries if e["op"] == "einsum") > 0


def test_a_trace_of_the_last_step_where_there_are_fewer(inputs, tmp_path):
    change = {"trace": {"path": str(tmp_path / "trace.json"), "step": 50}}
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs), max_steps=2, changes=change)
    assert attempt.run() == [0]
    assert [e["step"] for e in attempt.of("trace")] == [2] and (tmp_path / "trace.json").exists()


def test_a_lost_peer_is_named(inputs, tmp_path):
    program = compile_program(inputs, fsdp=2)
    attempt = Attempt(inputs, tmp_path / "run", program, world=2, failpoints={1: "in_collective=kill@100"})
    assert attempt.run() == [1, -signal.SIGKILL]
    failed = attempt.of("failed")[0]
    assert failed["code"] == "collective" and "rank 1" in failed["message"] and "@" in failed["message"]


@pytest.mark.parametrize("change, words", [
    ({"version": "9.9.9"}, ["9.9.9", VERSION]),
    ({"seed": -1}, ["seed is -1"]),
    ({"world": 2, "rank": 0}, ["mesh dp=1 fsdp=1", "world = 2"]),
    ({"data": {"path": "DATA", "eval_path": "", "seq_len": 32, "global_batch_size": BATCH}}, ["tokens", "32"]),
    ({"data": {"path": "DATA", "eval_path": "", "seq_len": SEQ, "global_batch_size": 18}}, ["global_batch_size = 18"]),
    ({"memory_bytes": 1000}, ["1000"]),
    ({"compute": {"tf32": True}}, ["compute.tf32 is true", "CPU"]),
    ({"compute": {"tf32": 1}}, ["compute.tf32 is 1", "true or false"]),
    ({"trace": {"path": "/x", "step": 0}}, ["trace.step is 0", "at least 1"]),
    ({"device": "cuda:x"}, ["device is", "cuda:x", "cuda:N"]),
], ids=lambda x: str(x)[:40])
def test_bad_input(inputs, tmp_path, change, words):
    if isinstance(change.get("data"), dict):
        change = {"data": {**change["data"], "path": change["data"]["path"].replace("DATA", str(inputs / "data"))}}
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs), changes=change)
    want = 1 if "memory_bytes" in change else 2
    assert attempt.run() == [want], attempt.events
    failed = attempt.of("failed")[0]
    assert failed["code"] == ("memory" if want == 1 else "bad_input")
    for word in words:
        assert word in failed["message"]


@pytest.mark.parametrize("change, words", [
    ({"data": {"path": "/nowhere", "eval_path": "", "seq_len": SEQ, "global_batch_size": BATCH}}, ["/nowhere"]),
    ({"weights": "pretrained"}, ["model.safetensors"]),
    ({"program": "/nowhere.program"}, ["/nowhere.program"]),
    ({"checkpoint": {"dir": "/nowhere", "save_steps": 1, "resume": "step-00000001.a1", "export": ""}},
     ["/nowhere/step-00000001.a1"]),
], ids=lambda x: str(x)[:40])
def test_what_is_not_there_may_come_back(inputs, tmp_path, change, words):
    """A typo is found before a rank starts."""
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs), changes=change)
    assert attempt.run() == [1], attempt.events
    failed = attempt.of("failed")[0]
    assert failed["code"] == "unavailable"
    for word in words:
        assert word in failed["message"]


def test_other_data_than_the_jobs_is_not_taken(inputs, tmp_path):
    """As many tokens of another text lie where the job's data was: it waits for its own."""
    from tacc.shards import DatasetWriter

    writer = DatasetWriter(tmp_path / "other", VOCAB)
    writer.append(np.resize(np.random.default_rng(1).integers(2, VOCAB, size=256), 4096))
    other = writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=SEQ)
    mine = json.loads((inputs / "data/index.json").read_text())
    names = {name: f"4096 tokens, {index['fingerprint']}" for name, index in (("mine", mine), ("other", other))}
    identity = {"identity": {"model": "a", "data": names["mine"], "seed": 3}}
    program = compile_program(inputs, fsdp=2)
    assert Attempt(inputs, tmp_path / "right", program, world=2, changes=identity).run() == [0, 0]
    data = {"path": str(tmp_path / "other"), "eval_path": "", "seq_len": SEQ, "global_batch_size": BATCH}
    attempt = Attempt(inputs, tmp_path / "run", program, world=2, changes={**identity, "data": data})
    assert attempt.run() == [1, 1], attempt.events
    failed = attempt.of("failed")[0]
    assert failed["code"] == "unavailable" and not attempt.of("step"), failed
    for word in (data["path"], *names.values(), "put the data back", "submit again"):
        assert word in failed["message"], failed


def without_targets(folder: Path) -> str:
    from tacc.shards import DatasetWriter

    writer = DatasetWriter(folder, VOCAB, loss_mask=True)
    writer.append(np.full(4096, 5), np.zeros(4096))
    writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=SEQ)
    return str(folder)


def test_held_out_data_without_targets_is_one_warning(inputs, tmp_path):
    data = {"path": str(inputs / "data"), "eval_path": without_targets(tmp_path / "eval"), "seq_len": SEQ, "global_batch_size": BATCH}
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs, fsdp=2), world=2, changes={"data": data})
    assert attempt.run() == [0, 0], attempt.events
    [warning] = attempt.of("warning")
    assert warning["code"] == "no_eval_targets" and data["eval_path"] in warning["message"], warning
    assert not attempt.of("eval")


def test_a_step_without_targets_is_one_warning(inputs, tmp_path):
    data = {"path": without_targets(tmp_path / "data"), "eval_path": "", "seq_len": SEQ, "global_batch_size": BATCH}
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs, fsdp=2), world=2, changes={"data": data})
    assert attempt.run() == [3, 3], "its updates are skipped"
    [warning] = [w for w in attempt.of("warning") if w["code"] == "no_targets"]
    assert "step 1 " in warning["message"] and data["path"] in warning["message"], warning


def test_a_gpu_that_is_not_there(inputs, tmp_path):
    attempt = Attempt(inputs, tmp_path / "run", compile_program(inputs), changes={"device": "cuda:99"})
    assert attempt.run() == [1], attempt.events
    failed = attempt.of("failed")[0]
    assert failed["code"] == "device" and "cuda:99" in failed["message"], failed


def test_devices():
    """The CPU is listed; a GPU without a CUDA module beside tacc-rank is bad input that says what to do."""
    def ask(*arguments):
        return subprocess.run([BUILD / "tacc-rank", *arguments], capture_output=True, text=True)

    listed = json.loads(ask("--devices").stdout)
    assert listed[0]["name"] == listed[0]["kind"] == "cpu" and listed[0]["model"]
    if not (BUILD / "libtacc_cuda.so").exists():
        for question in ("--probe", "--look"):
            result = ask(question, "--device", "cuda:0")
            assert result.returncode == 2 and not result.stdout
            assert result.stderr.startswith("error: there is no CUDA module (libtacc_cuda.so) beside tacc-rank; use --device cpu")


def test_operators_of_libraries(tmp_path):
    """What they add is listed; why one cannot be loaded is bad input, in one line."""
    def ask(*files):
        flags = [word for file in files for word in ("--op-library", file)]
        return subprocess.run([BUILD / "tacc-rank", "--operators", *flags], capture_output=True, text=True, cwd=tmp_path)

    ops = BUILD / "tests/tacc_test_ops.so"
    named = re.findall(r'm\.def\("(\w+)\(', (ROOT / "tests/op_library/test_ops.cc").read_text())
    assert json.loads(ask(ops).stdout) == sorted(f"tacc_test::{name}" for name in named) and "scaled_tanh" in named
    assert json.loads(ask().stdout) == json.loads(ask(BUILD / "tests/tacc_no_operators.so").stdout) == []
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "lib.c").write_text("extern int there_is_none(void); int call(void) { return there_is_none(); }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "undefined.so", "lib.c"], cwd=tmp_path, check=True)
    (tmp_path / "other.c").write_text("int other(void) { return 0; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libother.so", "-o", "libother.so", "other.c"], cwd=tmp_path, check=True)
    (tmp_path / "user.c").write_text("extern int other(void); int user(void) { return other(); }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "user.so", "user.c", "libother.so"], cwd=tmp_path, check=True)
    for file, words in {
        tmp_path / "none.so": "none.so: cannot open shared object file: No such file or directory",
        tmp_path / "text.so": "text.so: file too short",
        tmp_path / "undefined.so": "undefined.so: undefined symbol: there_is_none",
        tmp_path / "user.so": "user.so: libother.so: cannot open shared object file: No such file or directory; give that library by an --op-library before this one",
        BUILD / "tests/tacc_needs_python.so": "tacc_needs_python.so: it needs Python (PyExc_RuntimeError), which ranks have not",
    }.items():
        result = ask(file)
        assert result.returncode == 2 and not result.stdout, file
        assert result.stderr.startswith("error: --op-library /") and words in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert ask(tmp_path / "libother.so", tmp_path / "user.so").returncode == 0


def test_a_program_without_such_operators_loads_no_library(inputs, whole, tmp_path):
    attempt = train(inputs, tmp_path / "run", options={0: ["--op-library", "/no/such.so"]})
    assert [step["loss"] for step in attempt.of("step")] == [step["loss"] for step in whole[0].of("step")]


def test_usage_errors():
    for arguments in ([], ["--start"], ["--no-such"], ["--probe", "--threads", "0"], ["--probe", "--device", "tpu"], ["--probe", "--devices"], ["--look"]):
        result = subprocess.run([BUILD / "tacc-rank", *arguments], capture_output=True, text=True,
                                stdin=subprocess.DEVNULL)
        assert result.returncode == 2 and result.stderr and not result.stdout
