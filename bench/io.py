"""What stands around the steps: preparing data, loading it, checkpoints, and the time from submit to the first step. Prints a table.

Needs the quickstart's data (`make quickstart`). Each ratio is of two things done one after the other in this run.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def prepare(folder: Path, quickstart: Path) -> tuple[float, float]:
    """Bytes per second of `data prepare` and of tokenizers' own encode_batch, on the standard library's sources."""
    from tokenizers import Tokenizer

    sources = Path(sysconfig.get_paths()["stdlib"])
    texts = []
    for path in sorted(sources.rglob("*.py")):
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, OSError):
            continue
    num_bytes = sum(len(t.encode()) for t in texts)
    tokenizer = Tokenizer.from_file(str(quickstart / "data/tokenizer/tokenizer.json"))
    start = time.perf_counter()
    for at in range(0, len(texts), 64):
        tokenizer.encode_batch(texts[at:at + 64])
    theirs = num_bytes / (time.perf_counter() - start)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tacc", "data", "prepare", "--tokenizer", quickstart / "data/tokenizer", "--input", sources,
                    "--include", "*.py", "--out", folder / "prepared"], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return num_bytes / (time.perf_counter() - start), theirs


def torch_save(num_parameters: int, folder: Path) -> float:
    """Seconds of torch.save of fp32 weights and two moments, written through to the disk."""
    import os

    import torch

    state = {name: torch.zeros(num_parameters) for name in ("weights", "exp_avg", "exp_avg_sq")}
    start = time.perf_counter()
    with open(folder / "state.pt", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--quickstart", type=Path, default=ROOT / "examples/quickstart")
    args = parser.parse_args()
    import yaml

    print("| what | tacc | beside | ratio |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = prepare(folder, args.quickstart)
        print(f"| data prepare, MB/s, against encode_batch | {ours / 1e6:.2f} | {theirs / 1e6:.2f} | {ours / theirs:.2f} |", flush=True)

        loader = json.loads(subprocess.run([args.build / "loader_bench", args.quickstart / "data"], check=True, stdout=subprocess.PIPE,
                                           text=True).stdout)
        print(f"| loader, M tokens/s a worker | {loader['tokens_per_second'] / 1e6:.0f} | bar 10 | |", flush=True)

        job = yaml.safe_load((args.quickstart / "job.yaml").read_text())
        data = (args.quickstart / "data").resolve()
        job["model"]["path"] = str((args.quickstart / "model").resolve())
        job["data"] = {"path": str(data), "seq_len": job["data"]["seq_len"]}
        job["train"] |= {"learning_rate": float(job["train"]["learning_rate"]),  # PyYAML reads 1e-3 as text
                         "max_steps": 8, "warmup_steps": 1}
        del job["train"]["eval_steps"]
        job["checkpoint"] = {"save_steps": 4}
        (folder / "job.yaml").write_text(json.dumps(job))
        # The first run has no remembered measurement of the device: as on a machine where tacc is new.
        for run, bar in (("cold", "-"), ("remembered", "bar 10")):
            command = [args.build / "taccctl", "submit", "--local", "--follow", "-o", "json", folder / "job.yaml", "--set", f"name={run}"]
            start = time.time()
            lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}).stdout.splitlines()
            events = [json.loads(line) for line in lines]
            steps = [e for e in events if "grad_norm" in e]
            print(f"| submit to first step, s (probe {run}) | {steps[0]['time'] - start:.1f} | {bar} | |")
        waits = sum(e["data_wait_seconds"] for e in steps[2:]) / sum(e["seconds"] for e in steps[2:])
        print(f"| data wait, share of a step | {waits:.4%} | bar 1 % | |")
        summary = next((e for e in events if "checkpoints" in e), None)
        stalls = [c["stall_seconds"] for c in summary["checkpoints"]] if summary else [float("nan")]
        theirs = torch_save(15_138_816, folder)
        # The last one has no training left to hide behind.
        for which, stall in (("in training", stalls[0]), ("at the end", stalls[-1])):
            print(f"| checkpoint stall {which}, s, against torch.save of the same state | {stall:.2f} | {theirs:.2f} | {stall / theirs:.2f} |")


if __name__ == "__main__":
    main()
