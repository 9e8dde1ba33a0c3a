"""For tests: what a run's folder says of its metrics, read by others' means."""

import json
import struct
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto


def _event_class():
    """tensorflow.Event, as far as scalars need it."""
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t", syntax="proto3")
    for name, fields in {
        "Value": [("tag", 1, FIELD.TYPE_STRING, ""), ("simple_value", 2, FIELD.TYPE_FLOAT, "")],
        "Summary": [("value", 1, FIELD.TYPE_MESSAGE, "Value")],
        "SessionLog": [("status", 1, FIELD.TYPE_INT32, "")],
        "Event": [("wall_time", 1, FIELD.TYPE_DOUBLE, ""), ("step", 2, FIELD.TYPE_INT64, ""), ("file_version", 3, FIELD.TYPE_STRING, ""),
                  ("summary", 5, FIELD.TYPE_MESSAGE, "Summary"), ("session_log", 7, FIELD.TYPE_MESSAGE, "SessionLog")],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            repeated = (name, field) == ("Summary", "value")
            message.field.add(name=field, number=number, type=kind, type_name=f".t.{of}" if of else None,
                              label=FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


Event = _event_class()


def read_lines(folder: Path) -> list[dict]:
    text = (folder / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def read_events(path: Path) -> list:
    """The events of one file; a last record that was cut short is left out."""
    data, events = path.read_bytes(), []
    while len(data) >= 12:
        (length,) = struct.unpack("<Q", data[:8])
        if len(data) < 16 + length:
            break
        events.append(Event.FromString(data[12:12 + length]))
        data = data[16 + length:]
    assert events[0].file_version == "brain.Event:2"
    return events


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Step -> value of each tag, as TensorBoard shows them: a session that starts at a step takes the place of what was there from it on."""
    scalars: dict[str, dict[int, float]] = {}
    for path in sorted((folder / "tensorboard").iterdir()):
        for event in read_events(path):
            if event.session_log.status == 1:
                for points in scalars.values():
                    for step in [s for s in points if s >= event.step]:
                        del points[step]
            for value in event.summary.value:
                points = scalars.setdefault(value.tag, {})
                assert event.step not in points, (value.tag, event.step)
                points[event.step] = value.simple_value
    return scalars
