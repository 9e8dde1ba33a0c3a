"""docs/python-api.md: fresh, and every public name, argument and field of the package is described."""

import dataclasses
import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python"))

import api_docs  # noqa: E402
import tacc  # noqa: E402
from tacc.config_base import Section  # noqa: E402

PUBLIC = {name: value for names in api_docs.public_names().values() for name, value in names.items()}


def test_the_page_is_fresh():
    assert (ROOT / "docs/python-api.md").read_text() == api_docs.page(), "docs/python-api.md is stale; run `ninja -C build docs`"


def test_it_has_every_name():
    assert {name for name in tacc.__all__ if name != "__version__"} <= set(PUBLIC)
    page = (ROOT / "docs/python-api.md").read_text()
    for name, value in PUBLIC.items():
        assert f"\n## {name}\n" in page
        for method in api_docs.method_names(value) if inspect.isclass(value) else []:
            assert f"\n### {name}.{method}\n" in page or re.search(rf"\n- `{method}`: as \[", page), f"{name}.{method}"


def functions():
    for name, value in PUBLIC.items():
        if inspect.isfunction(value):
            yield name, value, value.__doc__
        if not inspect.isclass(value):
            continue
        if "__init__" in vars(value) and not issubclass(value, Exception | Section) and not dataclasses.is_dataclass(value):
            yield name, value.__init__, value.__doc__
        for method in api_docs.method_names(value):
            member = inspect.getattr_static(value, method)
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            yield f"{name}.{method}", function, function.__doc__


# Made by methods of others, never by a user.
MADE_BY_OTHERS = {"Job", "AsyncJob", "Plan", "Comparison", "FitResult", "StagedBatch"}


def test_every_argument_is_described():
    missing = []
    for name, function, text in functions():
        doc = api_docs.Doc(text or "")
        said = doc.named("Args") | {word: "" for word in re.findall(r"`(\w+)`", " ".join(doc.text))}
        arguments = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
        same = re.match(r"As `\w+\.\w+`\.", text or "") or "as `Client`" in (text or "")
        if not doc.text or (not same and name not in MADE_BY_OTHERS):
            missing += [f"{name}: {argument}" for argument in arguments if argument not in said] + ([] if doc.text else [name])
    assert missing == []


def test_every_field_is_described():
    missing = []
    for name, value in PUBLIC.items():
        if not inspect.isclass(value):
            continue
        doc = api_docs.Doc(value.__doc__ or "")
        if issubclass(value, Section) and value is not tacc.Config:
            missing += [f"{name}.{field}" for field in value._fields if not doc.named("Attributes").get(field)]
        if dataclasses.is_dataclass(value):
            missing += [f"{name}.{field.name}" for field in dataclasses.fields(value) if not doc.named("Attributes").get(field.name)]
        if not doc.text or doc.text[0] == f"{name}.":
            missing.append(name)
    assert missing == []
