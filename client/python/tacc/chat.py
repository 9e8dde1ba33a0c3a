"""Turns conversations into tokens, and says which of them a model learns to write."""

import re
from pathlib import Path

from tokenizers import Tokenizer

from tacc.errors import InputError
from tacc.records import Record

FIELDS = ("messages", "prompt", "completion")
ROLES = ("system", "user", "assistant")
# What a tokenizer without a template gets: the roles as lines of plain text, EOS after what the assistant says.
DEFAULT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|assistant|>\\n' -}}
{%- generation -%}{{- message['content'] + eos_token -}}{%- endgeneration -%}
{{- '' if loop.last else '\\n' -}}
{%- else -%}
{{- '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""
TEMPLATE_FILE = "chat_template.jinja"


def open_template(folder: Path, eos_token: str):
    """transformers' tokenizer of the folder, for its chat template."""
    try:
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise InputError("--chat needs transformers for the chat template: pip install transformers") from error
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    tokenizer.eos_token = eos_token
    return tokenizer


def add_default_template(folder: Path, eos_token: str) -> None:
    """Writes DEFAULT_TEMPLATE where the tokenizer in `folder` has no template."""
    if not open_template(folder, eos_token).chat_template:
        (folder / TEMPLATE_FILE).write_text(DEFAULT_TEMPLATE, encoding="utf-8")


def texts_of_record(record: Record) -> list[str]:
    """What a tokenizer is trained on."""
    parts = parts_of_record(record).values()
    return [text for part in parts for text in ([part] if isinstance(part, str) else [m["content"] for m in part])]


def parts_of_record(record: Record) -> dict:
    """`messages`, or `prompt` and `completion`, both texts or both messages; checked."""
    value = {name: record.value[name] for name in FIELDS if record.value.get(name) is not None}
    if set(value) == {"messages"}:
        _check_messages(record, "messages", value["messages"])
        return value
    if set(value) != {"prompt", "completion"}:
        known = ", ".join(f'"{name}"' for name in list(record.value)[:10]) or "none"
        raise record.fail(f'--chat wants either "messages" or "prompt" and "completion"; the fields are: {known}')
    if all(isinstance(part, str) for part in value.values()):
        if not value["completion"]:
            raise record.fail('"completion" is empty: there is nothing to learn')
        return value
    for name, part in value.items():
        _check_messages(record, name, part)
    return value


def _check_messages(record: Record, name: str, messages) -> None:
    if not isinstance(messages, list) or not messages:
        kind = "empty" if messages == [] else f"a {type(messages).__name__}"
        raise record.fail(f'"{name}" is {kind}; wanted a list of {{"role": ..., "content": ...}}')
    for number, message in enumerate(messages, 1):
        where = f'"{name}", message {number}'
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise record.fail(f'{where}: wanted {{"role": ..., "content": ...}}')
        role, content = message["role"], message.get("content")
        if role not in ROLES or message.get("tool_calls"):
            what = f"role {role!r}" if role not in ROLES else "tool_calls"
            raise record.fail(f"{where}: {what}: only {', '.join(ROLES)} with text are read; write tool calls as text")
        if not isinstance(content, str):
            raise record.fail(f"{where} ({role}): content is a {type(content).__name__}; wanted a text")
        if not content.strip() and role != "system":
            raise record.fail(f"{where} ({role}): content is empty")


class ChatEncoder:
    """Encodes records. The tokenizer's folder has a chat template, unless all records are texts."""

    def __init__(self, tokenizer: Tokenizer, folder: Path, eos_token: str, eos_token_id: int, max_tokens: int):
        """`max_tokens`: of a conversation, with EOS."""
        self._tokenizer = tokenizer
        self._folder = folder
        self._eos_token = eos_token
        self._eos_token_id = eos_token_id
        self._max_tokens = max_tokens
        self._template = None  # Loaded when it is needed: that takes seconds.

    def encode(self, record: Record) -> tuple[list[int], list[bool]]:
        """The tokens without a last EOS, and which of them are to be learned."""
        parts = parts_of_record(record)
        if "messages" in parts:
            ids, learned = self._encode_messages(record, parts["messages"])
        elif isinstance(parts["prompt"], str):
            ids, learned = self._encode_texts(record, parts["prompt"], parts["completion"])
        else:
            messages = parts["prompt"] + parts["completion"]
            ids, learned = self._encode_by_prefixes(record, messages, len(parts["prompt"]))
        if ids and ids[-1] == self._eos_token_id:
            ids, learned = ids[:-1], learned[:-1]
        if not any(learned):
            raise record.fail("no message of the assistant: there is nothing to learn")
        if len(ids) + 1 > self._max_tokens:
            raise record.fail(
                f"{len(ids) + 1:,} tokens, more than --seq-len {self._max_tokens:,}: a sample would hold only a part; "
                "give a larger --seq-len, or leave the record out"
            )
        return ids, learned

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _encode_texts(self, record: Record, prompt: str, completion: str) -> tuple[list[int], list[bool]]:
        before, ids = self._ids(prompt), self._ids(prompt + completion)
        if ids[: len(before)] != before:
            raise record.fail(
                "a token lies across the end of the prompt, so it would be seen in training but not when the model is "
                'asked: begin "completion" with the space or line end, not end "prompt" with it'
            )
        return ids, [i >= len(before) for i in range(len(ids))]

    def _encode_messages(self, record: Record, messages: list[dict]) -> tuple[list[int], list[bool]]:
        self._load_template()
        if not re.search(r"\{%-?\s*generation\s*-?%\}", self._template.get_chat_template()):
            return self._encode_by_prefixes(record, messages, 0)
        encoded = self._apply(record, messages, return_dict=True, return_assistant_tokens_mask=True)
        return list(encoded["input_ids"]), [bool(learned) for learned in encoded["assistant_masks"]]

    def _encode_by_prefixes(self, record: Record, messages: list[dict], first: int) -> tuple[list[int], list[bool]]:
        """A message of the assistant, of those from `first` on, is what comes after the tokens of what is before it."""
        self._load_template()
        ids = self._ids(self._apply(record, messages, tokenize=False))
        learned = [False] * len(ids)
        for i in range(first, len(messages)):
            if messages[i]["role"] != "assistant":
                continue
            before = self._ids(self._apply(record, messages[:i], tokenize=False, add_generation_prompt=True))
            until = self._ids(self._apply(record, messages[: i + 1], tokenize=False))
            if ids[: len(before)] != before or ids[: len(until)] != until:
                raise record.fail(
                    f"message {i + 1} (assistant): the chat template writes the conversation up to it otherwise than "
                    "in the whole, so its tokens cannot be told; mark what the assistant says in the template with "
                    "{% generation %} and {% endgeneration %}"
                )
            learned[len(before) : len(until)] = [True] * (len(until) - len(before))
        return ids, learned

    def _load_template(self) -> None:
        if self._template is None:
            self._template = open_template(self._folder, self._eos_token)

    def _apply(self, record: Record, messages: list[dict], **options):
        from jinja2 import TemplateError

        try:
            return self._template.apply_chat_template(messages, **options)
        except TemplateError as error:
            raise record.fail(f"the chat template refuses it: {error}") from None
