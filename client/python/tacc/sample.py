"""`python -m tacc sample`: lets an exported model write some text."""

import argparse
import html
import json
import os
import re
import tempfile
from pathlib import Path

from tacc.errors import InputError, this_python

ADAPTER_CONFIG = "adapter_config.json"
# What a page about a run (report.html) has for it: ids of the prompt's tokens, then what is to be replaced.
PLACE = re.compile(r"<!-- sample: ([\d ]*) -->\n.*?<!-- end of sample -->\n", re.S)


def add_command(commands) -> None:
    parser = commands.add_parser("sample", help="let an exported model write some text, on the CPU")
    parser.add_argument("model", type=Path, metavar="MODEL_DIR", help="a Hugging Face folder with weights and tokenizer; or that of an adapter (needs peft)")
    parser.add_argument("--prompt", help="text to go on from (default: that of the page, else the token that begins a text)")
    parser.add_argument("--max-new-tokens", type=int, default=60, metavar="N")
    parser.add_argument("--report", type=Path, metavar="PAGE", help="also put the sample into this page (report.html of a run)")
    parser.set_defaults(run=sample)


def sample(args: argparse.Namespace) -> None:
    if args.max_new_tokens < 1:
        raise InputError(f"--max-new-tokens {args.max_new_tokens}: it must be at least 1")
    is_adapter = (args.model / ADAPTER_CONFIG).is_file()
    for name in (ADAPTER_CONFIG if is_adapter else "config.json", "tokenizer.json"):
        if not (args.model / name).is_file():
            raise InputError(f"{args.model / name} is missing; wanted the folder of a model with its tokenizer, as a job exports it")
    page = args.report.read_text(encoding="utf-8") if args.report else ""
    place = PLACE.search(page)
    if args.report and place is None:
        raise InputError(f"{args.report}: it has no place for a sample; wanted the report.html of a run that has exported a model")
    prompt_ids = [int(token) for token in place[1].split()] if place else []
    prompt, text = generate(args.model, args.prompt, prompt_ids, args.max_new_tokens)
    print(f"{prompt}{text}")
    if place is None:
        return
    section = (f"<section><h2>A sample of its text</h2>\n<p class=\"note\">Greedy, {args.max_new_tokens} tokens at most; the prompt is set off.</p>\n"
               f"<pre style=\"white-space:pre-wrap;margin:0\"><span style=\"color:var(--muted)\">{html.escape(prompt)}</span>{html.escape(text)}</pre></section>\n")
    whole = f"<!-- sample: {place[1]} -->\n{section}<!-- end of sample -->\n"
    replace(args.report, page[:place.start()] + whole + page[place.end():])


def generate(model_dir: Path, prompt: str | None, prompt_ids: list[int], max_new_tokens: int) -> tuple[str, str]:
    """The prompt as text, and what the model goes on with."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
    except ImportError as error:
        raise InputError(f"a sample needs transformers and torch ({error}): {this_python()} -m pip install transformers torch") from error
    base_dir = model_dir
    if (model_dir / ADAPTER_CONFIG).is_file():
        base_dir = Path(json.loads((model_dir / ADAPTER_CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"])
        try:
            from peft import PeftModel
        except ImportError as error:
            raise InputError(f"{model_dir} is an adapter, which needs peft ({error}): {this_python()} -m pip install peft; "
                             "or merge it: taccctl export NAME --merge --out DIR") from error
    try:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(model_dir / "tokenizer.json")) if base_dir != model_dir else AutoTokenizer.from_pretrained(model_dir)
        model = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32).eval()
        if base_dir != model_dir:
            model = PeftModel.from_pretrained(model, model_dir).eval()
    except (ValueError, OSError, KeyError) as error:
        raise InputError(f"{model_dir}: transformers cannot load it: {error}") from error
    if prompt is not None:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    else:
        ids = [i for i in prompt_ids if i < model.config.vocab_size]
    if not ids:
        begin = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), 0)
        ids = [begin]
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None:
        ids = ids[:max(1, longest // 2, longest - max_new_tokens)]
        max_new_tokens = min(max_new_tokens, max(1, longest - len(ids)))
    with torch.inference_mode():
        whole = model.generate(torch.tensor([ids]), max_new_tokens=max_new_tokens, do_sample=False,
                               pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0)[0].tolist()
    def text_of(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=True)

    shown, full = text_of(ids), text_of(whole)
    # Decoded together: a token may be part of a character.
    return (shown, full[len(shown):]) if full.startswith(shown) else (shown, text_of(whole[len(ids):]))


def replace(path: Path, text: str) -> None:
    """Replaces a file as a whole."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".report-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
