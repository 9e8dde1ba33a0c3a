"""Tokens for benchmarks, as tacc and as PyTorch read them."""

from pathlib import Path

import numpy as np
from tacc.shards import DatasetWriter


def write_tokens(folder: Path, vocab_size: int, steps: int, batch: int, seq_len: int) -> None:
    """A data folder `data`, and the same tokens as `tokens.npy` of [steps, batch, seq_len]."""
    # Ids of a Zipf-like distribution, so that the embedding sees repeats as in text.
    tokens = np.minimum(np.random.default_rng(0).zipf(1.2, size=steps * batch * seq_len), vocab_size) - 1
    np.save(folder / "tokens.npy", tokens.reshape(-1, batch, seq_len))
    writer = DatasetWriter(folder / "data", vocab_size)
    writer.append(tokens)
    writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=seq_len)
