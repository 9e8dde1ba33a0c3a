"""Seconds to plan and to compile a whole 7 B training step for fsdp=64 (32 layers, 4,096 tokens), on one core."""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096, "hidden_act": "silu",
         "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "initializer_range": 0.02}


def request(model: Path) -> dict:
    return {
        "job": {"name": "bench", "model": {"path": str(model), "weights": "WEIGHTS_RANDOM"}, "data": {"seq_len": 4096},
                "train": {"max_steps": 1000, "global_batch_size": 1024, "learning_rate": 3e-4, "lr_scheduler_type": "LR_SCHEDULER_TYPE_COSINE",
                          "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_epsilon": 1e-8, "max_grad_norm": 1.0, "weight_decay": 0.1},
                "compute": {"bf16": True}},
        "world": 64,
        "device": {"name": "cuda", "kind": "cuda", "threads": 1, "memory_bytes": 80 << 30, "matmul_flops_per_second": {"bf16": 6e14},
                   "memory_bytes_per_second": 3e12, "link_bytes_per_second": 2e11, "link_latency_seconds": 1e-5},
        "data": {"vocab_size": 32000},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print("| what | seconds (best of 3) | bar |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        (folder / "model/config.json").write_text(json.dumps(MODEL))
        planning, compiling = request(folder / "model"), request(folder / "model")
        compiling["job"]["dist"] = {"dp": {"size": 1}, "fsdp": {"size": 64}}
        compiling["job"]["train"]["per_device_train_batch_size"] = 1
        for what, body, command in (("plan, all candidates", planning, ["plan"]), ("compile, fsdp=64", compiling, ["compile", "--out", folder / "out"])):
            (folder / "request.json").write_text(json.dumps(body))
            best = float("inf")
            for _ in range(3):
                start = time.perf_counter()
                subprocess.run([args.build / "tacc-plan", *command, "--request", folder / "request.json"], check=True, stdout=subprocess.DEVNULL)
                best = min(best, time.perf_counter() - start)
            print(f"| {what} | {best:.2f} | 5 |")


if __name__ == "__main__":
    main()
