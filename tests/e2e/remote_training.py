"""A loop of PyTorch on a machine that shares no folder with the coordinator and its workers. Prints what came of it as JSON.

    python remote_training.py ADDRESS
"""

import json
import sys
from typing import Any

import tacc
import torch
from torch import nn

CONFIG = {"dist": {"dp": {"size": 1}, "fsdp": {"size": 2}}, "resources": {"workers": 2}}
STEPS = 3


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 32)
        self.head = nn.Linear(32, 7)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.embedding(tokens))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def batches() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"tokens": torch.randint(0, 500, (8, 64), generator=generator), "labels": torch.randint(0, 7, (8, 64), generator=generator)} for _ in range(STEPS)]


def train(model: Any, parameters: Any) -> list[float]:
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    losses = []
    for batch in batches():
        out = model(**batch)
        out["loss"].backward()
        losses.append(float(out["loss"]))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def made() -> Tagger:
    torch.manual_seed(0)
    return Tagger()


def main(address: str) -> None:
    reference = made()
    found: dict[str, Any] = {"wanted": train(reference, reference.parameters()), "losses": []}
    for round_ in range(2):
        module = made()
        with tacc.accelerate(module, config=CONFIG, client=address, name=f"remote-{round_}") as model:
            found["losses"].append(train(model, module.parameters()))
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            found["error"] = max(float((weights[name] - tensor).abs().max()) for name, tensor in reference.state_dict().items())
            # Back to the beginning, by states that are sent as well.
            model.load_state_dict(made().state_dict())
            found["loaded"] = max(float((tensor - model.state_dict()[name]).abs().max()) for name, tensor in made().state_dict().items())
            found["sent_bytes"] = [link.sent_bytes for link in model.session._links]
            found["job"] = model.job.id
    found["weight_bytes"] = sum(p.numel() * 4 for p in reference.parameters())
    with tacc.Client(address, start=False) as client:
        found["exported"] = [client.job(f"remote-{round_}").wait(60, progress=False).exported_path for round_ in range(2)]
        found["graph"] = [client.job(f"remote-{round_}").status().spec["model"]["graph"] for round_ in range(2)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
