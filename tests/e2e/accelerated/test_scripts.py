"""Scripts as users have them, a stock Trainer, a plain loop and one of TorchAcc's shape, train through the daemon with the losses that they had before, each
with at most two lines changed, while a second client watches."""

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tacc
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import Cluster

SECONDS = 200.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


TRAINER = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

texts = [[(start + i) % 36 + 4 for i in range(10)] for start in range(24)]
samples = [{"input_ids": ids, "attention_mask": [1] * 10, "labels": [-100, *ids[1:]]} for ids in texts]

set_seed(7)
settings = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0)
model = GPT2LMHeadModel(settings)
arguments = TrainingArguments(
    "out", num_train_epochs=2, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=1, save_strategy="no", eval_strategy="epoch", report_to=[],
    use_cpu=True, disable_tqdm=True, lr_scheduler_type="cosine", warmup_steps=2,
)
trainer = Trainer(model, arguments, train_dataset=samples, eval_dataset=samples[:6])
trainer.train()
logs = trainer.state.log_history
print("steps", *(log["loss"] for log in logs if "loss" in log))
print("evaluations", *(log["eval_loss"] for log in logs if "eval_loss" in log))
"""

LOOP = """
import torch
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 5))
data = torch.utils.data.TensorDataset(torch.randn(48, 12), torch.randint(0, 5, (48,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
steps = []
for epoch in range(2):
    model.train()
    for x, labels in loader:
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        steps.append(loss.item())
print("steps", *steps)
model.eval()
with torch.no_grad():
    print("evaluations", *(nn.functional.cross_entropy(model(x), labels).item() for x, labels in loader))
torch.save(model.state_dict(), "trained.pt")
"""

TORCHACC = """
import torch
import torchacc as ta
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def pairs(count, seed):
    random = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 12, generator=random), torch.randint(0, 5, (count,), generator=random))

def main():
    config = ta.Config()
    config.compute.bf16 = False
    config.dist.fsdp.size = 2
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5))
    loader = DataLoader(pairs(48, 1), batch_size=8 // ta.dist.world_size())
    model, loader = ta.accelerate(model, loader, config)
    device = ta.lazy_device()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    steps, evaluations = [], []
    for epoch in range(2):
        model.train()
        for source, labels in loader:
            source, labels = source.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(source), labels)
            loss.backward()
            model.clip_grad_norm_(1.0) if hasattr(model, "clip_grad_norm_") else nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            ta.mark_step()
            steps.append(loss.item())
        model.eval()
        with torch.no_grad():
            for source, labels in ta.AsyncLoader(DataLoader(pairs(16, 2), batch_size=8), device):
                evaluations.append(criterion(model(source), labels).item())
    ta.sync()
    if ta.dist.rank() == 0:
        print("steps", *steps)
        print("evaluations", *evaluations)

if __name__ == "__main__":
    main()
"""

# What such a script finds in TorchAcc's place: the names that it uses, and PyTorch behind them.
STAND_IN = """
import types
import torch

class Config:
    def __init__(self):
        self.compute = types.SimpleNamespace(bf16=False)
        self.dist = types.SimpleNamespace(fsdp=types.SimpleNamespace(size=1))

class AsyncLoader:
    def __init__(self, loader, device):
        self._loader, self._device = loader, device

    def __iter__(self):
        return (tuple(tensor.to(self._device) for tensor in batch) for batch in self._loader)

def accelerate(model, dataloader=None, config=None):
    return model if dataloader is None else (model, AsyncLoader(dataloader, lazy_device()))

def lazy_device():
    return torch.device("cpu")

def sync():
    pass

mark_step = sync
dist = types.SimpleNamespace(world_size=lambda: 1, rank=lambda: 0)
"""


@dataclass(frozen=True)
class Script:
    """A script, and the lines that are put in place of others.

    Attributes:
        text: As it is.
        changes: Line -> those in its place.
        num_steps: Updates that it makes.
        rounding: Relative, of losses in float32, whose sums are taken in another order.
        has_loss: Whether the job has the loss, and not the loop.
    """

    text: str
    changes: dict[str, str]
    num_steps: int
    rounding: float
    has_loss: bool

    def changed(self) -> str:
        text = self.text
        for line, others in self.changes.items():
            assert text.count(f"\n{line}\n") == 1
            text = text.replace(f"\n{line}\n", f"\n{others}\n")
        return text


SCRIPTS = {
    "trainer": Script(TRAINER, {"set_seed(7)": "import tacc; tacc.accelerate_hf_trainer()\nset_seed(7)"}, 12, 1e-4, has_loss=True),
    "loop": Script(LOOP, {"from torch import nn": "from torch import nn\nimport tacc", "steps = []": "steps = []; model = tacc.accelerate(model)"}, 12, 2e-5, has_loss=False),
    "torchacc": Script(TORCHACC, {"import torchacc as ta": "import tacc as ta"}, 12, 2e-5, has_loss=False),
}


def begin(cluster: Cluster, folder: Path, text: str) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "script.py").write_text(text)
    (folder / "torchacc.py").write_text(STAND_IN)
    environment = {
        **os.environ, "TACC_ADDRESS": cluster.address, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path[1:]), "HF_HUB_OFFLINE": "1",
    }
    return subprocess.Popen([sys.executable, "script.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def printed(script: subprocess.Popen[str]) -> dict[str, list[float]]:
    """What it has printed, when it has ended: lines of a word and numbers."""
    out, said = script.communicate(timeout=SECONDS)
    assert script.returncode == 0, said
    lines = [line.split() for line in out.splitlines() if line.startswith(("steps ", "evaluations "))]
    return {line[0]: [float(number) for number in line[1:]] for line in lines}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains_as_before(name, cluster, tmp_path):
    script = SCRIPTS[name]
    differing = [line for line in difflib.ndiff(script.text.splitlines(), script.changed().splitlines()) if line.startswith("+ ")]
    assert 1 <= len(differing) <= 2
    with tacc.Client(cluster.address) as client:
        before = {job.id for job in client.jobs()}
        plain = begin(cluster, tmp_path / "plain", script.text)
        accelerated = begin(cluster, tmp_path / "accelerated", script.changed())
        found: list[str] = []

        def has_begun() -> bool:
            found.extend(job.id for job in client.jobs() if job.id not in before)
            return bool(found) or accelerated.poll() is not None

        cluster.wait(has_begun, "the script's job", timeout=SECONDS)
        assert found, printed(accelerated)
        watched = cluster.ctl("watch", found[0], "-o", "json", "--timeout", SECONDS, timeout=SECONDS + 30)
        want, got = printed(plain), printed(accelerated)
        assert [job.id for job in client.jobs() if job.id not in before] == found[:1]
    half = script.num_steps // 2
    assert len(want["steps"]) == script.num_steps and want["evaluations"] and sum(want["steps"][half:]) < sum(want["steps"][:half])
    assert got.keys() == want.keys()
    for kind, losses in want.items():
        assert got[kind] == pytest.approx(losses, rel=script.rounding), kind
    for saved in (tmp_path / "plain").glob("*.pt"):
        weights = torch.load(tmp_path / "accelerated" / saved.name)
        for weight, tensor in torch.load(saved).items():
            torch.testing.assert_close(weights[weight], tensor, rtol=1e-3, atol=1e-5)
    points = [point for point in map(json.loads, watched.stdout.splitlines()) if "grad_norm" in point]
    assert [point["step"] for point in points] == list(range(1, script.num_steps + 1))
    if script.has_loss:
        assert [point["loss"] for point in points] == pytest.approx(want["steps"], rel=script.rounding)
