"""What the sections of `tacc.Config` share: names that are checked, values that stay as they are given until a coordinator reads them."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tacc.errors import ConfigError
from tacc.foreign_names import FOREIGN_NAMES
from tacc.torchacc_names import NAMES, SECTIONS


class ConfigNote(UserWarning):
    """An option of TorchAcc's was given that has no meaning here; the message says why. Nothing else changes."""


class Section:
    """Fields of a section of the job file. None, like a field that was never given, leaves it to the planner or its default.

    A name that the section does not have is a `ConfigError` (an AttributeError) with the nearest one, or with what another tool's option is here. Values are checked when a coordinator
    reads the job, by the rules and in the words of the job file.
    """

    _path: ClassVar[str] = ""
    _fields: ClassVar[tuple[str, ...]] = ()
    _sections: ClassVar[dict[str, type[Section]]] = {}
    _notes: ClassVar[dict[str, str]] = {}
    # Sections that mean something without a field, as `lora: {}`; given so, they have a value of the name "".
    _meant_empty: ClassVar[tuple[str, ...]] = ()
    _values: dict[str, Any]

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_values", {name: of() for name, of in self._sections.items()})
        self._take(values)

    def _take(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    if not TYPE_CHECKING:  # Which would let it have any name.

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or name not in self._fields:
                raise self._unknown(name)
            return self._values.get(name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in self._fields:
                raise self._unknown(name)
            if name in self._sections:
                is_meant = value is not None and name in self._meant_empty
                value = self._section(name, value)
                if is_meant:
                    value._values[""] = True
            elif value is not None:
                if name not in self._notes:
                    value = _plain(value, self._dotted(name))
                else:
                    warnings.warn(f"{self._dotted(name)}: {self._notes[name]}", ConfigNote, stacklevel=_caller())
            self._values[name] = value

        def __delattr__(self, name: str) -> None:
            setattr(self, name, None)

    def _section(self, name: str, value: Any) -> Section:
        of = self._sections[name]
        if value is None:
            return of()
        if isinstance(value, of):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self._dotted(name)} wants fields ({', '.join(of._fields)}), not {_shown(value)}")
        section = of()
        section._take(_with_names(value, self._dotted(name)))
        return section

    @classmethod
    def _dotted(cls, name: str) -> str:
        return f"{cls._path}.{name}" if cls._path else name

    def _unknown(self, name: str) -> ConfigError:
        near = difflib.get_close_matches(name, self._fields, 1)
        elsewhere = [of._dotted(name) for of in _all_sections(Section) if name in of._fields]
        if elsewhere:
            hint = f"it belongs at {' or '.join(elsewhere)}"
        elif name in FOREIGN_NAMES:
            hint = FOREIGN_NAMES[name]
        else:
            hint = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(self._fields)}"
        return ConfigError(f'unknown field "{name}"{f" in {self._path}" if self._path else ""}; {hint}')

    def update(self, values: Mapping[str, Any] | Section) -> None:
        """Lays these fields over those that are given, sections within sections: `config.update(plan.best.settings)`. An empty section changes none."""
        for name, value in _with_names(values.to_dict() if isinstance(values, Section) else values, self._path).items():
            if name in self._sections and isinstance(value, Mapping | Section):
                section = getattr(self, name)
                section.update(value)
                if name in self._meant_empty:
                    section._values[""] = True
            else:
                setattr(self, name, value)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._fields]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Self:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copy = type(self).__new__(type(self))
        object.__setattr__(copy, "_values", {})
        for name, value in self._values.items():
            copy._values[name] = deepcopy(value, memo)
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._values)

    def to_dict(self) -> dict[str, Any]:
        """What is given, by the names of the job file; TorchAcc's options without a meaning here are left out."""
        out: dict[str, Any] = {}
        for name in self._fields:
            value = self._values.get(name)
            if isinstance(value, Section):
                value = value.to_dict() or ({} if "" in value._values else None)
            if value is not None and name not in self._notes:
                out[name] = deepcopy(value)
        return out

    def __repr__(self) -> str:
        given = ((name, self._values.get(name)) for name in self._fields)
        shown = [
            f"{name}={value!r}" for name, value in given if value is not None and not (isinstance(value, Section) and not value._is_given())
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _is_given(self) -> bool:
        return any(value._is_given() if isinstance(value, Section) else value is not None for value in self._values.values())


def _all_sections(of: type[Section]) -> list[type[Section]]:
    return [section for child in of.__subclasses__() if child.__module__.startswith("tacc.") for section in (child, *_all_sections(child))]


def _restore(of: type[Section], values: dict[str, Any]) -> Section:
    section = of.__new__(of)
    object.__setattr__(section, "_values", values)
    return section


def _with_names(values: Mapping[Any, Any], path: str) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path or 'a job'}: fields are a dict, not {values!r}")
    for name in values:
        if not isinstance(name, str):
            raise ConfigError(f"{path or 'a job'}: the name of a field is text, not {name!r}")
    return values


def check_names(values: Any) -> None:
    """ConfigError: a job given as a dict has a name that nobody knows. Its notes are said when it is submitted."""
    if isinstance(values, Mapping):
        from tacc.config import Config  # Made of what is here.

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigNote)
            Config(values)


def plain_job(values: Mapping[Any, Any]) -> dict[str, Any]:
    """A job given as a dict, as JSON has it, for a coordinator to check. TorchAcc's options without a meaning here are left out, with a note."""
    return _plain_section(values, "")


def _plain_section(values: Mapping[Any, Any], path: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in _with_names(values, path).items():
        dotted = f"{path}.{name}" if path else name
        if dotted in NAMES:
            if value is not None:
                warnings.warn(f"{dotted}: {NAMES[dotted][1]}", ConfigNote, stacklevel=_caller())
        elif isinstance(value, Section):
            out[name] = value.to_dict()  # As it was given: also an empty one.
        elif isinstance(value, Mapping):
            inner = _plain_section(value, dotted)
            if inner or dotted not in SECTIONS:
                out[name] = inner
        elif value is not None:
            out[name] = _plain(value, dotted)
    return out


def _plain(value: Any, path: str) -> Any:
    """The value as JSON has it: sets and tuples are lists, paths texts, NumPy's and torch's scalars Python's."""
    for of in (bool, str, int, float):
        if isinstance(value, of):
            # Of the type itself: an Enum of texts, or a float of NumPy, is written in another way.
            return value if type(value) is of else of.__str__(value) if of is str else of(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(os.fspath(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, path) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "item") and getattr(value, "size", None) in (1, None):
        try:
            return _plain(value.item(), path)
        except (TypeError, ValueError):
            pass
    if isinstance(value, type):
        raise ConfigError(f'{path}: a class is given by its name, "{value.__name__}"')
    raise ConfigError(f"{path}: {_shown(value)} is no value of a job file; give text, a number, true or false, a list, or a map")


def _shown(value: Any) -> str:
    """The value; of one that would fill the screen, as other tools' configurations, what it is."""
    text = repr(value)
    return text if len(text) <= 100 else f"a {type(value).__name__}"


def quoted(value: Any) -> str:
    """The value as JSON that is YAML too: characters that only JSON may hold as they are, are escaped."""
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


# Of those that json.dumps leaves as they are: DEL, the controls behind it, ends of lines and paragraphs, the mark of byte order.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _caller() -> int:
    """How far up the first frame is that is neither of this package nor of one that calls it, for a warning's place."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("tacc.", "torch.", "transformers.")):
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    return level
