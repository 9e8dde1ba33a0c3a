"""Twenty AdamW steps of a reference model and of ours, on the same batches."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from cases import Case
from references import KeepDouble, bloom_slopes_in_double, in_double, loss_of, stored
from safetensors.torch import load_file
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["TACC_BUILD"])
sys.path.insert(0, str(ROOT / "client/python"))
VERSION = subprocess.run([BUILD / "tacc-rank", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]

NUM_STEPS = 20
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.1
BETA1 = 0.9
SEED = 5
NUM_BATCHES = 2  # in the cycle
INIT_SCALE = 4096.0  # of the loss in fp16: no step of a reference or of ours overflows


@dataclass
class Run:
    losses: list[float] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)  # of the first step, in float64, as stored
    norms: list[float] = field(default_factory=list)  # of all gradients, before they are clipped; none without clipping


def write_data(case: Case, folder: Path) -> Path:
    from tacc.shards import DatasetWriter

    writer = DatasetWriter(folder, case.vocab_size)
    writer.append(np.random.default_rng(3).integers(0, case.vocab_size, size=NUM_BATCHES * case.batch * case.seq_len))
    writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=case.seq_len)
    return folder


def batches(case: Case, data: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, targets) of each step, as `tacc-data show` prints them; labels shift inside the row."""
    options = ["--data", data, "--global-batch-size", case.batch, "--seed", SEED, "--step", 1, "--num-steps", NUM_STEPS, "--json"]
    command = [str(word) for word in (BUILD / "tacc-data", "show", *options)]
    result = []
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        tokens = torch.tensor(json.loads(line)["tokens"])
        targets = torch.full_like(tokens, -1)
        targets[:, :-1] = tokens[:, 1:]
        result.append((tokens, targets))
    return result


def reference_run(
    case: Case,
    module: nn.Module,
    steps: list[tuple[torch.Tensor, torch.Tensor]],
    precision: str,
    max_grad_norm: float = 0.0,
    learning_rate: float = LEARNING_RATE,
) -> Run:
    """`precision`: fp64, fp32, or bf16 or fp16 (autocast; fp16 with a GradScaler). `max_grad_norm` 0: no clipping. Trains what requires a
    gradient."""
    run = Run()
    with contextlib.ExitStack() as stack:
        if precision == "fp64":
            stack.callback(bloom_slopes_in_double())
            module = in_double(case, module)
            stack.enter_context(KeepDouble())
        trained = [p for p in module.parameters() if p.requires_grad]
        names = {id(p): name for name, p in module.named_parameters()}
        matrices = [p for p in trained if p.dim() >= 2 and not names[id(p)].endswith("bias")]
        matrix_ids = {id(p) for p in matrices}
        vectors = [p for p in trained if id(p) not in matrix_ids]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=learning_rate)
        scaler = torch.amp.GradScaler("cpu", init_scale=INIT_SCALE, enabled=precision == "fp16")
        narrow = torch.float16 if precision == "fp16" else torch.bfloat16
        for tokens, targets in steps:
            with torch.autocast("cpu", narrow, enabled=precision in ("bf16", "fp16")):
                logits = module(tokens)
            loss = loss_of(module, logits, targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if not run.gradients:
                run.gradients = stored(module, lambda p: None if p.grad is None else p.grad.double().clone())
            if max_grad_norm > 0:
                run.norms.append(torch.nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm).item())
            scaler.step(optimizer)
            scaler.update()
            run.losses.append(loss.item())
        assert precision != "fp16" or scaler.get_scale() == INIT_SCALE
    return run


def plan_request(
    case: Case,
    model: dict,
    data: Path,
    precision: str,
    max_steps: int,
    learning_rate: float,
    max_grad_norm: float = 0.0,
    finetune: dict | None = None,
) -> dict:
    train = {"max_steps": max_steps, "global_batch_size": case.batch, "per_device_train_batch_size": case.batch}
    train |= {"learning_rate": learning_rate, "lr_scheduler_type": "LR_SCHEDULER_TYPE_CONSTANT", "seed": SEED}
    train |= {"weight_decay": WEIGHT_DECAY, "adam_beta1": BETA1, "max_grad_norm": max_grad_norm, **(finetune or {})}
    job = {
        "name": "parity",
        "model": model,
        "data": {"path": str(data), "seq_len": case.seq_len},
        "train": train,
        "compute": {"bf16": precision == "bf16", "fp16": precision == "fp16", "grad_scaler": {"init_scale": INIT_SCALE, "growth_interval": 2000}},
        "dist": {"dp": {"size": 1}, "fsdp": {"size": 1}},
    }
    device = {"name": "cpu", "kind": "cpu", "model": "any", "threads": 1, "memory_bytes": 4 << 30}
    device |= {"matmul_flops_per_second": {"f32": 1e11, "bf16": 1e11, "f16": 1e11}, "memory_bytes_per_second": 1e10}
    device |= {"link_bytes_per_second": 1e9, "link_latency_seconds": 1e-4}
    facts = {"vocab_size": case.vocab_size, "num_tokens": 1000, "eval_tokens": 0}
    return {"job": job, "world": 1, "device": device, "data": facts}


def compiled(request: dict, folder: Path) -> Path:
    """The folder in `folder` with the program and `summary.json`. Runs with the same request share one: a program holds no weights."""
    text = json.dumps(request)
    out = folder / f"program-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not out.exists():
        out.mkdir()
        (out / "request.json").write_text(text)
        command = [BUILD / "tacc-plan", "compile", "--request", out / "request.json", "--out", out]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    return out


def _start_file(case: Case, model: dict, data: Path, program: Path, folder: Path, max_steps: int, save_steps: int) -> dict:
    start = {"version": VERSION, "job": "parity-1", "attempt": 1, "rank": 0, "world": 1, "device": "cpu", "threads": 1}
    start |= {"memory_bytes": 4 << 30, "advertise": "127.0.0.1", "program": str(program / "stage0.program")}
    weights = "pretrained" if model["weights"] == "WEIGHTS_PRETRAINED" else "random"
    start |= {"model_dir": model.get("path", ""), "weights": weights, "seed": SEED, "collective_timeout_seconds": 60}
    shape = {"seq_len": case.seq_len, "global_batch_size": case.batch}
    start["data"] = {"path": str(data), "eval_path": "", **shape}
    start["train"] = {"max_steps": max_steps, "eval_steps": 1000, "deterministic": False}
    start["compute"] = {"tf32": False}
    start["checkpoint"] = {"dir": str(folder / "checkpoints"), "save_steps": save_steps, "resume": "", "export": ""}
    start["identity"] = {"model": "parity", **shape, "seed": SEED}
    return start


def run_steps(
    case: Case,
    model: dict,
    data: Path,
    folder: Path,
    precision: str,
    max_steps: int,
    learning_rate: float = LEARNING_RATE,
    max_grad_norm: float = 0.0,
    finetune: dict | None = None,
    save_steps: int = 1000,
) -> list[dict]:
    """The events of `max_steps` steps on one rank. `model`: section `model` of the job; `finetune`: keys of its `train`. Checkpoints lie in `folder`,
    programs beside `data`."""
    (folder / "checkpoints").mkdir(parents=True)
    program = compiled(plan_request(case, model, data, precision, max_steps, learning_rate, max_grad_norm, finetune), data.parent)
    start = folder / "start.json"
    adapter = {"adapter_dir": finetune["lora"]["init_from"]} if finetune and "lora" in finetune else {}
    start.write_text(json.dumps(_start_file(case, model, data, program, folder, max_steps, save_steps) | adapter))
    log = folder / "rank.log"
    with open(log, "w") as stderr, subprocess.Popen(
        [BUILD / "tacc-rank", "--start", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as rank:
        try:
            lines = rank.stdout.read().splitlines()  # its stdin stays open meanwhile: the rank ends when that closes
            code = rank.wait(timeout=60)
        finally:
            rank.kill()
    assert code == 0, "\n".join([f"exit {code}", *lines[-5:], log.read_text()])
    events = [json.loads(line) for line in lines]
    assert all(event.get("loss_scale", INIT_SCALE) == INIT_SCALE for event in events)
    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == max_steps, lines
    return steps


def run_rank(*args, **options) -> list[float]:
    """The losses of run_steps."""
    return [step["loss"] for step in run_steps(*args, **options)]


def pretrained(model: Path) -> dict:
    return {"path": str(model), "weights": "WEIGHTS_PRETRAINED"}


def _merge_rows(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rows NAME[begin:end] of one tensor, or NAME[:,begin:end] of each of its entries, put together, flat."""
    parts: dict[str, dict[int, torch.Tensor]] = {}
    for name, value in tensors.items():
        whole, _, rows = name.partition("[")
        begin, _, end = rows.removesuffix("]").removeprefix(":,").partition(":")
        value = value.reshape(-1, int(end) - int(begin), value.shape[-1]) if rows.startswith(":,") else value.flatten()
        parts.setdefault(whole, {})[int(begin or 0)] = value
    return {name: torch.cat([v for _, v in sorted(rows.items())], -2 if rows[0].dim() == 3 else 0).flatten() for name, rows in parts.items()}


def first_moments(folder: Path) -> dict[str, torch.Tensor]:
    """Of the checkpoint of step 1 in `folder`, flat, by the names of tensors in a model's files."""
    saved = load_file(folder / "checkpoints/step-00000001.a1/rank-00000.safetensors")
    moments = {}
    for name, value in saved.items():
        if not name.startswith("exp_avg/"):
            continue
        name = name.removeprefix("exp_avg/")
        moments |= {name.replace("*", str(i)): v for i, v in enumerate(value)} if "*" in name else {name: value}
    return _merge_rows(moments)


def our_run(
    case: Case,
    parameters: dict[str, torch.Tensor],
    model: Path,
    data: Path,
    folder: Path,
    precision: str,
    max_steps: int = NUM_STEPS,
    learning_rate: float = LEARNING_RATE,
    finetune: dict | None = None,
) -> Run:
    """Training of `parameters`, by their names in checkpoints. The gradients are the first moment after the first step, without the factor of AdamW."""
    losses = run_rank(case, pretrained(model), data, folder, precision, max_steps, learning_rate, finetune=finetune, save_steps=1)
    moments = first_moments(folder)
    shutil.rmtree(folder / "checkpoints")
    assert set(moments) == set(parameters)
    factor = float(np.float32(1 - BETA1))
    return Run(losses, {name: moments[name].double().reshape(parameter.shape) / factor for name, parameter in parameters.items()})
