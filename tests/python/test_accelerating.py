"""What `tacc.accelerate` decides by itself, without a job."""

import functools
import gc
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import tacc
import torch
from tacc.accelerating.handle import AcceleratedModel
from tacc.accelerating.job_notes import CheckpointWatch
from tacc.accelerating.layer_classes import without_classes
from tacc.accelerating.optimizers import Groups, find_optimizers
from tacc.exporting.export import export_graph
from tacc.messages import CheckpointFailure
from torch import nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(x))


class Last(nn.Linear):
    pass


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer(), Last(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


UNITS = ["layers.0", "layers.1", "layers.2"]


def test_a_graph_says_its_units():
    graph = export_graph(Layers(), torch.randn(2, 4), loss=lambda outputs, batch: outputs.square().mean())
    assert graph.description.units == UNITS


@pytest.mark.parametrize(
    ("classes", "count"), [("Layer", 2), ({"Layer"}, 2), (["Layer", "Last"], None), ("Linear", 2), ("Layers", None)]
)
def test_classes_that_compute_again_become_the_number_of_first_layers(classes, count):
    memory = without_classes(Layers(), UNITS, {"memory": {"gc": True, "gc_cls": classes}})["memory"]
    assert memory == ({"gc": True} if count is None else {"gc": True, "gc_cnt": count})


def test_a_count_of_layers_stays_where_it_is_less():
    memory = {"gc": True, "gc_cls": "Layer", "gc_cnt": 1}
    assert without_classes(Layers(), UNITS, {"memory": memory})["memory"] == {"gc": True, "gc_cnt": 1}
    assert memory["gc_cls"] == "Layer"


def test_classes_that_fsdp_wraps_are_left_out_with_a_note():
    config = {"dist": {"fsdp": {"size": 2, "wrap_layer_cls": {"Layer"}}}, "name": "n"}
    with pytest.warns(tacc.ConfigNote, match="wrap_layer_cls: FSDP gathers the weights of an exported model layer by layer, as layers.0, whatever"):
        assert without_classes(Layers(), UNITS, config) == {"dist": {"fsdp": {"size": 2}}, "name": "n"}


def test_the_note_has_the_line_that_calls_the_model():
    """Not one of torch.nn.Module, through which a loop calls it."""
    called = nn.Module()
    called.forward = functools.partial(without_classes, Layers(), UNITS, {"dist": {"fsdp": {"wrap_layer_cls": {"Layer"}}}})
    with pytest.warns(tacc.ConfigNote) as notes:
        called()
    assert [note.filename for note in notes] == [__file__]


def test_what_is_wrong_is_said_before_the_first_forward():
    with pytest.raises(tacc.ConfigError, match='unknown field "fsdpp" in dist; did you mean "fsdp"'):
        tacc.accelerate(Layers(), config={"dist": {"fsdpp": {"size": 2}}})
    with pytest.raises(tacc.InputError, match=r"wrapped in a DataParallel; give the plain module, which is its \.module"):
        tacc.accelerate(nn.DataParallel(Layers()))
    with pytest.raises(tacc.InputError, match=r"one of torch\.compile; give the plain module, as it was before that"):
        tacc.accelerate(torch.compile(Layers()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Notes come with the job.
        assert isinstance(tacc.accelerate(Layers(), config={"dist": {"fsdp": {"wrap_layer_cls": {"Layer"}}}}), AcceleratedModel)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if x.sum() > 0:
            x = x * 2
        return {"loss": x.sum()}


class ByNumpy(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.from_numpy(x.numpy()).sum()}


class Projecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.inner(x) * y).sum()}


@pytest.mark.parametrize(
    ("module", "batch", "words"),
    [
        (Branching(), {"x": torch.ones(2, 4)}, r"if x.sum\(\) > 0: torch.export cannot .*must be computed by tensors"),
        (ByNumpy(), {"x": torch.ones(2, 4)}, "compute it by torch's functions, or before the model, in the batch"),
        (Projecting(), {"x": torch.ones(2, 4).tolist(), "y": torch.ones(2, 4)}, "give torch.tensor.* in place of a list"),
    ],
)
def test_what_cannot_be_traced_is_said_with_advice(module, batch, words):
    with pytest.raises(tacc.InputError, match=words):
        export_graph(module, batch, loss=None)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"memory": {"gc": True, "gc_cls": "Last"}}, "layers.0, a Layer, comes before others of Last: name its class too"),
        ({"memory": {"gc": True, "gc_cls": ["Block"]}}, 'memory.gc_cls: the model has no module of class "Block"; it has Last, Layer, Layers, Linear, Modul'),
        ({"dist": {"fsdp": {"wrap_layer_cls": ["Block"]}}}, 'wrap_layer_cls: the model has no module of class "Block"'),
    ],
    ids=["not the first", "gc", "fsdp"],
)
def test_classes_that_cannot_be(config, words):
    with pytest.raises(tacc.InputError, match=words):
        without_classes(Layers(), UNITS, config)


def test_a_model_without_numbered_layers_has_none_of_a_class():
    with pytest.raises(tacc.InputError, match=r"no layer of the model has a module of Linear: it has no numbered layers. Leave it out"):
        without_classes(nn.Sequential(nn.Linear(4, 4)), [], {"memory": {"gc": True, "gc_cls": "Linear"}})


def groups_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> Groups:
    names = {id(p): name for name, p in module.named_parameters()}
    return Groups([optimizer], names, set(names.values()))


MAKES = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1), "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("kind", ["one cycle", "cyclic"])
def test_a_scheduler_of_momentum_goes_with_each_update(make, kind):
    module = Layers()
    optimizer = make(module.parameters())
    if kind == "one cycle":
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
    else:
        schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2)
    groups = groups_of(module, optimizer)
    group = optimizer.param_groups[0]
    first = group["betas"][0] if "betas" in group else group["momentum"]
    assert groups.train()["adam_beta1" if "betas" in group else "momentum"] == first
    seen = set()
    for _ in range(4):
        now = group["betas"][0] if "betas" in group else group["momentum"]
        rates = groups.rates()
        assert list(rates["learning_rates"].values()) == [group["lr"]]
        assert list(rates["momenta"].values()) == ([now] if now != first else [])  # The job has the first one.
        seen.add(now)
        optimizer.step()
        schedule.step()
    assert len(seen) >= 3


def test_momenta_are_a_group_s_own():
    module = Layers()
    weights = [p for name, p in module.named_parameters() if "weight" in name]
    rest = [p for name, p in module.named_parameters() if "weight" not in name]
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": rest, "betas": (0.8, 0.999)}], lr=0.1)
    groups = groups_of(module, optimizer)
    assert groups.train()["adam_beta1"] == 0.9 and list(groups.rates()["momenta"].values()) == [0.8]
    optimizer.param_groups[0]["betas"] = (0.9, 0.99)
    with pytest.raises(tacc.InputError, match=r"group 0 of the optimizer has .*only lr and momentum \(betas\[0\]\) may change"):
        groups.rates()
    stopping = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    groups = groups_of(module, stopping)
    stopping.param_groups[0]["momentum"] = 0.0
    with pytest.raises(tacc.InputError, match=r"SGD has the momentum 0 in some steps or groups"):
        groups.rates()


def test_an_optimizer_that_nobody_has_is_not_found():
    """As when a notebook's cell runs again: its scheduler keeps it until garbage is collected."""
    module = Layers()
    gc.disable()
    try:
        for _ in range(2):
            optimizer = torch.optim.AdamW(module.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        assert find_optimizers(module.parameters()) == [schedule.optimizer]
    finally:
        gc.enable()
    parameters = list(module.parameters())
    last, first = torch.optim.SGD(parameters[1:]), torch.optim.AdamW(parameters[:1])
    del optimizer, schedule
    assert find_optimizers(module.parameters()) == [first, last]


class Full:
    """A job whose checkpoints fail twice, and then no more."""

    def __init__(self) -> None:
        failure = CheckpointFailure(since_time=0.0, message="no space left on device")
        self.left = [failure, failure, None]
        self.was_asked = threading.Event()

    def status(self) -> Any:
        failure = self.left.pop(0) if self.left else None
        if not self.left:
            self.was_asked.set()
        return SimpleNamespace(id="full-1", phase="running", checkpoint_failure=failure)


def test_checkpoints_that_fail_are_told_once(capfd):
    job = Full()
    watch = CheckpointWatch(job, seconds=0.01)
    assert job.was_asked.wait(10)
    watch.stop()  # With the last of them said.
    assert capfd.readouterr().err.splitlines() == [
        "tacc: full-1: checkpoints fail: no space left on device; it goes on and tries again", "tacc: full-1: checkpoints are written again",
    ]


def test_a_trainer_says_that_the_length_is_the_first_batchs():
    """Where a collator of somebody's own pads, a longer batch may come."""
    transformers = pytest.importorskip("transformers")
    from tacc.accelerating.trainer_model import _length_of_first

    padded = {"input_ids": torch.ones(2, 7, dtype=torch.int64), "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2])}
    whole = {**padded, "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    assert _length_of_first(lambda samples: samples, padded) == 7
    assert _length_of_first(lambda samples: samples, whole) == 0
    assert _length_of_first(transformers.default_data_collator, padded) == 0
