"""The PyTorch side of bench/train_step.py and scripts/gpu_check: one process a rank trains the model of --model and prints a JSON line.

Modes: eager and compile (torch.autocast in bf16), fsdp2 (fully_shard per decoder layer and over the whole, Gloo; on CPUs).
A step: forward, backward, clip_grad_norm_, AdamW (fused on a GPU). Prints {"seconds": [...], "batch": N, "loaded_bytes": N, "peak_bytes": N, "model": CLASS}: seconds
of each step, its samples, VmHWM after the libraries are loaded and at the end; of a GPU 0 and the most that PyTorch has reserved.
"""

import argparse
import contextlib
import gc
import json
import os
import time

import numpy as np


def peak_bytes() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def train(model, run, args, batches: np.ndarray) -> tuple[list[float], float]:
    """Seconds of each step, and the last loss."""
    import torch

    on_gpu = args.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, **({"fused": True} if on_gpu else {}))
    with_autocast = args.precision == "bf16" and args.mode != "fsdp2"
    autocast = torch.autocast(args.device, dtype=torch.bfloat16) if with_autocast else contextlib.nullcontext()
    all_ids = [torch.from_numpy(batch.astype(np.int64)).to(args.device) for batch in batches]
    ends, seconds = [], []
    start = time.perf_counter()
    for step in range(args.steps):
        ids = all_ids[step % len(all_ids)]
        with autocast:
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_gpu:  # Nothing waits for a step: its end is a mark on the stream.
            ends.append(torch.cuda.Event(enable_timing=True))
            ends[-1].record()
        else:
            loss.item()
            seconds.append(time.perf_counter() - start)
            start = time.perf_counter()
    last = loss.item()
    if on_gpu:
        seconds = [0.0] + [before.elapsed_time(after) / 1000 for before, after in zip(ends, ends[1:])]
    return seconds, last


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True, help=".npy of [steps, batch, seq]")
    parser.add_argument("--mode", choices=["eager", "compile", "fsdp2"], required=True)
    parser.add_argument("--precision", choices=["f32", "bf16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backend", default="inductor", help="of mode compile; aot_eager shows in a second that a model can be compiled, and nothing of speed")
    parser.add_argument("--batches", help="samples of a step, several sizes with commas: the first that fits a GPU's memory is taken; all of --tokens without")
    args = parser.parse_args()

    import torch
    import torch.distributed
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.model)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model, num_hidden_layers=1, hidden_size=8, intermediate_size=8,
                                                                num_attention_heads=1, num_key_value_heads=1, vocab_size=8))  # loads the rest of the code
    loaded = peak_bytes()

    rank, world = 0, 1
    if args.mode == "fsdp2":
        torch.distributed.init_process_group("gloo")
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.config.use_cache = False
    if args.mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (world,))
        bf16 = args.precision == "bf16"
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    batches = np.load(args.tokens)
    batches = np.array_split(batches, world, axis=1)[rank]
    sizes = [int(size) for size in args.batches.split(",")] if args.batches else [batches.shape[1]]
    seconds, loss = [], 0.0
    for size in sizes:
        try:
            run = torch.compile(model, backend=args.backend) if args.mode == "compile" else model
            seconds, loss = train(model, run, args, batches[:, :size])
            break
        except torch.OutOfMemoryError:
            model.zero_grad(set_to_none=True)
        # The exception holds what was on its way.
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        raise SystemExit(f"no batch of {args.batches} samples fits the GPU's memory")
    if rank == 0:
        memory = (0, torch.cuda.max_memory_reserved()) if args.device == "cuda" else (loaded, peak_bytes())
        print(json.dumps({"seconds": seconds, "batch": size, "loaded_bytes": memory[0], "peak_bytes": memory[1], "loss": loss, "model": type(model).__name__}))
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
