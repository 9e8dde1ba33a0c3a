"""The PyTorch side of bench/train_step.py and scripts/gpu_check: one process a rank trains the model of --model and prints a JSON line.

Modes (bf16 is torch.autocast, or FSDP2's mixed precision):
  eager          nothing compiled
  compile        torch.compile of the model and its loss
  compile-update the same, and of clipping with the optimizer's step
  fsdp2          fully_shard per decoder layer and over the whole, Gloo (on CPUs)
  fsdp2-compile  the same, each decoder layer and the head with its loss compiled
A step: forward, backward, clip_grad_norm_, AdamW (fused, but where it is compiled). Prints {"seconds": [...], "batch": N, "loaded_bytes": N, "peak_bytes": N, "loss": X,
"model": CLASS}: seconds of each step, its samples, memory. On a CPU `loaded_bytes` is what the process holds after it has trained a tiny model of the same class by the same
mode, and let go of it: libraries, the compiler, the code of kernels. `peak_bytes` is the most it holds in the steps after --warm-up: what compiling took is in neither, but
what it leaves behind is in the peak. On a GPU they are 0 and the most that PyTorch has reserved in these steps.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import time
from pathlib import Path

import numpy as np

MODES = ("eager", "compile", "compile-update", "fsdp2", "fsdp2-compile")
TINY = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16}


def status_bytes(name: str) -> int:
    """A size of /proc/self/status: VmRSS (now) or VmHWM (the most)."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def return_free_memory() -> None:
    """What is free goes back to the system, and VmHWM starts again from what is held."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


class Training:
    """A model and its step, as `args` say."""

    def __init__(self, args, config, mesh):
        import torch
        from transformers import AutoModelForCausalLM

        self.args = args
        self.on_gpu = args.device == "cuda"
        with torch.device(args.device):
            model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", experts_implementation=args.experts)
        model.config.use_cache = False
        if args.lora:
            from peft import LoraConfig, get_peft_model

            if args.base == "bf16":
                model.to(torch.bfloat16)
            model = get_peft_model(model, LoraConfig(r=args.lora, target_modules="all-linear", task_type="CAUSAL_LM"))
        self.model = self.run = model
        if mesh is not None:
            self.shard(mesh)
        elif args.mode != "eager":
            self.run = torch.compile(model, backend=args.backend, mode=args.tune if args.backend == "inductor" else None)
        compiled = args.mode == "compile-update"  # The compiler fuses the plain one.
        self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4, weight_decay=0.1, fused=not compiled)
        self.update = torch.compile(self.clip_and_apply, backend=args.backend) if compiled else self.clip_and_apply
        with_autocast = args.precision == "bf16" and mesh is None
        self.autocast = torch.autocast(args.device, dtype=torch.bfloat16) if with_autocast else contextlib.nullcontext()

    def shard(self, mesh) -> None:
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        bf16 = self.args.precision == "bf16"
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
        if self.args.mode == "fsdp2-compile":
            for layer in self.model.model.layers:
                layer.compile(backend=self.args.backend)
            self.model.loss_function = torch.compile(self.model.loss_function, backend=self.args.backend)
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)

    def clip_and_apply(self) -> None:
        import torch

        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def step(self, ids):
        """The loss, before the update."""
        import torch

        if self.args.tune == "max-autotune":  # Its graphs write a step's results over the last one's.
            torch.compiler.cudagraph_mark_step_begin()
        with self.autocast:
            loss = self.run(input_ids=ids, labels=ids).loss
        loss.backward()
        self.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def steps(self, batches: np.ndarray) -> tuple[list[float], float]:
        """Seconds of each step, and the last loss. After the warm-up memory is counted anew."""
        import torch

        all_ids = [torch.from_numpy(batch.astype(np.int64)).to(self.args.device) for batch in batches]
        ends, seconds = [], []
        for step in range(self.args.steps):
            if step == self.args.warm_up:
                if self.on_gpu:
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                else:
                    return_free_memory()
            start = time.perf_counter()
            loss = self.step(all_ids[step % len(all_ids)])
            if self.on_gpu:  # Nothing waits for a step: its end is a mark on the stream.
                ends.append(torch.cuda.Event(enable_timing=True))
                ends[-1].record()
            else:
                loss.item()
                seconds.append(time.perf_counter() - start)
        last = loss.item()
        if self.on_gpu:
            seconds = [0.0] + [before.elapsed_time(after) / 1000 for before, after in zip(ends, ends[1:])]
        return seconds, last


def attention_by(backend: str | None):
    """While it lasts PyTorch's attention is computed by this backend alone, or by the one that it prefers."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
    return contextlib.nullcontext() if backend is None else sdpa_kernel(backends[backend])


def bytes_of_libraries(args, mesh) -> int:
    """Trains a tiny model of the same class by the same mode, and says what the process holds without it."""
    import torch
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(args.model, **TINY)
    training = Training(args, config, mesh)
    for _ in range(2):
        training.step(torch.zeros((1, 32), dtype=torch.int64))
    del training
    torch._dynamo.reset()
    return_free_memory()
    return status_bytes("VmRSS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True, help=".npy of [steps, batch, seq]")
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--experts", choices=["eager", "grouped_mm"], help="how transformers computes the experts of a mixture; its own choice without")
    parser.add_argument("--precision", choices=["f32", "bf16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True, help="the first of --steps, whose memory is not counted")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backend", default="inductor", help="of what is compiled; aot_eager shows in a second that a model can be compiled, and nothing of speed")
    parser.add_argument("--tune", choices=["max-autotune", "max-autotune-no-cudagraphs"], help="of what inductor compiles: try many kernels, and replay graphs or not")
    parser.add_argument("--attention", choices=["cudnn", "flash", "math"], help="by this backend alone; PyTorch's own choice without")
    parser.add_argument("--lora", type=int, default=0, help="rank of peft's adapters of all linear modules, which alone are trained; 0: all of the model is")
    parser.add_argument("--base", choices=["f32", "bf16"], default="f32", help="with --lora: how the model's own weights are kept")
    parser.add_argument("--batches", help="samples of a step, several sizes with commas: the first that fits a GPU's memory is taken; all of --tokens without")
    args = parser.parse_args()
    if not 0 <= args.warm_up < args.steps:
        parser.error(f"--warm-up {args.warm_up}: from 0 to {args.steps - 1}, less than --steps")

    import torch
    import torch.distributed
    from transformers import AutoConfig

    torch.set_num_threads(args.threads)
    rank, world, mesh = 0, 1, None
    if args.mode.startswith("fsdp2"):
        torch.distributed.init_process_group("gloo")
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world,))
    loaded = 0 if args.device == "cuda" else bytes_of_libraries(args, mesh)
    config = AutoConfig.from_pretrained(args.model)
    batches = np.load(args.tokens)
    batches = np.array_split(batches, world, axis=1)[rank]
    sizes = [int(size) for size in args.batches.split(",")] if args.batches else [batches.shape[1]]
    torch.manual_seed(0)
    for size in sizes:
        training = None
        try:
            training = Training(args, config, mesh)
            with attention_by(args.attention):
                seconds, loss = training.steps(batches[:, :size])
            break
        except torch.OutOfMemoryError:
            training = None
        # The exception held what was on its way.
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
    else:
        raise SystemExit(f"no batch of {args.batches} samples fits the GPU's memory")
    if rank == 0:
        peak = torch.cuda.max_memory_reserved() if args.device == "cuda" else status_bytes("VmHWM")
        print(json.dumps({"seconds": seconds, "batch": size, "loaded_bytes": loaded, "peak_bytes": peak, "loss": loss, "model": type(training.model).__name__}))
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
