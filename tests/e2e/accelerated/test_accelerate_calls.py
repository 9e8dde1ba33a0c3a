"""`tacc.accelerate`: calls of the handle and arguments that docs/python.md names and other tests do not use."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tacc
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import Cluster

ONE: dict[str, Any] = {"resources": {"workers": 1}}
STEPS = 4
ROUNDING = 2e-5  # Of losses in float32, whose sums are taken in another order.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def folders(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TACC_ADDRESS", cluster.address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


class Classifier(nn.Module):
    """Returns its loss when it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(torch.tanh(self.hidden(x)))
        return {"logits": logits} if labels is None else {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def made() -> Classifier:
    torch.manual_seed(3)
    return Classifier()


def batches(count: int = STEPS) -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(7)
    return [{"x": torch.randn(8, 12, generator=random), "labels": torch.randint(0, 5, (8,), generator=random)} for _ in range(count)]


def expect_close(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def smoothed(outputs: dict[str, torch.Tensor], *, classes: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs["logits"], classes, label_smoothing=0.1)


@pytest.mark.parametrize("has_output_fn", [False, True], ids=["the model's loss", "output_fn"])
def test_forward_backward_and_clipping_of_the_handle(has_output_fn):
    """Two micro-batches a step."""
    plain = made()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.3, momentum=0.9)
    want, norms = [], []
    for i, batch in enumerate(batches(6)):
        loss = smoothed(plain(batch["x"]), classes=batch["labels"]) if has_output_fn else plain(**batch)["loss"]
        loss.backward()
        want.append(loss.item())
        if i % 2:
            norms.append(nn.utils.clip_grad_norm_(plain.parameters(), 0.2).item())
            optimizer.step()
            optimizer.zero_grad()
    with tacc.accelerate(made(), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        losses, clipped = [], []
        for i, batch in enumerate(batches(6)):
            if has_output_fn:
                loss = model.forward_backward(batch["x"], output_fn=smoothed, classes=batch["labels"])
            else:
                loss = model.forward_backward(**batch)
            assert not loss.requires_grad
            losses.append(loss.item())
            if i % 2:
                norm = model.clip_grad_norm_(0.2)
                optimizer.step()
                optimizer.zero_grad()
                clipped.append(norm.item())
        assert losses == pytest.approx(want, rel=ROUNDING)
        assert clipped == pytest.approx(norms, rel=1e-4) and min(norms) > 0.2
        expect_close(model.state_dict(), plain.state_dict())
        for wrong, words in (({"max_norm": 0.0}, "max_norm=0.0; wanted more than 0"), ({"max_norm": 1.0, "norm_type": 1.0}, r"norm_type=1\.0: the ranks clip the 2-norm")):
            with pytest.raises(tacc.InputError, match=words):
                model.clip_grad_norm_(**wrong)


def test_a_client_a_name_and_a_number_of_steps(cluster, monkeypatch):
    monkeypatch.delenv("TACC_ADDRESS")
    with tacc.Client(cluster.address) as client:
        for given in (cluster.address, client):
            with tacc.accelerate(made(), config=ONE, client=given, name="mine", max_steps=2) as model:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for batch in batches(2):
                    model(**batch).loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                with pytest.raises(tacc.TaccError, match=r"the training has done its 2 steps \(train\.max_steps\); close it"):
                    model(**batches(1)[0]).loss.backward()
                    optimizer.step()
            status = client.job(model.job.id).status()
            assert (status.name, status.phase, status.step, status.max_steps) == ("mine", "finished", 2, 2)


SCRIPT = """
import sys, time
import tacc, torch
from test_accelerate_calls import ONE, batches, made

def main(keep_seconds, stops_at):
    config = {**ONE, "checkpoint": {"dir": sys.argv[1], "save_steps": 2}}
    model = tacc.accelerate(made(), config=config, name="killed", keep_seconds=keep_seconds)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = batches(5)
    model.start(data[0])
    while (step := model.step_number) < len(data):
        loss = model(**data[step]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", step, loss.item(), flush=True)
        if step + 1 == stops_at:
            model.step_number
            print("waits", flush=True)
            time.sleep(1000)
    model.close()

main(float(sys.argv[2]), int(sys.argv[3]))
"""


def run_script(folder: Path, *arguments: Any) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen([sys.executable, "script.py", *map(str, arguments)], env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)


def losses_of(out: str) -> dict[int, float]:
    return {int(step): float(loss) for word, step, loss in (line.split() for line in out.splitlines() if line.startswith("loss ")) if word}


@pytest.mark.parametrize("keep_seconds", [1, 0], ids=["saves and ends", "waits"])
def test_a_script_that_is_killed_is_gone_on_with(keep_seconds, cluster, tmp_path):
    """Its job saves what it has when nobody has come for keep_seconds, or waits until it is cancelled; another run of the script goes on there."""
    plain = made()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    want = []
    for batch in batches(5):
        loss = plain(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        want.append(loss.item())
    script = run_script(tmp_path, "run", keep_seconds, 3)
    said = []
    while (line := script.stdout.readline()) and line != "waits\n":
        said.append(line)
    script.send_signal(signal.SIGKILL)
    script.wait()
    script.stdout.close()
    with tacc.Client() as client:
        job = client.job("killed")
        if keep_seconds:
            with pytest.raises(tacc.JobCancelledError):
                job.wait(60, progress=False)
            assert "no client has come for 1 second" in job.status().reason
        else:
            assert job.status().phase == "running"
            cluster.ctl("cancel", job.id)
            with pytest.raises(tacc.JobCancelledError):
                job.wait(60, progress=False)
        assert job.status().last_checkpoint.step == 3 and not job.status().exported_path
        again = run_script(tmp_path, "run", 600, 0)
        out, _ = again.communicate(timeout=200)
        assert again.returncode == 0
        status = client.job("killed").status()
        assert (status.phase, status.step) == ("finished", 5) and status.id != job.id
    before, after = losses_of("".join(said)), losses_of(out)
    assert sorted(before) == [0, 1, 2] and sorted(after) == [3, 4]
    assert [loss for _, loss in sorted((before | after).items())] == pytest.approx(want, rel=ROUNDING)
