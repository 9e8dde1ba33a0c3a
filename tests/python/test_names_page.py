"""docs/names.md: every name of another tool that is known here is on the page, with the words that a job file's reader and `tacc.Config` have for it."""

import dataclasses
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python"))

import pytest  # noqa: E402
import tacc  # noqa: E402
from tacc.foreign_names import FOREIGN_NAMES  # noqa: E402
from tacc.torchacc_names import NAMES  # noqa: E402

# Options of TrainingArguments of the installed transformers that mean nothing for a training here, and of which nothing is to be said.
WITHOUT_A_MEANING: set[str] = set()


def page_rows() -> dict[str, dict[str, str]]:
    """Tool -> option, without its section -> what is written of it, without marks."""
    found: dict[str, dict[str, str]] = {}
    for section in (ROOT / "docs/names.md").read_text().split("\n## ")[1:]:
        rows = found.setdefault(section.splitlines()[0], {})
        for names, here in re.findall(r"^\| (.+?) \| (.+) \|$", section, re.M):
            if here == "here":
                continue
            for name in re.findall(r"`([\w.]+)`", names):
                rows[name if section.startswith("From TorchAcc") else name.rsplit(".", 1)[-1]] = here.replace("`", "")
    return found


def as_written(words: str) -> str:
    """The reader's words as the page has them."""
    words = words.removeprefix("give ").replace("`", "")
    return re.sub("^leave it out(?=$|:|, or give|;)", "nothing", words).replace("nothing, or give", "nothing, or")


def fields() -> dict[str, list[str]]:
    """Name of a field of the job file -> its paths."""
    found: dict[str, list[str]] = {}

    def walk(section, path: str) -> None:
        for name in section._fields:
            if name in section._sections:
                found.setdefault(name, []).append(f"{path}{name}")
                walk(section._sections[name], f"{path}{name}.")
            elif f"{path}{name}" not in NAMES:
                found.setdefault(name, []).append(f"{path}{name}")

    walk(tacc.Config, "")
    return found


def test_every_foreign_name_is_on_the_page_in_the_reader_s_words():
    assert len(FOREIGN_NAMES) > 300
    tables = page_rows()
    torchacc = {path.rsplit(".", 1)[-1] for path in NAMES} | {"dataloader"}
    for name, words in FOREIGN_NAMES.items():
        rows = [rows[name] for tool, rows in tables.items() if name in rows and tool != "From TorchAcc"]
        assert rows or name in torchacc, f"{name} is not in docs/names.md: {as_written(words)}"
        assert set(rows) <= {as_written(words)}, f"docs/names.md: {name} is not what jobfile/foreign_names.cc says"


def test_every_option_of_torchacc_is_on_the_page():
    rows = page_rows()["From TorchAcc"]
    assert {path: f"nothing: {note}" for path, (_, note) in NAMES.items()} == {path: rows.get(path) for path in NAMES}


def test_every_option_of_training_arguments_is_on_the_page():
    import transformers

    rows = page_rows()["From Trainer (`TrainingArguments`)"]
    options = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert options - set(rows) == WITHOUT_A_MEANING


def test_the_options_of_adapters_are_peft_s():
    peft = pytest.importorskip("peft", reason="the page has names of peft, and it is not installed")
    assert set(page_rows()["From peft (`LoraConfig`)"]) <= {field.name for field in dataclasses.fields(peft.LoraConfig)}


def test_what_is_called_the_same_is_a_field():
    known = fields()
    for tool, rows in page_rows().items():
        for name, here in rows.items():
            if tool != "From TorchAcc" and name not in FOREIGN_NAMES and name != "fsdp":
                assert here in known[name], f"{tool}: {name}: {here} is no field of that name"


def test_every_field_on_the_page_is_one():
    paths = {path for of in fields().values() for path in of}
    sections = {path.rsplit(".", 1)[0] for path in paths if "." in path} | {"dist"}
    text = (ROOT / "docs/names.md").read_text()
    for path in re.findall(r"`((?:train|data|dist|memory|compute|checkpoint|model|resources|eval)\.[a-z_0-9.]+)`(?=[^|\n]*\|$)", text, re.M):
        assert path in paths | sections | set(NAMES), f"docs/names.md: {path} is no field of a job file"
