"""What is said in a record that is a conversation."""

from collections.abc import Mapping
from typing import Any

from tacc.preparing.records import CONVERSATION_FIELDS, CONVERSATIONS, Record

# Fields that change what a conversation says, and that are not read: with anything in them a record is refused.
UNREAD = ("tools", "functions", "system", "history", "images", "videos", "audios", "chat_template_kwargs")
FIELDS = (*(field for form in CONVERSATIONS for field in form), "input", *UNREAD)
ROLES = ("system", "user", "assistant")
# What ShareGPT's records call them.
OTHER_NAMES = {"human": "user", "gpt": "assistant"}
WANTED = '{"role": ..., "content": ...}'
NO_TARGET = "there is nothing to learn"


def texts_of_record(record: Record) -> list[str]:
    """What a tokenizer is trained on."""
    parts = parts_of_record(record).values()
    return [text for part in parts for text in ([part] if isinstance(part, str) else [m["content"] for m in part])]


def parts_of_record(record: Record) -> dict[str, Any]:
    """`messages`, or `prompt` and `completion`, both texts or both messages; checked. Messages have `role`, `content` and
    what else a template may look for, none of it null; content is a text."""
    value = record.value
    there = {name for name, part in value.items() if part is not None}  # Columns of a table have null where it lacks one.
    forms = [form for form in CONVERSATIONS if there.issuperset(form)]
    if len(forms) != 1:
        found = " and ".join(" with ".join(f'"{name}"' for name in form) for form in forms)
        known = ", ".join(f'"{name}"' for name in list(value)[:10]) or "none"
        raise record.fail(
            f"--chat wants {CONVERSATION_FIELDS}; "
            f"{f'this record has {found}: leave one out' if forms else f'the fields are: {known}; rename yours'}"
        )
    for name in UNREAD:
        if name in there and value[name] not in ("", [], {}, "[]", "{}"):
            remedy = "write it as the first message" if name == "system" else "write it into the messages as text"
            raise record.fail(f'the field "{name}" would change what is said, and is not read; {remedy}, or leave it out')
    match forms[0]:
        case ("messages",) | ("conversations",):
            (name,) = forms[0]
            return {"messages": _messages(record, name, value[name])}
        case ("instruction", "output"):
            return {"messages": _instruction(record, value)}
    parts = {name: value[name] for name in ("prompt", "completion")}
    if not all(isinstance(part, str) for part in parts.values()):
        return {name: _messages(record, name, part) for name, part in parts.items()}
    if not parts["completion"].strip():
        raise record.fail(f'"completion" is empty: {NO_TARGET}; leave the record out')
    return parts


def _instruction(record: Record, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Alpaca's records: the user gives the instruction and, after an empty line, the input."""
    for name in ("instruction", "input", "output"):
        if value.get(name) is not None and not isinstance(value[name], str):
            raise record.fail(f'"{name}" is {_kind(value[name])}; wanted a text')
        if name != "input" and not value[name].strip():
            raise record.fail(f'"{name}" is empty{f": {NO_TARGET}" if name == "output" else ""}; leave the record out')
    asked = "\n\n".join(text for text in (value["instruction"], value.get("input")) if text)
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": value["output"]}]


def _messages(record: Record, name: str, messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        kind = "empty" if messages == [] else _kind(messages)
        raise record.fail(f'"{name}" is {kind}; wanted a list of {WANTED}')
    return [_message(record, f'"{name}", message {number}', message) for number, message in enumerate(messages, 1)]


def _message(record: Record, where: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise record.fail(f"{where}: wanted {WANTED}")
    message = {name: value for name, value in given.items() if value is not None}
    for ours, theirs in (("role", "from"), ("content", "value")):
        if theirs not in message:
            continue
        if ours in message:
            raise record.fail(f'{where}: has "{ours}" and "{theirs}", which say the same: leave one out')
        message[ours] = message.pop(theirs)
    if not isinstance(message.get("role"), str):
        raise record.fail(f"{where}: wanted {WANTED}")
    role = message["role"] = OTHER_NAMES.get(message["role"], message["role"])
    if role not in ROLES:
        raise record.fail(f"{where}: role {role!r}: only {', '.join(ROLES)} with text are read; write tool calls as text")
    for name in ("tool_calls", "function_call"):
        if message.get(name):
            raise record.fail(f"{where}: {name}: only {', '.join(ROLES)} with text are read; write tool calls as text")
    if role == "assistant" and message.get("weight", 1) != 1:
        what = "weights are not read, and this would be learned like any other; leave the record out"
        raise record.fail(f"{where}: weight {message['weight']!r}: {what}")
    content = message["content"] = _content(record, f"{where} ({role})", message.get("content"))
    if not content.strip() and role != "system":
        raise record.fail(f"{where} ({role}): content is empty; leave the record out")
    return message


def _content(record: Record, where: str, content: Any) -> str:
    if isinstance(content, list):
        for number, part in enumerate(content, 1):
            kind = part.get("type", "text") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                what = f"type {kind!r}" if isinstance(kind, str) and kind != "text" else _kind(part)
                raise record.fail(f"{where}: part {number} of content is {what}; only {{\"type\": \"text\", \"text\": ...}} is read")
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise record.fail(f"{where}: content is {_kind(content)}; wanted a text")
    return content


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
