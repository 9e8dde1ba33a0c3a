"""Loads a tokenizer's folder, or trains one."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tacc.errors import InputError, refuse_lfs_pointer, this_python
from tacc.shards import file_sha256

END_OF_TEXT = "<|endoftext|>"  # EOS of a tokenizer trained here.
MIN_VOCAB_SIZE = 257  # 256 bytes and EOS.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class TokenizerFacts:
    fingerprint: str  # SHA-256 of tokenizer.json.
    vocab_size: int  # Every id is below.
    eos_token: str
    eos_token_id: int


def load_tokenizer(folder: Path, eos_token: str | None) -> TokenizerFacts:
    """Reads the facts of the tokenizer in `folder`. `eos_token` overrides what its configuration says."""
    if not folder.is_dir():
        raise InputError(f"--tokenizer {folder}: no such folder; a model of the hub is to be downloaded first")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(
            f'{folder}: has no tokenizer.json; write one with: {this_python()} -c "from transformers import AutoTokenizer; '
            f"AutoTokenizer.from_pretrained('{folder}').save_pretrained('NEW_DIR')\", then give --tokenizer NEW_DIR"
        )
    tokenizer = open_tokenizer(path)
    eos_token = eos_token or _configured_eos(folder, tokenizer)
    if eos_token is None:
        raise InputError(
            f"{folder}: the tokenizer has no EOS token (no eos_token in tokenizer_config.json); "
            "name one with --eos-token"
        )
    eos_token_id = tokenizer.token_to_id(eos_token)
    if eos_token_id is None:
        raise InputError(
            f"{path}: the EOS token {eos_token!r} is not in the vocabulary; name one that is with --eos-token"
        )
    vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    return TokenizerFacts(file_sha256(path), vocab_size, eos_token, eos_token_id)


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer, without the truncation and padding that its file may ask for."""
    with open(path, "rb") as file:
        refuse_lfs_pointer(str(path), file.read(64))
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises plain Exception.
        raise InputError(f"{path}: not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def eos_mismatch(folder: Path, facts: TokenizerFacts) -> str | None:
    """What to warn of where the folder is a model's whose configuration names another EOS."""
    wanted = _read_json(folder / "config.json").get("eos_token_id")
    ids = wanted if isinstance(wanted, list) else [wanted]
    if wanted is None or facts.eos_token_id in ids:
        return None
    return (
        f"{folder / 'config.json'}: eos_token_id is {wanted}, but documents end with {facts.eos_token!r}, which is "
        f"{facts.eos_token_id}: the trained model would not stop there; set eos_token_id to {facts.eos_token_id}, or "
        "name the model's EOS with --eos-token"
    )


def _configured_eos(folder: Path, tokenizer: Tokenizer) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        eos = _read_json(folder / name).get("eos_token")
        if isinstance(eos, dict):
            eos = eos.get("content")
        if isinstance(eos, str):
            return eos
    for name in ("generation_config.json", "config.json"):
        eos_id = _read_json(folder / name).get("eos_token_id")
        if isinstance(eos_id, list) and eos_id:
            eos_id = eos_id[0]
        if isinstance(eos_id, int):
            return tokenizer.id_to_token(eos_id)
    return None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def copy_tokenizer(source: Path, target: Path) -> None:
    target.mkdir()
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def train_tokenizer(documents: Iterable[str], vocab_size: int, folder: Path) -> None:
    """Trains a byte-level BPE and writes it to `folder` for `transformers`' AutoTokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(1e30),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": END_OF_TEXT}, indent=2) + "\n", encoding="utf-8"
    )
