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
# As Gemma's.
ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}{{ m['content'] }}{% endfor %}"
)
MARKS_NOTHING = "{% for m in messages %}{{ m['content'] }}{% generation %}{% endgeneration %}{% endfor %}"
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


# As Qwen 3's: the last answer has a thought, which its prompt does not begin. As Phi 3's: the whole ends with EOS.
LAST_THINKS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' and loop.last %}<think>\n</think>\n{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LAST_ENDS = CHATML.replace("{% if add", "{% if not add_generation_prompt %}<|endoftext|>{% endif %}{% if add")


@pytest.mark.parametrize("answer", ["Hello!", "i", "<", "\n im_end> \n", "think>"])
@pytest.mark.parametrize("template, thought", [(LAST_THINKS, "<think>\n</think>\n"), (LAST_ENDS, "")])
def test_a_template_that_gives_the_last_answer_more(tmp_path, tokenizer_dir, template, thought, answer):
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    shutil.copytree(tokenizer_dir, tmp_path / "plain")
    tokenizer.save(str(tmp_path / "plain" / "tokenizer.json"))
    folder = with_template(tmp_path / "plain", tmp_path / "model", template)
    says_it = {"role": "assistant", "content": answer}
    head = "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    end = "<|im_end|>\n"
    want = head + "{" + answer + end + "}" + head + "{" + thought + answer + end + EOS + "}"
    assert prepare(tmp_path, folder, {"messages": [HI, says_it, HI, says_it]}) == want


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


SHAREGPT = {"system": "system", "user": "human", "assistant": "gpt"}


@pytest.mark.parametrize(
    "record",
    [
        {"conversations": [{"from": SHAREGPT[m["role"]], "value": m["content"]} for m in TALK]},
        {"conversations": TALK, "system": "", "tools": "[]", "id": 7},
        {"messages": [{**m, "content": [{"type": "text", "text": m["content"]}], "tool_calls": None} for m in TALK]},
        {"messages": [{**m, "content": [{"type": "text", "text": part, "image_url": None} for part in m["content"]]} for m in TALK]},
        {"messages": TALK, "prompt": "Hi there", "prompt_id": "x"},  # As of ultrachat.
        {"messages": TALK, "prompt": None, "completion": None, "tools": None, "images": []},  # As rows of a table.
    ],
    ids=["from and value", "conversations", "parts", "many parts", "prompt beside", "nulls"],
)
def test_other_forms_of_the_same_conversation(tmp_path, tokenizer_dir, record):
    assert prepare(tmp_path, tokenizer_dir, record) == prepare(tmp_path, tokenizer_dir, {"messages": TALK}, out="want")


def test_instructions(tmp_path, tokenizer_dir):
    records = [{"instruction": "Add.", "input": given, "output": "4"} for given in ("2 and 2", "", None)]
    messages = [[{"role": "user", "content": asked}, {"role": "assistant", "content": "4"}] for asked in ("Add.\n\n2 and 2", "Add.", "Add.")]
    want = prepare(tmp_path, tokenizer_dir, *({"messages": talk} for talk in messages), out="want")
    assert prepare(tmp_path, tokenizer_dir, *records) == want


@pytest.mark.parametrize("template", [None, CHATML, CHATML_MARKED])
def test_odd_texts_are_kept_as_they_are(tmp_path, tokenizer_dir, template):
    """And found again where a template does not say what the assistant says."""
    folder = with_template(tokenizer_dir, tmp_path / "model", template) if template else tokenizer_dir
    asked = [" leading", "trailing \n", "a\r\nb", "\ufeffmark", "e\u0301\u2028\u0085", "漢字 🙂👨\u200d👩", "\ttab", "{{ x }}", "{% if %}", "x" * 9000]
    # Of the largest line there are more bytes than a process reads at a time.
    talks = [[{"role": "system", "content": ""}, {"role": "user", "content": a}, {"role": "assistant", "content": b}] for a in asked for b in asked]
    path = tmp_path / "chat.jsonl"
    lines = [json.dumps({"messages": talk, "pad": "x" * 5_000_000 * (i == 5)}, ensure_ascii=i % 2 == 0) for i, talk in enumerate(talks)]
    path.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    run("--chat", "--tokenizer", folder, "--input", path, "--out", tmp_path / "data", "--seq-len", 65536)
    columns = read_columns(tmp_path / "data")
    ends = np.flatnonzero(np.diff(columns["segment"])) + 1
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "data" / "tokenizer")
    got = []
    for tokens, learned in zip(np.split(columns["tokens"], ends), np.split(columns["loss_mask"], ends)):
        assert np.count_nonzero(np.diff(learned)) <= 2, "one answer"
        got.append([tokenizer.decode(tokens[learned == part], clean_up_tokenization_spaces=False) for part in (0, 1)])
    for talk in talks:
        assert any(talk[1]["content"] in asked and answer.startswith(talk[2]["content"]) for asked, answer in got), talk
    assert len(got) == len(talks)


def test_an_answer_that_begins_with_a_line_end_is_learned_with_it(tmp_path, tokenizer_dir):
    """Where a token lies across the beginning of the answer, it is learned, marked or not."""
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    tokenizer.add_tokens(["assistant\n\n"])
    shutil.copytree(tokenizer_dir, tmp_path / "plain")
    tokenizer.save(str(tmp_path / "plain" / "tokenizer.json"))
    record = {"messages": [HI, {"role": "assistant", "content": "\nHello"}]}
    for name, template in (("unmarked", CHATML), ("marked", CHATML_MARKED.replace("<|im_end|>{% endg", "<|im_end|>\n{% endg").replace("{{ '\n' }}", ""))):
        folder = with_template(tmp_path / "plain", tmp_path / name, template)
        text = prepare(tmp_path, folder, record, out=f"{name}.data")
        assert "<|im_start|>{assistant\n\nHello<|im_end|>\n" in text, name


def test_eos_after_a_turn_that_has_ended_by_it_is_not_learned(tmp_path, tokenizer_dir):
    """As of Qwen: what the model writes ends with it, and the one that comes after only parts the documents."""
    for eos, want in (("!", 1), (EOS, 2)):
        folder = with_template(tokenizer_dir, tmp_path / f"model{want}", CHATML.replace("<|im_end|>", "!"))
        record = {"messages": [HI, {"role": "assistant", "content": "Hello"}]}
        text = prepare(tmp_path, folder, record, options=["--eos-token", eos], out=f"data{want}")
        assert text.endswith("assistant\n{Hello!\n}!" if eos == "!" else "assistant\n{Hello!\n" + EOS + "}")


def test_conversations_are_held_out_whole(tmp_path, tokenizer_dir):
    """However few they are."""
    for count in (2, 3):
        records = [{"prompt": f"{i}?", "completion": " yes" * 50} for i in range(count)]
        prepare(tmp_path, tokenizer_dir, *records, options=["--eval-fraction", 0.01], out=str(count))
        held_out = read_columns(tmp_path / str(count) / "eval")
        assert shown(tokenizer_dir, held_out["tokens"], held_out["loss_mask"]).endswith("{" + " yes" * 50 + EOS + "}")
        assert len(np.unique(held_out["segment"])) == 1 and len(np.unique(read_columns(tmp_path / str(count))["segment"])) == count - 1
    (tmp_path / "one.jsonl").write_text(json.dumps(records[0]))
    options = ["--chat", "--tokenizer", tokenizer_dir, "--input", tmp_path / "one.jsonl", "--eval-fraction", 0.5]
    message = fails(*options, "--out", tmp_path / "out")
    assert "--eval-fraction: the input is one conversation; there is nothing to hold out" in message


def test_long_conversations(tmp_path, tokenizer_dir):
    """Refused, left out, or cut: of what is cut the end is not learned, and what is left without an answer is left out."""
    short, long = {"prompt": "x", "completion": " y"}, {"prompt": "x", "completion": " there" * 100}
    unanswered = {"prompt": "x" * 100, "completion": " y"}
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (short, long, unanswered)))
    options = ["--chat", "--tokenizer", tokenizer_dir, "--input", path, "--seq-len", 20]
    for more in ([], ["--on-long", "error"]):
        message = fails(*options, *more, "--out", tmp_path / "out")
        assert f"{path}:2: " in message and "or say with --on-long to drop or to truncate such records" in message
    ids = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json")).encode(long["prompt"] + long["completion"]).ids
    for on_long, kept, want in (("drop", [], "left out 2"), ("truncate", [(ids[:19] + [0], [0] + [1] * 18 + [0])], "left out 1")):
        result = run(*options, "--on-long", on_long, "--out", tmp_path / on_long)
        assert f"warning: {want} conversations longer than --seq-len 20" in result.stderr
        assert ("warning: of 1 conversations longer than --seq-len 20 only the beginning was taken" in result.stderr) == bool(kept)
        columns = read_columns(tmp_path / on_long)
        cut = np.flatnonzero(np.diff(columns["segment"])) + 1
        got = [(tokens.tolist(), mask.tolist()) for tokens, mask in zip(*(np.split(columns[name], cut) for name in ("tokens", "loss_mask")))]
        assert [row for row in got if len(row[0]) == 20] == kept and len(got) == 1 + len(kept)
    path.write_text(json.dumps(long))
    assert "no input text: 1 conversations longer than --seq-len were dropped" in fails(*options, "--on-long", "drop", "--out", tmp_path / "out")
    path.write_text('{"text": "x"}')
    message = fails(*options[1:], "--on-long", "drop", "--out", tmp_path / "out")
    assert "--on-long goes with --chat" in message


def test_a_template_that_is_missing_is_said(tmp_path, tokenizer_dir):
    path = tmp_path / "chat.jsonl"
    for record, is_said in (({"messages": TALK}, True), ({"prompt": "x", "completion": "y"}, False)):
        path.write_text(json.dumps(record))
        result = run("--chat", "--tokenizer", tokenizer_dir, "--input", path, "--out", tmp_path / f"{is_said}")
        warning = f"warning: the tokenizer has no chat template; a plain one was taken: copy {tmp_path}/True/tokenizer/chat_template.jinja"
        assert (warning in result.stderr) == is_said


@pytest.mark.parametrize(
    "name, content, want",
    [
        ("chat_template.jinja", b"\xe9" + CHATML.encode(), "can't decode byte 0xe9"),
        ("special_tokens_map.json", b"{", "Expecting property name"),
        ("tokenizer_config.json", b'{"eos_token": "<|endoftext|>", "chat_template": 5}', "chat_template is a int; wanted a text"),
        ("tokenizer_config.json", b'{"eos_token": "<|endoftext|>", "chat_template": ["x"]}', "string indices must be"),
        ("tokenizer_config.json", b'{"eos_token": "<|endoftext|>", "bos_token": 5}', "bos_token"),
    ],
)
def test_files_of_a_tokenizer_that_cannot_be_read_are_named(tmp_path, tokenizer_dir, name, content, want):
    shutil.copytree(tokenizer_dir, tmp_path / "model")
    (tmp_path / "model" / name).write_bytes(content)
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": TALK}))
    message = fails("--chat", "--tokenizer", tmp_path / "model", "--input", tmp_path / "chat.jsonl", "--out", tmp_path / "out")
    assert f"{tmp_path}/model: transformers cannot read the tokenizer's" in message and want in message


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
    run(*options, "--out", tmp_path / "one", "--no-separate-documents")
    run(*options, "--out", tmp_path / "many", "--shard-tokens", 97, "--processes", 2)
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
        (
            {"text": "x"},
            '--chat wants "messages", "conversations", "prompt" and "completion", or "instruction" and "output"; '
            'the fields are: "text"; rename yours',
        ),
        ({"prompt": "x", "completion": None}, 'the fields are: "prompt", "completion"'),
        ({"messages": [HI], "prompt": "x", "completion": "y"}, 'has "messages" and "prompt" with "completion": leave one out'),
        ({"messages": []}, '"messages" is empty'),
        ({"messages": "hi"}, '"messages" is a str; wanted a list of {"role": ..., "content": ...}'),
        ({"messages": [{"speaker": "human", "value": "x"}]}, '"messages", message 1: wanted {"role": ..., "content": ...}'),
        ({"conversations": [{"from": "human", "value": "x"}]}, "no message of the assistant: there is nothing to learn"),
        (
            {"conversations": [{"from": "human", "value": "x"}, {"from": "observation", "value": "y"}]},
            '"conversations", message 2: role \'observation\': only system, user, assistant with text are read; write tool',
        ),
        ({"instruction": "x", "output": " "}, '"output" is empty: there is nothing to learn; leave the record out'),
        ({"instruction": "", "output": "y"}, '"instruction" is empty; leave the record out'),
        ({"instruction": "x", "input": 3, "output": "y"}, '"input" is a int; wanted a text'),
        ({"messages": TALK, "tools": [{"name": "f"}]}, 'the field "tools" would change what is said, and is not read'),
        ({"messages": TALK, "system": "Be kind."}, 'the field "system" would change what is said, and is not read; write it as'),
        ({"messages": TALK, "functions": [{"name": "f"}]}, 'the field "functions" would change what is said'),
        ({"messages": TALK, "videos": ["x.mp4"]}, 'the field "videos" would change what is said'),
        ({"messages": [HI, {**HELLO, "weight": 0}]}, "message 2: weight 0: weights are not read"),
        ({"messages": [HI, {**HELLO, "weight": 0.5}]}, "message 2: weight 0.5: weights are not read"),
        ({"messages": [HI, {**HELLO, "from": "human"}]}, 'message 2: has "role" and "from", which say the same: leave one out'),
        ({"messages": [HI, {**HELLO, "value": "x"}]}, 'message 2: has "content" and "value", which say the same: leave one out'),
        ({"messages": TALK, "source": json.loads("[" * 800 + "]" * 800)}, "lists or objects in it are nested too deep"),
        ({"messages": [HI, {**HELLO, "content": None}]}, "message 2 (assistant): content is null; wanted a text"),
        ({"messages": [HI, {**HELLO, "function_call": {"name": "f"}}]}, "message 2: function_call: only system, user"),
        ({"messages": [HI, {"role": "tool", "content": "3"}]}, '"messages", message 2: role \'tool\': only system, user, assistant'),
        ({"messages": [HI, {**HELLO, "tool_calls": [1]}]}, '"messages", message 2: tool_calls: only system, user, assistant'),
        ({"messages": [HI, {"role": "assistant", "content": [{}]}]}, "message 2 (assistant): part 1 of content is a dict; only"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "url": "y"}]}, HELLO]},
            "message 1 (user): part 2 of content is type 'image'; only {\"type\": \"text\", \"text\": ...} is read",
        ),
        ({"messages": [HI, {"role": "assistant", "content": " "}]}, "message 2 (assistant): content is empty"),
        ({"messages": [SYSTEM, HI]}, "no message of the assistant: there is nothing to learn"),
        ({"prompt": "x", "completion": ""}, '"completion" is empty'),
        ({"prompt": "x", "completion": " \n"}, '"completion" is empty'),
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


def test_a_field_that_is_there_twice_is_named(tmp_path, tokenizer_dir):
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "A", "content": "B"}]}')
    (tmp_path / "b.jsonl").write_text('{"text": "A"}\n{"text": "A", "text": "B"}')
    (tmp_path / "c.json").write_text('[{"prompt": "A", "completion": "B", "prompt": "C"}]')
    (tmp_path / "d.csv").write_text("prompt,completion,prompt\nA,B,C\n")
    wants = [
        ("a.jsonl", '--chat', 'a.jsonl:1: not a JSON record: the field "content" is there twice'),
        ("b.jsonl", '--separate-documents', 'b.jsonl:2: not a JSON record: the field "text" is there twice'),
        ("c.json", '--chat', 'c.json: not JSON: the field "prompt" is there twice'),
        ("d.csv", '--chat', 'd.csv:1: the field "prompt" is there twice in the first line; rename one'),
    ]
    for name, option, want in wants:
        assert want in fails(option, "--tokenizer", tokenizer_dir, "--input", tmp_path / name, "--out", tmp_path / "out")
    (tmp_path / "e.jsonl").write_text("\n\n")
    message = fails("--chat", "--tokenizer", tokenizer_dir, "--input", tmp_path / "e.jsonl", "--out", tmp_path / "out")
    assert "no input text: the files have no records" in message


def test_what_a_template_refuses_or_cannot_tell_is_named(tmp_path, tokenizer_dir):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [*TALK[1:], AND, AND, BYE]}))
    for template, want in (
        (ALTERNATING, "the chat template refuses it: Conversation roles must alternate user/assistant"),
        (MARKS_NOTHING, "the chat template writes nothing that the assistant says: there is nothing to learn; mark what"),
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
    # Of a completion, marks would not help.
    path.write_text(json.dumps({"prompt": [HI], "completion": [HELLO, AND, BYE]}))
    for marks, remedy in (("", ", and mark what the assistant says in the template with {% generation %}"), ("{% generation %}{% endgeneration %}", "\n")):
        folder = with_template(tokenizer_dir, tmp_path / f"model{len(marks)}", LAST_ONLY + marks)
        message = fails("--chat", "--tokenizer", folder, "--input", path, "--out", tmp_path / "out")
        assert f'tokens cannot be told; give prompt and completion as one list of "messages"{remedy}' in message
    (tmp_path / "a.txt").write_text("a")
    message = fails("--chat", "--tokenizer", tokenizer_dir, "--input", tmp_path / "a.txt", "--out", tmp_path / "out")
    assert "--chat takes files of records, and these are texts: " in message
