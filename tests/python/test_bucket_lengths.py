"""Where what fills samples up would change a training, `tacc.accelerate(..., buckets=)` refuses them."""

import pytest
import tacc
import torch
from tacc.accelerating.batches import Batches
from tacc.accelerating.job import Options, check_lengths, export
from tacc.accelerating.lengths import Lengths
from torch import nn


class Model(nn.Module):
    """Of a token at a time, and what `mixed` makes of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(61, 16), nn.Linear(16, 61)

    def mixed(self, hidden):
        return hidden

    def forward(self, input_ids, labels):
        logits = self.head(self.mixed(self.embed(input_ids)))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Gated(Model):
    """Reads all tokens, as soon as its gate is not 0 any more."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def mixed(self, hidden):
        return hidden + self.gate * hidden.mean(1, keepdim=True)


class Normed(Model):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def mixed(self, hidden):
        return self.norm(hidden.transpose(1, 2)).transpose(1, 2)


def of(length):
    tokens = torch.randint(1, 61, (4, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": tokens, "labels": tokens.clone()}


def batches_of(module):
    model = export(module, of(12), None, by_samples=False)

    def returned(batch):
        module.eval()
        return module(**batch)

    lengths = Lengths([8, 12], model.graph.description, {"input_ids": 0}, module, returned)
    return Batches(model.graph.description, model.example, model.optional, lengths=lengths)


def test_a_gate_of_zero_hides_nothing():
    module = Gated()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    with pytest.raises(tacc.InputError, match=r"what fills samples up changes '(loss|logits)' of the model"):
        batches_of(module).arrays(of(9), trains=True)
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())
    arrays, _, _ = batches_of(Model()).arrays(of(9), trains=True)
    assert {a.shape for a in arrays.values()} == {(4, 12)} and (arrays["labels"][:, 9:] == -100).all()


def test_what_fills_samples_up_is_not_in_the_statistics_of_a_batch_norm():
    batches = batches_of(Normed())
    with pytest.raises(tacc.InputError, match="the model has a batch norm, whose mean and variance would be also of what fills samples up: let the loader"):
        batches.arrays(of(9), trains=True)
    batches.arrays(of(8), trains=True)  # As long as the job has it.
    batches.arrays(of(9), trains=False)  # An evaluation has the running statistics.


@pytest.mark.parametrize(("name", "value"), [("input_ids", 61), ("input_ids", -1), ("labels", 61)])
def test_an_id_out_of_range_in_the_first_short_batch_is_named(name, value):
    batch = of(9)
    batch[name][2, 3] = value
    with pytest.raises(tacc.InputError, match=rf"'{name}' has {value} in sample 2 of the batch, which is out of range: the model takes 0 to 60"):
        batches_of(Model()).arrays(batch, trains=True)


def test_a_first_batch_that_is_too_long_makes_no_job():
    model = export(Model(), of(12), None, by_samples=False)
    options = Options(None, None, None, None, 0.0, None, "step", buckets=[8, 10])
    with pytest.raises(tacc.InputError, match="the batch has samples of 12 tokens; the job is compiled for 8, 10, and none may be longer"):
        check_lengths(model, options)
