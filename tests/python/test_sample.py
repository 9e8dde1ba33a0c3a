"""`python -m tacc sample`."""

import contextlib
import io

import pytest
import torch
from tacc.__main__ import main

PAGE = "<main>\n<!-- sample: 3 4 -->\n<section>none</section>\n<!-- end of sample -->\n</main>\n"


def run(*args):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["sample", *map(str, args)])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    words = ["<s>", "</s>", "<b>", "once", "upon", "a", "time"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                         max_position_embeddings=32, bos_token_id=0, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_goes_on_from_the_prompt(model):
    code, out, err = run(model, "--prompt", "once upon", "--max-new-tokens", 4)
    assert code == 0, err
    assert out.startswith("once upon") and out.split()[2:]
    # Greedy: the same again.
    assert run(model, "--prompt", "once upon", "--max-new-tokens", 4)[1] == out


def test_fills_in_the_page(model, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(PAGE)
    code, out, err = run(model, "--report", page)
    assert code == 0, err
    text = page.read_text()
    # The page's prompt, and the place stays for another time.
    assert "once upon</span>" in text and "<section>none" not in text and out.startswith("once upon")
    assert text.startswith("<main>\n<!-- sample: 3 4 -->\n") and text.endswith("<!-- end of sample -->\n</main>\n")
    assert "<b>" not in text.replace("&lt;b&gt;", "")
    assert run(model, "--report", page, "--max-new-tokens", 3)[0] == 0
    assert page.read_text().count("<section>") == 1
    assert list(tmp_path.iterdir()) == [page]


def test_a_prompt_and_a_text_longer_than_the_model_takes(model):
    assert run(model, "--prompt", " ".join(["once"] * 50), "--max-new-tokens", 100)[0] == 0


def test_what_it_cannot_do(model, tmp_path):
    other = tmp_path / "other.html"
    other.write_text("<main></main>")
    for args, words in [((tmp_path,), "config.json is missing"), ((model, "--report", other), "no place for a sample"),
                        ((model, "--max-new-tokens", 0), "at least 1")]:
        code, _, err = run(*args)
        assert code == 2 and words in err and err.startswith("error: "), err
