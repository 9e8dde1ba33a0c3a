"""`taccctl plan --calibrate`: from steps of a cluster whose constants are known, made by its own plans, it finds them again, and plans by what it wrote."""

import csv
import json
import os
import re
import subprocess
from pathlib import Path

import yaml

BUILD = Path(os.environ["TACC_BUILD"])
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 2,
          "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
          "hidden_act": "silu", "tie_word_embeddings": False}
# What no data sheet says of this cluster, away from the preset.
TRUE = {"machine": "h100", "nodes": 2, "matmul_fraction": 0.6, "inter_bytes_per_second": 12e9}
# Layouts with their samples a GPU.
ROWS = [({"world": 8, "fsdp": 8}, 1), ({"world": 8, "fsdp": 8}, 4), ({"world": 8, "fsdp": 4, "tp": 2}, 4), ({"world": 16, "fsdp": 16}, 4),
        ({"world": 16, "dp": 2, "fsdp": 8}, 1), ({"world": 16, "fsdp": 2, "tp": 8}, 4), ({"world": 16, "dp": 16}, 1)]


def taccctl(*words) -> subprocess.CompletedProcess:
    done = subprocess.run([BUILD / "taccctl", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def step_seconds(job: Path, cluster: Path) -> float:
    return json.loads(taccctl("plan", job, "--cluster", cluster, "-o", "json").stdout.splitlines()[0])["predicted_step_seconds"]


def test_constants_are_found_again(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    job = {"name": "calibrated", "model": {"path": "model", "weights": "random"}, "data": {"path": "data", "seq_len": 4096}, "train": {"max_steps": 10},
           "compute": {"bf16": True}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    true = tmp_path / "true.yaml"
    rows = []
    for axes, batch in ROWS:
        samples = batch * axes.get("dp", 1) * axes.get("fsdp", 1)
        dist = {axis: {"size": axes.get(axis, 1)} for axis in ("dp", "fsdp", "tp")}
        (tmp_path / "row.yaml").write_text(yaml.safe_dump(job | {
            "dist": dist, "memory": {"gc": False}, "resources": {"workers": axes["world"]},
            "train": {"max_steps": 10, "global_batch_size": samples, "per_device_train_batch_size": batch}}))
        true.write_text(yaml.safe_dump({**TRUE, "nodes": axes["world"] // 8}))
        rows.append(axes | {"gc": "false", "per_device_train_batch_size": batch, "global_batch_size": samples,
                            "step_seconds": step_seconds(tmp_path / "row.yaml", true)})
    with open(tmp_path / "measured.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["step_seconds", "world", "dp", "fsdp", "tp", "per_device_train_batch_size", "global_batch_size", "gc"], restval=1)
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "sheet.yaml").write_text("machine: h100\nnodes: 2\n")

    done = taccctl("plan", tmp_path / "job.yaml", "--cluster", tmp_path / "sheet.yaml", "--calibrate", tmp_path / "measured.csv")
    before, after = map(float, re.search(r"off by ([\d.]+)% on average, and are by ([\d.]+)%", done.stdout).groups())
    assert before > 10 and after < 2, done.stdout + done.stderr
    fitted = yaml.safe_load(done.stdout)
    for constant in ("matmul_fraction", "inter_bytes_per_second"):
        assert abs(fitted[constant] / TRUE[constant] - 1) < 0.1, done.stdout

    # A layout that is not among the rows.
    (tmp_path / "mine.yaml").write_text(done.stdout)
    true.write_text(yaml.safe_dump(TRUE))
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(job | {"dist": {"fsdp": {"size": 4}, "tp": {"size": 4}}, "memory": {"gc": True},
                                                              "train": {"max_steps": 10, "global_batch_size": 32}}))
    wanted = step_seconds(tmp_path / "other.yaml", true)
    assert abs(step_seconds(tmp_path / "other.yaml", tmp_path / "mine.yaml") / wanted - 1) < 0.02
    assert abs(step_seconds(tmp_path / "other.yaml", tmp_path / "sheet.yaml") / wanted - 1) > 0.05


def test_what_is_no_step_of_the_job_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({
        "name": "calibrated", "model": {"path": "model", "weights": "random"}, "data": {"path": "data", "seq_len": 4096},
        "train": {"max_steps": 10, "global_batch_size": 8}}))
    (tmp_path / "sheet.yaml").write_text("machine: h100\nnodes: 2\n")
    plan = [BUILD / "taccctl", "plan", tmp_path / "job.yaml", "--cluster", tmp_path / "sheet.yaml"]
    for seconds in ("1e-9", "1e9"):
        (tmp_path / "measured.csv").write_text(f"step_seconds,world,fsdp\n{seconds},8,8\n")
        done = subprocess.run([*plan, "--calibrate", tmp_path / "measured.csv"], capture_output=True, text=True)
        assert done.returncode == 2 and not done.stdout, done
        assert "measured.csv:2: " in done.stderr and "are these the seconds of one step of that job?" in done.stderr, done.stderr
    for other in (["--gpus", "8"], ["--explain", "tp=8"], ["--html", tmp_path / "page.html"], ["--trace", tmp_path / "trace.json"]):
        done = subprocess.run([*plan, "--calibrate", tmp_path / "measured.csv", *other], capture_output=True, text=True)
        assert done.returncode == 2 and "--calibrate" in done.stderr, (other, done)
    # Beside a plan stands what it is not for.
    done = subprocess.run([*plan, "--gpus", "8", "--set", "resources.workers=4"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--gpus 8: not for the 2 nodes of " in done.stderr and "resources.workers = 4 is for the coordinator: planning for 8 GPUs" in done.stderr
