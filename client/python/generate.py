"""Writes the parts of the package that follow from proto/ and jobfile/: gRPC stubs, the sections of `tacc.Config`, what jobs say of
themselves, names of other tools.

    python generate.py PROTO_DIR OUT_DIR

PROTO_DIR holds tacc/v1/*.proto. OUT_DIR is the folder of the package `tacc`; written are `v1/` (protobuf's modules, the stub of the
coordinator's service, and their types), `config_sections.py`, `messages.py`, and `foreign_names.py` from
PROTO_DIR/../jobfile/foreign_names.cc. The build and the wheel run it; needs grpcio-tools.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

HEADER = '"""{doc}\n\nGenerated from proto/ by generate.py."""\n\nfrom __future__ import annotations\n\n'
PROTOS = ("options", "job", "worker", "coordinator")
SCALARS = {Field.TYPE_DOUBLE: "float", Field.TYPE_FLOAT: "float", Field.TYPE_BOOL: "bool", Field.TYPE_STRING: "str"}
# What `messages.py` holds: these, and what they are made of. A JobSpec is a dict, as the job file has it.
ROOTS = ("Job", "StepMetrics", "EvalMetrics", "JobEvent", "LogLine", "WorkerView", "GetVersionResponse")
RENAMED = {"Job": "JobStatus", "GetVersionResponse": "CoordinatorVersion", "WorkerView": "Worker", "RankView": "Rank"}


def protoc(proto: Path, arguments: list[str]) -> None:
    from grpc_tools import protoc as compiler

    known = str(resources.files("grpc_tools") / "_proto")
    files = [f"tacc/v1/{name}.proto" for name in PROTOS]
    if compiler.main(["protoc", f"-I{proto}", f"-I{known}", *arguments, *files]) != 0:
        raise SystemExit(f"generate.py: {proto}/tacc/v1: protoc failed, see above")


class Schema:
    """Messages and enums of proto/, with their comments."""

    def __init__(self, proto: Path):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "set"
            protoc(proto, [f"--descriptor_set_out={out}", "--include_source_info", "--include_imports"])
            files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
        self.messages: dict[str, descriptor_pb2.DescriptorProto] = {}
        self.enums: dict[str, descriptor_pb2.EnumDescriptorProto] = {}
        self._comments: dict[tuple[str, int], str] = {}
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
            comments = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
            for i, message in enumerate(file.message_type):
                self.messages[message.name] = message
                self._comments[message.name, -1] = comments.get((4, i), "")
                for k in range(len(message.field)):
                    self._comments[message.name, k] = comments.get((4, i, 2, k), "")
            for enum in file.enum_type:
                self.enums[enum.name] = enum
        message_factory.GetMessageClassesForFiles([file.name for file in files.file], pool)  # Makes extensions known.
        self._rule = pool.FindExtensionByName("tacc.v1.rule")
        self._options = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FieldOptions"))

    def comment(self, message: str, field: int = -1) -> str:
        return " ".join(self._comments[message, field].split())

    def rule(self, field: Field):
        return self._options.FromString(field.options.SerializeToString()).Extensions[self._rule]

    def values(self, enum: str) -> list[str]:
        """Values as the job file writes them; the first, which stands for an unset field, last."""
        names = [value.name for value in self.enums[enum].value]
        prefix = names[0].removesuffix("UNSPECIFIED")
        words = [name.removeprefix(prefix).lower() for name in names]
        return words[1:] + words[:1]

    def map_entry(self, message: str, field: Field) -> descriptor_pb2.DescriptorProto | None:
        entry = field.type_name.rsplit(".", 1)[-1]
        nested = {inner.name: inner for inner in self.messages[message].nested_type}
        return nested.get(entry) if field.type == Field.TYPE_MESSAGE else None


def type_name(field: Field) -> str:
    return field.type_name.rsplit(".", 1)[-1]


def number(value: float) -> str:
    return f"{value:.12g}"


def wrapped(text: str, first: str, rest: str) -> str:
    return "\n".join(
        textwrap.wrap(text, 120, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    )


def docstring(text: str, items: list[tuple[str, str]]) -> str:
    out = [wrapped(f'"""{text}', "    ", "    ")]
    if items:
        out.append("\n    Attributes:")
        out += [wrapped(f"{name}: {meaning}", " " * 8, " " * 12) for name, meaning in items]
    return ("\n".join(out) + ('\n    """\n' if items else '"""\n')).replace("\\", "\\\\")


# --- config_sections.py -----------------------------------------------------------------------------------------------


def config_class(message: str) -> str:
    name = message.removesuffix("Spec")
    return f"{name.upper() if len(name) <= 2 or name == 'Fsdp' else name}Config" if message != "JobSpec" else "JobConfig"


def config_type(schema: Schema, message: str, field: Field) -> str:
    if entry := schema.map_entry(message, field):
        return "Mapping[str, Mapping[str, object]]" if entry.field[1].type == Field.TYPE_MESSAGE else "Mapping[str, str]"
    if field.label == Field.LABEL_REPEATED:
        of = "str" if field.type == Field.TYPE_STRING else SCALARS.get(field.type, "int")
        return f"Iterable[{of}] | {of}"
    if field.type == Field.TYPE_ENUM:
        return "Literal[" + ", ".join(f'"{value}"' for value in schema.values(type_name(field))[:-1]) + "]"
    if schema.rule(field).path:
        return "str | os.PathLike[str]"
    return SCALARS.get(field.type, "int")


def meaning(schema: Schema, message: str, index: int) -> str:
    """What a field of the job file means: its comment, its bounds and unit, and what stands for it when it is left out."""
    field = schema.messages[message].field[index]
    rule = schema.rule(field)
    bounds = [rule.unit] if rule.unit else []
    for name, words in (("min", "at least"), ("above", "more than"), ("max", "at most"), ("below", "less than")):
        if rule.HasField(name):
            bounds.append(f"{words} {number(getattr(rule, name))}")
    if field.HasField("default_value"):
        default = field.default_value
        if field.type == Field.TYPE_ENUM:
            default = default.removeprefix(schema.enums[type_name(field)].value[0].name.removesuffix("UNSPECIFIED")).lower()
        bounds.append(f"default {default}")
    elif rule.required:
        bounds.append("required")
    elif rule.unset:
        bounds.append(f"when left out: {rule.unset}")
    text = schema.comment(message, index)
    return f"{text} ({'; '.join(bounds)})" if bounds else text


def sections(schema: Schema, message: str, path: str) -> Iterator[tuple[str, str]]:
    """Messages of the job file with their paths, inner ones first."""
    for field in schema.messages[message].field:
        if field.type == Field.TYPE_MESSAGE and not schema.map_entry(message, field):
            yield from sections(schema, type_name(field), f"{path}.{field.name}".lstrip("."))
    yield message, path


def config_sections(schema: Schema, foreign: dict) -> str:
    out = [HEADER.format(doc="The sections of `tacc.Config`: the fields of the job file (docs/job.md), and TorchAcc's names.")]
    out.append("import os\nfrom collections.abc import Iterable, Mapping, Sequence\nfrom typing import TYPE_CHECKING, Literal, TypedDict\n\n")
    out.append("from tacc.config_base import Section\n")
    names: list[str] = []

    def emit(
        name: str, path: str, doc: str, fields: list[tuple[str, str, str]], inner: dict[str, str], notes: dict[str, str], meant_empty: tuple[str, ...] = ()
    ) -> None:
        names.append(name)
        out.append(f"\n\nclass {name}(Section):\n")
        out.append(docstring(doc, [(field, text) for field, _, text in fields]))
        out.append(f"\n    _path = {path!r}\n    _fields = {tuple(field for field, _, _ in fields)!r}\n")
        out.append("    _sections = {" + ", ".join(f'"{field}": {type_}' for field, type_ in inner.items()) + "}\n")
        out.append(f"    _notes = {notes!r}\n")
        if meant_empty:
            out.append(f"    _meant_empty = {meant_empty!r}\n")
        for field, type_, _ in fields:
            if field not in inner:
                out.append(f"    {field}: {type_} | None\n")
        out.append("\n    if TYPE_CHECKING:\n")
        for field, type_ in inner.items():
            out.append(f"        @property\n        def {field}(self) -> {type_}: ...\n")
            out.append(f"        @{field}.setter\n        def {field}(self, value: {type_} | Mapping[str, object] | None) -> None: ...\n")
        arguments = [
            f"{field}: {f'{type_} | Mapping[str, object]' if field in inner else type_} | None = None" for field, type_, _ in fields
        ]
        out.append("        def __init__(self, *, " + ", ".join(arguments) + ") -> None: ...\n")

    for path, doc in foreign["SECTIONS"].items():
        own = {key.rsplit(".", 1)[-1]: value for key, value in foreign["NAMES"].items() if key.startswith(f"{path}.")}
        fields = [(field, type_, f"Of TorchAcc; accepted: {note}.") for field, (type_, note) in own.items()]
        emit("DataLoaderConfig", path, doc, fields, {}, {field: note for field, (_, note) in own.items()})
    for message, path in sections(schema, "JobSpec", ""):
        fields, inner, notes = [], {}, {}
        for index, field in enumerate(schema.messages[message].field):
            if field.type == Field.TYPE_MESSAGE and not schema.map_entry(message, field):
                inner[field.name] = config_class(type_name(field))
            type_ = inner.get(field.name) or config_type(schema, message, field)
            fields.append((field.name, type_, meaning(schema, message, index)))
        for key, (type_, note) in foreign["NAMES"].items():
            section, _, field = key.rpartition(".")
            if section == path:
                fields.append((field, type_, f"Of TorchAcc; accepted: {note}."))
                notes[field] = note
        if path == "":
            for section, doc in foreign["SECTIONS"].items():
                fields.append((section, "DataLoaderConfig", doc))
                inner[section] = "DataLoaderConfig"
        meant_empty = tuple(field.name for field in schema.messages[message].field if schema.rule(field).presence)
        emit(config_class(message), path, schema.comment(message), fields, inner, notes, meant_empty)
    out.append(train_options(schema))
    out.append("\n\n__all__ = [\n" + "".join(f'    "{name}",\n' for name in [*names, "TrainOptions"]) + "]\n")
    return "".join(out)


def train_options(schema: Schema) -> str:
    """The fields of the section `train` as keyword arguments."""
    out = ['\n\nclass TrainOptions(TypedDict, total=False):\n    """Keyword arguments with the fields of `train` (`TrainConfig` says what they mean)."""\n\n']
    for field in schema.messages["TrainSpec"].field:
        is_section = field.type == Field.TYPE_MESSAGE and not schema.map_entry("TrainSpec", field)
        of = "Mapping[str, object]" if is_section else config_type(schema, "TrainSpec", field)
        out.append(f"    {field.name}: {of} | None\n")
    return "".join(out)


# --- messages.py ------------------------------------------------------------------------------------------------------


def message_class(message: str) -> str:
    return RENAMED.get(message, message)


def message_type(schema: Schema, message: str, field: Field) -> str:
    if entry := schema.map_entry(message, field):
        return f"dict[str, {message_type(schema, message, entry.field[1])}]"
    if field.type == Field.TYPE_ENUM:
        one = "Literal[" + ", ".join(f'"{value}"' for value in schema.values(type_name(field))) + "]"
    elif field.type == Field.TYPE_MESSAGE:
        one = "dict[str, Any]" if type_name(field) == "JobSpec" else message_class(type_name(field))
    else:
        one = SCALARS.get(field.type, "int")
    if field.label == Field.LABEL_REPEATED:
        return f"list[{one}]"
    return f"{one} | None" if is_optional(field) else one


def is_optional(field: Field) -> bool:
    return field.proto3_optional or (field.type == Field.TYPE_MESSAGE and field.label != Field.LABEL_REPEATED)


def needed(schema: Schema, message: str, seen: list[str]) -> None:
    """Appends the message and what it is made of to `seen`, inner ones first."""
    for field in schema.messages[message].field:
        of = schema.map_entry(message, field)
        for inner in of.field if of else [field]:
            if inner.type == Field.TYPE_MESSAGE and type_name(inner) not in ("JobSpec", *seen):
                needed(schema, type_name(inner), seen)
    if message not in seen:
        seen.append(message)


def messages(schema: Schema) -> str:
    out = [HEADER.format(doc="What the coordinator says of jobs and workers. Times are seconds since the epoch (docs/json.md).")]
    out.append("from dataclasses import dataclass\nfrom typing import Any, Literal\n\nfrom tacc.message_base import Message\n")
    order: list[str] = []
    for root in ROOTS:
        needed(schema, root, order)
    for message in order:
        fields = schema.messages[message].field
        items = [(field.name, schema.comment(message, i)) for i, field in enumerate(fields) if schema.comment(message, i)]
        out.append(f"\n\n@dataclass(frozen=True, kw_only=True, slots=True, repr=False)\nclass {message_class(message)}(Message):\n")
        out.append(docstring(schema.comment(message) or f"{message_class(message)}.", items))
        out.append("\n" if fields else "")
        for field in fields:
            out.append(f"    {field.name}: {message_type(schema, message, field)}\n")
    out.append("\n\n__all__ = [\n" + "".join(f'    "{message_class(name)}",\n' for name in order) + "]\n")
    return "".join(out)


def foreign_names(table: Path) -> str:
    """The names of other tools with what to do instead, in the words of the job file's reader."""
    text = r'"(?:[^"\\]|\\.)*"'
    found: dict[str, str] = {}
    groups = table.read_text(encoding="utf-8").split("kGroups[] = {")[1].split("\n};")[0]
    for group in re.findall(rf"\{{((?:\s*{text})+),((?:\s*{text})+),\s*({text})\}}", groups):
        names, words, field = ("".join(part[1:-1] for part in re.findall(text, parts)) for parts in group)
        found |= dict.fromkeys(names.split(), words or f"give {field}")
    lines = "".join(f"    {name!r}: {words!r},\n" for name, words in found.items())
    return (
        '"""Names of other tools, and what to do instead.\n\nGenerated from jobfile/foreign_names.cc by generate.py."""\n\n'
        f"FOREIGN_NAMES: dict[str, str] = {{\n{lines}}}\n"
    )


def replace(made: Path, folder: Path) -> None:
    """Moves the files into the folder, one by one: who imports from it meanwhile finds each, old or new. Others are removed."""
    folder.mkdir(exist_ok=True)
    names = {file.name for file in made.iterdir()}
    for name in names:
        os.replace(made / name, folder / name)
    for file in folder.iterdir():
        if file.name not in names and file.name != "__pycache__":
            file.unlink()


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    proto, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    schema = Schema(proto)
    foreign = runpy.run_path(str(Path(__file__).parent / "tacc/torchacc_names.py"))
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        protoc(proto, [f"--python_out={folder}", f"--pyi_out={folder}", f"--grpc_python_out={folder}"])
        made = Path(folder) / "tacc/v1"
        (made / "__init__.py").touch()
        for unused in ("options", "job", "worker"):
            (made / f"{unused}_pb2_grpc.py").unlink(missing_ok=True)
        (Path(folder) / "config_sections.py").write_text(config_sections(schema, foreign), encoding="utf-8")
        (Path(folder) / "messages.py").write_text(messages(schema), encoding="utf-8")
        table = proto.parent / "jobfile/foreign_names.cc"
        (Path(folder) / "foreign_names.py").write_text(foreign_names(table), encoding="utf-8")
        replace(made, out / "v1")
        for name in ("config_sections.py", "messages.py", "foreign_names.py"):
            os.replace(Path(folder) / name, out / name)


if __name__ == "__main__":
    main()
