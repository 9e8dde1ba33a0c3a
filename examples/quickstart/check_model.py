"""Holds a trained model to README's claim: on held-out data its loss lies at least 1 nat under the unigram entropy, which is the loss of a model that
only counts tokens. Reads the exported folder as any user of transformers would. Ends with 1 where the claim does not hold."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARGIN = 1.0  # nats
SAMPLES = 64
ROWS = 8  # at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE.parents[1] / "build")
    parser.add_argument("--model", type=Path, default=HERE / "runs/quickstart/hf", help="a Hugging Face folder")
    parser.add_argument("--data", type=Path, default=HERE / "data/eval", help="held-out data of `python -m tacc data prepare`")
    parser.add_argument("--seq-len", type=int, default=256)
    args = parser.parse_args()

    import torch
    from transformers import AutoModelForCausalLM

    def tacc_data(*arguments) -> dict:
        return json.loads(subprocess.run([args.build / "tacc-data", *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout)

    entropy = tacc_data("info", "--data", args.data)["unigram_entropy_nats"]
    shown = tacc_data("show", "--data", args.data, "--seq-len", args.seq_len, "--global-batch-size", SAMPLES, "--seed", 0, "--step", 1, "--json")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    with torch.no_grad():
        losses = [model(input_ids=ids, labels=ids).loss for ids in torch.tensor(shown["tokens"]).split(ROWS)]
    loss = torch.stack(losses).mean().item()
    print(f"held-out loss {loss:.2f} nats; unigram entropy {entropy:.2f} nats (a model that only counts tokens)")
    if not loss <= entropy - MARGIN:
        sys.exit(f"error: {args.model}: the held-out loss is {entropy - loss:.2f} nats under the unigram entropy of {args.data}, wanted at least {MARGIN:.0f}")


if __name__ == "__main__":
    main()
