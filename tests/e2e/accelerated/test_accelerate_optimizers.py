"""`tacc.accelerate` in loops with several optimizers, and with those beside AdamW and SGD: as PyTorch trains, or refused with what to do."""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tacc
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import Cluster

ONE: dict[str, Any] = {"resources": {"workers": 1}}
FSDP: dict[str, Any] = {"resources": {"workers": 2}, "dist": {"dp": {"size": 1}, "fsdp": {"size": 2}}}
STEPS = 5
ROUNDING = 2e-5  # Of losses in float32, whose sums are taken in another order.


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
def muon_in_full_precision(monkeypatch) -> None:
    """torch.optim.Muon multiplies in bfloat16 whatever the parameters are; a job does so where it computes in it."""
    import torch.optim._muon as module

    source = inspect.getsource(module._zeropower_via_newtonschulz)
    assert ".bfloat16()" in source
    monkeypatch.setattr(module, "_zeropower_via_newtonschulz", None)
    exec(source.replace(".bfloat16()", ".clone()"), module.__dict__)


class Decoder(nn.Module):
    """As small language models are: a table, matrices, vectors and a head over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.up = nn.Embedding(32, 12), nn.LayerNorm(12), nn.Linear(12, 20)
        self.down, self.head = nn.Linear(20, 12, bias=False), nn.Linear(12, 32, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.embed(ids)
        x = x + self.down(functional.gelu(self.up(self.norm(x))))
        logits = self.head(x)
        return {"logits": logits} if labels is None else {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    def is_hidden(self, name: str) -> bool:
        return name in ("up.weight", "down.weight")


def made() -> Decoder:
    torch.manual_seed(3)
    return Decoder()


def batches(count: int = STEPS) -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(2)
    ids = [torch.randint(0, 32, (8, 7), generator=random) for _ in range(count)]
    return [{"ids": i[:, :-1], "labels": i[:, 1:]} for i in ids]


def expect_close(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-3, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


# --- Several optimizers -------------------------------------------------------------------------------------------------


def split(model: Any) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    named, is_hidden = dict(model.named_parameters()), Decoder.is_hidden
    return [p for n, p in named.items() if is_hidden(model, n)], [p for n, p in named.items() if not is_hidden(model, n)]


def muon_and_adamw(model: Any) -> list[torch.optim.Optimizer]:
    hidden, others = split(model)
    bare = [p for p in others if p.dim() < 2]
    return [
        torch.optim.Muon(hidden, lr=0.02, momentum=0.9),
        torch.optim.AdamW([{"params": [p for p in others if p.dim() == 2]}, {"params": bare, "weight_decay": 0.0}], lr=0.02, betas=(0.8, 0.95)),
    ]


PAIRS: dict[str, Callable[[Any], list[torch.optim.Optimizer]]] = {
    "muon and adamw": muon_and_adamw,
    "adamw twice": lambda m: [torch.optim.AdamW(split(m)[0], lr=0.02, betas=(0.8, 0.95)), torch.optim.AdamW(split(m)[1], lr=0.01, betas=(0.9, 0.95))],
    "sgd and adam": lambda m: [torch.optim.SGD(split(m)[1], lr=0.1, momentum=0.9), torch.optim.Adam(split(m)[0], lr=0.01)],
}


def ways(order: str) -> Callable[[Any, list[torch.optim.Optimizer], list[Any]], None]:
    """A step's end in a loop with several optimizers, behind backward."""
    def one_after_the_other(model: Any, optimizers: list[torch.optim.Optimizer], schedules: list[Any]) -> None:
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
        model.zero_grad(set_to_none=True)

    def each_whole(model: Any, optimizers: list[torch.optim.Optimizer], schedules: list[Any]) -> None:
        for optimizer in reversed(optimizers):
            optimizer.step()
            optimizer.zero_grad()
        for schedule in schedules:
            schedule.step()

    return {"one after the other": one_after_the_other, "each whole": each_whole}[order]


def trained(model: Any, make: Callable[[Any], list[torch.optim.Optimizer]], order: str) -> list[float]:
    optimizers = make(model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda step, i=i: 1 / (1 + i + step)) for i, o in enumerate(optimizers)]
    end, losses = ways(order), []
    for i, batch in enumerate(batches(2 * STEPS)):  # Two micro-batches a step.
        loss = model(**batch)["loss"]
        (loss / 2).backward()
        losses.append(loss.item())
        if i % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            end(model, optimizers, schedules)
    return losses


@pytest.mark.parametrize(
    ("pair", "order", "config"), [
        ("muon and adamw", "one after the other", FSDP), ("muon and adamw", "each whole", ONE), ("adamw twice", "each whole", ONE),
        ("sgd and adam", "one after the other", ONE),
    ],
)  # fmt: skip
def test_optimizers_of_one_loop(pair, order, config):
    plain = made()
    want = trained(plain, PAIRS[pair], order)
    with tacc.accelerate(made(), config=config) as model:
        assert trained(model, PAIRS[pair], order) == pytest.approx(want, rel=ROUNDING)
        expect_close(model.state_dict(), plain.state_dict())
        assert model.step_number == STEPS


def test_optimizers_that_are_given_go_on_elsewhere():
    """Each one's states are its own: saved and loaded as PyTorch's are, before the first forward and behind it."""
    def run(model: Any, optimizers: list[torch.optim.Optimizer], data: list[Any]) -> list[float]:
        losses = []
        for batch in data:
            loss = model(**batch)["loss"]
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    data, plain = batches(6), made()
    want = run(plain, muon_and_adamw(plain), data)
    module = made()
    optimizers = muon_and_adamw(module)
    with tacc.accelerate(module, config=ONE, optimizer=optimizers) as model:
        assert run(model, optimizers, data[:3]) == pytest.approx(want[:3], rel=ROUNDING)
        saved = copy.deepcopy((model.state_dict(), [optimizer.state_dict() for optimizer in optimizers]))
        assert [sorted(of["state"]) for of in saved[1]] == [[0, 1], [0, 1, 2, 3, 4]]
        assert saved[1][0]["state"][0].keys() >= {"momentum_buffer"} and saved[1][1]["state"][0].keys() >= {"exp_avg", "exp_avg_sq"}
        whole = model.full_optim_state_dict()
        assert len(whole["param_groups"]) == 3 and whole["state"].keys() == dict(module.named_parameters()).keys()
        run(model, optimizers, data[:1])
        model.load_state_dict(saved[0])
        for optimizer, state in zip(optimizers, saved[1]):
            optimizer.load_state_dict(state)
        assert run(model, optimizers, data[3:]) == pytest.approx(want[3:], rel=ROUNDING)
    module = made()
    module.load_state_dict(saved[0])
    optimizers = muon_and_adamw(module)
    for optimizer, state in zip(optimizers, saved[1]):
        optimizer.load_state_dict(state)
    with tacc.accelerate(module, config=ONE) as model:
        assert run(model, optimizers, data[3:]) == pytest.approx(want[3:], rel=ROUNDING)


def test_a_loop_that_moves_a_part_of_the_parameters_is_refused():
    module = made()
    first, second = optimizers = muon_and_adamw(module)
    batch, other = batches(2)
    with tacc.accelerate(module, config=ONE) as model:
        def backward() -> None:
            model.zero_grad()
            model(**batch)["loss"].backward()

        backward()
        first.step()
        for call, words in (
            (lambda: model(**other), "Muon made a step, and another command comes before that of AdamW: the ranks update all parameters at once"),
            (lambda: model.state_dict(), "another command comes before that of AdamW"),
            (lambda: module.head.weight.norm(), "a reading of weights comes before that of AdamW"),
            (lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), "clip_grad_norm_ comes before that of AdamW"),
            (lambda: first.step(), "Muon made a step already, and AdamW did not"),
            (lambda: second.zero_grad(), r"zero_grad\(\) of AdamW comes before that of AdamW"),
            (lambda: [p.grad for p in model.parameters()], "the gradients are with the ranks"),
            (lambda: model.zero_grad(), r"zero_grad\(\) comes before that of AdamW.*let each step have step\(\) of all optimizers, one behind the other"),
        ):
            with pytest.raises(tacc.InputError, match=words):
                call()
        assert model.step_number == 0  # And it is as if there had been no backward.
        backward()
        first.zero_grad()
        with pytest.raises(tacc.InputError, match=r"zero_grad\(\) of Muon came before its step"):
            first.step()
        loss = model(**other)["loss"]
        with pytest.raises(tacc.InputError, match=r"zero_grad\(\) of Muon was called, and that of the other optimizers was not.*or model\.zero_grad\(\)"):
            loss.backward()
        backward()
        second.param_groups[1]["betas"] = (0.5, 0.95)
        with pytest.raises(tacc.InputError, match=r"group 1 of AdamW has .*only lr may change"):
            second.step()
        second.param_groups[1]["betas"] = (0.8, 0.95)
        first.param_groups[0]["momentum"] = 0.7  # Which scripts warm up.
        for optimizer in optimizers:
            optimizer.step()
        assert model.step_number == 1
        plain = made()
        first, second = muon_and_adamw(plain)
        first.param_groups[0]["momentum"] = 0.7
        plain(**batch)["loss"].backward()
        first.step()
        second.step()
        expect_close(model.state_dict(), plain.state_dict())


def test_optimizers_that_are_no_job_together():
    for make, words in {
        "both": (lambda m: [torch.optim.Muon(split(m)[0]), torch.optim.AdamW(m.parameters())], r"several optimizers have the model's parameters \(Muon, AdamW\), and two of"),
        "betas": (
            lambda m: [torch.optim.Adam(split(m)[0], betas=(0.8, 0.9)), torch.optim.AdamW(split(m)[1], betas=(0.9, 0.9))],
            r"AdamW has adam_beta1 = 0\.9, Adam 0\.8: a job has one for all its optimizers; give both the same, or another kind, as Muon with AdamW",
        ),
        "momentum": (lambda m: [torch.optim.SGD(split(m)[1], lr=0.1), torch.optim.Muon(split(m)[0])], r"SGD has momentum = 0, Muon 0\.95"),
        "kind": (lambda m: [torch.optim.Muon(split(m)[0]), torch.optim.RMSprop(split(m)[1])], "the optimizer is RMSprop; a job trains with"),
        "tables": (lambda m: [torch.optim.Muon([p for p in m.parameters() if p.dim() == 2]), torch.optim.AdamW([p for p in m.parameters() if p.dim() < 2])],
                   r"Muon has the parameter embed\.weight.*leave such to another optimizer, as optimizer=\[muon, adamw\]"),
    }.values():
        module = made()
        optimizers = make(module)
        with pytest.raises(tacc.InputError, match=words):
            tacc.accelerate(module, config=ONE, optimizer=optimizers)(**batches(1)[0])
    with pytest.raises(tacc.InputError, match=r"optimizer= has a float; wanted an optimizer of PyTorch, or a list of such"):
        tacc.accelerate(made(), optimizer=[0.1])


# --- Other kinds --------------------------------------------------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", algorithm 2, with the options of the package lion-pytorch."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = m.lerp(p.grad, 1 - beta1).sign()
                p.mul_(1 - lr * group["weight_decay"]).sub_(direction, alpha=lr)
                m.lerp_(p.grad, 1 - beta2)


def adafactor(parameters: Any) -> torch.optim.Optimizer:
    from transformers.optimization import Adafactor

    return Adafactor(parameters, lr=0.02, scale_parameter=False, relative_step=False, weight_decay=0.1)


KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {"lion": lambda p: Lion(p, lr=2e-3, weight_decay=0.1), "adafactor": adafactor}


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_with_another_optimizer(kind, config):
    plain = made()
    want = trained(plain, lambda m: [KINDS[kind](m.parameters())], "one after the other")
    with tacc.accelerate(made(), config=config) as model:
        assert trained(model, lambda m: [KINDS[kind](m.parameters())], "one after the other") == pytest.approx(want, rel=ROUNDING)
        expect_close(model.state_dict(), plain.state_dict())


# --- An average of the weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
def test_an_average_of_the_weights(config, tmp_path):
    """As PyTorch's: it is read, evaluated, saved and exported, and the training goes on from the weights themselves."""
    plain = made()
    averaged = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.7))
    averaged.update_parameters(plain)  # The first one is what it begins with.
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    want = []
    for batch in batches():
        optimizer.zero_grad()
        loss = plain(**batch)["loss"]
        loss.backward()
        optimizer.step()
        averaged.update_parameters(plain)
        want.append(loss.item())
    batch = batches()[0]
    with tacc.accelerate(made(), config={**config, "train": {"ema_decay": 0.7}}) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for one in batches():
            optimizer.zero_grad()
            out = model(**one)
            out.loss.backward()
            with pytest.raises(tacc.InputError, match=r"computed with the average of the weights, in evaluation: call model\.eval\(\)"):
                _ = out.logits
            optimizer.step()
            losses.append(out.loss.item())
        assert losses == pytest.approx(want, rel=ROUNDING)
        expect_close(model.state_dict(), plain.state_dict())
        average = model.averaged_state_dict()
        expect_close(average, averaged.module.state_dict())
        with torch.no_grad():
            got = model.eval()(**batch)
            torch.testing.assert_close(got.logits, averaged.module(**batch)["logits"], rtol=1e-3, atol=1e-4)
            assert got.loss.item() == pytest.approx(averaged.module(**batch)["loss"].item(), rel=ROUNDING)
        assert abs(got.loss.item() - plain(**batch)["loss"].item()) > 0.01
        from safetensors.torch import load_file

        weights = model.state_dict()
        for name, given, stored in (("plain", {}, weights), ("average", {"state_dict": average}, average)):
            model.save_pretrained(tmp_path / name, **given)
            assert all(torch.equal(tensor, stored[n]) for n, tensor in load_file(tmp_path / name / "model.safetensors").items())
        with pytest.raises(tacc.InputError, match="max_shard_size= is for a model with a save_pretrained of its own; Decoder has none"):
            model.save_pretrained(tmp_path / "sharded", max_shard_size="1GB")
    exported = load_file(Path(model.exported_path) / "model.safetensors")
    assert exported.keys() == average.keys() and all(torch.equal(tensor, average[name]) for name, tensor in exported.items())
    expect_close(model.module.state_dict(), plain.state_dict())


def test_an_average_that_cannot_be():
    batch = batches(1)[0]
    with tacc.accelerate(made(), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.start(**batch)
        with pytest.raises(tacc.InputError, match=r"keeps no average of the weights: give tacc\.accelerate config="):
            model.averaged_state_dict()
    model = tacc.accelerate(nn.Sequential(nn.Linear(4, 2)), config={**ONE, "train": {"ema_decay": 0.7}})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(tacc.InputError, match=r"train\.ema_decay: what the model returns would be computed with the average.*give loss= to"):
        model(torch.randn(8, 4))
    del optimizer
