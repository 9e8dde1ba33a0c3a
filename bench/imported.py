"""Compares training of PyTorch models that were exported (tacc.export_model) with PyTorch on this machine's CPU; prints a table of ratios.

    .venv/bin/python bench/imported.py [--models gpt2,bert] [--precisions f32,bf16] [--rounds 2]

One rank of two threads, whose batches a client sends, against the same module trained by PyTorch with fused AdamW: eager and torch.compile (of the model, and of clipping
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/e2e"), str(ROOT / "client/python")]

from bare_ranks import peak_bytes  # noqa: E402
from torch_train import return_free_memory, status_bytes  # noqa: E402
from train_step import WARM_UP, figure, name_of  # noqa: E402

WAYS = [("--mode", mode) for mode in ("eager", "compile", "compile-update")]
# Samples or tokens a second over the better of eager and compile, and peak memory over eager's.
SPEED_BARS = {"gpt2": 1.1, "bert": 1.1, "vit": 1.1, "resnet50": 1.0, "whisper": 1.0, "t5": 1.0}
MEMORY_BAR = 0.8
VOCAB = 32_000


def gpt2(tiny: bool) -> tuple[Any, dict, int]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 16} if tiny else {"n_embd": 512, "n_layer": 6, "n_head": 8, "vocab_size": VOCAB}
    config = GPT2Config(n_positions=256, bos_token_id=0, eos_token_id=0, **sizes)
    return GPT2LMHeadModel(config), {"input_ids": ids(config.vocab_size, 4, 256)}, 256


def bert(tiny: bool) -> tuple[Any, dict, int]:
    import torch
    from transformers import BertConfig, BertForMaskedLM

    sizes = ({"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 16} if tiny else
             {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048, "vocab_size": VOCAB})
    config = BertConfig(max_position_embeddings=128, **sizes)
    batch = {"input_ids": ids(config.vocab_size, 8, 128), "attention_mask": torch.ones(8, 128, dtype=torch.int64)}
    batch["attention_mask"][::2, 100:] = 0
    return BertForMaskedLM(config), batch, 128


def vit(tiny: bool) -> tuple[Any, dict, int]:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = ({"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16} if tiny else
             {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536})
    return ViTForImageClassification(ViTConfig(image_size=224, patch_size=16, num_labels=1000, **sizes)), pictures(8, 224), 0


def resnet50(tiny: bool) -> tuple[Any, dict, int]:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 16, "hidden_sizes": [16, 16], "depths": [1, 1]} if tiny else {}
    return ResNetForImageClassification(ResNetConfig(num_labels=1000, **sizes)), pictures(4, 32 if tiny else 160), 0


def whisper(tiny: bool) -> tuple[Any, dict, int]:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = ({"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
              "vocab_size": 64} if tiny else
             {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536,
              "decoder_ffn_dim": 1536, "vocab_size": VOCAB})
    config = WhisperConfig(max_source_positions=500, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=2, **sizes)
    return WhisperForConditionalGeneration(config), {"input_features": torch.randn(4, 80, 1000), "labels": ids(config.vocab_size, 4, 64)}, 64


def t5(tiny: bool) -> tuple[Any, dict, int]:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = ({"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 16} if tiny else
             {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_heads": 8, "vocab_size": VOCAB})
    config = T5Config(decoder_start_token_id=0, **sizes)
    return T5ForConditionalGeneration(config), {"input_ids": ids(config.vocab_size, 4, 128), "labels": ids(config.vocab_size, 4, 128)}, 128


MODELS: dict[str, Callable[[bool], tuple[Any, dict, int]]] = {"gpt2": gpt2, "bert": bert, "vit": vit, "resnet50": resnet50, "whisper": whisper, "t5": t5}


def ids(vocab_size: int, samples: int, length: int) -> Any:
    import torch

    return torch.randint(3, vocab_size, (samples, length))


def pictures(samples: int, size: int) -> dict:
    import torch

    return {"pixel_values": torch.randn(samples, 3, size, size), "labels": torch.randint(0, 1000, (samples,))}


def made(name: str, tiny: bool = False) -> tuple[Any, dict, int]:
    """The module, a batch and the tokens of a sample (0: it has none)."""
    import torch

    torch.manual_seed(0)
    module, batch, seq_len = MODELS[name](tiny)
    if "labels" not in batch:
        batch["labels"] = batch["input_ids"].clone()
    module.config.use_cache = False
    return module.train(), batch, seq_len


def train_by_torch(name: str, mode: str, precision: str, steps: int) -> dict:
    """Prints nothing; what torch_train.py would print."""
    import torch

    torch.set_num_threads(2)

    def run(tiny: bool, steps: int) -> list[float]:
        module, batch, _ = made(name, tiny)
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
                loss = called(**batch).loss
            loss.backward()
            update()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
            seconds.append(time.perf_counter() - start)
        return seconds

    run(True, 2)
    torch._dynamo.reset()
    return_free_memory()
    loaded = status_bytes("VmRSS")
    return {"seconds": run(False, steps), "loaded_bytes": loaded, "peak_bytes": status_bytes("VmHWM")}


def train_by_tacc(name: str, precision: str, steps: int, build: Path) -> dict:
    """As train_by_torch; memory is the rank's."""
    os.environ["TACC_BUILD"] = str(build)
    import tacc
    from cluster import Cluster

    result: dict[str, Any] = {"seconds": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for tiny in (True, False):
            module, batch, seq_len = made(name, tiny)
            tacc.export_model(module, batch, folder / str(tiny))
            arrays = {key: value.numpy() for key, value in batch.items()}
            samples = len(arrays["labels"])
            job = {"name": name, "model": {"graph": str(folder / str(tiny) / "model.graph")}, "data": {"client": {}} | ({"seq_len": seq_len} if seq_len else {}),
                   "train": {"max_steps": 2 if tiny else steps, "global_batch_size": samples, "per_device_train_batch_size": samples, "learning_rate": 3e-4, "weight_decay": 0.1},
                   "compute": {"bf16": precision == "bf16"}, "checkpoint": {"dir": str(folder / f"runs-{tiny}"), "save_steps": 1000000}, "resources": {"workers": 1}}
            del module
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
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6, help="of a run that are counted, after 3 of warm-up")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    steps = WARM_UP + args.steps
    if args.side is not None:
        name, precision = args.models, args.precisions
        print(json.dumps(train_by_tacc(name, precision, steps, args.build) if args.side == "tacc" else train_by_torch(name, args.side, precision, steps)))
        return
    rows = []
    for name in args.models.split(","):
        for precision in args.precisions.split(","):
            left = list(WAYS)
            ours: list[dict] = []
            theirs: dict[tuple[str, ...], list[dict]] = {way: [] for way in left}
            for _ in range(args.rounds):
                ours.append(side(name, precision, steps, ("--mode", "tacc"), args.build))
                for way in left:
                    theirs[way].append(side(name, precision, steps, way, args.build))
                    print(f"{name}, {precision}, {name_of(way)}: {figure(theirs[way])[0]:.3f} s a step, tacc {figure(ours)[0]:.3f}", file=sys.stderr)
                fastest = min(left, key=lambda way: figure(theirs[way])[0])
                left = [fastest]
            (our_seconds, our_bytes), (seconds, _) = figure(ours), figure(theirs[left[0]])
            eager_bytes = figure(theirs[WAYS[0]])[1]
            rows.append(f"| {name} | {precision} | {name_of(left[0])} | {our_seconds:.3f} | {seconds:.3f} | {seconds / our_seconds:.2f} | {SPEED_BARS[name]} | "
                        f"{our_bytes / 2**20:.0f} | {eager_bytes / 2**20:.0f} | {our_bytes / eager_bytes:.2f} | {MEMORY_BAR} |")
            print(rows[-1], file=sys.stderr)
    print("| model | precision | against | tacc s a step | its s | speed | bar | tacc MiB | eager's MiB | memory | bar |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
