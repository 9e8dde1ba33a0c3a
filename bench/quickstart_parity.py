"""The quickstart's first losses against transformers + AdamW on the same ids, weights and precision; and the corpus's unigram entropy.

Both start from the same weights (written by transformers, read as pretrained). The ids are those of `tacc-data show`; the learning rate of each
step is the one the job reports. Prints a table and ends with 1 when a loss differs by more than 1 %.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--quickstart", type=Path, default=ROOT / "examples/quickstart", help="prepared by `make quickstart`")
    args = parser.parse_args()

    import torch
    import yaml
    from transformers import AutoConfig, AutoModelForCausalLM

    job = yaml.safe_load((args.quickstart / "job.yaml").read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.quickstart / "model"), attn_implementation="sdpa")
        model.save_pretrained(folder / "model")
        for file in (args.quickstart / "model").iterdir():
            if file.name != "config.json":
                shutil.copy(file, folder / "model")
        data = (args.quickstart / "data").resolve()
        job["model"] = {"path": "model", "weights": "pretrained"}
        job["data"] |= {"path": str(data), "eval_path": str(data / "eval")}
        job["train"] |= {"learning_rate": float(job["train"]["learning_rate"]),  # PyYAML reads 1e-3 as text
                         "max_steps": args.steps, "warmup_steps": min(args.steps, job["train"]["warmup_steps"]), "eval_steps": args.steps}
        (folder / "job.yaml").write_text(json.dumps(job))
        lines = subprocess.run([args.build / "taccctl", "submit", "--local", "--follow", "-o", "json", folder / "job.yaml"], check=True,
                               stdout=subprocess.PIPE, text=True).stdout.splitlines()
        events = [json.loads(line) for line in lines]
        steps = {e["step"]: e for e in events if "grad_norm" in e}
        precision = "bf16" if any("bf16" in line for line in lines) else "f32"

        train = job["train"]
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        others = [p for p in model.parameters() if p.dim() < 2]
        optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": train.get("weight_decay", 0)}, {"params": others, "weight_decay": 0}],
                                      lr=1.0)
        worst = 0.0
        print(f"precision {precision}\n| step | tacc | transformers | difference |\n| --- | --- | --- | --- |")
        batches = subprocess.run([args.build / "tacc-data", "show", "--data", data, "--seq-len", str(job["data"]["seq_len"]), "--global-batch-size",
                                  str(train["global_batch_size"]), "--seed", str(train.get("seed", 42)), "--step", "1", "--num-steps", str(args.steps),
                                  "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        for step, shown in enumerate(map(json.loads, batches), 1):
            assert shown["batch_hash"] == steps[step]["batch_hash"]
            ids = torch.tensor(shown["tokens"])
            for group in optimizer.param_groups:
                group["lr"] = steps[step]["learning_rate"]
            with torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext():
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), train.get("max_grad_norm", 1.0))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            difference = abs(steps[step]["loss"] / loss.item() - 1)
            worst = max(worst, difference)
            print(f"| {step} | {steps[step]['loss']:.5f} | {loss.item():.5f} | {difference:.2%} |", flush=True)
        print(f"largest difference {worst:.3%} (bar 1 %)")
        info = json.loads(subprocess.run([args.build / "tacc-data", "info", "--data", data / "eval"], check=True, stdout=subprocess.PIPE, text=True).stdout)
        print("corpus:", json.dumps({k: v for k, v in info.items() if "entropy" in k or "tokens" in k}))
    sys.exit(worst > 0.01)


if __name__ == "__main__":
    main()
