"""`tacc.Config`: a job, by attributes, keywords, a dict or YAML. It has the fields of the job file and the names of TorchAcc's `Config`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacc.config_base import ConfigNote, _with_names, quoted
from tacc.config_sections import *  # noqa: F403
from tacc.config_sections import JobConfig
from tacc.errors import ConfigError

__all__ = ["Config", "ConfigNote"]


class Config(JobConfig):
    """A job: what to train, on which data, how, and how it is laid out. The fields are those of docs/job.md.

        config = tacc.Config(name="tiny", model={"path": "model"}, data={"path": "data"}, train={"max_steps": 1000})
        config.compute.bf16 = True
        config.dist.fsdp.size = 4
        job = tacc.Client().submit(config)

    What is None or not given, the planner decides. Options of TorchAcc that have no meaning here are accepted with a `ConfigNote` (a warning)
    that says why. A name that nobody knows is a `ConfigError` with the nearest one; values are checked by the coordinator, in the words of
    the job file: `Client.check`, `Client.plan` and `Client.submit` raise `InvalidJobError` with every problem.

    Relative paths are taken from the current folder when the job is submitted, or from the folder of the file that `from_yaml` read.
    """

    _directory: str | None

    def __init__(self, values: Mapping[str, Any] | None = None, **fields: Any) -> None:
        super().__init__()
        object.__setattr__(self, "_directory", None)
        self._take(_with_names({} if values is None else values, ""))
        self._take(fields)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """The config with these fields.

        Args:
            values: Names of the job file with their values, sections as dicts within.

        Raises:
            ConfigError: A name that nobody knows.
        """
        return cls(values)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Config:
        """The config in a job file. (`Client.submit(path)` needs no PyYAML, and its messages have line and column.)

        Args:
            path: The file, YAML. Relative paths in it are taken from its folder.

        Raises:
            ConfigError: It is no YAML, no map of fields, or has a name twice or one that nobody knows.
            OSError: It cannot be read.
            ImportError: There is no PyYAML.
        """
        try:
            import yaml
        except ImportError as error:
            raise ImportError("Config.from_yaml needs PyYAML: pip install pyyaml; or submit the path itself") from error
        with open(path, encoding="utf-8") as file:
            try:
                values = yaml.load(file, Loader=_loader(yaml))
            except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
                raise ConfigError(f"{os.fspath(path)}: {error}") from error
        if not isinstance(values, Mapping):
            raise ConfigError(f"{os.fspath(path)}: a job file is a map of fields (name, model, data, train, ...)")
        config = cls(values)
        object.__setattr__(config, "_directory", str(Path(path).absolute().parent))
        return config

    def to_yaml(self, path: str | os.PathLike[str] | None = None) -> str:
        """The job file that says the same. Relative paths stay as they are.

        Args:
            path: Where it is written too. None: nowhere.
        """
        text = _yaml(self.to_dict(), "")
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @property
    def directory(self) -> str:
        """From where relative paths are taken."""
        return self._directory or os.getcwd()

    def __deepcopy__(self, memo: dict[int, Any]) -> Config:
        copy = super().__deepcopy__(memo)
        object.__setattr__(copy, "_directory", self._directory)
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_config, (self._values, self._directory)


def _restore_config(values: dict[str, Any], directory: str | None) -> Config:
    config = Config()
    object.__setattr__(config, "_values", values)
    object.__setattr__(config, "_directory", directory)
    return config


def _loader(yaml: Any) -> Any:
    """YAML as the job file has it: true and false are the booleans, 1e-4 is a number, 010, 0x10, 1_000 and 1:30 are texts, not numbers, and a
    name that is there twice is an error."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen:
                    raise yaml.constructor.ConstructorError(None, None, f'"{name}" is there twice', key.start_mark)
                seen.add(name)
            return super().construct_mapping(node, deep)

    tag = "tag:yaml.org,2002:"
    kept = (f"{tag}null", f"{tag}merge")
    Loader.yaml_implicit_resolvers = {
        first: [rule for rule in rules if rule[0] in kept] for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    digits = list("-.0123456789")
    Loader.add_implicit_resolver(f"{tag}bool", re.compile("^(?:true|false)$"), list("tf"))
    Loader.add_implicit_resolver(f"{tag}int", re.compile("^-?(?:0|[1-9][0-9]*)$"), digits)
    number = r"^-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"
    Loader.add_implicit_resolver(f"{tag}float", re.compile(number), digits)
    return Loader


def _yaml(values: Mapping[str, Any], indent: str) -> str:
    out = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            out.append(f"{indent}{_key(name)}:\n{_yaml(value, indent + '  ')}")
        else:
            out.append(f"{indent}{_key(name)}: {_scalar(value)}\n")
    return "".join(out)


# Words that YAML may read as something else.
_SPECIAL = ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity")


def _key(name: str) -> str:
    return name if re.fullmatch("[a-z][a-z0-9_]*", name) and name not in _SPECIAL else quoted(name)


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, str) and re.fullmatch(r"[a-zA-Z/][\w./-]*", value, re.ASCII) and value.lower() not in _SPECIAL:
        return value
    return quoted(value)
