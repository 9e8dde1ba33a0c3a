"""Seconds to export a LLaMA-2 of 7 B from PyTorch, to submit its graph, and to have it planned for 8 and 64 GPUs; the weights' own time is not counted. Prints a table.

    .venv/bin/python bench/export_large.py --build build

The weights are zeros but one, and the file of weights has its header alone (the rest is a hole): what is left is what grows with layers, not with
parameters. The bar: export and submit in 30 s.
"""

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/e2e")]


def llama_7b() -> Any:
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000, max_position_embeddings=4096)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    # Zeros take no memory before they are written. A weight with another number is not taken for a constant.
    state = {name: torch.from_numpy(np.zeros(tensor.shape, np.int16)).view(torch.bfloat16) for name, tensor in model.state_dict().items()}
    for tensor in state.values():
        tensor.view(-1)[0] = 1
    model.load_state_dict(state, assign=True)
    # Not a parameter: its values become part of the graph.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    args = parser.parse_args()
    os.environ["TACC_BUILD"] = str(args.build.resolve())

    import tacc
    import torch
    from cluster import Cluster
    from tacc.exporting.export import export_graph
    from tacc.exporting.weights import safetensors_pieces, safetensors_size

    def seconds(act: Callable[[], Any]) -> tuple[float, Any]:
        start = time.perf_counter()
        result = act()
        return time.perf_counter() - start, result

    model = llama_7b()
    ids = torch.zeros(1, 128, dtype=torch.int64)
    took, graph = seconds(lambda: export_graph(model, {"input_ids": ids, "labels": ids}, loss=None))
    print("| what | s | bar |\n| --- | --- | --- |")
    print(f"| export: {sum(p.numel() for p in model.parameters()) / 1e9:.2f} B parameters, {len(graph.text) / 1e6:.2f} MB of text | {took:.1f} | |", flush=True)
    with tempfile.TemporaryDirectory() as name, Cluster(Path(name) / "cluster", workers=0) as cluster, tacc.Client(cluster.address) as client:
        folder = Path(name)
        (folder / "model.graph").write_text(graph.text)
        with (folder / "model.safetensors").open("wb") as file:
            file.write(next(safetensors_pieces(graph.tensors)))
            file.truncate(safetensors_size(graph.tensors))
        job = {"name": "large", "model": {"graph": str(folder / "model.graph"), "weights": "pretrained"}, "data": {"client": {}, "seq_len": 4096}, "compute": {"bf16": True},
               "train": {"max_steps": 10, "global_batch_size": 64, "learning_rate": 3e-4}, "checkpoint": {"dir": str(folder / "runs")}, "resources": {"workers": 8}}
        submitted, _ = seconds(lambda: client.submit(job))
        print(f"| submit | {submitted:.2f} | |\n| both | {took + submitted:.1f} | 30 |", flush=True)
        for gpus in (8, 64):
            planned, plan = seconds(functools.partial(client.plan, job, gpus=gpus))
            mesh = " ".join(f"{axis}={size}" for axis, size in plan.best.mesh.items() if size > 1)
            print(f"| plan for {gpus} H100s ({mesh}) | {planned:.1f} | |", flush=True)


if __name__ == "__main__":
    main()
