"""The PyTorch side of bench/train_step.py: one process a rank trains the model of --model and prints a JSON line.

Modes: eager and compile (torch.autocast in bf16), fsdp2 (fully_shard per decoder layer and over the whole, Gloo).
A step: forward, backward, clip_grad_norm_, AdamW. Prints {"seconds": [...], "loaded_bytes": N, "peak_bytes": N}: seconds of each step,
VmHWM after the libraries are loaded and at the end.
"""

import argparse
import contextlib
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True, help=".npy of [steps, batch, seq]")
    parser.add_argument("--mode", choices=["eager", "compile", "fsdp2"], required=True)
    parser.add_argument("--precision", choices=["f32", "bf16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
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
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.config.use_cache = False
    bf16 = args.precision == "bf16"
    if args.mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (world,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    run = torch.compile(model) if args.mode == "compile" else model
    autocast = torch.autocast("cpu", dtype=torch.bfloat16) if bf16 and args.mode != "fsdp2" else contextlib.nullcontext()
    batches = np.load(args.tokens)
    seconds = []
    for step in range(args.steps):
        batch = np.array_split(batches[step % len(batches)], world)[rank]
        ids = torch.from_numpy(batch.astype(np.int64))
        start = time.perf_counter()
        with autocast:
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps({"seconds": seconds, "loaded_bytes": loaded, "peak_bytes": peak_bytes(), "loss": loss.item()}))
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
