"""Compares training of PyTorch models that were exported (tacc.export_model) with PyTorch on this machine's CPU; prints a table of ratios.

    .venv/bin/python bench/imported.py [--models GPT-2 "BERT, masked LM"] [--precisions f32,bf16] [--rounds 2]

The models are those of imported_models.py; without --models, those that have a bar. One rank of two threads, whose batches a client sends, against the same module trained by PyTorch with fused AdamW: eager and torch.compile (of the model, and of clipping
and the update too), in bf16 under autocast. All of PyTorch's ways run in the first round, the fastest goes on. Sides take turns, each in a process of its own. The first
3 steps of a run are warm-up, the figure is the median of the rest. The step is what the loop that calls it waits for: on our side it has the client's part, too. Memory:
bench/README.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/e2e"), str(ROOT / "client/python")]

from bare_ranks import peak_bytes  # noqa: E402
from torch_train import return_free_memory, status_bytes  # noqa: E402
from train_step import WARM_UP, figure, name_of  # noqa: E402

WAYS = [("--mode", mode) for mode in ("eager", "compile", "compile-update")]
# Samples or tokens a second over the better of eager and compile, and peak memory over eager's.
SPEED_BARS = {"GPT-2": 1.1, "BERT, masked LM": 1.1, "ViT": 1.1, "ResNet-50": 1.0, "Whisper": 1.0, "T5": 1.0}
MEMORY_BAR = 0.8


def made(name: str | None) -> Any:
    """The model of that name, to train; None: one so small that a process with it is its libraries."""
    import torch
    from imported_models import MODELS, hf, tokens

    torch.manual_seed(0)
    if name is not None:
        model = MODELS[name]()
    else:
        model = hf("GPT2LMHeadModel", "GPT2Config", tokens(2, 16, 16), n_positions=16, n_embd=16, n_layer=1, n_head=2, vocab_size=16, bos_token_id=0, eos_token_id=0)
    model.module.train()
    return model


def train_by_torch(name: str, mode: str, precision: str, steps: int) -> dict:
    """Prints nothing; what torch_train.py would print."""
    import torch

    torch.set_num_threads(2)

    def run(name: str | None, steps: int) -> list[float]:
        model = made(name)
        module = model.module
        called = module if mode == "eager" else torch.compile(module)
        optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4, weight_decay=0.1, fused=mode != "compile-update")

        def clip_and_apply() -> None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()

        update = torch.compile(clip_and_apply) if mode == "compile-update" else clip_and_apply
        seconds = []
        for step in range(steps):
            if step == WARM_UP:
                return_free_memory()
            start = time.perf_counter()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = model.run(called)
            loss.backward()
            update()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
            seconds.append(time.perf_counter() - start)
        return seconds

    run(None, 2)
    torch._dynamo.reset()
    return_free_memory()
    loaded = status_bytes("VmRSS")
    return {"seconds": run(name, steps), "loaded_bytes": loaded, "peak_bytes": status_bytes("VmHWM")}


def train_by_tacc(name: str, precision: str, steps: int, build: Path) -> dict:
    """As train_by_torch; memory is the rank's."""
    os.environ["TACC_BUILD"] = str(build)
    import tacc
    from cluster import Cluster

    result: dict[str, Any] = {"seconds": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for tiny in (True, False):
            model = made(None if tiny else name)
            exported = tacc.export_model(model.module, model.batch, folder / str(tiny), loss=model.loss)
            arrays = {leaf.name: model.batch[leaf.path[0]].numpy() for leaf in exported.inputs}
            samples = len(next(iter(arrays.values())))
            job = {"name": "imported", "model": {"graph": str(exported.folder / "model.graph")}, "data": {"client": {}} | ({"seq_len": exported.seq_len} if exported.seq_len else {}),
                   "train": {"max_steps": 2 if tiny else steps, "global_batch_size": samples, "per_device_train_batch_size": samples, "learning_rate": 3e-4, "weight_decay": 0.1},
                   "compute": {"bf16": precision == "bf16"}, "checkpoint": {"dir": str(folder / f"runs-{tiny}"), "save_steps": 1000000}, "resources": {"workers": 1}}
            del model
            with Cluster(folder / f"cluster-{tiny}", workers=1, threads=2, memory=str(12 << 30)) as cluster, tacc.Client(cluster.address) as client:
                with tacc.Session(client.submit(job)) as session:
                    worker = cluster.workers["w0"].popen.pid
                    [rank] = [int(pid) for pid in Path(f"/proc/{worker}/task/{worker}/children").read_text().split()]
                    for step in range(2 if tiny else steps):
                        if step == WARM_UP:
                            Path(f"/proc/{rank}/clear_refs").write_text("5")
                        start = time.perf_counter()
                        session.step(arrays)
                        if not tiny:
                            result["seconds"].append(time.perf_counter() - start)
                        result["loaded_bytes" if tiny else "peak_bytes"] = peak_bytes(rank)
                    session.finish()
    return result


def side(name: str, precision: str, steps: int, way: tuple[str, ...], build: Path) -> dict:
    """Runs it in a process of its own."""
    command = [sys.executable, __file__, "--models", name, "--precisions", precision, "--steps", str(steps - WARM_UP), "--build", str(build), "--side", way[1]]
    env = dict(os.environ, OMP_NUM_THREADS="2", GOMP_SPINCOUNT="1000")
    ended = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace")
    if ended.returncode != 0:
        raise RuntimeError(f"{name}, {way[1]}: ended with {ended.returncode}: {ended.stderr[-4000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--models", nargs="+", default=list(SPEED_BARS), metavar="NAME", help="'all': all of them")
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6, help="of a run that are counted, after 3 of warm-up")
    parser.add_argument("--ways", nargs="+", default=[mode for _, mode in WAYS], choices=[mode for _, mode in WAYS], help="of PyTorch; eager is one of them")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    steps = WARM_UP + args.steps
    if args.side is not None:
        [name], precision = args.models, args.precisions
        print(json.dumps(train_by_tacc(name, precision, steps, args.build) if args.side == "tacc" else train_by_torch(name, args.side, precision, steps)))
        return
    from imported_models import MODELS

    names = list(MODELS) if args.models == ["all"] else args.models
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--models: no model is called {unknown[0]}; there are {', '.join(MODELS)}")
    rows = []
    for name in names:
        for precision in args.precisions.split(","):
            left = [way for way in WAYS if way[1] in args.ways or way[1] == "eager"]
            ours: list[dict] = []
            theirs: dict[tuple[str, ...], list[dict]] = {way: [] for way in left}
            for _ in range(args.rounds):
                ours.append(side(name, precision, steps, ("--mode", "tacc"), args.build))
                for way in list(left):
                    try:
                        theirs[way].append(side(name, precision, steps, way, args.build))
                    except RuntimeError as error:
                        if way[1] == "eager":
                            raise
                        print(f"{name}, {precision}, {name_of(way)}: PyTorch cannot: {str(error).splitlines()[0]}", file=sys.stderr)
                        left.remove(way)
                        del theirs[way]
                        continue
                    print(f"{name}, {precision}, {name_of(way)}: {figure(theirs[way])[0]:.3f} s a step, tacc {figure(ours)[0]:.3f}", file=sys.stderr)
                fastest = min(left, key=lambda way: figure(theirs[way])[0])
                left = [fastest]
            (our_seconds, our_bytes), (seconds, _) = figure(ours), figure(theirs[left[0]])
            eager_bytes = figure(theirs[WAYS[0]])[1]
            ratios = ", ".join(f"{name_of(way)} {figure(runs)[0] / our_seconds:.2f}" for way, runs in theirs.items())
            print(f"{name}, {precision}: times as fast as {ratios}", file=sys.stderr)
            rows.append(f"| {name} | {precision} | {name_of(left[0])} | {our_seconds:.3f} | {seconds:.3f} | {seconds / our_seconds:.2f} | {SPEED_BARS.get(name, '')} | "
                        f"{our_bytes / 2**20:.0f} | {eager_bytes / 2**20:.0f} | {our_bytes / eager_bytes:.2f} | {MEMORY_BAR} |")
            print(rows[-1], file=sys.stderr)
    print("| model | precision | against | tacc s a step | its s | speed | bar | tacc MiB | eager's MiB | memory | bar |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
