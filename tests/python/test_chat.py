"""`python -m tacc data prepare --chat`: which tokens of a conversation are learned."""

import json
import shutil

import numpy as np
import pytest
from data_folder import read_columns, write_corpus
from test_data_prepare import fails, run
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast

SYSTEM = {"role": "system", "content": "Be brief."}
HI, HELLO = {"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Hello!"}
AND, BYE = {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Bye,\nbye."}
TALK = [SYSTEM, HI, HELLO, AND, BYE]
EOS = "<|endoftext|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
)
# As templates that drop the thoughts of earlier answers do.
LAST_ONLY = (
    "{% for m in messages %}{% if m['role'] == 'user' or loop.last %}[{{ m['content'] }}]{% endif %}{% endfor %}"
)


MARKED_INSIDE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}[{% generation %}{{ m['content'] }}{% endgeneration %}]"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
)
READS_THE_FIRST = "{{ messages[0]['role'] }}:" + CHATML


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizer")
    write_corpus(root / "text")
    run("--train-tokenizer", 300, "--input", root / "text", "--out", root / "data")
    return root / "data" / "tokenizer"


def with_template(tokenizer_dir, folder, template):
    shutil.copytree(tokenizer_dir, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def prepare(tmp_path, tokenizer, *records, options=(), out="data"):
    """The text of the data with what is learned in curly brackets."""
    path, out = tmp_path / "chat.jsonl", tmp_path / out
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    run("--chat", "--tokenizer", tokenizer, "--input", path, "--out", out, *options)
    columns = read_columns(out)
    return shown(out / "tokenizer", columns["tokens"], columns["loss_mask"])


def shown(tokenizer, tokens, learned):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    runs = np.split(np.arange(len(tokens)), np.flatnonzero(np.diff(learned)) + 1)
    texts = [(tokenizer.decode(tokens[part], clean_up_tokenization_spaces=False), learned[part[0]]) for part in runs]
    return "".join("{" + text + "}" if is_learned else text for text, is_learned in texts)


def test_the_default_template(tmp_path, tokenizer_dir):
    assert prepare(tmp_path, tokenizer_dir, {"messages": TALK}) == (
        "<|system|>\nBe brief.\n<|user|>\nHi there\n<|assistant|>\n{Hello!" + EOS + "}\n<|user|>\nAnd?\n<|assistant|>\n{Bye,\nbye." + EOS + "}"
    )
    # It goes with the tokenizer, so that the model is asked as it was trained.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "data" / "tokenizer")
    asked = tokenizer.apply_chat_template(TALK[:2], tokenize=False, add_generation_prompt=True)
    assert asked == "<|system|>\nBe brief.\n<|user|>\nHi there\n<|assistant|>\n"


@pytest.mark.parametrize(
    "template, want",
    [
        (CHATML, "{Hello!<|im_end|>\n}<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n{Bye,\nbye.<|im_end|>\n" + EOS + "}"),
        (CHATML_MARKED, "{Hello!<|im_end|>}\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n{Bye,\nbye.<|im_end|>}\n" + EOS),
    ],
)
def test_the_tokenizers_template(tmp_path, tokenizer_dir, template, want):
    folder = with_template(tokenizer_dir, tmp_path / "model", template)
    head = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    assert prepare(tmp_path, folder, {"messages": TALK}) == head + want
    assert (tmp_path / "data" / "tokenizer" / "chat_template.jinja").read_text() == template


def says(*contents):
    return {"messages": [m for content in contents for m in (HI, {"role": "assistant", "content": content})]}


def test_marked_spaces_are_learned_where_the_tokenizer_trims_offsets(tmp_path, tokenizer_dir):
    """As GPT-NeoX's and RoBERTa's."""
    trimming = with_template(tokenizer_dir, tmp_path / "trimming", MARKED_INSIDE)
    tokenizer = json.loads((trimming / "tokenizer.json").read_text())
    tokenizer["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (trimming / "tokenizer.json").write_text(json.dumps(tokenizer))
    want = "Hi there[{Hello}]Hi there[{ bye  }]Hi there[{last}]" + EOS
    assert prepare(tmp_path, trimming, says("Hello", " bye  ", "last")) == want


def test_marked_characters_of_several_tokens_are_learned_whole(tmp_path, tokenizer_dir):
    want = "Hi there[{ok 🦜}]Hi there[{🦜é}]" + EOS
    bytes_of = with_template(tokenizer_dir, tmp_path / "bytes", MARKED_INSIDE)
    assert prepare(tmp_path, bytes_of, says("ok 🦜", "🦜é")) == want
    # By fallback to bytes.
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(["Hi there[]ok"], trainers.BpeTrainer(special_tokens=special))
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(strip)
    fallback = with_template(tokenizer_dir, tmp_path / "fallback", MARKED_INSIDE)
    tokenizer.save(str(fallback / "tokenizer.json"))
    assert prepare(tmp_path, fallback, says("ok 🦜", "🦜é"), out="fallback_data") == want


def test_what_is_marked_and_has_no_token_is_named(tmp_path, tokenizer_dir):
    folder = with_template(tokenizer_dir, tmp_path / "model", MARKED_INSIDE)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.normalizer = normalizers.Replace("🦜", "")
    tokenizer.save(str(folder / "tokenizer.json"))
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps(says("ok", "🦜")))
    message = fails("--chat", "--tokenizer", folder, "--input", path, "--out", tmp_path / "out")
    assert f"{path}:1: the tokenizer has no token for '🦜', which the assistant says" in message


def test_a_conversation_may_begin_with_the_assistant(tmp_path, tokenizer_dir):
    folder = with_template(tokenizer_dir, tmp_path / "model", CHATML)
    assert prepare(tmp_path, folder, {"messages": [HELLO, HI]}) == (
        "<|im_start|>assistant\n{Hello!<|im_end|>\n}<|im_start|>user\nHi there<|im_end|>\n" + EOS
    )


def test_prompt_and_completion(tmp_path, tokenizer_dir):
    assert prepare(tmp_path, tokenizer_dir, {"prompt": "2+2=", "completion": " four"}) == "2+2={ four" + EOS + "}"
    shutil.rmtree(tmp_path / "data")
    # Of messages only the completion's.
    record = {"prompt": [HI, HELLO, AND], "completion": [BYE]}
    assert prepare(tmp_path, tokenizer_dir, record) == (
        f"<|user|>\nHi there\n<|assistant|>\nHello!{EOS}\n<|user|>\nAnd?\n<|assistant|>\n" + "{Bye,\nbye." + EOS + "}"
    )


def test_half_of_a_surrogate_pair_is_mended(tmp_path, tokenizer_dir):
    records = [{"prompt": "2+2=", "completion": " f\ud800r"}, {"messages": [HI, {"role": "assistant", "content": "o\udc00k"}]}]
    want = tmp_path / "want"
    want.mkdir()
    mended = json.loads(json.dumps(records).replace("\\ud800", "\\ufffd").replace("\\udc00", "\\ufffd"))
    assert prepare(tmp_path, tokenizer_dir, *records) == prepare(want, tokenizer_dir, *mended)


def test_shards_processes_and_documents_apart_make_no_difference(tmp_path, tokenizer_dir):
    """Of the columns; all files of records are read."""
    records = [{"prompt": f"{i}?", "completion": f" {'no ' * (i % 7)}{i}!"} for i in range(200)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records[:100]))
    (tmp_path / "in" / "b.json").write_text(json.dumps(records[100:150]))
    rows = "".join(f'"{record["prompt"]}","{record["completion"]}"\n' for record in records[150:])
    (tmp_path / "in" / "c.csv").write_text("prompt,completion\n" + rows)
    options = ["--chat", "--tokenizer", tokenizer_dir, "--input", tmp_path / "in", "--eval-fraction", 0.2]
    run(*options, "--out", tmp_path / "one")
    run(*options, "--out", tmp_path / "many", "--shard-tokens", 97, "--processes", 2, "--separate-documents")
    text = ""
    for part in (".", "eval"):
        one, many = read_columns(tmp_path / "one" / part), read_columns(tmp_path / "many" / part)
        assert set(one) == {"tokens", "loss_mask"} and set(many) == {"tokens", "loss_mask", "segment"}
        assert all(np.array_equal(one[name], many[name]) for name in one)
        assert np.array_equal(np.flatnonzero(np.diff(many["segment"])), np.flatnonzero(many["tokens"] == 0)[:-1])
        text += shown(tmp_path / "one" / "tokenizer", one["tokens"], one["loss_mask"])
    want = [record["prompt"] + "{" + record["completion"] + EOS + "}" for record in records]
    assert sorted(text.replace(EOS + "}", EOS + "}\0").split("\0")[:-1]) == sorted(want)


def test_a_tokenizer_is_trained_on_what_is_said(tmp_path):
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": [HI, {"role": "assistant", "content": "zyx " * 50}]}))
    run("--chat", "--train-tokenizer", 270, "--input", tmp_path / "chat.jsonl", "--out", tmp_path / "data")
    assert "zyx" in json.loads((tmp_path / "data/tokenizer/tokenizer.json").read_text())["model"]["vocab"]


@pytest.mark.parametrize(
    "record, want",
    [
        ({"text": "x"}, '--chat wants either "messages" or "prompt" and "completion"; the fields are: "text"'),
        ({"messages": [HI], "prompt": "x"}, '--chat wants either "messages" or "prompt" and "completion"'),
        ({"messages": []}, '"messages" is empty'),
        ({"messages": "hi"}, '"messages" is a str; wanted a list of {"role": ..., "content": ...}'),
        ({"messages": [{"from": "human", "value": "x"}]}, '"messages", message 1: wanted {"role": ..., "content": ...}'),
        ({"messages": [HI, {"role": "tool", "content": "3"}]}, '"messages", message 2: role \'tool\': only system, user, assistant'),
        ({"messages": [HI, {**HELLO, "tool_calls": [1]}]}, '"messages", message 2: tool_calls: only system, user, assistant'),
        ({"messages": [HI, {"role": "assistant", "content": [{}]}]}, "message 2 (assistant): content is a list; wanted a text"),
        ({"messages": [HI, {"role": "assistant", "content": " "}]}, "message 2 (assistant): content is empty"),
        ({"messages": [SYSTEM, HI]}, "no message of the assistant: there is nothing to learn"),
        ({"prompt": "x", "completion": ""}, '"completion" is empty'),
        ({"prompt": "x", "completion": EOS}, "the completion is only EOS, which each sample gets"),
        ({"prompt": "so ", "completion": "there"}, 'begin "completion" with the space or line end'),
        ({"prompt": "x", "completion": " there" * 500}, "tokens, more than --seq-len 64: a sample would hold only a part"),
    ],
)
def test_bad_records_are_named(tmp_path, tokenizer_dir, record, want):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": TALK[:3]}) + "\n\n" + json.dumps(record))
    message = fails("--chat", "--seq-len", 64, "--tokenizer", tokenizer_dir, "--input", path, "--out", tmp_path / "out")
    assert f"{path}:3: " in message and want in message
    assert not (tmp_path / "out").exists()


def test_what_a_template_refuses_or_cannot_tell_is_named(tmp_path, tokenizer_dir):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": TALK[1:]}))
    for template, want in (
        (LAST_ONLY, "message 2 (assistant): the chat template writes the conversation up to it otherwise than in the whole"),
        ("{{ raise_exception('no roles') }}", "the chat template refuses it: no roles"),
        ("{% for %}", "the chat template refuses it: "),
        ("{{ messages + 1 }}", "the chat template refuses it: can only concatenate list"),
    ):
        folder = with_template(tokenizer_dir, tmp_path / "model", template)
        assert f"{path}:1: {want}" in fails("--chat", "--tokenizer", folder, "--input", path, "--out", tmp_path / "out")
        shutil.rmtree(folder)
    path.write_text(json.dumps({"messages": [HELLO, HI]}))
    folder = with_template(tokenizer_dir, tmp_path / "model", READS_THE_FIRST)
    message = fails("--chat", "--tokenizer", folder, "--input", path, "--out", tmp_path / "out")
    want = "message 1 (assistant): the chat template refuses the conversation up to it: list object has no element 0; mark"
    assert f"{path}:1: {want}" in message
    (tmp_path / "a.txt").write_text("a")
    message = fails("--chat", "--tokenizer", tokenizer_dir, "--input", tmp_path / "a.txt", "--out", tmp_path / "out")
    assert "--chat takes files of records, and these are texts: " in message
