"""Compares a whole training step (clipping and AdamW included) with PyTorch on this machine's CPU; prints a table of ratios.

Shape: OLMo, 8 layers, hidden 512, 8 heads, MLP 1408 (SwiGLU), vocabulary 32,000, batch 4 x 512. One rank of two threads against eager
(autocast in bf16) and torch.compile; two ranks of one thread against FSDP2. Each side is a process of its own; sides take turns (A B A B);
the first 5 steps of a run are warm-up, the figure is the median of 20. Memory is VmHWM over that after the libraries are loaded.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "client/python")]
from bare_ranks import Training, idle_bytes  # noqa: E402
from inputs import write_tokens  # noqa: E402

WARM_UP, COUNTED = 5, 20
BATCH, SEQ, VOCAB = 4, 512, 32_000
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


def write_inputs(folder: Path) -> None:
    """A model directory and tokens."""
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(CONFIG))
    write_tokens(folder, VOCAB, WARM_UP + COUNTED, BATCH, SEQ)


def run_torch(folder: Path, mode: str, precision: str, threads: int, world: int, more: tuple[str, ...] = (), limit: float | None = None) -> dict:
    """What torch_train.py prints; RuntimeError with what it said when it fails. `more`: of its options; `limit`: seconds, of one rank."""
    command = [sys.executable, str(Path(__file__).with_name("torch_train.py")), "--model", str(folder / "model"), "--tokens", str(folder / "tokens.npy"),
               "--mode", mode, "--precision", precision, "--threads", str(threads), "--steps", str(WARM_UP + COUNTED), *more]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    if world == 1:
        ended = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=limit)
        sys.stderr.write(ended.stderr)
        if ended.returncode != 0:
            raise RuntimeError(f"{mode} ended with {ended.returncode}: {ended.stderr[-4000:]}")
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
            raise SystemExit(f"{' '.join(command)} failed")
    return json.loads(outputs[0].splitlines()[-1])


def run_tacc(folder: Path, build: Path, precision: str, threads: int, world: int) -> dict:
    training = Training(build, folder, VOCAB, SEQ, BATCH, WARM_UP + COUNTED, precision, world, threads)
    result = {"seconds": [], "loaded_bytes": idle_bytes(build), "peak_bytes": 0}
    with training.start() as ranks:
        for event in ranks.events():
            if event["event"] == "step":
                result["seconds"].append(event["seconds"])
                result["loss"] = event["loss"]
                result["peak_bytes"] = ranks.peak_bytes()
    return result


def figure(runs: list[dict]) -> tuple[float, int]:
    """Median seconds of the counted steps of all runs, and the largest peak over the loaded libraries."""
    seconds = [s for run in runs for s in run["seconds"][WARM_UP:]]
    return statistics.median(seconds), max(run["peak_bytes"] - run["loaded_bytes"] for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--worlds", default="1,2")
    parser.add_argument("--modes", default="eager,compile")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        for world in map(int, args.worlds.split(",")):
            threads = 2 // world
            modes = args.modes.split(",") if world == 1 else ["fsdp2"]
            for precision in args.precisions.split(","):
                sides: dict[str, list[dict]] = {mode: [] for mode in ["tacc", *modes]}
                for _ in range(args.rounds):
                    for mode, runs in sides.items():
                        runs.append(run_tacc(folder, args.build, precision, threads, world) if mode == "tacc"
                                    else run_torch(folder, mode, precision, threads, world))
                ours, our_bytes = figure(sides["tacc"])
                for mode in modes:
                    theirs, their_bytes = figure(sides[mode])
                    rows.append((world, precision, mode, BATCH * SEQ / ours, BATCH * SEQ / theirs, theirs / ours, our_bytes / 2**20,
                                 their_bytes / 2**20, our_bytes / their_bytes))
                    print(f"ranks {world} {precision} against {mode}: {rows[-1][5]:.2f}x tokens/s, {rows[-1][8]:.2f}x memory", file=sys.stderr)
    print("| ranks | precision | against | tacc tokens/s | its tokens/s | ratio | tacc MiB | its MiB | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for world, precision, mode, ours, theirs, speed, our_mib, their_mib, memory in rows:
        print(f"| {world} | {precision} | {mode} | {ours:.0f} | {theirs:.0f} | {speed:.2f} | {our_mib:.0f} | {their_mib:.0f} | {memory:.2f} |")


if __name__ == "__main__":
    main()
