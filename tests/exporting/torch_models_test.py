"""Exported models mean what PyTorch computes: loss, outputs and all gradients in float64, by an interpreter that shares no code with the exporter."""

from __future__ import annotations

import copy
import inspect
import json
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tacc
import torch
import torch.nn.functional as F
from architecture_models import TRAINED
from comparison import EXACT, PLAN, KeepDouble, check_exported, nodes_of, run_graph, torch_interpreter
from safetensors.torch import load_file
from torch import nn
from torch_models import BATCH, LENGTH, MODELS, TorchModel, filled, ids


@pytest.fixture(scope="module")
def exported_model(tmp_path_factory) -> Callable[[str], tuple[tacc.Exported, TorchModel]]:
    folder = tmp_path_factory.mktemp("models")

    @cache
    def of(name: str) -> tuple[tacc.Exported, TorchModel]:
        model = MODELS[name]()
        return tacc.export_model(model.module, model.batch, folder / name.replace(" ", "_"), **model.options), model

    return of


@pytest.mark.parametrize("name", [name for name in MODELS if name not in TRAINED])
def test_loss_outputs_and_gradients(name: str, exported_model):
    check_exported(name, *exported_model(name))


def test_attention_and_norms_are_found_in_each_spelling(exported_model):
    ops = {}
    for name in ("llama", "llama, eager", "mistral, window", "gemma2", "bert, masked", "nn.Transformer"):
        exported, _ = exported_model(name)
        ops[name] = exported.coverage.ops
        text = (exported.folder / "model.graph").read_text()
        assert ("window=4" in text) == (name in ("mistral, window", "gemma2")), name
        assert ("softcap=50.0" in text) == (name == "gemma2")
        assert "softmax" not in ops[name]
    assert ops["llama"] == ops["llama, eager"]
    assert (ops["llama"]["attention"], ops["llama"]["rms_norm"]) == (2, 5)
    assert "broadcast" not in ops["nn.Transformer"]


LOSSES = {
    "cross-entropy": (True, lambda o, b: F.cross_entropy(o, b[1])),
    "of each, then the mean": (True, lambda o, b: F.cross_entropy(o, b[1], reduction="none").mean()),
    "smoothed": (True, lambda o, b: F.cross_entropy(o, b[1], label_smoothing=0.1)),
    "sum / samples": (True, lambda o, b: F.cross_entropy(o, b[1], reduction="sum") / o.shape[0]),
    "two means over elements": (True, lambda o, b: F.mse_loss(o[:, 0], b[1].float()) + 0.3 * o.abs().mean()),
    "KL": (True, lambda o, b: F.kl_div(o.log_softmax(-1), torch.full_like(o, 0.2), reduction="batchmean")),
    "sum": (False, lambda o, b: F.cross_entropy(o, b[1], reduction="sum")),
    "root of a mean": (False, lambda o, b: F.mse_loss(o[:, 0], b[1].float()).sqrt()),
    "contrast in the batch": (False, lambda o, b: F.cross_entropy(o @ o.T, torch.arange(o.shape[0]))),
    "two counts of targets": (False, lambda o, b: F.cross_entropy(o, b[1]) + F.cross_entropy(o[:, :2], b[1].clamp(0, 1))),
    "targets and elements": (False, lambda o, b: F.cross_entropy(o, b[1]) + 0.1 * o.square().mean()),
    "mean over a mask": (False, lambda o, b: (F.cross_entropy(o, b[1], reduction="none") * b[0][:, 0]).sum() / b[0][:, 0].sum()),
    "variance": (False, lambda o, b: (o - o.mean(0)).square().mean()),
    "softmax over samples": (False, lambda o, b: (o[:, 0].softmax(0) * o[:, 0]).mean()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_which_losses_the_parts_of_a_batch_add_up_to(name: str, tmp_path: Path):
    splittable, loss = LOSSES[name]
    batch = (torch.randn(4, 6), torch.tensor([0, 1, 2, -100]))
    exported = tacc.export_model(filled(nn.Linear(6, 5)), batch, tmp_path, loss=loss)
    assert exported.splittable == splittable
    assert ('output "loss" %' in (text := (tmp_path / "model.graph").read_text())) and ("splittable=false" in text) == (not splittable)


class TwoTables(nn.Module):
    """Looks up columns of one input in two tables, and of another in one; the rest of it is a number."""

    def __init__(self):
        super().__init__()
        self.few, self.many, self.head = nn.Embedding(3, 4), nn.Embedding(9, 4), nn.Linear(4, 5)

    def forward(self, columns, mixed, labels):
        x = self.few(columns[:, 0]) + self.many(columns[:, 1]) + self.few(mixed[:, 0]) + mixed[:, 1:].float()
        return {"loss": F.cross_entropy(self.head(x), labels, ignore_index=255)}


def test_inputs_say_which_numbers_they_may_have(tmp_path: Path):
    batch = {"columns": torch.ones(4, 2).long(), "mixed": torch.ones(4, 2).long(), "labels": torch.ones(4).long()}
    exported = tacc.export_model(filled(TwoTables()), batch, tmp_path)
    assert {i.name: (i.limit, i.ignored) for i in exported.inputs} == {"columns": (9, None), "mixed": (None, None), "labels": (5, 255)}
    assert '%labels = input "labels" ignored=255 limit=5 : i64[B]' in (tmp_path / "model.graph").read_text()
    model = MODELS["llama"]()
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert {i.name: (i.limit, i.ignored) for i in exported.inputs} == {"input_ids": (64, None), "labels": (64, -100)}


def test_params_say_what_their_dims_are(exported_model):
    """As those of the families do, so that tensor parallelism splits them."""
    text = (exported_model("llama")[0].folder / "model.graph").read_text()
    for name, said in {
        "model.embed_tokens": "axes=[vocab,embed]",
        "model.layers.0.self_attn.q_proj": "axes=[heads,head_dim,embed]",
        "model.layers.0.self_attn.k_proj": "axes=[kv_heads,head_dim,embed]",
        "model.layers.1.self_attn.o_proj": "axes=[embed,heads,head_dim]",
        "model.layers.1.mlp.up_proj": "axes=[mlp,embed]",
        "model.layers.1.mlp.down_proj": "axes=[embed,mlp]",
        "lm_head": "axes=[vocab,embed]",
    }.items():
        assert f'"{name}.weight" {said}' in text, name
    assert "stored=[16,32] : f32[2,8,32]" in text
    text = (exported_model("bert, masked")[0].folder / "model.graph").read_text()
    assert 'attention.self.query.bias" axes=[heads,head_dim]' in text
    assert 'layer.1.intermediate.dense.bias" axes=[mlp]' in text


def test_token_data(tmp_path: Path):
    """With tokens=, the inputs are those of token data folders."""
    model = MODELS["llama"]()
    exported = tacc.export_model(model.module, {"input_ids": model.batch["input_ids"]}, tmp_path, tokens="input_ids")
    assert [(i.name, i.dtype, i.dims) for i in exported.inputs] == [("tokens", "i32", ["B", "S"]), ("targets", "i32", ["B", "S"])]
    targets = ids(2)
    targets[0, 3] = -1
    with KeepDouble():
        logits = copy.deepcopy(model.module).double()(input_ids=ids()).logits
    wanted = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    stored = {k: v.double() for k, v in load_file(tmp_path / "model.safetensors").items()}
    made = torch_interpreter.run(nodes_of(exported), {"tokens": ids().int(), "targets": targets.int()}, stored)
    assert made["target_tokens"].item() == BATCH * LENGTH - 1
    assert abs(made["loss"].item() / made["target_tokens"].item() - wanted.item()) <= 1e-6 * wanted.item()


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_a_model_has_the_ops_of_its_family(name: str, tmp_path: Path):
    """So the export trains as fast as the folder does. A mixture's weights of experts are normalized by ops of their own."""
    model = MODELS[name]()
    exported = tacc.export_model(model.module, {"input_ids": model.batch["input_ids"]}, tmp_path, tokens="input_ids")
    model.module.save_pretrained(tmp_path / "folder")
    run = subprocess.run([PLAN, "import", "--model", tmp_path / "folder", "--batch", "3", "--seq-len", "10"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    ours, families = (Counter(node.op for node in nodes) for nodes in (nodes_of(exported), torch_interpreter.parse(run.stdout)))
    assert families - ours == Counter()
    assert ours - families == Counter({"output": 1} | ({"reduce_sum": 2, "broadcast": 2, "div": 2} if name == "mixtral" else {}))


def test_shared_parameters_and_modules(tmp_path: Path):
    model = MODELS["gpt2"]()
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert exported.aliases == {"lm_head.weight": "transformer.wte.weight"}
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    described = json.loads((tmp_path / "export.json").read_text())
    assert described["aliases"] == exported.aliases
    text = (tmp_path / "model.graph").read_text()
    assert '"transformer.h.1.mlp.c_fc.weight" axes=[embed,mlp] init="normal(' in text
    assert '"transformer.h.0.attn.c_attn.weight[:,32:64]" axes=[embed,kv_heads,head_dim]' in text
    assert "@transformer.h.1.mlp.c_fc\n" in text


class TwoHeads(nn.Module):
    """The loss needs one head; the other is returned. A layer is not trained."""

    def __init__(self):
        super().__init__()
        self.body, self.used, self.other, self.never = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 2), nn.Linear(2, 2)
        self.body.weight.requires_grad_(False)

    def forward(self, x):
        h = self.body(x)
        return {"loss": self.used(h).mean(), "other": self.other(h)}


def test_what_the_loss_does_not_train(tmp_path: Path):
    exported = tacc.export_model(TwoHeads(), {"x": torch.ones(3, 4)}, tmp_path)
    assert exported.parameters == ["body.bias", "used.weight", "used.bias"]
    assert exported.frozen == ["body.weight", "other.weight", "other.bias"]
    assert exported.notes == ["the graph leaves out never.weight, never.bias: nothing that the model returns depends on them"]
    text = (tmp_path / "model.graph").read_text()
    assert text.count("role=buffer") == 3
    assert 'output "other" %' in text


def test_dropout_is_the_graphs(tmp_path: Path):
    module = filled(nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.25), nn.Linear(12, 3)))
    exported = tacc.export_model(module, (torch.randn(4, 6), torch.randn(4, 3)), tmp_path, loss=lambda o, b: F.mse_loss(o, b[1]))
    text = (tmp_path / "model.graph").read_text()
    assert "dropout %" in text and "rate=0.25" in text
    assert '%sample = input "sample" : i64[B]' in text
    assert [i.name for i in exported.inputs] == ["input", "input1"]


class Maskable(nn.Module):
    """As timm's vision transformers, whose masks are no labels."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x, scale=None, mask=None):
        x = x if scale is None else x * scale
        return self.head(x if mask is None else x * mask)


def test_the_last_of_a_tuple_is_the_losss(tmp_path: Path):
    """If the model can do without; a dict says that it shall not."""
    x, scale, y = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 3)
    for number, (batch, names, is_scaled) in enumerate((((x, y), ["x", "input1"], False), ((x, scale, y), ["x", "scale", "input2"], True))):
        exported = tacc.export_model(filled(Maskable()), batch, tmp_path / str(number), loss=lambda o, b: F.mse_loss(o, b[-1]))
        assert [i.name for i in exported.inputs] == names and ("mul" in exported.coverage.ops) == is_scaled
    named = tacc.export_model(filled(Maskable()), {"x": x, "mask": scale}, tmp_path / "named", loss=lambda o, b: o.square().mean())
    assert [i.name for i in named.inputs] == ["x", "mask"] and "mul" in named.coverage.ops


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: bool):
        super().__init__()
        self.layers = kind(6, 4, num_layers=3, dropout=0.5, **options)
        self.head = nn.Linear(8 if options.get("bidirectional") else 4, 3)

    def forward(self, x, labels):
        if not self.layers.batch_first:
            x = x.transpose(0, 1)
        y, _ = self.layers(x)
        return {"loss": F.cross_entropy(self.head(y[:, -1] if self.layers.batch_first else y[-1]), labels)}


@pytest.mark.parametrize(
    "kind, options", [(nn.LSTM, {"batch_first": True}), (nn.GRU, {"batch_first": True, "bidirectional": True}), (nn.RNN, {})], ids=["lstm", "gru", "rnn"]
)
def test_recurrent_layers_have_dropout_between_them(kind: type[nn.Module], options: dict[str, bool], tmp_path: Path):
    module, batch = filled(Recurrent(kind, **options)), {"x": torch.randn(BATCH, 3, 6), "labels": torch.arange(BATCH) % 3}
    exported = tacc.export_model(module.train(), batch, tmp_path)
    assert exported.any_batch
    assert (tmp_path / "model.graph").read_text().count(" = dropout %") == 2
    made, _ = run_graph(exported, batch)  # without dropout
    module = copy.deepcopy(module).double().eval()
    wanted = module(batch["x"].double(), batch["labels"])["loss"].item()
    assert abs(made["loss"].item() / made["target_tokens"].item() - wanted) <= EXACT * wanted
    tacc.export_model(module.float(), batch, tmp_path)
    assert " = dropout %" not in (tmp_path / "model.graph").read_text()


class DropsWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 6)

    def forward(self, x):
        return {"loss": F.linear(x, F.dropout(self.head.weight, 0.5)).mean()}


def test_dropout_of_a_weight_is_the_same_for_all_samples(tmp_path: Path):
    tacc.export_model(filled(DropsWeights()), {"x": torch.ones(3, 4)}, tmp_path)
    text = (tmp_path / "model.graph").read_text()
    assert "%constant = constant dtype=i64 shape=[1] value=0.0 : i64[1]" in text
    assert "%dropout = dropout %reshape, %step, %constant " in text
    assert 'input "sample"' not in text


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return {"loss": self.head(x).mean()}


def test_control_flow_on_values_is_refused_with_its_line(tmp_path: Path):
    with pytest.raises(tacc.ExportError) as error:
        tacc.export_model(Branches(), {"x": torch.ones(2, 4)}, tmp_path)
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.strip() == "if x.sum() > 0:")
    assert f"{__file__}:{line}, in forward: if x.sum() > 0:" in str(error.value)
    assert "torch.where" in str(error.value)
    assert not (tmp_path / "model.graph").exists()


class Sorts(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        best = self.head(x).sort(-1).values
        return {"loss": best.cumprod(-1).mean()}


def test_ops_without_a_row_are_libtorchs(tmp_path: Path):
    exported = tacc.export_model(Sorts(), {"x": torch.ones(2, 4)}, tmp_path)
    assert exported.coverage.ops["aten"] == 2
    assert 0.0 < exported.coverage.share < 1.0
    assert exported.notes == [
        "LibTorch computes aten.cumprod.default, aten.sort.default, which the graph has no op for: as a rule whole on every rank, however the batch is split"
    ]
    text = (tmp_path / "model.graph").read_text()
    types = "result_dims=[B,4,B,4] result_dtypes=[f32,i64] result_ranks=[2,2]"
    assert f'%aten, %aten.1 = aten %add args=["%0"] {types} schema="aten::sort.default" : f32[B,4], i64[B,4]\n' in text


class Draws(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        x = x + torch.poisson(x)
        return {"loss": (self.head(x) * torch.randperm(4)).mean()}


def test_what_no_graph_can_have_is_named_with_its_line(tmp_path: Path):
    with pytest.raises(tacc.UnsupportedOpsError) as error:
        tacc.export_model(Draws(), {"x": torch.ones(2, 4)}, tmp_path)
    assert [op.op for op in error.value.ops] == ["aten.poisson.default", "aten.randperm.default"]
    assert "in forward: x = x + torch.poisson(x): aten.poisson.default: draws random numbers" in str(error.value)
    assert "in forward: return {\"loss\": (self.head(x) * torch.randperm(4)).mean()}: aten.randperm.default: draws" in str(error.value)
    assert not (tmp_path / "model.graph").exists()


@torch.library.custom_op("mine::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x.clone() / 2


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


halved.register_autograd(lambda ctx, gradient: gradient / 2)


class CallsAPythonOp(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        x = self.head(x)
        x = torch.ops.mine.halved(x)
        return {"loss": x.square().mean()}


def test_an_op_that_is_written_in_python_is_named_with_its_line(tmp_path: Path):
    with pytest.raises(tacc.UnsupportedOpsError) as error:
        tacc.export_model(CallsAPythonOp(), {"x": torch.ones(2, 4)}, tmp_path)
    line = inspect.getsourcelines(CallsAPythonOp.forward)[1] + 2
    assert [op.op for op in error.value.ops] == ["mine.halved.default"]
    assert (
        f"torch_models_test.py:{line}, in forward: x = torch.ops.mine.halved(x): mine.halved.default: an op that is written in Python; put the ops that it "
        "consists of into the model"
    ) in str(error.value)
    assert not list(tmp_path.iterdir())


class Masked(nn.Module):
    """Takes what it must not see out of a softmax by two kinds of constants that are no finite numbers."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(4, 4)
        self.register_buffer("nothing", torch.full((4,), float("-inf")))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        first = torch.arange(4) == 0
        scores = torch.where((x > 0) | first, self.scores(x), torch.tensor(float("-inf")))
        return {"loss": F.mse_loss(torch.softmax(torch.where((x < 1) | first, scores, self.nothing), -1), labels)}


def test_constants_may_be_infinite_and_parameters_not(tmp_path: Path):
    torch.manual_seed(0)
    model = TorchModel(Masked(), {"x": torch.randn(BATCH, 4), "labels": torch.rand(BATCH, 4)})
    check_exported("masked", tacc.export_model(model.module, model.batch, tmp_path), model)
    with torch.no_grad():
        model.module.scores.weight[1, 2] = float("nan")
    with pytest.raises(tacc.InputError, match=r"parameter scores\.weight has values that are not finite"):
        tacc.export_model(model.module, model.batch, tmp_path)


def test_what_does_not_fit(tmp_path: Path):
    with pytest.raises(tacc.InputError, match="the model returns no loss: give loss="):
        tacc.export_model(nn.Linear(2, 2), torch.ones(3, 2), tmp_path)
    with pytest.raises(tacc.InputError, match="what loss= returns is a tensor of 2 dims; wanted a tensor with one element"):
        tacc.export_model(nn.Linear(2, 2), torch.ones(3, 2), tmp_path, loss=lambda outputs, batch: outputs)
    with pytest.raises(tacc.InputError, match="the example batch has no tensor"):
        tacc.export_model(nn.Linear(2, 2), {"x": 3}, tmp_path)
