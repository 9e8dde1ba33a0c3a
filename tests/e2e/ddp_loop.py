"""A model trained by PyTorch's DistributedDataParallel, each of two processes with half of each batch: python ddp_loop.py RANK FOLDER."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

WORLD, STEPS, SAMPLES, CLASSES = 2, 6, 8, 5
LEARNING_RATE, MOMENTUM, MAX_GRAD_NORM = 0.05, 0.9, 1.0


class Normed(nn.Module):
    """Convolutions with batch norms, of images and of rows; `norm`: the class of those of images."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), norm(8), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2), norm(6), nn.ReLU())
        self.rows = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU()) if norm is nn.BatchNorm2d else nn.Linear(6, 12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x, labels):
        return {"loss": F.cross_entropy(self.head(self.rows(self.body(x).mean((2, 3)))), labels)}


def batches() -> list[dict[str, torch.Tensor]]:
    """No two samples alike, and halves of a batch neither."""
    generator = torch.Generator().manual_seed(3)
    scale = torch.linspace(0.5, 3, SAMPLES)[:, None, None, None]
    return [{"x": scale * (torch.randn(SAMPLES, 3, 9, 9, generator=generator) + scale), "labels": torch.randint(0, CLASSES, (SAMPLES,), generator=generator)}
            for _ in range(STEPS)]


def train(model: nn.Module, parameters: list[nn.Parameter], batch_of: slice) -> list[float]:
    optimizer, losses = torch.optim.SGD(parameters, LEARNING_RATE, momentum=MOMENTUM), []
    for batch in batches():
        optimizer.zero_grad()
        loss = model(**{name: value[batch_of] for name, value in batch.items()})["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(rank: int, folder: Path) -> None:
    """The model in FOLDER/model.pt; leaves FOLDER/rank-RANK.pt, its losses and its state at the end."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    model = Normed()
    model.load_state_dict(torch.load(folder / "model.pt"))
    own = SAMPLES // WORLD
    losses = train(nn.parallel.DistributedDataParallel(model), list(model.parameters()), slice(rank * own, (rank + 1) * own))
    torch.save((losses, model.state_dict()), folder / f"rank-{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
