"""tacc.Config: the fields of the job file and TorchAcc's names; what no coordinator is needed for."""

import copy
import enum
import json
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python"))

import tacc  # noqa: E402
from tacc.torchacc_names import NAMES  # noqa: E402


def fields_of_docs() -> set[str]:
    """Paths of all fields in docs/job.md."""
    found, section = set(), ""
    for line in (ROOT / "docs/job.md").read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ").strip("`")
        elif match := re.match(r"\| `(\w+)` \| ", line):
            found.add(match[1] if section == "Top level" else f"{section}.{match[1]}")
    return found


def fields_of(config, path: str = "") -> set[str]:
    found = set()
    for name in config._fields:
        found.add(f"{path}{name}")
        if name in config._sections:
            found |= fields_of(getattr(config, name), f"{path}{name}.")
    return found


def test_it_has_the_fields_of_the_job_file_and_of_torchacc():
    of_groups = {name for name in fields_of_docs() if name.startswith("train.param_groups.")}  # of each entry of a map
    assert fields_of(tacc.Config()) == fields_of_docs() - of_groups | set(NAMES) | {"dataloader"}


def test_attributes_keywords_dict_and_yaml_say_the_same(tmp_path):
    by_attributes = tacc.Config()
    by_attributes.name = "tiny"
    by_attributes.model.path = Path("model")
    by_attributes.train.learning_rate = 1e-5
    by_attributes.dist.fsdp.size = 4
    by_attributes.dist.fsdp.wrap_layer_cls = {"LlamaDecoderLayer"}
    by_attributes.dist.pins = {"model.*.q_proj": "[tp, -]"}
    by_keywords = tacc.Config(
        name="tiny",
        model=tacc.ModelConfig(path="model"),
        train={"learning_rate": 1e-5},
        dist={"fsdp": {"size": 4, "wrap_layer_cls": ["LlamaDecoderLayer"]}, "pins": {"model.*.q_proj": "[tp, -]"}},
    )
    assert by_attributes == by_keywords
    assert tacc.Config.from_dict(by_attributes.to_dict()) == by_attributes
    path = tmp_path / "job.yaml"
    by_attributes.to_yaml(path)
    assert tacc.Config.from_yaml(path) == by_attributes
    assert copy.deepcopy(by_attributes) == pickle.loads(pickle.dumps(by_attributes)) == by_attributes
    copied = copy.copy(by_attributes)
    copied.dist.fsdp.size = 8
    assert by_attributes.dist.fsdp.size == 4


@pytest.mark.parametrize("text", ["yes", "1e-4", "010", "a: b", "# no", "ünï", "null", "~", "-", "12:30", "2026-01-01", "a\nb", "'", '"', "tab\there", "\x7f", "\x85", "\u2028", "\ufeff", "\x00", "😀"])
def test_any_text_comes_back_from_yaml(tmp_path, text):
    config = tacc.Config(name=text, dist={"pins": {text: text}})
    config.to_yaml(tmp_path / "job.yaml")
    assert tacc.Config.from_yaml(tmp_path / "job.yaml") == config


def test_none_leaves_it_to_the_planner():
    config = tacc.Config(train={"max_steps": 3, "seed": None})
    config.train.max_steps = None
    config.dist = None
    assert config.to_dict() == {}
    assert config.train.max_steps is None and config.dist.fsdp.size is None


class Settings:
    """Of another tool: its repr has pages."""

    def __repr__(self) -> str:
        return "Settings(" + "option=None, " * 100 + ")"


@pytest.mark.parametrize(
    "act, wanted",
    [
        (lambda c: setattr(c.train, "max_stepz", 3), 'unknown field "max_stepz" in train; did you mean "max_steps"?'),
        (lambda c: c.train.max_stepz, 'unknown field "max_stepz" in train; did you mean "max_steps"?'),
        (lambda c: setattr(c, "learning_rate", 3), 'unknown field "learning_rate"; it belongs at train.learning_rate'),
        (lambda c: setattr(c.train, "gc", True), 'unknown field "gc" in train; it belongs at memory.gc'),
        (lambda c: tacc.Config(train={"lr": 1e-3}), 'unknown field "lr" in train; give train.learning_rate'),
        (
            lambda c: setattr(c.train, "gradient_accumulation_steps", 4),
            'unknown field "gradient_accumulation_steps" in train; leave it out: it follows from train.global_batch_size',
        ),
        (lambda c: setattr(c.dist, "fsdp", 4), "dist.fsdp wants fields (size, "),
        (lambda c: setattr(c.train, "seed", object()), "train.seed: <object object"),
        (lambda c: setattr(c.train, "lora", Settings()), "train.lora wants fields (r, lora_alpha, lora_dropout, target_modules, use_rslora, modules_to_save, "),
        (lambda c: setattr(c.train, "seed", Settings()), "train.seed: a Settings is no value of a job file"),
        (lambda c: c.update({"train": {"sead": 1}}), 'unknown field "sead" in train; did you mean "seed"?'),
        (lambda c: tacc.Config({1: 2}), "a job: the name of a field is text, not 1"),
        (lambda c: tacc.Config("job.yaml"), "a job: fields are a dict, not 'job.yaml'"),
        (lambda c: c.update(["train"]), "a job: fields are a dict, not ['train']"),
        (lambda c: setattr(c.dist.fsdp, "wrap_layer_cls", {Path}), 'dist.fsdp.wrap_layer_cls: a class is given by its name, "Path"'),
        (lambda c: setattr(c.dist.fsdp, "size", len), "dist.fsdp.size: <built-in function len> is no value of a job file"),
    ],
)
def test_a_wrong_name_is_an_error_with_the_nearest(act, wanted):
    with pytest.raises(tacc.ConfigError, match="^" + re.escape(wanted)):
        act(tacc.Config())


@pytest.mark.parametrize("path", NAMES)
def test_a_torchacc_option_without_a_meaning_is_accepted_with_a_note(path):
    config = tacc.Config()
    section, _, name = path.rpartition(".")
    target = config
    for part in filter(None, section.split(".")):
        target = getattr(target, part)
    with pytest.warns(tacc.ConfigNote, match=re.escape(f"{path}: ")) as noted:
        setattr(target, name, [1])
    assert noted[0].filename == __file__
    assert getattr(target, name) == [1]
    assert config.to_dict() == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setattr(target, name, None)  # Its default: no note.


def test_a_copy_and_a_dict_share_nothing_with_it():
    config = tacc.Config(dist={"topology": ["dp", "fsdp"], "pins": {"a": "b"}})
    copied, values = copy.deepcopy(config), config.to_dict()
    copied.dist.topology.append("tp")
    values["dist"]["topology"].append("cp")
    values["dist"]["pins"].clear()
    assert config.to_dict() == {"dist": {"topology": ["dp", "fsdp"], "pins": {"a": "b"}}}


def test_values_of_other_types_become_plain_ones(tmp_path):
    """Of NumPy, and Enums of texts as transformers has them."""
    import numpy as np

    class Scheduler(str, enum.Enum):
        COSINE = "cosine"

    config = tacc.Config(train={"max_steps": np.int64(3), "learning_rate": np.float32(0.5), "weight_decay": np.float64(0.1), "lr_scheduler_type": Scheduler.COSINE})
    assert json.dumps(config.to_dict()) == '{"train": {"max_steps": 3, "learning_rate": 0.5, "lr_scheduler_type": "cosine", "weight_decay": 0.1}}'
    assert {type(value) for value in config.to_dict()["train"].values()} == {int, float, str}
    config.to_yaml(tmp_path / "job.yaml")
    assert tacc.Config.from_yaml(tmp_path / "job.yaml") == config


@pytest.mark.parametrize("text", ["name: a\nname: b\n", "name: a\ntrain: {max_steps: 1, max_steps: 2}\n", "? [a]\n: b\n", "[a]", "a: ["])
def test_yaml_that_says_two_things_or_none_is_an_error(tmp_path, text):
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(tacc.ConfigError, match=r"is there twice|unhashable|is a map of fields|expected"):
        tacc.Config.from_yaml(tmp_path / "job.yaml")


def test_update_lays_over_what_is_given():
    config = tacc.Config(name="a", dist={"fsdp": {"size": 2}, "tp": {"size": 2}})
    config.update({"dist": {"fsdp": {"size": 4}}, "train": {"seed": 1}})
    assert config.to_dict() == {"name": "a", "train": {"seed": 1}, "dist": {"fsdp": {"size": 4}, "tp": {"size": 2}}}
    config.update({"name": "b", "dist": {}, "train": {"lora": {}}})  # Nothing of a section: nothing of it changes.
    config.update(tacc.Config(train={"max_steps": 3}))
    config.update({"train": tacc.TrainConfig(seed=2, lora={"r": 4}), "dist": tacc.DistConfig()})
    config.update({"train": {"lora": {}}})
    train = {"max_steps": 3, "seed": 2, "lora": {"r": 4}}
    assert config.to_dict() == {"name": "b", "train": train, "dist": {"fsdp": {"size": 4}, "tp": {"size": 2}}}
    config.update({"train": None})
    assert config.train.to_dict() == {}


def test_a_section_that_means_something_without_a_field():
    """`lora: {}` takes its defaults; without it nothing is adapted."""
    config = tacc.Config(train={"max_steps": 3, "lora": {}})
    assert config.to_dict() == {"train": {"max_steps": 3, "lora": {}}}
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == tacc.Config.from_dict(config.to_dict()) == config
    assert "lora: {}" in config.to_yaml() and "lora=LoraConfig()" in repr(config)
    config.train.lora = None
    assert config.to_dict() == {"train": {"max_steps": 3}}
    config.update({"train": {"lora": {}}})
    config.train.lora.r = 4
    assert config.to_dict() == {"train": {"max_steps": 3, "lora": {"r": 4}}}
    config.train.lora = tacc.LoraConfig()
    assert config.to_dict() == {"train": {"max_steps": 3, "lora": {}}}


def test_the_sections_are_documented():
    assert "Peak learning rate. (more than 0; at most 1e+37; default 5e-05)" in tacc.TrainConfig.__doc__
    assert "tokens" in tacc.DataConfig.__doc__


def test_importing_is_cheap():
    """No module but the package's own: a notebook's first cell does not wait for gRPC, NumPy or torch."""
    out = subprocess.run(
        [sys.executable, "-c", "import sys, tacc; print([m for m in ('grpc', 'numpy', 'torch', 'google.protobuf') if m in sys.modules])"],
        capture_output=True, text=True, check=True, cwd=ROOT / "client/python",
    )
    assert out.stdout.strip() == "[]"


def test_the_version_is_the_build_s():
    assert re.search(r"project\(\s*tacc\s+VERSION\s+([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1] == tacc.__version__
