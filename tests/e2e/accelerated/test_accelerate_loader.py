"""The loaders of accelerated models: what is read ahead, filled up and found again."""

import copy
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tacc
import torch
from torch import nn
from torch.nn import functional
from torchdata.stateful_dataloader import StatefulDataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import Cluster, rank_of

SAMPLES = 8
# Products are rounded in fp32 in another order than PyTorch's.
ROUNDING = 2e-5
FSDP = {"dist": {"fsdp": {"size": 2}}, "resources": {"workers": 2}}
ONE = {"resources": {"workers": 1}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def folders(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TACC_ADDRESS", cluster.address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def ended_jobs(cluster, folders) -> Iterator[None]:
    """A job of a test that has failed would keep the workers."""
    yield
    with tacc.Client() as client:
        for job in client.jobs():
            job.cancel(now=True)
            while job.status().phase not in ("finished", "failed", "cancelled"):
                pass


class Classifier(nn.Module):
    """Returns its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"logits": logits} if labels is None else {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def made(kind: type[nn.Module] = Classifier) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(7)
    return [{"x": torch.randn(SAMPLES, 12, generator=random), "labels": torch.randint(0, 5, (SAMPLES,), generator=random)} for _ in range(count)]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def train_on(
    model: Any, loader: Any, seen: Callable[[int, Any], Any] = lambda step, batch: batch, optimizer: torch.optim.Optimizer | None = None
) -> list[float]:
    """The losses of an epoch. `seen` has each batch, by its number from 1 on, and gives what is trained on."""
    optimizer = optimizer or optimizer_of(model)
    losses = []
    for step, batch in enumerate(loader, 1):
        loss = model(**seen(step, batch))["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# --- Ahead --------------------------------------------------------------------------------------------------------------


class Spy:
    """What is staged for a model, and by whom."""

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch):
        self.ahead: list[Any] = []
        self.in_loop = 0
        stage_ahead, stage = model.stage_ahead, model.session.stage

        def noted_ahead(batch: Any) -> Any:
            self.ahead.append(stage_ahead(batch))
            return self.ahead[-1]

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.in_loop += threading.current_thread() is threading.main_thread()
            return stage(*args, **kwargs)

        monkeypatch.setattr(model, "stage_ahead", noted_ahead)
        monkeypatch.setattr(model.session, "stage", noted)


def test_batches_lie_where_the_ranks_read_them_before_the_loop_has_them(cluster, monkeypatch):
    count, prefetch = 8, 3
    changed = 5, 6

    def change(step: int, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """As a loop that adds noise: in place, and beside it."""
        if step == changed[0]:
            batch["x"].mul_(0.5)
            batch["labels"][0] = 4
        return {**batch, "x": batch["x"] + 1} if step == changed[1] else batch

    plain = made()
    want = train_on(plain, copy.deepcopy(batches(count)), change)
    assert want != train_on(made(), batches(count)), "the changes are seen in the losses"
    with tacc.accelerate(made(), config=FSDP) as model:
        optimizer = optimizer_of(model)
        model.start(**batches(1)[0])
        spy = Spy(model, monkeypatch)

        def look(step: int, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            wanted = min(step + prefetch, count)
            cluster.wait(lambda: len(spy.ahead) >= wanted, "batches that are staged")
            assert [one.is_used for one in spy.ahead] == [True] * (step - 1) + [False] * (wanted - step + 1)
            assert spy.in_loop == sum(step > one for one in changed), "what was changed is staged again, and nothing else"
            return change(step, batch)

        got = train_on(model, tacc.AsyncLoader(batches(count), model, prefetch=prefetch), look, optimizer)
        assert got == pytest.approx(want, rel=ROUNDING) and spy.in_loop == len(changed)
        # So are those of evaluations, also one with fewer samples.
        model.eval()
        shorter = [*batches(3), {name: tensor[:5] for name, tensor in batches(4)[3].items()}]
        for many, in_loop in ((2, 0), (60, len(shorter))):  # There is no room for so many.
            before = spy.in_loop
            with torch.no_grad():
                outputs = [model(**batch) for batch in tacc.AsyncLoader(shorter, model, prefetch=many)]
                for batch, out in zip(shorter, outputs, strict=True):
                    here = plain.eval()(**batch)
                    assert out.loss.item() == pytest.approx(here["loss"].item(), rel=1e-4)
                    torch.testing.assert_close(out.logits, here["logits"], rtol=1e-3, atol=1e-4)
            assert spy.in_loop - before == in_loop


def test_a_batch_that_cannot_be_staged_is_refused_by_the_forward_and_not_by_the_loader():
    data = batches(6)
    data[3]["x"][2, 0] = float("nan")
    with tacc.accelerate(made(), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        trained, refused = [], []
        for step, batch in enumerate(tacc.AsyncLoader(data, model)):
            try:
                model(**batch).loss.backward()
            except tacc.InputError as error:
                refused.append((step, str(error)))
                continue
            optimizer.step()
            optimizer.zero_grad()
            trained.append(step)
        assert trained == [0, 1, 2, 4, 5] and len(refused) == 1
        assert refused[0][0] == 3 and "'x' is NaN (not a number) in 1 place, first in sample 2 of the batch" in refused[0][1]


def test_a_loop_that_makes_other_batches_has_few_staged_in_vain(monkeypatch):
    with tacc.accelerate(made(), config=ONE) as model:
        optimizer = optimizer_of(model)
        model.start(**batches(1)[0])
        spy = Spy(model, monkeypatch)
        loader = tacc.AsyncLoader(batches(12), model, prefetch=1)
        got = train_on(model, loader, lambda _, batch: {name: tensor.clone() for name, tensor in batch.items()}, optimizer)
        assert got == pytest.approx(train_on(made(), batches(12)), rel=ROUNDING)
        assert 0 < len(spy.ahead) <= 4 and spy.in_loop == 12


# --- Lengths ------------------------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Reads each token by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(61, 16), nn.Linear(16, 7)

    def forward(self, tokens: torch.Tensor, tags: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": functional.cross_entropy(self.head(self.embed(tokens)).flatten(0, 1), tags.flatten())}


def texts() -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(11)
    shapes = [(SAMPLES, length) for length in (11, 6, 16, 8)]
    return [{"tokens": torch.randint(0, 61, s, generator=random), "tags": torch.randint(0, 7, s, generator=random)} for s in shapes]


def of_torchacc(**options: Any) -> tacc.Config:
    """As its scripts write it."""
    config = tacc.Config(ONE)
    for name, value in options.items():
        with pytest.warns(tacc.ConfigNote, match=f"dataloader.{name}: .*tacc.accelerate"):
            setattr(config.dataloader, name, value)
    return config


FILLS = {"tokens": 0, "tags": -100}
CONFIGS = {
    "buckets": (lambda: of_torchacc(buckets=[8, 12, 16], pad_value_dict=FILLS), [12, 8, 16, 8]),
    "max_length": (lambda: {**ONE, "dataloader": {"max_length": 16, "num_buckets": 2, "pad_value_dict": FILLS}}, [16, 8, 16, 8]),
}


@pytest.mark.parametrize("given", CONFIGS)
def test_buckets_and_pad_values_of_torchacc_fill_batches_up(given):
    config, lengths = CONFIGS[given]
    want = train_on(made(Tagger), texts())
    with warnings.catch_warnings():
        warnings.simplefilter("error", tacc.ConfigNote)  # They have a meaning here.
        if given == "buckets":
            warnings.simplefilter("ignore", tacc.ConfigNote)
        model, loader = tacc.accelerate(made(Tagger), texts(), config())
        with model:
            assert train_on(model, loader) == pytest.approx(want, rel=ROUNDING)
            job = model.job
    assert [p.tokens for p in job.watch(events=False)] == [SAMPLES * length for length in lengths]


def test_wrong_options_of_a_loader_are_refused():
    def begin(pad_value_dict: Any) -> None:
        module = made(Tagger)
        config = {**ONE, "dataloader": {"buckets": [8, 16], "pad_value_dict": pad_value_dict}}
        with tacc.accelerate(module, config=config, optimizer=optimizer_of(module)) as model:
            model(**texts()[0])

    for words, options in {
        "wanted lengths of at least 2 tokens": {"buckets": [1]},
        r"config.dataloader.max_length is '9'; wanted a whole number from 2 on": {"max_length": "9"},
        r"config.dataloader.num_buckets is 0; wanted a whole number from 1 on": {"max_length": 9, "num_buckets": 0},
        r"pad_value_dict is \['x'\]; wanted numbers by name": {"pad_value_dict": ["x"], "buckets": [8]},
    }.items():
        with pytest.raises(tacc.InputError, match=words):
            tacc.accelerate(made(Tagger), config={"dataloader": options})
    with pytest.raises(tacc.InputError, match=r"buckets=\[8\] and config.dataloader, whose lengths are \[8, 16\], are both given"):
        tacc.accelerate(made(Tagger), config={"dataloader": {"buckets": [8, 16]}}, buckets=[8])
    with pytest.warns(tacc.ConfigNote, match=r"dataloader.pad_value_dict: without dataloader.buckets or max_length, or buckets=, no batch is filled up"):
        tacc.accelerate(made(Tagger), config={"dataloader": {"pad_value_dict": FILLS}})
    with pytest.raises(tacc.InputError, match=r"pad_value_dict of config has 'labels', which the batch has not; it has 'tokens', 'tags'"):
        begin({**FILLS, "labels": -100})
    with pytest.raises(tacc.InputError, match=r"'tokens' cannot be filled up with 61: the model takes 0 to 60"):
        begin({**FILLS, "tokens": 61})
    with pytest.raises(tacc.InputError, match=r"it is not known what may fill up 'tags' .* or give config dataloader.pad_value_dict"):
        begin({"tokens": 0})


# --- Positions ----------------------------------------------------------------------------------------------------------


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4 * SAMPLES

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(i)
        return {"x": torch.randn(12, generator=random), "labels": torch.randint(0, 5, (), generator=random)}


def test_a_loader_of_torchdata_goes_back_with_the_training(cluster):
    """Two epochs, shuffled, read by two processes; a rank is killed in the midst of the second one."""

    def shuffled() -> StatefulDataLoader:
        return StatefulDataLoader(Samples(), SAMPLES, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(5))

    plain, module = made(), made()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.3) for m in (plain, module)]
    want = []
    for _, batch in ((epoch, batch) for loader in [shuffled()] for epoch in range(2) for batch in loader):
        loss = plain(**batch)["loss"]
        loss.backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        want.append(loss.item())
    model, loader = tacc.accelerate(module, shuffled(), {**FSDP, "checkpoint": {"dir": "runs/torchdata", "save_steps": 2}})
    with model:
        got: dict[int, float] = {}
        restarts = []
        while model.step_number < len(want):
            try:
                for batch in loader:
                    step = model.step_number
                    loss = model(**batch).loss
                    loss.backward()
                    optimizers[1].step()
                    optimizers[1].zero_grad()
                    got[step] = loss.item()
                    if step == 6 and not restarts:
                        cluster.wait(lambda: getattr(model.job.status().last_checkpoint, "step", 0) == 6, "the checkpoint of step 6")
                        os.kill(rank_of(cluster.workers["w0"]), signal.SIGKILL)
            except tacc.SessionRestartedError as error:
                optimizers[1].zero_grad()
                restarts.append(error.step)
        assert restarts == [6] and loader.epoch == 2
        assert [got[step] for step in range(len(want))] == pytest.approx(want, rel=ROUNDING)


def script(name: str, keep_seconds: float, dies_at: int = 0) -> list[str]:
    """A script that trains, and dies behind a step; its losses, to the bit."""
    data = batches(6)
    model, loader = tacc.accelerate(made(), data, {**FSDP, "checkpoint": {"dir": f"runs/{name}"}}, name=name, keep_seconds=keep_seconds)
    losses = []
    with model:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model.start(**data[0])  # Where there is a checkpoint, the loader goes on behind it.
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
            if len(losses) == dies_at:
                print(json.dumps(losses), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    return losses


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACC_ADDRESS", cluster.address)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(tmp_path_factory.mktemp("undisturbed"))
        return script("undisturbed", 600)


@pytest.mark.parametrize("keep_seconds", [2.0, 0.0], ids=["saves-and-ends", "waits"])
def test_a_script_that_is_killed_is_gone_on_with_by_the_next_one(cluster, undisturbed, keep_seconds):
    name = f"killed-{keep_seconds:g}"
    code = f"from test_accelerate_loader import script; script({name!r}, {keep_seconds}, 3)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    killed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with tacc.Client() as client:
        job = client.job(name)
        if keep_seconds == 0:
            cluster.wait(lambda: job.status().reason == "waits for its client", "a job that waits")
            time.sleep(3)  # Longer than the other one.
            assert (job.status().phase, job.status().step) == ("running", 3)
            job.cancel()  # What a script needs that begins again in its folder.
        with pytest.raises(tacc.JobCancelledError):
            job.wait(60, progress=False)
        status = job.status()
        assert status.last_checkpoint.step == 3 and not status.exported_path
        assert ("no client has come for 2 seconds" in status.reason) is (keep_seconds == 2)
    assert [*json.loads(killed.stdout), *script(name, keep_seconds)] == undisturbed
