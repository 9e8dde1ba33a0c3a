"""Compares the training of one LLaMA from its Hugging Face folder (model.path) with that of the same model exported from PyTorch; prints a table of ratios.

    .venv/bin/python bench/folder_and_export.py [--precisions f32,bf16] [--rounds 3]

One rank of two threads on one data folder. Sides take turns; the first 3 steps of a run are warm-up, the figure is the median of the rest of all runs. Bar: within 5 %.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/e2e"), str(ROOT / "client/python")]

from train_step import WARM_UP  # noqa: E402

VOCABULARY = 8000
BAR = 0.05


def write_models(folder: Path, hidden: int, layers: int, tokens: int) -> dict[str, dict[str, Any]]:
    """Section `model` of each side's job."""
    import tacc
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64,
                         num_key_value_heads=hidden // 64, max_position_embeddings=tokens, bos_token_id=None, eos_token_id=0, pad_token_id=1)
    model = LlamaForCausalLM(config).train()
    model.save_pretrained(folder / "llama")
    tacc.export_model(model, {"input_ids": torch.randint(0, VOCABULARY, (2, tokens))}, folder / "exported", tokens="input_ids")
    return {"folder": {"path": str(folder / "llama"), "weights": "pretrained"}, "export": {"graph": str(folder / "exported/model.graph")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="of a run that are counted, after 3 of warm-up")
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=256, help="of each of 4 samples")
    args = parser.parse_args()
    os.environ["TACC_BUILD"] = str(args.build.resolve())
    from cluster import Cluster, write_data, write_job

    rows = []
    with tempfile.TemporaryDirectory() as scratch, Cluster(Path(scratch) / "cluster", workers=1, threads=2, memory=str(8 << 30)) as cluster:
        folder = Path(scratch)
        models = write_models(folder, args.hidden, args.layers, args.tokens)
        data = write_data(folder / "data", vocab_size=VOCABULARY, num_tokens=4 * args.tokens * (WARM_UP + args.steps), period=4096)

        def step_seconds(side: str, precision: str, number: int) -> tuple[list[float], float]:
            """Of the counted steps; and the last step's loss."""
            path = write_job(folder / "jobs", name=f"{side}-{precision}-{number}", workers=1, data={"path": str(data), "seq_len": args.tokens},
                             train={"max_steps": WARM_UP + args.steps, "global_batch_size": 4, "per_device_train_batch_size": 4}, compute={"bf16": precision == "bf16"},
                             checkpoint={"save_steps": 1_000_000})
            job = cluster.submit(with_model(path, models[side]))
            ended = cluster.finish(job)
            if ended.returncode != 0:
                raise RuntimeError(f"{side}, {precision}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
            points = cluster.points(job)
            return [point["seconds"] for point in points[WARM_UP:]], points[-1]["loss"]

        for precision in args.precisions.split(","):
            seconds: dict[str, list[float]] = {side: [] for side in models}
            losses: dict[str, float] = {}
            for number in range(args.rounds):
                for side in models:
                    of_run, losses[side] = step_seconds(side, precision, number)
                    seconds[side] += of_run
                    print(f"{precision}, {side}: {statistics.median(seconds[side]):.4f} s a step", file=sys.stderr)
            by_folder, by_export = (statistics.median(seconds[side]) for side in models)
            rows.append(f"| {precision} | {by_folder:.4f} | {by_export:.4f} | {by_folder / by_export:.3f} | {1 - BAR:.2f} | {losses['folder']:.6f} | {losses['export']:.6f} |")
    print("| precision | folder s a step | export s a step | speed, export to folder | bar | folder's last loss | export's |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))


def with_model(path: Path, model: dict[str, Any]) -> Path:
    """The job file with that section `model`, none of the one that it has."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": model}))
    return path


if __name__ == "__main__":
    main()
