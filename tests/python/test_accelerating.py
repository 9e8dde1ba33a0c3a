"""What `tacc.accelerate` decides by itself, without a job."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import tacc
import torch
from tacc.accelerating.job_notes import CheckpointWatch
from tacc.accelerating.layer_classes import without_classes
from tacc.accelerating.optimizers import Groups
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
    return Groups(optimizer, names, set(names.values()))


@pytest.mark.parametrize("make", [lambda p: torch.optim.AdamW(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)], ids=["adamw", "sgd"])
@pytest.mark.parametrize("kind", ["one cycle", "cyclic"])
def test_a_scheduler_of_momentum_is_refused_at_once(make, kind):
    def schedule(optimizer: torch.optim.Optimizer, **options: Any) -> Any:
        if kind == "one cycle":
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5, **options)
        return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2, **options)

    module = Layers()
    optimizer = make(module.parameters())
    schedule(optimizer)
    with pytest.raises(tacc.InputError, match=r"a scheduler cycles the momentum or betas of the optimizer's group 0: .* give cycle_momentum=False"):
        groups_of(module, optimizer)
    optimizer = make(module.parameters())
    of_rates = schedule(optimizer, cycle_momentum=False)
    groups = groups_of(module, optimizer)
    for _ in range(4):
        assert list(groups.learning_rates().values()) == [optimizer.param_groups[0]["lr"]]
        optimizer.step()
        of_rates.step()


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
