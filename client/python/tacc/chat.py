"""Turns conversations into tokens, and says which of them a model learns to write."""

import re
from pathlib import Path

from tokenizers import Tokenizer

from tacc.errors import InputError, this_python
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
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
MARK_IT = "mark what the assistant says in the template with {% generation %} and {% endgeneration %}"


def open_template(folder: Path, eos_token: str):
    """transformers' tokenizer of the folder, for its chat template."""
    try:
        from transformers import PreTrainedTokenizerFast
        from transformers.utils.chat_template_utils import render_jinja_template  # noqa: F401
    except ImportError as error:
        raise InputError(f"--chat needs transformers for the chat template: {this_python()} -m pip install -U transformers") from error
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
        # Without its post-processor, which adds special tokens (none here) and may trim spaces off the tokens' offsets.
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.post_processor = None
        self._folder = folder
        self._eos_token = eos_token
        self._eos_token_id = eos_token_id
        self._max_tokens = max_tokens
        self._template: str | None = None  # Loaded when it is needed: that takes seconds.

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
        if not any(learned):
            raise record.fail("no message of the assistant: there is nothing to learn")
        if ids[-1] == self._eos_token_id:
            ids, learned = ids[:-1], learned[:-1]
            if not any(learned):
                what = "the completion" if "completion" in parts else "what the assistant says"
                raise record.fail(f"{what} is only EOS, which each sample gets: there is nothing else to learn")
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
        if not self._marks_generation:
            return self._encode_by_prefixes(record, messages, 0)
        text, generated = self._render(record, messages)
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        # Of a character in several tokens, all but one may come as no characters, where it begins.
        tokens = [slice(begin, max(end, begin + 1)) for begin, end in encoded.offsets]
        is_generated, has_token = bytearray(len(text) + 1), bytearray(len(text) + 1)
        for begin, end in generated:
            is_generated[begin:end] = b"\1" * (end - begin)
        for token in tokens:
            has_token[token] = b"\1" * (token.stop - token.start)
        for begin, end in generated:
            if begin < end and not any(has_token[begin:end]):
                raise record.fail(f"the tokenizer has no token for {text[begin:end]!r}, which the assistant says")
        return encoded.ids, [any(is_generated[token]) for token in tokens]

    def _encode_by_prefixes(self, record: Record, messages: list[dict], first: int) -> tuple[list[int], list[bool]]:
        """A message of the assistant, of those from `first` on, is what comes after the tokens of what is before it."""
        self._load_template()
        ids = self._ids(self._render(record, messages)[0])
        learned = [False] * len(ids)
        for i in range(first, len(messages)):
            if messages[i]["role"] != "assistant":
                continue
            where = f"message {i + 1} (assistant): "
            before = self._ids(self._render(record, messages[:i], where, add_generation_prompt=True)[0])
            until = self._ids(self._render(record, messages[: i + 1], where)[0])
            if ids[: len(before)] != before or ids[: len(until)] != until:
                raise record.fail(
                    f"{where}the chat template writes the conversation up to it otherwise than in the whole, so its "
                    f"tokens cannot be told; {MARK_IT}"
                )
            learned[len(before) : len(until)] = [True] * (len(until) - len(before))
        return ids, learned

    def _load_template(self) -> None:
        if self._template is None:
            tokenizer = open_template(self._folder, self._eos_token)
            self._template, self._special_tokens = tokenizer.get_chat_template(), tokenizer.special_tokens_map
            self._marks_generation = GENERATION.search(self._template) is not None

    def _render(self, record: Record, messages: list[dict], where: str = "", add_generation_prompt: bool = False):
        """The text, and the spans of its characters that the template marks as the assistant's. With `where`, the messages
        are those up to the one of that name or before it, which may be none."""
        from transformers.utils.chat_template_utils import render_jinja_template

        # Columns of a table have null where a message lacks a field.
        messages = [{name: value for name, value in message.items() if value is not None} for message in messages]
        try:
            texts, spans = render_jinja_template(
                [messages],
                chat_template=self._template,
                return_assistant_tokens_mask=self._marks_generation,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as error:  # A template is a program, and may fail in any way.
            what = f"the chat template refuses {'the conversation up to it' if where else 'it'}: {error}"
            raise record.fail(f"{where}{what}; {MARK_IT}" if where else what) from None
        return texts[0], spans[0] if spans else []
