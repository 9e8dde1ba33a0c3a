"""What is to be prepared, and what was: without the packages that the work itself needs."""

from dataclasses import dataclass, field
from pathlib import Path

from tacc.preparing.in_memory import DEFAULT_TEXT_FIELD, Records

DEFAULT_SEQ_LEN = 2048
DEFAULT_SEED = 42
DEFAULT_SHARD_TOKENS = 1 << 29


@dataclass(frozen=True)
class PrepareOptions:
    """What the options of `python -m tacc data prepare` say; docs/data.md has their meaning."""

    inputs: list[str] | Records
    out: Path
    tokenizer: Path | None = None  # Its folder; else `train_tokenizer` is the size of the vocabulary to train.
    train_tokenizer: int | None = None
    eos_token: str | None = None
    text_field: str = DEFAULT_TEXT_FIELD
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    as_text: tuple[str, ...] = ()
    chat: bool | None = False  # Records are conversations; None: if the first one looks like one.
    on_long: str | None = None  # One of encoding.ON_LONG, with `chat`; None: the first.
    eval_fraction: float = 0.0
    seq_len: int = DEFAULT_SEQ_LEN
    separate_documents: bool | None = None  # Write the column `segment`; None: of conversations.
    seed: int = DEFAULT_SEED
    processes: int = 0  # 0: one for each core this process may use.
    shard_tokens: int = DEFAULT_SHARD_TOKENS


@dataclass(frozen=True)
class PreparedData:
    """A data folder that was written.

    Attributes:
        path: The folder, absolute: `data.path` of a job.
        eval_path: The folder of the held-out data, `data.eval_path` of a job; None: nothing was held out.
        tokenizer_path: The folder of the tokenizer, for `transformers`' AutoTokenizer.
        num_tokens: Tokens of the training data, with the EOS of each document.
        num_target_tokens: Those of them that are learned: all, or with `chat` what the assistant says.
        num_documents: Documents (texts, records) of the training data.
        num_input_documents: Documents that were taken of the input. A text of which both parts have a piece is one.
        num_eval_tokens: As `num_tokens`, of the held-out data.
        num_eval_documents: As `num_documents`, of the held-out data.
        seq_len: Length of a sample, in tokens, for jobs that set no `data.seq_len`.
        vocab_size: Every id is below.
        eos_token: What ends a document.
        fingerprint: SHA-256 of the training data, as index.json has it.
        chat: Whether the records were taken as conversations.
        separate_documents: Whether a job keeps the documents of a row apart.
        num_empty: Texts without any visible character, which were skipped.
        num_dropped: Conversations longer than `seq_len` that were left out, by `on_long`.
        num_truncated: Conversations longer than `seq_len` of which the beginning was taken, by `on_long`.
        num_input_bytes: Of the files that were read, or of the records as JSON lines.
        warnings: What to know about the input or the tokenizer, a sentence each.
    """

    path: Path
    eval_path: Path | None
    tokenizer_path: Path
    num_tokens: int
    num_target_tokens: int
    num_documents: int
    num_input_documents: int
    num_eval_tokens: int
    num_eval_documents: int
    seq_len: int
    vocab_size: int
    eos_token: str
    fingerprint: str
    chat: bool
    separate_documents: bool
    num_empty: int
    num_dropped: int
    num_truncated: int
    num_input_bytes: int
    warnings: tuple[str, ...] = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        held_out = f" and {self.num_eval_tokens:,} held-out tokens" if self.eval_path else " tokens"
        learned = f" ({self.num_target_tokens:,} to be learned)" if self.chat else ""
        return (
            f"{self.path}: {self.num_tokens:,} training{held_out}{learned} of "
            f"{self.num_input_documents:,} {'conversations' if self.chat else 'documents'}, "
            f"vocabulary {self.vocab_size:,}"
        )
