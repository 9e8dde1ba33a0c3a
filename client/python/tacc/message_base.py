"""What the dataclasses of `tacc.messages` share."""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any, ClassVar, Self

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtobufMessage

_LISTS_IN_REPR = 3


def word(field: FieldDescriptor, number: int) -> str:
    """An enum value as job files and `taccctl -o json` write it: PHASE_RUNNING is "running"."""
    values = field.enum_type.values_by_number
    if number not in values:
        return str(number)  # Of a newer coordinator.
    prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
    return str(values[number].name.removeprefix(prefix).lower())


def to_plain(message: ProtobufMessage) -> dict[str, Any]:
    """The message as `taccctl -o json` writes it: fields that are not set, and have no default, are left out."""
    return {field.name: _plain(getattr(message, field.name), field) for field in message.DESCRIPTOR.fields if _is_there(message, field)}


def _is_there(message: ProtobufMessage, field: FieldDescriptor) -> bool:
    return not field.has_presence or message.HasField(field.name)


def _plain(value: Any, field: FieldDescriptor) -> Any:
    of = field.message_type
    if of is not None and of.GetOptions().map_entry:
        return {key: _plain_one(value[key], of.fields_by_name["value"]) for key in sorted(value)}
    if field.is_repeated:
        return [_plain_one(item, field) for item in value]
    return _plain_one(value, field)


def _plain_one(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return to_plain(value)
    return word(field, value) if field.enum_type is not None else value


def _set_ones(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if value is not None}


class Message:
    """A frozen dataclass with the fields of a protobuf message of the same content."""

    __slots__ = ()
    _inner: ClassVar[dict[type, dict[str, type]]] = {}

    @classmethod
    def from_proto(cls, message: ProtobufMessage) -> Self:
        """The dataclass of `message`; a field that is not set is None, and one of a newer coordinator is left out."""
        inner = cls._classes()
        values: dict[str, Any] = {}
        fields = message.DESCRIPTOR.fields_by_name
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            name, descriptor = field.name, fields[field.name]
            if not _is_there(message, descriptor):
                values[name] = None
            elif (of := inner.get(name)) is None:
                values[name] = _plain(getattr(message, name), descriptor)
            elif descriptor.is_repeated:
                values[name] = [of.from_proto(item) for item in getattr(message, name)]
            else:
                values[name] = of.from_proto(getattr(message, name))
        return cls(**values)

    @classmethod
    def _classes(cls) -> dict[str, type[Message]]:
        """Fields that are messages, or lists of them, with their class."""
        if cls not in Message._inner:
            found: dict[str, type] = {}
            for name, hint in typing.get_type_hints(cls).items():
                for option in (hint, *typing.get_args(hint)):
                    if isinstance(option, type) and issubclass(option, Message):
                        found[name] = option
            Message._inner[cls] = found
        return Message._inner[cls]

    def to_dict(self) -> dict[str, Any]:
        """Names and values, as `taccctl -o json` prints them; what is not set is left out."""
        return dict(dataclasses.asdict(self, dict_factory=_set_ones))  # type: ignore[call-overload]

    def __repr__(self) -> str:
        shown = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value in (None, "", [], {}) or (isinstance(value, float) and math.isnan(value)):
                continue
            if isinstance(value, float):
                value = round(value, 3) if field.name.endswith("time") else float(f"{value:.6g}")
            if isinstance(value, list) and len(value) > _LISTS_IN_REPR:
                shown.append(f"{field.name}=[{len(value)} items]")
            elif isinstance(value, Message):
                shown.append(f"{field.name}={type(value).__name__}(...)")
            elif isinstance(value, dict) and len(value) > _LISTS_IN_REPR:
                shown.append(f"{field.name}={{{len(value)} items}}")
            else:
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"
