"""Plans well-known public jobs in the layout that was published and prints the predicted step beside the published one.

Nothing is fitted to them here; those that the presets' constants were fitted on are marked. Data, weights and GPUs are not needed: `taccctl plan`.
"""

import argparse
import json
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def llama(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, vocabulary: int) -> dict:
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocabulary, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False}


def gpt(hidden: int, layers: int, heads: int) -> dict:
    """A GPT by the family that is nearest to it: Bloom, which has alibi in place of position embeddings."""
    return {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": hidden, "n_layer": layers, "n_head": heads, "vocab_size": 51200,
            "layer_norm_epsilon": 1e-5, "seq_length": 2048, "tie_word_embeddings": True}


LLAMA_7B = llama(4096, 11008, 32, 32, 32, 32000)
LLAMA_8B = llama(4096, 14336, 32, 32, 8, 128256)
LLAMA_70B = llama(8192, 28672, 80, 64, 8, 128256)
LLAMA_405B = llama(16384, 53248, 126, 128, 8, 128256)


@dataclass(frozen=True)
class Job:
    name: str
    model: dict
    machine: str
    gpus: int
    seq_len: int
    global_batch: int
    seconds: float = 0  # published, of a step; or
    tokens_per_gpu: float = 0  # published, a second
    layout: dict = field(default_factory=dict)  # sections of the job file, as published; what is not said is the planner's
    cluster: dict = field(default_factory=dict)  # what differs from the preset
    source: str = ""
    fitted: bool = False  # among the rows that the presets' constants were fitted on

    @property
    def published(self) -> float:
        return self.seconds or self.global_batch * self.seq_len / self.tokens_per_gpu / self.gpus


def dist(micro_batch: int = 0, gc: bool | None = None, chunks: int = 0, **sizes: int) -> dict:
    axes: dict = {axis: {"size": size} for axis, size in sizes.items()}
    if chunks > 1:
        axes["pp"] |= {"schedule": "interleaved", "num_chunks": chunks}
    sections: dict = {"dist": axes}
    if gc is not None:
        sections["memory"] = {"gc": gc}
    if micro_batch:
        sections["train"] = {"per_device_train_batch_size": micro_batch}
    return sections


GRAND_TETON = {"memory_bytes_per_second": 2.4e12, "memory_bytes": 96 * 2**30}  # its H100 are limited to 500 W besides
DGXC = "NVIDIA dgxc-benchmarking (bench/data/dgx_h100.csv)"
SC21 = "Narayanan et al., SC 2021, table 1 (bench/data/megatron_sc21.csv)"
TITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
TITAN_A100 = "torchtitan, docs/performance.md of 2024"
JOBS = [
    Job("LLaMA 3.1 8B", LLAMA_8B, "h100", 8, 8192, 128, 12.91, layout=dist(1, tp=1, pp=1, cp=2), source=DGXC, fitted=True),
    Job("LLaMA 3.1 8B", LLAMA_8B, "h100", 128, 8192, 2048, 13.10, layout=dist(1, tp=1, pp=1, cp=2), source=DGXC, fitted=True),
    Job("GPT-3 175B", gpt(12288, 96, 96), "h100", 128, 2048, 256, 8.309, layout=dist(1, tp=4, pp=8, chunks=12), source=DGXC, fitted=True),
    Job("GPT-3 175B", gpt(12288, 96, 96), "h100", 1024, 2048, 2048, 8.453, layout=dist(1, tp=4, pp=8, chunks=12), source=DGXC, fitted=True),
    Job("LLaMA 3.1 8B, compiled", LLAMA_8B, "h100", 8, 8192, 16, tokens_per_gpu=6667, layout=dist(2, fsdp=8), cluster=GRAND_TETON, source=TITAN),
    Job("LLaMA 3.1 8B, compiled", LLAMA_8B, "h100", 128, 8192, 256, tokens_per_gpu=6514, layout=dist(2, fsdp=128), cluster=GRAND_TETON, source=TITAN),
    Job("LLaMA 3.1 405B", LLAMA_405B, "h100", 128, 8192, 32, tokens_per_gpu=109, layout=dist(2, True, fsdp=16, tp=8), cluster={"memory_bytes": 94 * 2**30},
        source=TITAN_A100),
    Job("LLaMA 3 8B", LLAMA_8B, "a100-80g", 64, 8192, 64, tokens_per_gpu=2973, layout=dist(1, fsdp=64), source=TITAN_A100),
    Job("LLaMA 3 70B", LLAMA_70B, "a100-80g", 64, 8192, 64, tokens_per_gpu=331, layout=dist(1, True, fsdp=64), source=TITAN_A100),
    Job("LLaMA 2 7B", LLAMA_7B, "a100-80g", 128, 4096, 1024, tokens_per_gpu=4550, layout={}, source="IBM's own run (bench/results.md); the batch is not known: 8 samples a GPU"),
]


def predict(job: Job, build: Path, folder: Path) -> dict:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model/config.json").write_text(json.dumps(job.model))
    spec = {"name": "public", "model": {"path": "model", "weights": "random"}, "data": {"path": "none", "seq_len": job.seq_len}, **job.layout}
    spec["train"] = {"max_steps": 1, "global_batch_size": job.global_batch, **job.layout.get("train", {})}
    (folder / "job.yaml").write_text(json.dumps(spec))
    (folder / "cluster.yaml").write_text(json.dumps({"machine": job.machine, "gpus": job.gpus, **job.cluster}))
    ran = subprocess.run([build / "taccctl", "plan", folder / "job.yaml", "--cluster", folder / "cluster.yaml", "-o", "json"], capture_output=True, text=True)
    if not ran.stdout:
        raise SystemExit(f"{job.name} on {job.gpus}: {ran.stderr}")
    return json.loads(ran.stdout.splitlines()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    args = parser.parse_args()
    print("| job | GPUs | layout | published s | predicted s | range | published / predicted | fits, GiB | source |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    within = others = 0
    for job in JOBS:
        with tempfile.TemporaryDirectory() as name:
            plan = predict(job, args.build, Path(name))
        low, high = plan["predicted_step_seconds_range"]
        seconds = plan["predicted_step_seconds"]
        mesh = " ".join(f"{axis}={plan['mesh'][axis]}" for axis in plan["axes"] if plan["mesh"][axis] > 1) + (", gc" if plan["gc"] else "")
        holds = low <= job.published <= high
        if not job.fitted:
            others += 1
            within += holds
        print(f"| {job.name} | {job.gpus} {job.machine} | {mesh} | {job.published:.2f} | {seconds:.2f} | {low:.2f} to {high:.2f}{'' if holds else ' (outside)'} | "
              f"{job.published / seconds:.2f} | {'yes' if plan['fits'] else 'no'}, {plan['memory']['total_bytes'] / 2**30:.0f} | {job.source}{', fitted on' if job.fitted else ''} |")
    print(f"\nOf the {others} that nothing was fitted on, the range holds {within}.")


if __name__ == "__main__":
    main()
