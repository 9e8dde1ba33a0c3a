"""Turns conversations into tokens, and says which of them a model learns to write."""

import itertools
import os
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tacc.errors import InputError, this_python
from tacc.preparing.conversation import NO_TARGET, parts_of_record
from tacc.preparing.records import Record

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

Span = tuple[int, int]  # Of characters: [begin, end).


def open_template(folder: Path, eos_token: str) -> Any:
    """transformers' tokenizer of the folder, for its chat template."""
    try:
        from transformers import PreTrainedTokenizerFast
        from transformers.utils.chat_template_utils import render_jinja_template  # noqa: F401
    except ImportError as error:
        raise InputError(f"--chat needs transformers for the chat template: {this_python()} -m pip install -U transformers") from error
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    tokenizer.eos_token = eos_token
    return tokenizer


def add_default_template(folder: Path, eos_token: str, given: Path) -> bool:
    """Writes DEFAULT_TEMPLATE where the tokenizer in `folder`, a copy of `given`, has no template, and says whether."""
    try:
        template = open_template(folder, eos_token).chat_template
        if template and not isinstance(template, str | dict):
            raise ValueError(f"chat_template is a {type(template).__name__}; wanted a text")
    except InputError:
        raise
    except Exception as error:  # transformers raises what comes.
        files = f"tokenizer_config.json, special_tokens_map.json or {TEMPLATE_FILE}"
        raise InputError(f"{given}: transformers cannot read the tokenizer's {files}: {error}; mend it") from error
    if template:
        return False
    (folder / TEMPLATE_FILE).write_text(DEFAULT_TEMPLATE, encoding="utf-8")
    return True


class ChatEncoder:
    """Encodes records. The tokenizer's folder has a chat template, unless all records are texts."""

    def __init__(self, tokenizer: Tokenizer, folder: Path, eos_token: str, eos_token_id: int):
        # Without its post-processor, which adds special tokens (none here) and may trim spaces off the tokens' offsets.
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.post_processor = None
        self._folder = folder
        self._eos_token = eos_token
        self._eos_token_id = eos_token_id
        self._template: str | None = None  # Loaded when it is needed: that takes seconds.

    @property
    def has_used_template(self) -> bool:
        return self._template is not None

    def encode(self, record: Record) -> tuple[list[int], list[bool]]:
        """The tokens with EOS at the end, and which of them are to be learned. EOS that the text does not end with is learned
        if what is learned goes up to it and has not ended by an EOS of its own, as a turn of many templates does."""
        parts = parts_of_record(record)
        if "messages" in parts:
            ids, learned = self._encode_messages(record, parts["messages"], 0)
        elif isinstance(parts["prompt"], str):
            ids, learned = self._encode_texts(record, parts["prompt"], parts["completion"])
        else:
            ids, learned = self._encode_messages(record, parts["prompt"] + parts["completion"], len(parts["prompt"]))
        if not any(learned):
            is_text = isinstance(parts.get("completion"), str)
            what = "the tokenizer has no token for the completion" if is_text else "no message of the assistant"
            raise record.fail(f"{what}: {NO_TARGET}; leave the record out")
        eos = self._eos_token_id
        if ids[-1] != eos:
            last = list(itertools.takewhile(lambda i: learned[i], range(len(ids) - 1, -1, -1)))
            return [*ids, eos], [*learned, bool(last) and all(ids[i] != eos for i in last)]
        if not any(learned[:-1]):
            what = "the completion" if "completion" in parts else "what the assistant says"
            raise record.fail(f"{what} is only EOS, which each sample gets: {NO_TARGET}; leave the record out")
        learned[-1] |= learned[-2]  # Where a template marks the words alone, the model still has to learn to end them.
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

    def _encode_messages(self, record: Record, messages: list[dict[str, Any]], first: int) -> tuple[list[int], list[bool]]:
        """Learned is what the assistant says in the messages from `first` on. What comes before them is a prompt, and then
        the template's marks do not count: all that follows the prompt is the completion, to the end of its turn."""
        self._load_template()
        text, spans = self._render(record, messages)
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        # Of a character in several tokens, all but one may come as no characters, where it begins.
        tokens = [slice(begin, max(end, begin + 1)) for begin, end in encoded.offsets]
        if first > 0 or not self._marks_generation:
            spans = self._spans_by_beginnings(record, messages, first, text, encoded.ids, tokens)
        is_learned, has_token = bytearray(len(text) + 1), bytearray(len(text) + 1)
        for begin, end in spans:
            is_learned[begin:end] = b"\1" * (end - begin)
        for token in tokens:
            has_token[token] = b"\1" * (token.stop - token.start)
        for begin, end in spans:
            if begin < end and not any(has_token[begin:end]):
                raise record.fail(f"the tokenizer has no token for {text[begin:end]!r}, which the assistant says")
        learned = [any(is_learned[token]) for token in tokens]
        if not any(learned) and any(message["role"] == "assistant" for message in messages[first:]):
            raise record.fail(f"the chat template writes nothing that the assistant says: {NO_TARGET}; {MARK_IT}")
        return encoded.ids, learned

    def _spans_by_beginnings(
        self, record: Record, messages: list[dict[str, Any]], first: int, text: str, ids: list[int], tokens: list[slice]
    ) -> list[Span]:
        """A message of the assistant is what `text`, the whole conversation, has after the conversation before it. `ids` and
        `tokens`: of `text`."""
        borders = {token.start for token in tokens}.union([len(text)])
        remedies = [] if self._marks_generation else [MARK_IT]
        if first > 0:  # Of a completion marks do not count.
            remedies.insert(0, 'give prompt and completion as one list of "messages"')
        remedy = ", and ".join(remedies)
        spans = []
        for i in range(first, len(messages)):
            if messages[i]["role"] != "assistant":
                continue
            where = f"message {i + 1} (assistant): "
            before = self._render(record, messages[:i], where, remedy, add_generation_prompt=True)[0]
            until = self._render(record, messages[: i + 1], where, remedy)[0]
            end = len(until) if text.startswith(until) else -1
            if end < 0 and text.startswith(before) and until.startswith(before):
                content = messages[i]["content"]
                other = {**messages[i], "content": "y" if content.rstrip().endswith("x") else "x"}
                tail = _common_end(until, self._render(record, [*messages[:i], other], where, remedy)[0])
                end = _end_of_turn(text, len(before), content, tail, borders)
            if end < 0 or not text.startswith(before):
                raise record.fail(
                    f"{where}the chat template writes the conversation up to it otherwise than in the whole, so its "
                    f"tokens cannot be told; {remedy}"
                )
            begin = self._after_prompt(before, ids, tokens)
            spans.append((begin, max(begin, end)))
        return spans

    def _after_prompt(self, before: str, ids: list[int], tokens: list[slice]) -> int:
        """Where what is said begins: behind the text before it, and behind a token that lies across its end and that the
        prompt alone ends with too, as a marker does that takes the spaces behind it."""
        for i, token in enumerate(tokens):
            if token.start < len(before) < token.stop and self._ids(before)[: i + 1] == ids[: i + 1]:
                return int(token.stop)
        return len(before)

    def _load_template(self) -> None:
        if self._template is None:
            tokenizer = open_template(self._folder, self._eos_token)
            try:
                self._template = tokenizer.get_chat_template()
            except ValueError as error:  # Several, and none of them the default one.
                raise InputError(f"the tokenizer has no chat template to take: {error}") from None
            self._special_tokens = tokenizer.special_tokens_map
            self._marks_generation = GENERATION.search(self._template) is not None

    def _render(
        self, record: Record, messages: list[dict[str, Any]], where: str = "", remedy: str = "", *, add_generation_prompt: bool = False
    ) -> tuple[str, list[Span]]:
        """The text, and the spans of it that the template marks as the assistant's. With `where`, the messages are those up
        to the one of that name or before it, which may be none, and `remedy` says what to do where that is refused."""
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered: Any = render_jinja_template(
                [messages],
                chat_template=self._template,
                return_assistant_tokens_mask=self._marks_generation,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as error:  # A template is a program, and may fail in any way.
            what = f"the chat template refuses {'the conversation up to it' if where else 'it'}: {error}"
            raise record.fail(f"{where}{what}; {remedy}" if where else what) from None
        texts, spans = rendered
        return texts[0], spans[0] if spans else []


def _end_of_turn(text: str, begin: int, content: str, tail: str, borders: set[int]) -> int:
    """Where a message that is not the last one ends, by a template that gives the last one more: a thought before what is
    said (Qwen 3) or an end of the text after it (Phi 3). What is said begins at `begin`, and of `tail`, which comes after
    it where it is the last, as many whole tokens as there are come here. -1: there are none."""
    for said in (content, content.strip()):
        end = begin + len(said)
        if text.startswith(said, begin):
            stop = end + len(os.path.commonprefix([text[end : end + len(tail)], tail]))
            while stop > end and stop not in borders:
                stop -= 1
            return stop if stop > end else -1
    return -1


def _common_end(a: str, b: str) -> str:
    return os.path.commonprefix([a[::-1], b[::-1]])[::-1]
