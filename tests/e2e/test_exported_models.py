"""Exported PyTorch models train on the daemon as a plain PyTorch loop does, on one rank and with FSDP over two, and go on with the same bits after a kill."""

import copy
import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tacc
import torch
import torch.nn.functional as F
from cluster import Cluster
from exported_training import (
    ADAMW,
    SAMPLES,
    SGD,
    STEPS,
    Steps,
    Trained,
    check_steps,
    export_and_train,
    exported_by,
    optimizer_for,
    spec,
    steps,
    train,
    train_in_torch,
    train_killed,
)
from torch import nn

# isort: split
import image_models
from architecture_models import MODELS, TRAINED
from comparison import check_exported, nodes_of, torch_interpreter
from torch_models import BATCH, TorchModel

TACCCTL = Path(os.environ["TACC_BUILD"]) / "taccctl"

# Of losses and norms that two layouts round otherwise: ten steps of AdamW carry that on.
ROUNDING = 1e-4
WHOLE = {"fsdp": {"size": 1}}
TP, PP = WHOLE | {"tp": {"size": 2}}, WHOLE | {"pp": {"size": 2, "num_micro_batches": 2}}
EP = WHOLE | {"ep": {"size": 2, "buffer_factor": 16}}
# Layouts beside those of all.
LAYOUTS = {
    "llama": [TP, WHOLE | {"sp": {"size": 2}}], "gpt2": [TP, PP], "bert, masked": [TP], "vit": [PP], "mixtral": [TP, EP], "deepseek v3": [EP, PP],
    "bert, classes": [TP, PP, WHOLE | {"sp": {"size": 2}}],
}
# In bf16 and fp16.
HALF = [(name, "bf16") for name in ("resnet50", "bert, masked", "bert, classes", "t5", "vit", "whisper, text")] + [("vit", "fp16"), ("t5", "fp16")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with tacc.Client(cluster.address) as client:
        yield client


def submit(client: tacc.Client, model: Trained, runs: Path, workers: int, name: str) -> tacc.Job:
    return client.submit(spec(model, name, runs, {"fsdp": {"size": workers}}, workers))


@pytest.fixture(scope="module")
def exported_of(tmp_path_factory) -> Callable[[str], tuple[TorchModel, tacc.Exported]]:
    folder = tmp_path_factory.mktemp("models")

    @cache
    def of(name: str) -> tuple[TorchModel, tacc.Exported]:
        model = MODELS[name]()
        return model, tacc.export_model(model.module, model.batch, folder / name, **model.options)

    return of


@pytest.mark.parametrize("name", TRAINED)
def test_trains_as_a_pytorch_loop(cluster, client, exported_of, tmp_path, name):
    """In float64 the graph computes what PyTorch does; ten steps in fp32 are those of the loop, on one rank and on two, of which the second dies."""
    model, exported = exported_of(name)
    assert "parameters" not in repr(exported), "a notebook would show hundreds of names"
    check_exported(name, exported, model)
    trained = train_in_torch(model, exported, optimizer_for(model.module))
    check_in_fp32(train(submit(client, trained, tmp_path, 1, "one"), trained), trained)
    check_in_fp32(train_killed(cluster, submit(client, trained, tmp_path, 2, "two"), trained), trained)
    for number, dist in enumerate(LAYOUTS.get(name, [])):
        job = client.submit(spec(trained, f"layout-{number}", tmp_path, dist, 2))
        check_in_fp32(train(job, trained), trained)
        check_export_loads(model, trained, exported_by(job, tmp_path / "exported"))


def check_in_fp32(got: Steps, model: Trained) -> None:
    """Parity tests have twice; ten numbers of one draw of weights vary more than a whole gradient does. Through many batch norms of few samples rounding
    decides whether some ReLU lets its gradient pass (ResNet-50: 1.4e-7 on one rank, 1.5e-5 on two, 5.6e-6 of PyTorch's own)."""
    check_steps(got, model, of_own=3, floors=(1e-7, 2e-5 if model.optimizer is SGD else 1e-7), at_most=5e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert, masked"])
def test_in_a_ring(client, tmp_path, name):
    """Models shift their labels by themselves, in the tokens' natural order; a ring has them in another."""
    model = MODELS[name]()
    model.batch = {key: value[:, :8] for key, value in model.batch.items()}
    exported = tacc.export_model(model.module, model.batch, tmp_path / "model", **model.options)
    trained = train_in_torch(model, exported, optimizer_for(model.module))
    job = client.submit(spec(trained, "ring", tmp_path, WHOLE | {"cp": {"size": 2}}, 2))
    check_in_fp32(train(job, trained), trained)
    check_export_loads(model, trained, exported_by(job, tmp_path / "exported"))


class CountedPositions(nn.Module):
    """As RoBERTa has them: padding has none."""

    def __init__(self):
        super().__init__()
        self.table, self.places, self.q = nn.Embedding(64, 16), nn.Embedding(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 64)

    def forward(self, tokens):
        is_token = tokens != 0
        h = self.table(tokens) + self.places(is_token.long().cumsum(1) * is_token)
        q = self.q(h)[:, None]
        h = F.scaled_dot_product_attention(q, h[:, None], h[:, None], is_token[:, None, None])[:, 0]
        logits = self.head(h)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), tokens.flatten()), "logits": logits}


def test_tokens_that_are_counted_in_a_ring(client, tmp_path):
    """They stay in natural order; what is made of them does not, and is not returned."""
    torch.manual_seed(0)
    tokens = torch.randint(1, 64, (4, 8))
    tokens[1, 5:] = 0
    model = TorchModel(CountedPositions(), {"tokens": tokens})
    exported = tacc.export_model(model.module, model.batch, tmp_path / "model")
    trained = train_in_torch(model, exported, ADAMW)
    job = client.submit(spec(trained, "counted", tmp_path, WHOLE | {"cp": {"size": 2}}, 2))
    with tacc.Session(job) as session:
        got = steps(session, trained.batches)
        with pytest.raises(tacc.TaccError, match=r"in a ring \(dist.cp\) ranks have the tokens in another order"):
            session.forward(trained.batches[0], outputs=["logits"])
        session.finish()
    job.wait(progress=False)
    check_in_fp32(got, trained)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name, precision", HALF)
def test_half_precision_is_as_near_as_autocast(client, exported_of, tmp_path, name, precision, workers):
    model, exported = exported_of(name)
    trained = train_in_torch(model, exported, optimizer_for(model.module), precision)
    check_steps(train(submit(client, trained, tmp_path, workers, "half"), trained), trained, of_own=2, floors=(1e-4, 1e-4), at_most=0.1)


def check_export_loads(model: TorchModel, trained: Trained, tensors: dict[str, torch.Tensor]) -> None:
    """The module takes what the job exports, and returns what the loop's does."""
    module = copy.deepcopy(model.module)
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    assert set(missing) <= set(trained.model.aliases) and set(unexpected) <= {*trained.model.buffers, *trained.model.tables}
    batch = {name: torch.from_numpy(value) for name, value in trained.batches[0].items()}
    with torch.no_grad():
        outputs, _ = model.run(module.eval(), batch)
    np.testing.assert_allclose(outputs[trained.returned], trained.outputs, atol=1e-3 * np.abs(trained.outputs).max())


def test_what_a_model_always_drops_is_the_same_on_any_ranks(client, tmp_path):
    """SpeechT5's decoder of sounds drops features, of all samples alike, in evaluation too: others than PyTorch's loop does."""
    model = export_and_train(image_models.speecht5_speech(), tmp_path / "speech", ADAMW)
    one, two = (train(submit(client, model, tmp_path, workers, f"ranks-{workers}"), model) for workers in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert b == pytest.approx(a, rel=ROUNDING)


class Autoencoder(nn.Module):
    """A variational one."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 16), nn.Linear(8, 12)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
        return {"loss": F.mse_loss(self.decoder(z), x) + 0.1 * divergence.mean(), "z": z}


def test_what_a_model_draws_is_the_same_on_any_ranks(cluster, client, tmp_path, monkeypatch):
    """Numbers by the step, the sample and the place: those that a loop has that draws by the same rule."""
    torch.manual_seed(0)
    model = TorchModel(Autoencoder(), {"x": torch.randn(BATCH, 12)})
    exported = tacc.export_model(model.module, model.batch, tmp_path / "model")
    (node,) = (node for node in nodes_of(exported) if node.op == "random")
    node.attrs["shape"] = [SAMPLES, 8]
    step = itertools.count()

    def drawn(like: torch.Tensor) -> torch.Tensor:
        number = torch.tensor(next(step) % STEPS)  # The loop in float64 and that in float32 have the same numbers.
        return torch_interpreter.run_random(node, number, torch.arange(SAMPLES)).to(like.dtype)

    monkeypatch.setattr(torch, "randn_like", drawn)
    trained = train_in_torch(model, exported, ADAMW)
    check_in_fp32(train(submit(client, trained, tmp_path, 1, "one"), trained), trained)
    check_in_fp32(train_killed(cluster, submit(client, trained, tmp_path, 2, "two"), trained), trained)


def test_an_evaluation_draws_as_well(client, tmp_path):
    """By the number of updates: twice the same, and others after the next update."""
    torch.manual_seed(0)
    model = TorchModel(Autoencoder(), {"x": torch.randn(BATCH, 12)})
    trained = export_and_train(model, tmp_path / "model", ADAMW | {"learning_rate": 1e-12})
    job = submit(client, trained, tmp_path, 1, "draws")
    with tacc.Session(job) as session:
        first, again = (session.forward(trained.batches[0], outputs=["z"]).outputs["z"] for _ in range(2))
        session.step(trained.batches[0])
        later = session.forward(trained.batches[0], outputs=["z"]).outputs["z"]
        session.finish()
    job.wait(progress=False)
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == later)


class Sorts(nn.Module):
    """Of operators without an op one is there twice, and all have derivatives."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        best = self.head(x).sort(-1).values
        return {"loss": (best.cumprod(-1) * best.flip(-1).sort(-1).values).mean()}


F32, I64 = 4, 8
ROWS, WHOLE_ROWS = SAMPLES // 2, SAMPLES  # of a rank of two
# Of each operator its number, and the bytes of its results and its derivatives'. A sort and a running product are of a rank's own rows.
OPERATORS = {
    "indexed": {
        "aten::remainder.Scalar": (1, WHOLE_ROWS * 10 * I64),
        "aten::sort.default": (1, ROWS * 12 * (F32 + I64)),
        "aten::sum.dim_IntList": (1, WHOLE_ROWS * I64),
    },
    "sorts": {"aten::cumprod.default": (1, ROWS * 4 * (F32 + F32)), "aten::sort.default": (2, 2 * ROWS * 4 * (F32 + I64 + F32))},
}


@pytest.mark.parametrize("name", OPERATORS)
def test_plans_say_what_operators_of_libtorch_cost(tmp_path, name):
    model = MODELS[name]() if name in MODELS else TorchModel(Sorts(), {"x": torch.randn(2, 4)})
    exported = tacc.export_model(model.module, model.batch, tmp_path / "model")
    trained = Trained(exported, ADAMW, "fp32", [], [], [], "", np.empty(0), {})
    (tmp_path / "job.json").write_text(json.dumps(spec(trained, name, tmp_path, {"fsdp": {"size": 2}}, 2)))
    run = subprocess.run([TACCCTL, "plan", "--local", tmp_path / "job.json", "-o", "json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    plan = json.loads(run.stdout.splitlines()[0])
    rows = plan["libtorch"]
    assert {row["schema"]: (row["count"], row["result_bytes"]) for row in rows} == OPERATORS[name]
    assert [row["seconds"] for row in rows] == sorted((row["seconds"] for row in rows), reverse=True)
    [said] = [words for words in plan["words"] if words.startswith("LibTorch computes what the graph has no op for (aten)")]
    for row in rows:
        assert row["stage"] == 0 and 0 < row["seconds"] < plan["predicted_compute_seconds"]
        assert row["share_of_step"] == pytest.approx(row["seconds"] / plan["predicted_step_seconds"])
        assert row["scratch_bytes"] > row["result_bytes"] / row["count"], "an operator may need its results once more"
        times = f" ({row['count']} times)" if row["count"] > 1 else ""
        [percent] = re.findall(re.escape(row["schema"] + times) + rf" (less than 0\.01|[\d.]+) % and {row['result_bytes']} B", said)
        check_percent(percent, row["share_of_step"])
    [(percent, kib, scratch)] = re.findall(r"about (less than 0\.01|[\d.]+) % of the step, ([\d.]+ \w+) of results and ([\d.]+) KiB of scratch memory", said)
    check_percent(percent, sum(row["share_of_step"] for row in rows))
    total = sum(row["result_bytes"] for row in rows)
    assert kib == (f"{total / 1024:.1f} KiB" if total >= 1024 else f"{total} B")
    assert float(scratch) == pytest.approx(max(row["scratch_bytes"] for row in rows) / 1024, abs=0.05)


def check_percent(said: str, share: float) -> None:
    if said.startswith("less than"):
        assert share < 0.0001
    else:
        assert float(said) == pytest.approx(100 * share, abs=0.5001 * 10 ** -len(said.partition(".")[2]))
