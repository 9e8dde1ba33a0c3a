"""Which tokens are learned is what `trl` makes labels of, from the same rows: with `assistant_only_loss` of messages, with
`completion_only_loss` of a prompt and a completion. Its rule is written here once more from transformers alone; where trl
is installed, the rule is held to its trainer too."""

import json
import shutil

import numpy as np
import pytest
from data_folder import read_columns, write_corpus
from test_data_prepare import run
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

EOS = "<|endoftext|>"
IM_END = "<|im_end|>"
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
# As Llama 3's, of which the last token is EOS; it drops spaces around what is said.
STRIPPING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n\n{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] | trim }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] | trim }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
# As Phi 3's: a marker takes the spaces behind it, also those that an answer begins with.
TAKING = ("<|human|>", "<|bot|>")
MARKERS = (
    "{% for m in messages %}{{ {'user': '<|human|>', 'assistant': '<|bot|>'}.get(m['role'], m['role']) }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>\n{% endif %}"
)
DEFAULT = ""  # Ours, for a tokenizer without a template.

PIECES = ["Hi there", "naïve 漢字 🙂", " with spaces  ", "a\r\nline\n\nend\n", "def f(x):\n    return x", "no", "e\u0301 \u2028 x", "<|im_start|>?"]


def talk(i, with_system=False, turns=1, begins="user"):
    system = [{"role": "system", "content": ["Be brief.", ""][i % 2]}] if with_system else []
    roles = ["user", "assistant"] if begins == "user" else ["assistant", "user", "assistant"]
    said = [{"role": role, "content": f"{PIECES[(i + k) % len(PIECES)]}{i}"} for k, role in enumerate(roles * turns)]
    return system + said


TALKS = [talk(i, with_system=i % 3 == 0, turns=1 + i % 3) for i in range(24)]
MESSAGES = [{"messages": messages} for messages in TALKS]
FIRST = [{"messages": talk(i, begins="assistant")} for i in range(8)]
COMPLETIONS = [{"prompt": messages[:-1], "completion": messages[-1:]} for messages in TALKS]
TEXTS = [{"prompt": f"{PIECES[i % 8]}{i}=", "completion": f" {PIECES[i * 5 % 8]}!"} for i in range(24)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizer")
    write_corpus(root / "text")
    run("--train-tokenizer", 300, "--input", root / "text", "--out", root / "data")
    return root / "data" / "tokenizer"


@pytest.fixture
def folder_of(plain, tmp_path):
    """A tokenizer's folder with a template and its EOS."""

    def folder(template, eos):
        made = tmp_path / "model"
        shutil.copytree(plain, made)
        tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", IM_END)])
        tokenizer.add_special_tokens([AddedToken(token, special=True, rstrip=True) for token in TAKING])
        tokenizer.save(str(made / "tokenizer.json"))
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            (made / name).write_text((made / name).read_text().replace(EOS, eos))
        if template:
            (made / "chat_template.jinja").write_text(template)
        return made

    return folder


def common_prefix(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def row_of_rule(tokenizer, record):
    """The tokens, and which of them are labels. Source: trl 1.16.0, SFTTrainer._prepare_dataset."""
    if "messages" in record:
        made = tokenizer.apply_chat_template(record["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        return made["input_ids"], made["assistant_masks"]
    prompt, completion = record["prompt"], record["completion"]
    if isinstance(prompt, str):
        if not completion.endswith(tokenizer.eos_token):
            completion += tokenizer.eos_token
        before, whole = tokenizer(text=prompt)["input_ids"], tokenizer(text=prompt + completion)["input_ids"]
    else:
        before = tokenizer.apply_chat_template(prompt, tokenize=True, return_dict=True, add_generation_prompt=True)["input_ids"]
        whole = tokenizer.apply_chat_template(prompt + completion, tokenize=True, return_dict=True)["input_ids"]
    first = common_prefix(before, whole)
    return whole, [0] * first + [1] * (len(whole) - first)


def rows_of_trl(tokenizer, records, tmp_path):
    """By trl's trainer itself."""
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    tokenizer.pad_token = "<|im_start|>"
    trainer = SFTTrainer(
        model=LlamaForCausalLM(LlamaConfig(vocab_size=400, **sizes)),
        args=SFTConfig(
            str(tmp_path / "trl"), use_cpu=True, bf16=False, report_to=[], max_length=None, assistant_only_loss="messages" in records[0]
        ),
        train_dataset=Dataset.from_list(records),
        processing_class=tokenizer,
    )
    return [(row["input_ids"], [int(label != -100) for label in row["labels"]]) for row in trainer.train_dataset]


def documents(folder):
    """Each document's tokens and mask, with EOS; order aside. Where documents begin is told by the column `segment`."""
    columns = read_columns(folder)
    ends = np.flatnonzero(np.diff(columns["segment"])) + 1
    parts = zip(*(np.split(columns[name], ends) for name in ("tokens", "loss_mask")))
    return [(tokens.tolist(), mask.tolist()) for tokens, mask in parts]


CASES = [
    # Records, template, EOS; what comes after trl's row: nothing where it ends with EOS, or EOS and whether it is learned.
    pytest.param(MESSAGES, DEFAULT, EOS, None, id="default"),
    pytest.param(FIRST, DEFAULT, EOS, None, id="assistant first"),
    pytest.param(MESSAGES, MARKED, IM_END, 0, id="marked"),  # The turn has ended; EOS is between documents only.
    pytest.param(MESSAGES, MARKED, EOS, 0, id="marked, other eos"),  # As the template's author marked it.
    pytest.param(MESSAGES, STRIPPING, IM_END, None, id="stripping"),
    pytest.param(COMPLETIONS, MARKED, IM_END, 0, id="completion, marked"),
    pytest.param(COMPLETIONS, UNMARKED, IM_END, 0, id="completion, unmarked"),
    pytest.param(COMPLETIONS, STRIPPING, IM_END, None, id="completion, stripping"),
    pytest.param(COMPLETIONS, UNMARKED, EOS, 1, id="completion, other eos"),  # Else nothing would say that it ends.
    pytest.param(COMPLETIONS, MARKERS, IM_END, 0, id="completion, markers that take spaces"),
    pytest.param(TEXTS, DEFAULT, EOS, None, id="texts"),
]


def prepared(records, folder, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    run("--chat", "--tokenizer", folder, "--input", tmp_path / "rows.jsonl", "--out", tmp_path / "data")
    return sorted(documents(tmp_path / "data")), PreTrainedTokenizerFast.from_pretrained(tmp_path / "data" / "tokenizer")


def with_eos(rows, eos_id, after):
    return sorted((ids, mask) if after is None else ([*ids, eos_id], [*mask, after]) for ids, mask in rows)


@pytest.mark.parametrize("records, template, eos, after", CASES)
def test_what_is_learned_is_what_the_rule_labels(tmp_path, folder_of, records, template, eos, after):
    got, tokenizer = prepared(records, folder_of(template, eos), tmp_path)
    want = [row_of_rule(tokenizer, record) for record in records]
    assert all(1 in mask and 0 in mask for _, mask in want)
    assert got == with_eos(want, tokenizer.eos_token_id, after)


@pytest.mark.parametrize("records, template, eos, after", CASES)
def test_what_is_learned_is_what_trl_labels(tmp_path, folder_of, records, template, eos, after):
    pytest.importorskip("trl", reason="no trl: the rule is held to itself")
    got, tokenizer = prepared(records, folder_of(template, eos), tmp_path)
    assert got == with_eos(rows_of_trl(tokenizer, records, tmp_path), tokenizer.eos_token_id, after)
