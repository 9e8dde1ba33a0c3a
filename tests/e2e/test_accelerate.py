"""`tacc.accelerate`: loops of PyTorch whose model trains in a job have the losses and weights that they have without."""

import contextlib
import copy
import gc
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tacc
import torch
from cluster import Cluster
from safetensors.torch import load_file
from tacc.accelerating import handle
from torch import nn
from torch.nn import functional

SAMPLES, STEPS = 8, 4
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
        self.embed = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.hidden = nn.Linear(16, 24)
        self.head = nn.Linear(24, 5)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(functional.gelu(self.hidden(self.norm(self.embed(ids).mean(1)))))
        out = {"logits": logits}
        if labels is not None:
            out = {"loss": functional.cross_entropy(logits, labels), **out}
        return out


class Perceptron(nn.Sequential):
    """Returns what it computes."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5))


def batches(count: int = STEPS, samples: int = SAMPLES) -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(7)
    return [{"ids": torch.randint(0, 32, (samples, 6), generator=random), "labels": torch.randint(0, 5, (samples,), generator=random)} for _ in range(count)]


def pairs(count: int = STEPS, samples: int = SAMPLES) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(7)
    return [(torch.randn(samples, 12, generator=random), torch.randint(0, 5, (samples,), generator=random)) for _ in range(count)]


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def both(kind: type[nn.Module], loop: Callable[[Any], list[float]], **options: Any) -> tuple[list[float], list[float], nn.Module, Any]:
    """Losses of the loop over the module, over the accelerated one, and the two."""
    plain, module = made(kind), made(kind)
    want = loop(plain)
    model = tacc.accelerate(module, **options)
    return want, loop(model), plain, model


def expect_same(want: list[float], got: list[float], plain: nn.Module, model: Any) -> None:
    assert got == pytest.approx(want, rel=ROUNDING)
    weights = model.state_dict()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
def test_a_plain_loop(config):
    def loop(model: Any) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.8, 0.9))
        losses = []
        for batch in batches():
            optimizer.zero_grad()
            out = model(**batch)
            out["loss"].backward()
            optimizer.step()
            losses.append(out["loss"].item())
        return losses

    want, got, plain, model = both(Classifier, loop, config=config)
    with model:
        expect_same(want, got, plain, model)
        assert model.step_number == STEPS and "step 4" in repr(model) and model.job.id in repr(model)
        model.eval()
        with torch.no_grad():
            batch = batches()[0]
            out, here = model(**batch), plain.eval()(**batch)
            torch.testing.assert_close(out.logits, here["logits"], rtol=1e-3, atol=1e-4)
            assert out.loss.item() == pytest.approx(here["loss"].item(), rel=1e-4)
            without = model(ids=batch["ids"][:3])
            torch.testing.assert_close(without["logits"], here["logits"][:3], rtol=1e-3, atol=1e-4)
            assert "loss" not in without
        trained = model.state_dict()
    stored = load_file(Path(model.exported_path) / "model.safetensors")
    assert stored.keys() == trained.keys() and all(torch.equal(stored[name], trained[name]) for name in stored)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return {"loss": functional.cross_entropy(x, labels)}


def test_a_loop_has_no_pipeline_unless_it_asks_for_one():
    """Its micro-batches come one after the other, which stages do not take; whole steps they do."""
    data = pairs(2)

    def steps(model: Any) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for x, labels in data:
            optimizer.zero_grad()
            loss = model(x, labels)["loss"]
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    want, got, plain, model = both(Stack, steps, config={"resources": {"workers": 2}})
    with model:
        expect_same(want, got, plain, model)
        assert model.job.status().spec["dist"]["pp"]["size"] == 1
    stages = {"dist": {"pp": {"size": 2, "num_micro_batches": 4}}, "resources": {"workers": 2}}
    with tacc.accelerate(made(Stack), config=stages, name="stages") as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(tacc.InputError, match=r"stages of a pipeline .*call model.step\(batch\) in place of .*, or leave dist.pp out of config"):
            model(*data[0])
        assert optimizer is not None
        assert [model.step(*batch).loss for batch in data] == pytest.approx(want, rel=ROUNDING)


def accumulating(model: Any) -> list[float]:
    """Two micro-batches an update, clipped, with a scheduler."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    losses = []
    for i, batch in enumerate(batches(6)):
        loss = model(**batch)["loss"] / 2
        loss.backward()
        losses.append(loss.item())
        if i % 2:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(norm.item())
    return losses


def reported(job: tacc.Job, steps: int) -> list[float]:
    """The learning rates of so many steps, which the rank's worker reports behind them."""
    end = time.monotonic() + 30
    while len(rates := [point.learning_rate for point in job.watch(events=False, follow=False)]) < steps and time.monotonic() < end:
        time.sleep(0.05)
    return rates


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
def test_accumulation_clipping_and_a_scheduler(config):
    want, got, plain, model = both(Classifier, accumulating, config=config)
    with model:
        expect_same(want, got, plain, model)
        assert reported(model.job, 3) == pytest.approx([0.5, 0.25, 0.5 / 3])


@pytest.mark.parametrize("config", [ONE, {**FSDP, "train": {"per_device_train_batch_size": 4}}], ids=["one", "fsdp"])
def test_micro_batches_with_different_numbers_of_targets(config):
    """As PyTorch adds them up, each alike; and as transformers does, by num_items_in_batch."""
    data = batches(4)
    for i, batch in enumerate(data):
        batch["labels"][: 2 * i] = -100

    def loop(model: Any) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for i, batch in enumerate(data):
            loss = model(**batch)["loss"]
            (loss / 2).backward()
            losses.append(loss.item())
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
        return losses

    want, got, plain, model = both(Classifier, loop, config=config, mean_over="micro_batch")
    with model:
        expect_same(want, got, plain, model)

    plain = made(Classifier)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    both_ = {name: torch.cat([a, b]) for (name, a), b in zip(data[1].items(), data[2].values())}
    whole = plain(**both_)["loss"]
    whole.backward()
    optimizer.step()
    with tacc.accelerate(made(Classifier), config=config, name="items") as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for batch in data[1:3]:
            loss = model(**batch, num_items_in_batch=torch.tensor(10)).loss
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        expect_same([whole.item()], [sum(losses)], plain, model)


def test_losses_that_are_not_divided_add_up():
    def loop(model: Any) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for i, batch in enumerate(batches(4)):
            loss = model(**batch)["loss"]
            (3 * loss).backward()
            losses.append(loss.item())
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
        return losses

    want, got, plain, model = both(Classifier, loop, config=ONE)
    with model:
        expect_same(want, got, plain, model)


def test_groups_of_parameters_and_those_that_no_optimizer_has():
    def loop(model: Any) -> list[float]:
        named = dict(model.named_parameters())
        groups = [
            {"params": [named["hidden.weight"], named["hidden.bias"]], "lr": 1e-2, "weight_decay": 0.2},
            {"params": [named["head.weight"]], "lr": 1e-2, "weight_decay": 0.0},
            {"params": [named["head.bias"]], "lr": 5e-2},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1.0, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda s: 1.0, lambda s: 0.5**s, lambda s: 2.0**s])
        losses = []
        for batch in batches():
            loss = model(**batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        return losses

    want, got, plain, model = both(Classifier, loop, config=ONE)
    with model:
        expect_same(want, got, plain, model)


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
def test_a_loss_that_the_loop_computes(config):
    """In TorchAcc's shape: model and loader are accelerated, then an optimizer and a criterion."""
    import tacc as ta

    plain, module = made(Perceptron), made(Perceptron)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    data = [*pairs(), (pairs()[0][0][:5], pairs()[0][1][:5])]  # The last one is shorter.

    def loop(model: Any, loader: Any, device: Any) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        model.train()
        for source, labels in loader:
            source, labels = source.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(source)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    want = loop(plain, data, "cpu")
    settings = ta.Config(resources={"workers": config["resources"]["workers"]})
    settings.dist.fsdp.size = config["resources"]["workers"]
    model, loader = ta.accelerate(module, data, settings)
    assert (ta.dist.world_size(), ta.dist.rank(), ta.dist.local_rank()) == (1, 0, 0) and ta.lazy_device() == model.device
    with model:
        expect_same(want, loop(model, loader, model.device), plain, model)
        ta.mark_step()
        ta.sync()


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
def test_a_language_model_of_transformers(config, tmp_path):
    """With fused projections, which the ranks keep as weights of their own, a head that is the embedding, and padded texts."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = GPT2Config(vocab_size=61, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                          initializer_range=0.2, bos_token_id=0, eos_token_id=0)
    random = torch.Generator().manual_seed(11)
    data = []
    for _ in range(STEPS):
        ids = torch.randint(1, 61, (SAMPLES, 12), generator=random)
        mask = (torch.arange(12)[None] < torch.randint(5, 13, (SAMPLES, 1), generator=random)).long()
        data.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})

    def loop(model: Any) -> list[float]:
        # The bias of keys changes no softmax: its gradient is nothing but rounding, which AdamW would make steps of.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for batch in data:
            loss = model(**batch).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    torch.manual_seed(5)
    plain, module = GPT2LMHeadModel(settings), GPT2LMHeadModel(settings)
    module.load_state_dict(plain.state_dict())
    want = loop(plain)
    with tacc.accelerate(module, config=config) as model:
        expect_same(want, loop(model), plain, model)
        assert model.config.n_layer == 2
        model.save_pretrained(tmp_path / "saved")
        weights = model.state_dict()
        model.load_state_dict({name: value * 0 for name, value in weights.items()})
        assert not model.state_dict()["transformer.h.0.attn.c_attn.weight"].any()
        model.load_state_dict(weights)
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    saved = GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert all(torch.equal(value, weights[name]) for name, value in saved.state_dict().items())


def test_a_loss_that_is_given():
    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(outputs, batch[1])

    plain, module = made(Perceptron), made(Perceptron)
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-2)
    want = []
    for source, labels in pairs():
        optimizer.zero_grad()
        value = functional.cross_entropy(plain(source), labels)
        value.backward()
        optimizer.step()
        want.append(value.item())
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    with tacc.accelerate(module, config=ONE, loss=loss, optimizer=optimizer) as model:
        got = [model.step(pair).loss for pair in pairs()[:2]]
        for source, labels in pairs()[2:]:
            out = model(source, labels)
            out.loss.backward()
            model.module  # noqa: B018
            optimizer.step()
            model.zero_grad()
            got.append(out.loss.item())
        expect_same(want, got, plain, model)


def test_states_go_out_and_in(tmp_path):
    def loop(model: Any) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for batch in batches():
            model(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        loop.optimizer = optimizer
        return losses

    plain = made(Classifier)
    loop(plain)
    want = loop.optimizer.state_dict()["state"]
    with tacc.accelerate(made(Classifier), config=FSDP) as model:
        loop(model)
        states = model.full_optim_state_dict()
        for i, (name, _) in enumerate(plain.named_parameters()):
            for kind in ("exp_avg", "exp_avg_sq"):
                torch.testing.assert_close(states["state"][name][kind], want[i][kind], rtol=1e-3, atol=1e-7)
            assert states["state"][name]["step"] == want[i]["step"]
        weights = model.state_dict()
        first = model(**batches()[0])
        # Other weights and states, and then these again.
        other = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        model.load_state_dict(other)
        assert all(not tensor.any() for tensor in model.state_dict().values())
        model.load_full_optim_state_dict({"state": {n: {k: t * 0 if k != "step" else t for k, t in of.items()} for n, of in states["state"].items()}})
        assert all(not of["exp_avg"].any() for of in model.full_optim_state_dict()["state"].values())
        model.load_state_dict(weights)
        model.load_full_optim_state_dict(states)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, weights[name])
        again = model(**batches()[0])
        assert again.loss.item() == first.loss.item()
        again.loss.backward()
        with pytest.raises(tacc.InputError, match=r"call optimizer.step\(\) or optimizer.zero_grad\(\) before loading states"):
            model.load_state_dict(weights)
        with pytest.raises(tacc.InputError, match="states are of step 9, the training is at step 4"):
            model.load_full_optim_state_dict({"state": {"head.bias": {**states["state"]["head.bias"], "step": torch.tensor(9.0)}}})
        with pytest.raises(tacc.TaccError, match="the step has 1 micro-batches; send update or discard before"):
            model.session.load(tmp_path)
        model.zero_grad()
        with pytest.raises(RuntimeError, match="size mismatch"):
            model.load_state_dict({**weights, "head.bias": torch.zeros(9)})
        assert torch.equal(model.sync().head.bias, weights["head.bias"])
        model.save_pretrained(tmp_path / "saved")
        from safetensors.torch import load_file

        assert torch.equal(load_file(tmp_path / "saved/model.safetensors")["head.bias"], weights["head.bias"])


def test_a_killed_rank_begins_again_and_trains_nothing_twice(cluster):
    config = {**FSDP, "checkpoint": {"dir": "runs/killed", "save_steps": 2}}
    data, want = batches(6), []
    plain = made(Classifier)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for batch in data:
        optimizer.zero_grad()
        loss = plain(**batch)["loss"]
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    with tacc.accelerate(made(Classifier), config=config) as model:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        got: dict[int, float] = {}
        is_killed = False
        while model.step_number < len(data):
            step = model.step_number
            try:
                loss = model(**data[step]).loss
                if step == 3 and not is_killed:
                    is_killed = True
                    cluster.wait(lambda: model.job.status().last_checkpoint, "the checkpoint of step 2")
                    os.kill(rank_pid(cluster, "w1"), signal.SIGKILL)
                loss.backward()
                optimizer.step()
            except tacc.SessionRestartedError as error:
                assert (error.step, model.step_number) == (2, 2)
                assert "go on from model.step_number" in str(error) and "scheduler" in str(error) and "Session.state" not in str(error)
                continue
            finally:
                optimizer.zero_grad()
            got[step] = loss.item()
        assert is_killed
        expect_same(want, [got[step] for step in range(len(data))], plain, model)


class StatefulLoader:
    """As torchdata's: it says where it stands, and goes on there."""

    def __init__(self, batches: list[Any]):
        self.batches, self.next = batches, 0

    def __iter__(self) -> Iterator[Any]:
        while self.next < len(self.batches):
            self.next += 1
            yield self.batches[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


@pytest.mark.parametrize("kind", [list, StatefulLoader], ids=["list", "stateful"])
def test_a_loader_goes_back_with_the_training(cluster, kind):
    """Two epochs; a rank is killed in the second one. Every batch is trained on once in each."""
    config = {**FSDP, "checkpoint": {"dir": "runs/loader", "save_steps": 2}}
    data, want = batches(4), []
    plain = made(Classifier)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.3)
    for batch in data * 2:
        optimizer.zero_grad()
        loss = plain(**batch)["loss"]
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    model, loader = tacc.accelerate(made(Classifier), kind(data), config)
    with model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        got: dict[int, float] = {}
        num_restarts = 0
        while model.step_number < 8:
            try:
                for batch in loader:
                    step = model.step_number
                    loss = model(**batch).loss
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    got[step] = loss.item()
                    if step == 6 and not num_restarts:
                        cluster.wait(lambda: getattr(model.job.status().last_checkpoint, "step", 0) == 6, "the checkpoint of step 6")
                        os.kill(rank_pid(cluster, "w0"), signal.SIGKILL)
            except tacc.SessionRestartedError as error:
                optimizer.zero_grad()
                num_restarts += 1
                assert error.step == 6
        assert num_restarts == 1 and loader.epoch == 2
        expect_same(want, [got[step] for step in range(8)], plain, model)


def rank_pid(cluster: Cluster, worker: str) -> int:
    """The process that a worker has started."""
    parent = cluster.workers[worker].popen.pid
    children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return next(pid for pid in children if "tacc-rank" in Path(f"/proc/{pid}/comm").read_text())


def test_what_a_loop_may_not_do():
    with tacc.accelerate(made(Classifier), config=ONE) as model:
        batch, other = batches(2)
        with pytest.raises(tacc.InputError, match="no optimizer has the model's parameters"):
            model(**batch)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out = model(**batch)
        with pytest.raises(tacc.InputError, match=r"give the loss to tacc.accelerate"):
            functional.cross_entropy(out.logits, batch["labels"]).backward()
        out.loss.backward()
        with pytest.raises(tacc.InputError, match="used up"):
            out.loss.backward()
        with pytest.raises(tacc.InputError, match=r"use model.clip_grad_norm_"):
            [p.grad for p in model.parameters()]
        with pytest.raises(tacc.InputError, match="norm_type"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=math.inf)
        optimizer.step()
        again = model(**batch)
        with pytest.raises(tacc.InputError, match=r"call optimizer.zero_grad\(\) between two steps"):
            again.loss.backward()
        optimizer.zero_grad()
        with pytest.raises(tacc.InputError, match=r"step\(closure\)"):
            optimizer.step(lambda: 0.0)
        with pytest.raises(tacc.InputError, match="a job keeps momenta of all parameters or of none"):
            optimizer.param_groups[0]["momentum"] = 0.5
            model(**batch).loss.backward()
            optimizer.step()
        optimizer.param_groups[0]["momentum"] = 0
        optimizer.zero_grad()
        # Means over other numbers of targets cannot be added up with one weight.
        (model(**batch).loss / 2).backward()
        shorter = {name: value[:3] for name, value in other.items()}
        (model(**shorter).loss / 2).backward()
        with pytest.raises(tacc.InputError, match=r"means over 8, 3 targets, with weights 0.5, 0.5"):
            optimizer.step()
        optimizer.zero_grad()
        assert model.step_number == 1


def test_a_forward_without_a_backward_leaves_nothing():
    plain = made(Classifier)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(**batches()[1])["loss"].backward()
    optimizer.step()
    with tacc.accelerate(made(Classifier), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        unused, batch = batches(2)
        model(**unused)
        optimizer.step()  # PyTorch's does nothing without gradients.
        assert model.step_number == 0
        model(**unused)
        with torch.no_grad():
            assert math.isfinite(model(**unused).loss.item())
        loss = model(**batch).loss
        loss.backward()
        model(**unused)
        with pytest.raises(tacc.TaccError, match="a forward in training had no backward"):
            optimizer.step()
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
        torch.testing.assert_close(model.state_dict()["head.weight"], plain.head.weight.detach(), rtol=1e-5, atol=1e-6)


def test_a_batch_must_be_as_the_first_one():
    with tacc.accelerate(made(Classifier), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = batches(1)[0]
        model(batch).loss.backward()
        for wrong, words in {
            "key": ({**batch, "mask": batch["ids"]}, "the batch has 'mask', which the first one had not; it had 'ids', 'labels'. .*begin with one that"),
            "missing": ({"ids": batch["ids"]}, "the batch has no 'labels'; it has 'ids'"),
            "length": ({**batch, "ids": batch["ids"][:, :5]}, r"'ids' has the shape \[8, 5\]; wanted \[any, 6\], as in the first batch; samples of several lengths need buckets="),
            "empty": ({name: value[:0] for name, value in batch.items()}, "the batch has no samples; leave it out"),
            "rows": ({**batch, "ids": batch["ids"][:3]}, "tensors of 3, 8 samples"),
            "many": ({name: torch.cat([value, value]) for name, value in batch.items()}, "the batch has 16 samples; the first one had 8, and none may have more: begin with the largest"),
            "dtype": ({**batch, "ids": batch["ids"].float()}, "'ids' is of torch.float32; in the first batch it was of int64"),
            "kind": ({**batch, "ids": "text"}, "'ids' is a str; wanted a tensor or an array"),
            "device": ({**batch, "ids": batch["ids"].to("meta")}, "is on meta; batches go to the ranks from the host's memory"),
        }.values():
            with pytest.raises(tacc.InputError, match=words):
                model(wrong)
        optimizer.step()
        optimizer.zero_grad()
        assert math.isfinite(model({name: value.numpy() for name, value in batch.items()}).loss.item())
    with tacc.accelerate(made(Perceptron), config=ONE, name="none") as model:
        torch.optim.SGD(model.parameters(), lr=0.1)
        source = pairs(1)[0][0]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(source).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        source[3, 4] = math.nan
        with pytest.raises(tacc.InputError, match=r"'input' is NaN \(not a number\) in 1 place, first in sample 3 of the batch: leave such samples out"):
            model(source)


def test_labels_behind_an_evaluation_without(monkeypatch, capsys):
    """The message has the names of the loop's batches alone, and the way that it says works."""
    monkeypatch.setattr("tacc.live.session._TELL_SECONDS", 0.0)
    batch = batches(1)[0]
    with tacc.accelerate(made(Classifier), config=ONE, name="without") as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.eval()
        assert "loss" not in model(ids=batch["ids"])
        model.train()
        with pytest.raises(tacc.InputError, match=r"the batch has 'labels', which the first one had not; it had 'ids'\. .*by model\.start\(batch\)$"):
            model(**batch)
    plain = made(Classifier)
    with tacc.accelerate(made(Classifier), config=ONE, name="labels") as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.eval()
        model.start(batch)
        assert "loss" not in model(ids=batch["ids"])
        model.train()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(plain(**batch)["loss"].item(), rel=ROUNDING)
    assert "with the memory" not in capsys.readouterr().err  # That it is connected again for it.


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_infinities_of_a_batch_skip_the_update():
    with tacc.accelerate(made(Perceptron), config=ONE, name="infinite", loss=lambda outputs, batch: functional.cross_entropy(outputs, batch[1])) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        source, labels = pairs(1)[0]
        before = {name: value.clone() for name, value in model.module.state_dict().items()}
        source[1, 0], source[1, 1] = math.inf, -math.inf
        model(source, labels).loss.backward()
        optimizer.step()
        assert model.last_step.skipped
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_shorter_last_batch_counts_its_own_samples():
    def loop(model: Any) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for batch in [*batches(2), *batches(1, samples=3)]:
            optimizer.zero_grad()
            loss = model(**batch)["loss"]
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    want, got, plain, model = both(Classifier, loop, config=ONE)
    with model:
        expect_same(want, got, plain, model)


def test_a_shorter_batch_of_a_mean_over_samples():
    """What fills it up has the weight 0 in sum and number."""
    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return 0.5 * functional.mse_loss(outputs[:, 0], batch[1].float()) - functional.logsigmoid(outputs[:, 1:]).mean()

    def loop(model: Any) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for source, labels in [*pairs(2), *pairs(1, samples=3)]:
            optimizer.zero_grad()
            value = loss(model(source), (source, labels)) if isinstance(model, Perceptron) else model(source, labels).loss
            value.backward()
            optimizer.step()
            losses.append(value.item())
        return losses

    want, got, plain, model = both(Perceptron, loop, loss=loss, config=FSDP)
    with model:
        expect_same(want, got, plain, model)


@pytest.mark.parametrize("loss", [
    lambda outputs, batch: functional.cross_entropy(outputs, batch[1]) + outputs.square().mean(),
    lambda outputs, batch: functional.cross_entropy(outputs - outputs.mean(0), batch[1]),
], ids=["another term", "a mean over samples"])
def test_a_shorter_batch_is_refused_where_what_fills_it_up_would_count(loss):
    first, shorter = pairs(1)[0], pairs(1, samples=3)[0]
    model = tacc.accelerate(made(Perceptron), loss=loss, config=ONE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model:
        model(*first).loss.backward()
        optimizer.step()
        with pytest.raises(tacc.InputError, match="drop_last=True: what fills a batch up would count in the loss"):
            model(*shorter)


class Normed(nn.Module):
    """Its samples meet in a batch norm, or in the mean of all of them, which evaluation has as well."""

    def __init__(self, *, centers: bool = False) -> None:
        super().__init__()
        self.hidden, self.norm, self.head = nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)
        self.centers = centers

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        hidden = self.hidden(x)
        logits = self.head(hidden - hidden.mean(0) if self.centers else self.norm(hidden))
        return {"logits": logits} if labels is None else {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def test_a_shorter_batch_of_samples_that_meet(monkeypatch):
    monkeypatch.setattr("tacc.accelerating.job.time.strftime", lambda *_: "20260101-000000")  # Two trainings of one second.
    (first, labels), (shorter, few) = pairs(1)[0], pairs(1, samples=3)[0]
    for centers in (False, True):
        model = tacc.accelerate(Normed(centers=centers), config=ONE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model:
            model(x=first, labels=labels).loss.backward()
            optimizer.step()
            with pytest.raises(tacc.InputError, match="samples depend on each other"):
                model(x=shorter, labels=few)
            model.eval()
            if centers:
                with pytest.raises(tacc.InputError, match="samples depend on each other"):
                    model(x=shorter)
            else:
                want = model.sync().eval()(shorter, few)
                got = model(x=shorter, labels=few)
                assert torch.allclose(got.logits, want["logits"], atol=1e-6)
                assert got.loss.item() == pytest.approx(want["loss"].item(), rel=ROUNDING)


def test_optimizers_that_a_job_has_not():
    for make, words in {
        "kind": (lambda p: torch.optim.RMSprop(p), "the optimizer is RMSprop; a job trains with AdamW"),
        "option": (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad=True in group 0"),
        "groups": (lambda p: torch.optim.Adam([{"params": p[:1], "eps": 1e-3}, {"params": p[1:]}]), r"only lr, weight_decay and momentum \(betas\[0\]\) may differ"),
        "stranger": (lambda p: torch.optim.SGD([*p, nn.Parameter(torch.zeros(3))], lr=1.0), r"a parameter of shape \[3\] that is none of the model's"),
    }.values():
        module = made(Classifier)
        model = tacc.accelerate(module, config=ONE)
        optimizer = make(list(module.parameters()))
        with pytest.raises(tacc.InputError, match=words):
            model(**batches(1)[0])
        del optimizer
    module = made(Classifier)
    optimizers = [torch.optim.SGD(module.parameters(), lr=1.0) for _ in range(2)]
    with pytest.raises(tacc.InputError, match="several optimizers have the model's parameters"):
        tacc.accelerate(module, config=ONE)(**batches(1)[0])
    del optimizers


def test_a_cycle_of_the_learning_rate_alone():
    def loop(model: Any) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1, cycle_momentum=False)
        losses = []
        for batch in batches():
            out = model(**batch)
            out["loss"].backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(out["loss"].item())
        return losses

    want, got, plain, model = both(Classifier, loop, config=ONE)
    with model:
        expect_same(want, got, plain, model)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(x))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer(), Perceptron()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_classes_of_layers_are_those_of_the_module():
    """TorchAcc's scripts name them; a graph has none."""
    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(outputs, batch[1])

    def train(config: dict[str, Any]) -> tuple[list[float], Any]:
        module = made(Layers)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with tacc.accelerate(module, config=config, loss=loss) as model:
            losses = [model.step(*batch).loss for batch in pairs()]
            assert optimizer.param_groups[0]["lr"] == 0.1
            return losses, model._model.graph.description.units

    fsdp = {"size": 2}
    want, units = train({"dist": {"fsdp": fsdp}})
    with pytest.warns(tacc.ConfigNote, match=r"wrap_layer_cls: FSDP gathers the weights of an exported model layer by layer, as layers.0, whatever"):
        got, _ = train({"dist": {"fsdp": {**fsdp, "wrap_layer_cls": {"Layer"}}}, "memory": {"gc": True, "gc_cls": {"Layer"}}})
    assert got == want and units == ["layers.0", "layers.1", "layers.2"]


def test_a_loop_is_told_where_it_begins(capfd, tmp_path):
    config = {**ONE, "checkpoint": {"dir": str(tmp_path / "run")}}
    for told in (False, True):
        module = made(Classifier)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with tacc.accelerate(module, config=config) as model:
            model.step(**batches(1)[0])
            job = model.job.id
            assert model.job.status().max_steps == 0, "a loop ends when it likes"
        words = f"tacc: {job} goes on after step 1, with the weights and the optimizer's states of the checkpoint in {tmp_path / 'run'}, not the module's"
        said = capfd.readouterr().err
        assert (words in said) is told and f"tacc: the job classifier trains the model; `taccctl watch {job}` shows it\n" in said
        del optimizer


def test_a_job_whose_process_has_gone_waits_as_long_as_it_was_told():
    model = tacc.accelerate(made(Classifier), config=ONE, keep_seconds=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(**batches(1)[0]).loss.backward()
    optimizer.step()
    job, weights = model.job, model.state_dict()
    model.detach()
    with tacc.Session(job) as session:  # As another process would.
        assert session.step_number == 1
        np.testing.assert_array_equal(session.read(["weights/head.weight"])["weights/head.weight"], weights["head.weight"].numpy())
    with pytest.raises(tacc.JobCancelledError):
        job.wait(60, progress=False)
    assert "no client has come for 2 seconds" in job.status().reason and job.status().last_checkpoint.step == 1
    with pytest.raises(tacc.TaccError, match="the model is closed"):
        model(**batches(1)[0])


def trained(model: Any, steps: int = 3) -> torch.Tensor:
    """The last loss, whose backward has gone."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(steps):
        loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss


def phase_of(job: tacc.Job) -> str:
    return job.status().phase


def test_a_model_that_is_dropped_is_closed():
    module, jobs, losses = made(Classifier), [], []

    def train() -> None:
        model = tacc.accelerate(module, config=ONE)
        losses.append(trained(model))
        jobs.append(model.job)

    train()  # What is kept of a step, as a notebook does, keeps no job.
    status = jobs[0].status()
    assert (status.phase, status.step) == ("finished", 3)
    stored = load_file(Path(status.exported_path) / "model.safetensors")
    assert all(torch.equal(stored[name], tensor) for name, tensor in module.state_dict().items())
    assert type(module.head.weight) is nn.Parameter and losses[0].item() > 0
    with pytest.raises(tacc.TaccError, match=r"the model that this came from is closed: keep what tacc\.accelerate returns"):
        losses[0].backward()


def test_a_model_that_is_garbage_is_closed_beside_the_loop(cluster):
    cycle: dict[str, Any] = {"model": tacc.accelerate(made(Classifier), config=ONE)}
    cycle["itself"] = cycle
    trained(cycle["model"])
    job = cycle["model"].job
    if (child := os.fork()) == 0:
        end_in_child(cycle)
    assert os.waitpid(child, 0)[1] == 0 and phase_of(job) == "running"
    del cycle
    gc.collect()
    cluster.wait(lambda: phase_of(job) == "finished", "the end of a job whose model is garbage")
    assert job.status().step == 3 and job.status().exported_path


def end_in_child(cycle: dict[str, Any]) -> None:
    """What a child of this process has of a model may be closed, and go."""
    code = 1
    try:
        cycle["model"].close()
        cycle.clear()
        gc.collect()
        code = 0
    finally:
        os._exit(code)


def test_a_model_that_waits_for_workers_of_this_process_says_so(cluster, capfd):
    first, second = (tacc.accelerate(made(Classifier), config=FSDP, name=name) for name in ("first", "second"))
    trained(first)
    waiting = threading.Thread(target=trained, args=(second,))
    waiting.start()
    said = []
    cluster.wait(lambda: said.append(capfd.readouterr().err) or "frees them" in "".join(said), "what the second model waits for")
    words = f"This process itself has workers, for {first.job.id}: model.close(), or Session.finish(), ends such a job and frees them"
    assert words in "".join(said)
    assert f"tacc: the job first trains the model; `taccctl watch {first.job.id}` shows it\n" in "".join(said)
    first.close()
    waiting.join()
    assert second.step_number == 3
    second.close()


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt(), SystemExit(1), SystemExit(0)], ids=repr)
def test_a_with_that_an_error_leaves_trains_no_model(error, capfd):
    module = made(Classifier)
    with pytest.raises(type(error)), tacc.accelerate(module, config=ONE) as model:
        trained(model)
        raise error
    status = model.job.status()
    assert status.last_checkpoint.step == 3 and not torch.equal(module.head.weight, made(Classifier).head.weight)
    if isinstance(error, SystemExit) and not error.code:
        assert status.phase == "finished" and status.exported_path == model.exported_path
        return
    assert status.phase == "cancelled" and not status.exported_path and not model.exported_path
    words = f"tacc: {status.id} was cancelled with the checkpoint of step 3, because its loop ended with {type(error).__name__}\n"
    assert words in capfd.readouterr().err


def test_a_loop_that_dies_of_a_lost_rank_trains_no_model(cluster):
    """Before the first checkpoint: the weights are the first ones again."""
    with pytest.raises(tacc.SessionRestartedError, match="after step 0"), tacc.accelerate(made(Classifier), config=FSDP) as model:
        trained(model)
        os.kill(rank_pid(cluster, "w1"), signal.SIGKILL)
        trained(model)
    status = model.job.status()
    assert (status.phase, status.exported_path, status.step) == ("cancelled", "", 0)


SCRIPT = """
import os, sys, threading
import tacc, torch
from test_accelerate import Classifier, ONE, made, trained

def main():
    model = tacc.accelerate(made(Classifier), config=ONE, name=sys.argv[1])
    trained(model)
    return model
"""

# What a script does behind that, its exit code, and how its job ends.
ENDS = {
    "local": ("main(); print('end')", 0, "finished"),
    "local-in-a-thread": ("t = threading.Thread(target=main); t.start()", 0, "finished"),
    "global": ("model = main()", 0, "finished"),
    "garbage": ("import gc; gc.disable(); a = [main()]; a.append(a); del a", 0, "finished"),
    "forks": ("model = main()\nif os.fork() == 0: sys.exit()\nos.wait(); assert model.job.status().phase == 'running'", 0, "finished"),
    "caught": ("try:\n    model = main(); raise ValueError\nexcept ValueError: pass", 0, "finished"),
    "dies": ("model = main()\nraise ValueError('no')", 1, "cancelled"),
    "dies-in-a-function": ("def f():\n    model = main(); model.head.nothing\nf()", 1, "cancelled"),
    "interrupted": ("import signal; model = main(); signal.raise_signal(signal.SIGINT)", 1, "cancelled"),
    "restarted": ("model = main(); model._training.restarted = tacc.SessionRestartedError(0, 'lost')", 0, "cancelled"),
    "away": ("model = main(); model.job.cancel(now=True)", 0, "cancelled"),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_script(end, tmp_path):
    body, code, phase = ENDS[end]
    (tmp_path / "script.py").write_text(SCRIPT + body + "\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ran = subprocess.run([sys.executable, "script.py", end], env=environment, capture_output=True, text=True, timeout=120)
    assert bool(ran.returncode) == bool(code), ran.stderr
    with tacc.Client() as client:
        job = client.job(end)
        with contextlib.suppress(tacc.JobCancelledError):
            job.wait(60, progress=False)
        status = job.status()
    assert status.phase == phase and bool(status.exported_path) == (phase == "finished"), ran.stderr
    assert ran.stderr.count("Traceback") == int(code != 0), ran.stderr
    assert f"tacc: the job {end} trains the model; `taccctl watch {job.id}` shows it\n" in ran.stderr
    if code != 0:
        assert f"tacc: {job.id} was cancelled with the checkpoint of step 3, because its loop ended with" in ran.stderr
        assert status.last_checkpoint.step == 3
    elif phase != "finished":
        assert f"tacc: {job.id} could not be ended with its last checkpoint and its export: " in ran.stderr


def test_what_accelerate_cannot_do():
    with pytest.raises(tacc.InputError, match="mean_over='all'; wanted \"step\" or \"micro_batch\""):
        tacc.accelerate(made(Classifier), mean_over="all")
    module = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.1), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(tacc.InputError, match=r"computes otherwise in training than in evaluation \(1\): give its loss to tacc.accelerate"):
        tacc.accelerate(module, config=ONE)(pairs(1)[0][0])
    module = made(Classifier)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(tacc.InputError, match="config has the section model or data"):
        tacc.accelerate(module, config={**ONE, "data": {"path": "data"}})(**batches(1)[0])
    with pytest.raises(tacc.ConfigError, match='unknown field "adam_beta3" in train; did you mean "adam_beta2"'):
        tacc.accelerate(module, config={**ONE, "train": {"adam_beta3": 1}})
    with pytest.raises(tacc.InvalidJobError, match="adam_beta2"):
        tacc.accelerate(module, config={**ONE, "train": {"adam_beta2": 2}})(**batches(1)[0])
    del optimizer


def test_weights_and_states_reach_a_daemon_that_sees_no_folder_of_the_client(tmp_path, monkeypatch):
    """What tests/e2e/test_uploads.py shows on two hosts, here wherever tests run: nothing is written for the workers to read."""
    monkeypatch.setattr("tacc.accelerating.store.sees_this_machine", lambda client: False)
    monkeypatch.setattr("tacc.accelerating.job.sees_this_machine", lambda client: False)
    monkeypatch.setattr("tacc.accelerating.job.keep", None)
    monkeypatch.setattr("tacc.accelerating.handle.write_states", None)
    module, reference = made(Perceptron), made(Perceptron)
    with tacc.accelerate(module, config=ONE) as model:
        for of, parameters in ((model, module.parameters()), (reference, reference.parameters())):
            optimizer = torch.optim.SGD(parameters, lr=0.1)
            of(pairs(1)[0][0]).pow(2).sum().backward()
            optimizer.step()
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, reference.state_dict()[name])
        model.load_state_dict(made(Perceptron).state_dict())
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, made(Perceptron).state_dict()[name])
        graph = model.job.status().spec["model"]["graph"]
        # The next one of the same model is there already, and a folder of the same files as well.
        client = model.session.client
        exported = tacc.export_model(made(Perceptron), pairs(1)[0][0], tmp_path / "model", loss=lambda out, batch: out.pow(2).sum())
        uploaded = client.upload(exported.folder, progress=False)
        assert graph.startswith("upload:") and uploaded == client.upload(exported.folder) != graph
        with pytest.raises(tacc.ConflictError, match="the coordinator has no upload 000"):
            client.submit({**model.job.status().spec, "name": "none", "model": {"graph": "upload:" + "0" * 64}})
        with pytest.raises(tacc.InvalidJobError, match=r"is no upload; give what tacc\.Client\.upload returned"):
            client.submit({**model.job.status().spec, "name": "none", "model": {"graph": "upload:5f"}})
        with pytest.raises(tacc.InputError, match="no such folder"):
            client.upload(tmp_path / "nowhere")
        with pytest.raises(tacc.TaccError, match=r"has upload 000.* no more"):
            model.session.load("upload:" + "0" * 64)


def in_batch(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(outputs.shape[0]))


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
@pytest.mark.parametrize(
    "loss", [
        lambda o, b: functional.cross_entropy(o, b[1], reduction="sum"),
        lambda o, b: functional.mse_loss(o[:, 0], b[1].float()).sqrt(),
        lambda o, b: functional.cross_entropy(o, b[1]) + functional.cross_entropy(o[:, :2], b[1].clamp(0, 1)),
        in_batch,
    ], ids=["sum", "root", "two counts", "in batch"],
)  # fmt: skip
def test_a_loss_that_is_no_mean_is_of_the_whole_batch(config, loss):
    """Of a batch that the planner would split."""
    def loop(model: Any) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for source, labels in data:
            optimizer.zero_grad()
            value = model(source, labels).loss if model is not plain else loss(model(source), (source, labels))
            value.backward()
            optimizer.step()
            losses.append(value.item())
        return losses

    data = pairs(2, samples=64)
    for _, labels in data:
        labels[:14] = -100 if loss is not in_batch else 0
    if "float" in loss.__code__.co_names:
        data = [(source, labels.clamp(min=0)) for source, labels in data]
    plain = made(Perceptron)
    want = loop(plain)
    with tacc.accelerate(made(Perceptron), config=config, loss=loss) as model:
        expect_same(want, loop(model), plain, model)
        assert model.session.num_micro_batches == 1


def test_a_loss_that_is_no_mean_is_not_split():
    config = {**ONE, "train": {"per_device_train_batch_size": 4}}
    model = tacc.accelerate(made(Perceptron), config=config, loss=in_batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(tacc.TaccError, match=r"train\.per_device_train_batch_size = 4 splits a step of 8 samples"):
        model(*pairs(1)[0])
    del optimizer


class DropsByFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.dropout(x, 0.5, self.training))


class DrawsByFunction(DropsByFunction):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + torch.randn_like(x))


@pytest.mark.parametrize("kind", [DropsByFunction, DrawsByFunction])
def test_a_loop_has_no_loss_of_a_model_that_is_random_by_a_function(kind: type[nn.Module]):
    model = tacc.accelerate(made(kind), config=ONE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(tacc.InputError, match="returns no loss, and computes otherwise in training than in evaluation"):
        model(pairs(1)[0][0])
    del optimizer


def test_numbers_out_of_range_are_refused():
    with tacc.accelerate(made(Classifier), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        good = batches(1)[0]
        for name, where, number in (("labels", 2, 77), ("labels", 3, -1), ("ids", (1, 4), 32), ("ids", (0, 0), -5)):
            bad = {key: tensor.clone() for key, tensor in good.items()}
            bad[name][where] = number
            sample = where if isinstance(where, int) else where[0]
            with pytest.raises(tacc.InputError, match=f"'{name}' has {number} in sample {sample} of the batch, which is out of range"):
                model(**bad)
        good["labels"][:3] = -100
        model(**good)["loss"].backward()
        optimizer.step()
        assert model.step_number == 1


def test_weights_lie_once_on_this_machine(tmp_path):
    for round_ in range(2):
        with tacc.accelerate(made(Perceptron), config=ONE, cache_dir=tmp_path / "models", name=f"round-{round_}") as model:
            torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(pairs(1)[0][0]).sum().backward()
            optimizer.step()
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_a_loader_that_ends_early_or_breaks():
    def loader() -> Iterator[Any]:
        yield from pairs(2)
        raise OSError("the disk is gone")

    model, data = tacc.accelerate(made(Perceptron), loader(), ONE)
    with model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(OSError, match="the disk is gone"):
            for source, _ in data:
                model(source).pow(2).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert model.step_number == 2
    assert [len(x) for x in np.array_split(range(3), 2)] == [2, 1]
    assert list(tacc.AsyncLoader([], "cpu")) == []


def stepped(module: nn.Module, batch: dict[str, torch.Tensor], max_norms: tuple[float, ...] = (), lr: float = 0.5) -> dict[str, torch.Tensor]:
    """Weights behind one step of SGD in PyTorch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    module(**batch)["loss"].backward()
    for max_norm in max_norms:
        nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    optimizer.step()
    return module.state_dict()


def expect_weights(model: Any, wanted: dict[str, torch.Tensor]) -> None:
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, wanted[name].detach(), rtol=1e-5, atol=1e-6)


def test_an_interrupted_command_leaves_no_gradients(monkeypatch):
    first, batch = batches(2)
    with tacc.accelerate(made(Classifier), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model.start(**batch)
        receive_all = tacc.live.session.receive_all

        def interrupted(*_: Any) -> Any:
            monkeypatch.setattr(tacc.live.session, "receive_all", receive_all)
            raise KeyboardInterrupt

        monkeypatch.setattr(tacc.live.session, "receive_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(**first)
        optimizer.zero_grad()
        # An update that is refused before it is sent has left its gradients, too.
        (model(**first).loss * math.inf).backward()
        with pytest.raises(tacc.InputError, match="gradient_factor has a number that is not finite: inf"):
            optimizer.step()
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
        assert model.last_step.target_tokens == SAMPLES and model.step_number == 1
        expect_weights(model, stepped(made(Classifier), batch))


def test_clipping_is_of_all_gradients_of_a_step():
    batch, other = batches(2)
    with tacc.accelerate(made(Classifier), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(**other)["loss"].backward()
        with pytest.raises(tacc.InputError, match="6 of the model's 7 trained parameters are not given; the ranks clip all together"):
            nn.utils.clip_grad_norm_(model.head.weight, 1.0)
        with pytest.raises(tacc.InputError, match="of an accelerated model's parameters and others"):
            nn.utils.clip_grad_norm_([*model.parameters(), nn.Parameter(torch.ones(1))], 1.0)
        with pytest.raises(tacc.InputError, match="error_if_nonfinite"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
        with pytest.raises(tacc.InputError, match=r"known behind optimizer.step\(\)"):
            torch.isfinite(norm)
        with pytest.raises(tacc.InputError, match="a backward came behind clip_grad_norm_"):
            model(**other)["loss"].backward()
        optimizer.zero_grad()  # And what was clipped is forgotten.
        model(**batch)["loss"].backward()
        norms = [nn.utils.clip_grad_norm_(model.parameters(), max_norm) for max_norm in (0.01, 10.0)]
        optimizer.step()
        assert norms[0].item() > 0.01 and float(norms[1]) == pytest.approx(0.01) and f"{norms[0]:.4f}" == f"{model.last_step.grad_norm:.4f}"
        expect_weights(model, stepped(made(Classifier), batch, (0.01, 10.0)))
        with pytest.raises(tacc.InputError, match=r"known behind optimizer.step\(\)"):
            norm.item()  # Its step never was.


class SGD(torch.optim.SGD):
    """Somebody's own."""


def test_what_the_ranks_would_not_see():
    hooked = made(Classifier)
    hooked.head.weight.register_hook(lambda gradient: gradient * 2)
    batch = batches(1)[0]
    for module, kind, message in ((hooked, torch.optim.SGD, "head.weight has a gradient hook"), (made(Classifier), SGD, r"SGD; a job trains with torch.optim.SGD")):
        model = tacc.accelerate(module, config=ONE)
        optimizer = kind(model.parameters(), lr=0.1)
        with pytest.raises(tacc.InputError, match=message):
            model(**batch)
    with tacc.accelerate(made(Classifier), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        assert len(list(model.modules())) == 5 and not list(model.buffers())
        out = model(**batch)
        with pytest.raises(tacc.InputError, match="belongs into loss="):
            (out.loss + 0.1 * sum(p.square().sum() for p in model.parameters())).backward()
        optimizer.zero_grad()
        out = model(**batch)
        out.loss.backward()
        model.head.bias.requires_grad_(False)
        with pytest.raises(tacc.InputError, match=r"requires_grad of head\.bias has changed"):
            optimizer.step()
        model.head.bias.requires_grad_(True)
        for change in (lambda: model.apply(print), lambda: model.half(), lambda: copy.deepcopy(model), lambda: pickle.dumps(model)):
            with pytest.raises(tacc.InputError, match=r"the ranks have the model already|a model that a job trains cannot be"):
                change()
        optimizer.step()
        assert model.float() is model and out.loss.item() > 0
        with pytest.raises(tacc.InputError, match=r"read them before optimizer.step\(\)"):
            _ = out.logits
        assert not model.eval().module.training and model.train().module.training
        # A copy of the module is trained here, as any.
        copied = copy.deepcopy(model.sync())
        expect_weights(model, stepped(made(Classifier), batch))
        expect_weights(model, copied.state_dict())
        before = copied.head.bias.detach().clone()
        stepped(copied, batch)
        assert not torch.equal(copied.head.bias, before)
        if (child := os.fork()) == 0:
            os._exit(len(handle._OPEN))
        assert os.waitpid(child, 0)[1] == 0 and model in handle._OPEN


def test_an_optimizer_s_states_go_on_elsewhere():
    """Saved and loaded as PyTorch's are, before the first forward and behind it."""

    def run(model: Any, optimizer: Any, data: list[dict[str, torch.Tensor]]) -> list[float]:
        losses = []
        for batch in data:
            loss = model(**batch)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    data, plain = batches(6), made(Classifier)
    want = run(plain, torch.optim.AdamW(plain.parameters(), lr=0.05), data)
    with tacc.accelerate(made(Classifier), config=ONE) as model:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        assert run(model, optimizer, data[:3]) == pytest.approx(want[:3], rel=ROUNDING)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        assert len(saved[1]["state"]) == 7 and saved[1]["state"][0]["step"] == 3
        run(model, optimizer, data[:1])
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        assert run(model, optimizer, data[3:]) == pytest.approx(want[3:], rel=ROUNDING)
    module = made(Classifier)
    module.load_state_dict(saved[0])
    with tacc.accelerate(module, config=ONE) as model:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        optimizer.load_state_dict(saved[1])
        assert run(model, optimizer, data[3:]) == pytest.approx(want[3:], rel=ROUNDING)


def test_a_frozen_or_tied_weight_is_loaded_or_refused():
    class Tied(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 32)
            self.head.weight = self.embed.weight
            self.hidden = nn.Linear(16, 16)

    module = made(Tied)
    module.norm.weight.requires_grad_(False)
    with tacc.accelerate(module, config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model.start(**batches(1)[0])
        weight = torch.full_like(module.embed.weight, 0.5)
        model.load_state_dict({"head.weight": weight}, strict=False)
        assert torch.equal(model.state_dict()["embed.weight"], weight)
        with pytest.raises(tacc.InputError, match=r"norm\.weight is frozen"):
            model.load_state_dict({"norm.weight": torch.zeros(16)}, strict=False)
        optimizer.zero_grad()


def test_a_loader_of_evaluations_keeps_no_position_and_a_loop_may_end_before_it():
    class Model:
        training, num_rewinds, loader_state, session, session_ahead, batch_ahead = False, 1, None, None, None, None

    model, waits = Model(), threading.Event()

    def loader() -> Iterator[int]:
        yield from (1, 2)
        waits.wait()

    assert list(zip(tacc.AsyncLoader([1, 2, 3], model), range(9))) == [(1, 0), (2, 1), (3, 2)] and model.loader_state is None
    model.training, model.num_rewinds = True, 0
    for batch in (read := tacc.AsyncLoader(loader(), model)):
        if batch == 2:
            break
    assert model.loader_state == b'{"epoch": 0, "batches": 2}'
    waits.set()
    assert list(read) == []
