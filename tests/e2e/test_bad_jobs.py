"""Jobs that cannot run end with exit code 2, a message that names the place and what to do, and no rank started. What can go on, goes on."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cluster import BUILD, ROOT, TINY_MODEL, Cluster, write_data, write_job, write_model


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as c:
        yield c


@pytest.fixture(scope="module")
def pretrained(cluster, tmp_path_factory):
    """A model folder with weights: what a job exported."""
    job = cluster.submit(write_job(tmp_path_factory.mktemp("pretrained"), name="pretrained", workers=1, train={"max_steps": 1}))
    assert cluster.finish(job).returncode == 0
    return Path(cluster.json("get", job)["exported_path"])


def refused(cluster: Cluster, path: Path, *parts) -> str:
    """Submits and follows; exit code 2 with all `parts` in the message, and no rank was started."""
    result = cluster.ctl("submit", "--follow", path, check=False)
    message = result.stderr
    print(message)
    assert result.returncode == 2, f"exit {result.returncode}\n{result.stdout}\n{message}\n{cluster.logs()}"
    for part in parts:
        assert str(part) in message, f"no '{part}' in:\n{message}"
    if result.stdout.strip():  # it was accepted: the coordinator found out
        assert "attempt_started" not in [e["type"] for e in cluster.events(result.stdout.split()[0])]
    cluster.wait(lambda: all(w["state"] == "idle" for w in workers(cluster)), "idle workers")
    return message


def workers(cluster: Cluster) -> list[dict]:
    return [json.loads(line) for line in cluster.ctl("workers", "-o", "json").stdout.splitlines()]


def copy(folder: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


# Models

def test_model_folder_missing(cluster, tmp_path):
    refused(cluster, write_job(tmp_path, model={"path": "nowhere"}), tmp_path / "nowhere")


def test_pretrained_without_safetensors(cluster, tmp_path):
    path = write_job(tmp_path, model={"path": "model", "weights": "pretrained"})
    refused(cluster, path, tmp_path / "model", "safetensors", "weights: random")


def test_pickled_weights(cluster, tmp_path):
    path = write_job(tmp_path, model={"path": "model", "weights": "pretrained"})
    (tmp_path / "model/pytorch_model.bin").write_bytes(b"PK\3\4")
    refused(cluster, path, tmp_path / "model", "python -m tacc convert")


@pytest.mark.parametrize("weights, files, part", [
    ("pretrained", {"adapter_config.json": "{}", "adapter_model.safetensors": ""}, "is an adapter (LoRA), not a model"),
    (None, {"config.json": json.dumps(TINY_MODEL), "model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"}, "git lfs pull"),
    ("pretrained", {"config.json": json.dumps(TINY_MODEL)}, "has no model.safetensors"),
    (None, {"config.json": json.dumps(TINY_MODEL), "pytorch_model.bin": "PK"}, "python -m tacc convert"),
    ("random", {"config.json": json.dumps(TINY_MODEL)[:99]}, "config.json:1:"),
    ("random", {"config.json": json.dumps({**TINY_MODEL, "model_type": "mamba"})}, "no such family of models is known"),
    ("random", {"config.json": json.dumps({**TINY_MODEL, "max_position_embeddings": 8})}, "the model takes at most 8 tokens"),
])
def test_a_model_that_cannot_be_trained_is_refused_before_it_is_submitted(cluster, tmp_path, weights, files, part):
    """In the words of the compiler."""
    (tmp_path / "model").mkdir()
    for name, text in files.items():
        (tmp_path / "model" / name).write_text(text)
    path = write_job(tmp_path, name="refused", model={"path": "model", **({"weights": weights} if weights else {})})
    if not weights:
        path.write_text(json.dumps({**json.loads(path.read_text()), "model": {"path": "model"}}))
    imported = subprocess.run([BUILD / "tacc-plan", "import", "--model", tmp_path / "model", "--batch", "1", "--seq-len", "16", "--weights", weights or "auto"],
                              capture_output=True, text=True, timeout=60)
    for submit in (["submit", path], ["submit", "--local", path]):
        result = subprocess.run([BUILD / "taccctl", *submit], capture_output=True, text=True, timeout=60,
                                env={**os.environ, **({} if "--local" in submit else {"TACC_ADDRESS": cluster.address})})
        assert result.returncode == 2 and not result.stdout and part in result.stderr, (result.stdout, result.stderr)
        assert imported.stderr.splitlines()[0].removeprefix("error: ") in result.stderr, (imported.stderr, result.stderr)
    assert not [job for job in map(json.loads, cluster.ctl("list", "-o", "json").stdout.splitlines()) if job["id"].startswith("refused")]


def refused_before_it_is_submitted(cluster, path: Path, part: str) -> None:
    name = json.loads(path.read_text())["name"]
    for submit in (["submit", "--follow", path], ["submit", "--local", path]):
        result = subprocess.run([BUILD / "taccctl", *submit], capture_output=True, text=True, timeout=60,
                                env={**os.environ, **({} if "--local" in submit else {"TACC_ADDRESS": cluster.address})})
        assert result.returncode == 2 and not result.stdout and part in result.stderr, (result.stdout, result.stderr)
    assert not [job for job in map(json.loads, cluster.ctl("list", "-o", "json").stdout.splitlines()) if job["name"] == name]
    assert not (path.parent / "runs").exists()


@pytest.mark.parametrize("changes, part", [
    ({"dist": {"tp": {"size": 3}}, "resources": {"workers": 3}, "train": {"max_steps": 1}}, "dist.tp.size = 3"),
    ({"dist": {"pp": {"size": 4}}, "resources": {"workers": 4}}, "dist.pp.size = 4 is more than the 2 layers"),
    ({"dist": {"ep": {"size": 2}}}, "dist.ep.size = 2 is given for a model without experts"),
    ({"dist": {"cp": {"size": 8}}, "resources": {"workers": 8}, "data": {"path": "data", "seq_len": 12}}, "dist.cp.size = 8"),
    ({"dist": {}, "resources": {"workers": 3}}, "train.global_batch_size = 8 does not divide over 3 workers; nearest legal values: 6 and 9"),
    ({"dist": {"pp": {"size": 2, "split_points": ["layers.1"]}}}, "dist.pp.split_points: the model has no module 'layers.1'; the nearest is 'model.layers.1'"),
    ({"dist": {"pp": {"size": 2, "split_points": ["model.layers.0", "model.layers.1"]}}}, "dist.pp.split_points names 2 modules, but 2 parts"),
    ({"dist": {"fsdp": {"wrap_layer_cls": ["LlamaDecoderLayer"]}}}, "wanted OlmoDecoderLayer"),
    ({"dist": {"pins": {"model.norms.weight": "[-]"}}}, "model.norms.weight"),
    ({"memory": {"gc": True, "gc_cnt": 3}}, "memory.gc_cnt = 3, but the model has 2 layers"),
    ({"train": {"num_train_epochs": 1, "global_batch_size": 8, "warmup_steps": 33}}, "train.warmup_steps = 33 is more than the 32 steps"),
])
def test_a_layout_that_cannot_be_is_refused_before_it_is_submitted(cluster, tmp_path, changes, part):
    path = write_job(tmp_path, name="laid-out")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    refused_before_it_is_submitted(cluster, path, part)


def test_data_that_cannot_be_used_is_refused_before_it_is_submitted(cluster, tmp_path):
    path = write_job(tmp_path, name="fed")
    index, good = tmp_path / "data/index.json", (tmp_path / "data/index.json").read_text()
    (tmp_path / "model/tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
    refused_before_it_is_submitted(cluster, path, f"{tmp_path}/data: prepared with another tokenizer")
    (tmp_path / "model/tokenizer.json").unlink()
    index.unlink()
    refused_before_it_is_submitted(cluster, path, f"{tmp_path}/data: has no index.json")
    index.write_text(good)
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": {"path": "data", "seq_len": 16, "eval_path": "model"}}))
    refused_before_it_is_submitted(cluster, path, f"{tmp_path}/model: has no index.json; it looks like a model")
    path = write_job(tmp_path / "vocabulary", name="fed", model={"path": "../model"}, data={"path": "../larger"})
    write_data(tmp_path / "larger", vocab_size=500)
    refused_before_it_is_submitted(cluster, path, "but the model's vocabulary has 97")
    # Both at once.
    path.write_text(json.dumps({**json.loads(path.read_text()), "dist": {"pp": {"size": 4}}, "resources": {"workers": 4}}))
    refused_before_it_is_submitted(cluster, path, "is more than the 2 layers")
    refused_before_it_is_submitted(cluster, path, "but the model's vocabulary has 97")


def test_a_graph_of_the_datas_length_is_not_refused(cluster, tmp_path):
    path = write_job(tmp_path, name="graph", workers=1, train={"max_steps": 1})
    job = json.loads(path.read_text())
    del job["data"]["seq_len"]
    path.write_text(json.dumps({**job, "model": {"graph": "net.graph", "weights": "random"}}))
    (tmp_path / "net.graph").write_text((ROOT / "examples/graph/mlp.graph").read_text().replace("[B,S", "[B,16"))
    assert cluster.finish(cluster.submit(path)).returncode == 0


def test_truncated_safetensors(cluster, pretrained, tmp_path):
    model = copy(pretrained, tmp_path / "model")
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    refused(cluster, write_job(tmp_path, model={"weights": "pretrained"}), weights, "bytes")


def test_wrong_shapes(cluster, pretrained, tmp_path):
    model = copy(pretrained, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    refused(cluster, write_job(tmp_path, model={"weights": "pretrained"}), "mlp", "48", "64")


def test_a_pin_on_a_head_that_is_tied_but_stored_apart_is_no_mistake(cluster, pretrained, tmp_path):
    config = json.loads((copy(pretrained, tmp_path / "model") / "config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    layout = {"fsdp": {"size": 1}, "tp": {"size": 2}, "pins": {"lm_head.weight": "[-, tp]"}}
    path = write_job(tmp_path, name="pinned", model={"weights": "pretrained"}, dist=layout, train={"max_steps": 1})
    assert cluster.finish(cluster.submit(path)).returncode == 0


def test_mistake_in_a_graph_text(cluster, tmp_path):
    path = write_job(tmp_path)
    job = json.loads(path.read_text())
    job["model"] = {"graph": "net.graph", "weights": "random"}
    path.write_text(json.dumps(job))
    (tmp_path / "net.graph").write_text('tacc.graph 1\n%x = input "tokens" : i32[8,16\n')
    message = refused(cluster, path, f"{tmp_path / 'net.graph'}:2:")
    assert "^" in message.splitlines()[-1], message


def test_does_not_fit(tmp_path):
    with Cluster(tmp_path / "small", workers=1, memory="64MiB") as small:
        write_model(tmp_path / "model", hidden_size=1024, intermediate_size=4096, num_hidden_layers=4)
        message = refused(small, write_job(tmp_path, workers=1, dist={}), "the model does not fit: a worker needs ", " and has 64.0 MiB; ",
                          "one NVIDIA A100 SXM4 40 GB would do", " of it: weights ", " largest buffers: ")
        verdict = next(line for line in message.splitlines() if "does not fit" in line)
        assert len(verdict) < 160, verdict


# Data

def test_raw_text(cluster, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/book.txt").write_text("Once upon a time.\n")
    refused(cluster, write_job(tmp_path, data={"path": "corpus"}), tmp_path / "corpus", "python -m tacc data prepare", "--input")


def test_data_folder_missing(cluster, tmp_path):
    refused(cluster, write_job(tmp_path, data={"path": "nowhere"}), tmp_path / "nowhere")


def test_tokens_of_another_vocabulary(cluster, tmp_path):
    write_data(tmp_path / "data", vocab_size=500)
    refused(cluster, write_job(tmp_path), tmp_path / "data", "vocabulary has 97", "data prepare --tokenizer")


def test_tokenizer_of_another_model(cluster, tmp_path):
    path = write_job(tmp_path)
    index = json.loads((tmp_path / "data/index.json").read_text())
    index["tokenizer"]["fingerprint"] = "0123456789abcdef"
    (tmp_path / "data/index.json").write_text(json.dumps(index))
    (tmp_path / "model/tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
    refused(cluster, path, "tokenizer", tmp_path / "model")


def test_too_little_data(cluster, tmp_path):
    write_data(tmp_path / "data", num_tokens=10)
    refused(cluster, write_job(tmp_path), tmp_path / "data", "10 tokens", "16")


def test_less_data_than_a_global_batch(cluster, tmp_path):
    """A sample twice in one update would be silently weighted twice."""
    write_data(tmp_path / "data", num_tokens=7 * 16)
    path = write_job(tmp_path)
    refused(cluster, path, tmp_path / "data", "112 tokens make 7 samples", "one global batch needs 8 (128 tokens)", "prepare more text", "global_batch_size")
    planned = cluster.ctl("plan", path, check=False)
    assert planned.returncode == 2 and "needs 8" in planned.stderr, planned.stderr
    job = json.loads(path.read_text())
    del job["train"]["global_batch_size"]
    path.write_text(json.dumps(job))
    refused(cluster, path, tmp_path / "data", "7 samples", "the planned global batch has 8", "at most 7")


# Paths and checkpoint folders

def test_checkpoint_folder_cannot_be_made(cluster, tmp_path):
    (tmp_path / "file").write_text("")
    refused(cluster, write_job(tmp_path, checkpoint={"dir": "file/runs"}), "worker w", tmp_path / "file")


def test_checkpoint_folder_not_writable(cluster, tmp_path):
    """Root may write everywhere but on a file system that is mounted read-only."""
    refused(cluster, write_job(tmp_path, checkpoint={"dir": "/proc/sys/runs"}), "worker w", "/proc/sys/runs")


def test_checkpoint_folder_of_another_job(cluster, tmp_path):
    shared = {"dir": str(tmp_path / "runs")}
    cluster.finish(cluster.submit(write_job(tmp_path, name="first", workers=1, train={"max_steps": 1}, checkpoint=shared)))
    refused(cluster, write_job(tmp_path, name="second", checkpoint=shared), tmp_path / "runs", "first")


# Resume

@pytest.fixture(scope="module")
def half(cluster, tmp_path_factory):
    """A folder with a job that ended at step 4, with two checkpoints."""
    folder = tmp_path_factory.mktemp("half")
    job = cluster.submit(write_job(folder, name="half", workers=1, train={"max_steps": 4}, checkpoint={"save_steps": 2}))
    assert cluster.finish(job).returncode == 0
    return folder


def test_changes_that_cannot_be_resumed(cluster, half):
    def changed(*parts, **changes):
        changes = {"train": {"max_steps": 8}, **changes}
        changes["train"] = {"max_steps": 8, **changes["train"]}
        refused(cluster, write_job(half, name="half", workers=1, **changes), "cannot resume", *parts)

    changed("train.seed", 3, 4, train={"seed": 4})
    changed("train.global_batch_size", 8, 4, train={"global_batch_size": 4})
    changed("data.seq_len", 16, 8, data={"seq_len": 8})
    if not (half / "other-data").exists():
        write_data(half / "other-data", seed=1)
        write_model(half / "other-model", hidden_size=64)
    changed("data.path", half / "data", half / "other-data", "tokens", data={"path": "other-data"})
    changed("the model", half / "model", half / "other-model", "parameters", model={"path": "other-model"})


def test_changes_that_are_accepted_and_logged(cluster, half):
    job = cluster.submit(write_job(half, name="half", workers=2, train={"max_steps": 6, "learning_rate": 0.001}, checkpoint={"save_steps": 3}))
    assert cluster.finish(job).returncode == 0
    assert [p["step"] for p in cluster.points(job)] == [5, 6]
    told = "\n".join(e["message"] for e in cluster.events(job))
    for change in ("max_steps", "learning_rate", "save_steps", "fsdp"):
        assert change in told, told


def test_damaged_checkpoint_gives_way_to_the_one_before(cluster, tmp_path):
    first = cluster.submit(write_job(tmp_path, name="damaged", workers=1, train={"max_steps": 4}, checkpoint={"save_steps": 2}))
    assert cluster.finish(first).returncode == 0
    newest = sorted((tmp_path / "runs/damaged").glob("step-*"))[-1]
    shard = newest / "rank-00000.safetensors"
    with open(shard, "r+b") as file:
        file.seek(shard.stat().st_size - 50)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    job = cluster.submit(write_job(tmp_path, name="damaged", workers=1, train={"max_steps": 6}, checkpoint={"save_steps": 2}))
    assert cluster.finish(job).returncode == 0
    told = "\n".join(e["message"] for e in cluster.events(job))
    assert str(newest.name) in told and "rank-00000.safetensors" in told, told
    assert [p["step"] for p in cluster.points(job)] == [3, 4, 5, 6]


# Troubles on the way

DISK_BYTES = 32 << 20  # The metrics of many thousand steps fit beside checkpoints.


@pytest.fixture
def tiny_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"needs root, to mount a small disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_full_disk_does_not_stop_training(cluster, tiny_disk, tmp_path):
    runs = tiny_disk / "runs"
    path = write_job(tmp_path, name="full", workers=1, checkpoint={"dir": str(runs), "save_steps": 20}, train={"max_steps": 1_000_000})
    with open(tiny_disk / "filler", "wb") as filler:
        filler.write(b"\0" * (DISK_BYTES - 100_000))
    job = cluster.submit(path)
    told = cluster.wait(lambda: [e["message"] for e in cluster.events(job) if "No space left" in e["message"]], "an event that the disk is full")
    assert str(runs) in told[0], told
    step = cluster.json("get", job)["step"]
    cluster.wait(lambda: cluster.json("get", job)["step"] > step + 20, "further steps")
    (tiny_disk / "filler").unlink()
    cluster.wait(lambda: cluster.json("get", job).get("last_checkpoint"), "a checkpoint, once there is space")
    assert cluster.json("get", job)["restarts"] == []
    cluster.ctl("cancel", "--now", job)
    assert cluster.finish(job).returncode == 101


def test_a_full_disk_at_the_end_is_waited_for(cluster, tiny_disk, tmp_path):
    path = write_job(tmp_path, name="last", workers=2, checkpoint={"dir": str(tiny_disk / "runs"), "save_steps": 100}, train={"max_steps": 6})
    with open(tiny_disk / "filler", "wb") as filler:
        filler.write(b"\0" * (DISK_BYTES - 100_000))
    job = cluster.submit(path)
    told = cluster.wait(lambda: [e["message"] for e in cluster.events(job) if "tried again" in e["message"]], "an event that the result waits")
    assert "No space left" in told[0] and f"{tiny_disk / 'runs'} has 0." in told[0] and "MB are missing" in told[0], told
    (tiny_disk / "filler").unlink()
    assert cluster.finish(job).returncode == 0
    assert cluster.json("get", job)["restarts"] == []
    assert [p["step"] for p in cluster.points(job)] == [1, 2, 3, 4, 5, 6]


def test_gradients_that_stay_not_finite_stop_the_job(cluster, tmp_path):
    job = cluster.submit(write_job(tmp_path, name="diverges", workers=2, train={"max_steps": 40, "learning_rate": 1e30}, checkpoint={"save_steps": 100}))
    result = cluster.finish(job)
    assert result.returncode == 100
    view = cluster.json("get", job)
    assert view["phase"] == "failed" and view["restarts"] == []
    assert "not finite" in view["reason"] and "step" in view["reason"] and "rank" in view["reason"] and "batch" in view["reason"], view["reason"]
    skipped = [p["step"] for p in cluster.points(job) if p["skipped"]]
    assert len(skipped) == 10
