"""Compares a whole training step (clipping and AdamW included) with PyTorch on this machine's CPU; prints a table of ratios.

Shapes, all with a vocabulary of 32,000:
  olmo   OLMo, 8 layers, hidden 512, 8 heads, MLP 1408, batch 4 x 512
  llama  LLaMA, 4 layers, hidden 768, 12 heads of which 3 for keys and values, MLP 2048, batch 2 x 1024
  olmoe  OLMoE, 4 layers, hidden 512, 8 heads, 8 experts of 704, 2 of them a token, batch 4 x 512
One rank of two threads against eager (autocast in bf16) and torch.compile; two ranks of one thread against FSDP2. Each row is against the fastest of PyTorch's ways to do
the same (VARIANTS, of a mixture the implementations of experts): all of them run in the first round, and the fastest goes on. Each side is a process of its own;
sides take turns. The first 3 steps of a run are warm-up, the figure is the median of the rest. Memory: bench/README.md.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "client/python")]
from bare_ranks import Training  # noqa: E402
from inputs import write_tokens  # noqa: E402
from torch_train import TINY  # noqa: E402

WARM_UP = 3
VOCAB = 32_000
CONFIG = {
    "architectures": ["OlmoForCausalLM"],
    "model_type": "olmo",
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1408,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "initializer_range": 0.02,
}
# What a row is against: the modes of torch_train.py that do the same.
VARIANTS = {"eager": ["eager"], "compile": ["compile", "compile-update"], "FSDP2": ["fsdp2", "fsdp2-compile"]}
EXPERTS = ["eager", "grouped_mm"]  # Not batched_mm: it copies an expert's weights for each token, here 18 GB of them.


@dataclass(frozen=True)
class Shape:
    config: dict
    batch: int
    seq_len: int

    def ways(self, against: str) -> list[tuple[str, ...]]:
        """PyTorch's, as options of torch_train.py. Of a mixture the experts matter, so only they vary: a run takes minutes."""
        if "num_experts" in self.config:
            return [("--mode", VARIANTS[against][0], "--experts", how) for how in EXPERTS]
        return [("--mode", mode) for mode in VARIANTS[against]]


SHAPES = {
    "olmo": Shape(CONFIG, 4, 512),
    "llama": Shape(CONFIG | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12,
                             "num_key_value_heads": 3, "intermediate_size": 2048, "rms_norm_eps": 1e-5}, 2, 1024),
    "olmoe": Shape(CONFIG | {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_hidden_layers": 4, "intermediate_size": 704, "num_experts": 8,
                             "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "norm_topk_prob": False}, 4, 512),
}


def write_inputs(folder: Path, shape: Shape, steps: int) -> None:
    """A model directory and tokens, and in `tiny` those of a tiny model of the same family."""
    for path, config, seq_len in ((folder, shape.config, shape.seq_len), (folder / "tiny", shape.config | TINY, 32)):
        (path / "model").mkdir(parents=True)
        (path / "model/config.json").write_text(json.dumps(config))
        write_tokens(path, config["vocab_size"], steps, shape.batch, seq_len)


def run_torch(folder: Path, way: tuple[str, ...], precision: str, threads: int, world: int, steps: int, warm_up: int, limit: float | None = None) -> dict:
    """What torch_train.py prints; RuntimeError with what it said when it fails. `way`: of its options, the mode at least; `limit`: seconds, of one rank."""
    command = [sys.executable, str(Path(__file__).with_name("torch_train.py")), "--model", str(folder / "model"), "--tokens", str(folder / "tokens.npy"),
               "--precision", precision, "--threads", str(threads), "--steps", str(steps), "--warm-up", str(warm_up), *way]
    # What is freed and asked for again in another size leaves holes in a GPU's memory; with segments that grow it does not. Idle threads wait as our
    # ranks' do (bench/busy.py): spinning costs much beside any other process.
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), GOMP_SPINCOUNT="1000")
    if "max-autotune" not in way:  # Its CUDA graphs have pools of their own, which do not all go with that.
        env["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if world == 1:
        ended = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=limit)
        sys.stderr.write(ended.stderr)
        if ended.returncode != 0:
            raise RuntimeError(f"{' '.join(way)} ended with {ended.returncode}: {ended.stderr[-4000:]}")
        return json.loads(ended.stdout.splitlines()[-1])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(world):
        rank_env = dict(env, RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        processes.append(subprocess.Popen(command, env=rank_env, stdout=subprocess.PIPE))
    outputs = [p.communicate()[0] for p in processes]
    for p in processes:
        if p.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed")
    return json.loads(outputs[0].splitlines()[-1])


def run_tacc(folder: Path, build: Path, shape: Shape, precision: str, threads: int, world: int, steps: int) -> dict:
    """As run_torch."""
    tiny = Training(build, folder / "tiny", TINY["vocab_size"], 32, shape.batch, 2, precision, world, threads)
    training = Training(build, folder, VOCAB, shape.seq_len, shape.batch, steps, precision, world, threads)
    result = {"seconds": [], "loaded_bytes": 0, "peak_bytes": 0}
    with tiny.start() as ranks:
        for event in ranks.events():
            if event["event"] == "step":
                result["loaded_bytes"] = ranks.peak_bytes()
    with training.start() as ranks:
        for event in ranks.events():
            if event["event"] == "step":
                result["seconds"].append(event["seconds"])
                result["loss"] = event["loss"]
                result["peak_bytes"] = ranks.peak_bytes()
                if len(result["seconds"]) == WARM_UP:
                    ranks.reset_peaks()
    return result


def name_of(way: tuple[str, ...]) -> str:
    return ", ".join(way[1::2])


def figure(runs: list[dict]) -> tuple[float, int]:
    """Median seconds of the counted steps of all runs, and the largest peak over the loaded libraries."""
    seconds = [s for run in runs for s in run["seconds"][WARM_UP:]]
    return statistics.median(seconds), max(run["peak_bytes"] - run["loaded_bytes"] for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6, help="of a run that are counted, after 3 of warm-up")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--worlds", default="1,2", help="2 takes no mixtures: FSDP2 gathers all experts, and says nothing new of them")
    parser.add_argument("--against", default="eager,compile", help="of one rank")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for world, shape_name in ((int(world), shape) for world in args.worlds.split(",") for shape in args.shapes.split(",")):
            shape, folder = SHAPES[shape_name], Path(name) / shape_name
            if world > 1 and "num_experts" in shape.config:
                continue
            steps, threads = WARM_UP + args.steps, 2 // world
            if not folder.exists():
                write_inputs(folder, shape, steps)
            for precision in args.precisions.split(","):
                ways = {against: shape.ways(against) for against in (args.against.split(",") if world == 1 else ["FSDP2"])}
                ours, theirs = [], {way: [] for of_row in ways.values() for way in of_row}
                for _ in range(args.rounds):
                    ours.append(run_tacc(folder, args.build, shape, precision, threads, world, steps))
                    for against, of_row in ways.items():
                        for way in of_row:
                            theirs[way].append(run_torch(folder, way, precision, threads, world, steps, WARM_UP))
                            seconds, num_bytes = figure(theirs[way])
                            print(f"{shape_name}, {precision}, {name_of(way)}: {seconds:.3f} s a step, {num_bytes >> 20} MiB", file=sys.stderr)
                        ways[against] = [min(of_row, key=lambda way: figure(theirs[way])[0])]
                our_seconds, our_bytes = figure(ours)
                for [way] in ways.values():
                    seconds, num_bytes = figure(theirs[way])
                    tokens = shape.batch * shape.seq_len
                    rows.append(f"| {shape_name} | {world} | {precision} | {name_of(way)} | {tokens / our_seconds:.0f} | {tokens / seconds:.0f} | {seconds / our_seconds:.2f} | "
                                f"{our_bytes / 2**20:.0f} | {num_bytes / 2**20:.0f} | {our_bytes / num_bytes:.2f} |")
                    print(rows[-1], file=sys.stderr)
    print("| shape | ranks | precision | against | tacc tokens/s | its tokens/s | ratio | tacc MiB | its MiB | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
