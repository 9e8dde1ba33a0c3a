"""Writes data folders: index.json and shards of token ids. docs/data.md is the format."""

import hashlib
import json
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

FORMAT = "tacc-data"
VERSION = 1
MAGIC = b"taccdata"


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class DatasetWriter:
    """Writes one stream of tokens into `folder`, cut into shards of at most `shard_tokens` tokens; None: into one."""

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        shard_tokens: int | None = None,
        *,
        separate_documents: bool = False,
        loss_mask: bool = False,
    ):
        """`separate_documents`: write the column `segment`; `loss_mask`: write the column of this name."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._vocab_size = vocab_size
        self._dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self._shard_tokens = sys.maxsize if shard_tokens is None else shard_tokens
        self._shards: list[dict[str, Any]] = []
        self._file: BinaryIO | None = None
        self._shard_num_tokens = 0
        self._shard_num_documents = 0
        self._max_token_id = 0
        self._separate_documents = separate_documents
        num_columns = 1 + loss_mask + separate_documents
        # Header of 64 bytes, column descriptors of 32; columns begin at a multiple of 64.
        self._data_offset = -(-(64 + 32 * num_columns) // 64) * 64
        # Of the shard, until its tokens are complete.
        self._loss_mask = tempfile.TemporaryFile(dir=folder) if loss_mask else None
        self._segments: list[tuple[int, int]] = []  # Of the shard: number of a document modulo 256, its tokens.

    @property
    def num_tokens(self) -> int:
        return sum(int(shard["num_tokens"]) for shard in self._shards) + self._shard_num_tokens

    @property
    def num_documents(self) -> int:
        return sum(int(shard["num_documents"]) for shard in self._shards) + self._shard_num_documents

    def append(self, tokens: np.ndarray[Any, Any], loss_mask: np.ndarray[Any, Any] | None = None) -> None:
        """Appends one document, its EOS included. It may cross into further shards; it counts where it begins.
        `loss_mask`, with a writer of it: for each token whether it is a target."""
        tokens = tokens.astype(self._dtype, copy=False)
        self._max_token_id = max(self._max_token_id, int(tokens.max(initial=0)))
        is_begin = True
        segment = self.num_documents % 256
        while len(tokens) > 0:
            if self._file is not None and self._shard_num_tokens == self._shard_tokens:
                self._end_shard(self._file)
            if self._file is None:
                self._file = open(self._shard_path(), "wb", buffering=1 << 20)
                self._file.write(bytes(self._data_offset))
            part = tokens[: self._shard_tokens - self._shard_num_tokens]
            self._file.write(part.tobytes())
            if self._loss_mask is not None:
                assert loss_mask is not None
                self._loss_mask.write(loss_mask[: len(part)].astype("u1").tobytes())
                loss_mask = loss_mask[len(part) :]
            self._segments.append((segment, len(part)))
            self._shard_num_tokens += len(part)
            self._shard_num_documents += is_begin
            is_begin = False
            tokens = tokens[len(part) :]

    def _shard_path(self) -> Path:
        return self._folder / f"{len(self._shards):05d}.tacc"

    def _end_shard(self, file: BinaryIO) -> None:
        path = self._shard_path()
        columns = [(b"tokens", self._dtype.itemsize, self._data_offset)]
        if self._loss_mask is not None:
            columns.append((b"loss_mask", 1, file.tell()))
            self._loss_mask.seek(0)
            shutil.copyfileobj(self._loss_mask, file)
            self._loss_mask.seek(0)
            self._loss_mask.truncate()
        if self._separate_documents:
            columns.append((b"segment", 1, file.tell()))
            for segment, length in self._segments:
                file.write(bytes([segment]) * length)
        self._segments = []
        file.seek(0)
        file.write(struct.pack("<8sIIQ40x", MAGIC, VERSION, len(columns), self._shard_num_tokens))
        for column in columns:
            file.write(struct.pack("<16sQQ", *column))
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._file = None
        self._shards.append(
            {
                "name": path.name,
                "num_tokens": self._shard_num_tokens,
                "num_documents": self._shard_num_documents,
                "num_bytes": path.stat().st_size,
                "sha256": file_sha256(path),
            }
        )
        self._shard_num_tokens = 0
        self._shard_num_documents = 0

    def release(self) -> None:
        """Closes the files that are open, as after an error."""
        for file in (self._file, self._loss_mask):
            if file is not None:
                file.close()

    def close(self, *, tokenizer: dict[str, Any], seq_len: int) -> dict[str, Any]:
        """Writes index.json and returns it. `tokenizer`: fingerprint, eos_token, eos_token_id."""
        if self._file is not None:
            self._end_shard(self._file)
        self.release()
        hashes = "".join(shard["sha256"] + "\n" for shard in self._shards)
        index = {
            "format": FORMAT,
            "version": VERSION,
            "seq_len": seq_len,
            "num_tokens": self.num_tokens,
            "num_documents": self.num_documents,
            "max_token_id": self._max_token_id,
            "fingerprint": hashlib.sha256(hashes.encode()).hexdigest(),
            "tokenizer": {**tokenizer, "vocab_size": self._vocab_size},
            "shards": self._shards,
        }
        with open(self._folder / "index.json", "w", encoding="utf-8") as file:
            json.dump(index, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        return index
