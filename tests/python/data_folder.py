"""Reads data folders for tests, from docs/data.md alone; and small inputs."""

import json
import struct
from pathlib import Path

import numpy as np

STORY = "Once upon a time there was a small daemon.\nIt moved numbers from here to there, and was content.\n"


def read_stream(folder: Path) -> np.ndarray:
    index = json.loads((folder / "index.json").read_text())
    parts = []
    for shard in index["shards"]:
        data = (folder / shard["name"]).read_bytes()
        assert len(data) == shard["num_bytes"]
        magic, version, num_columns, num_tokens = struct.unpack_from("<8sIIQ", data)
        assert (magic, version, num_columns, num_tokens) == (b"taccdata", 1, 1, shard["num_tokens"])
        name, element_bytes, offset = struct.unpack_from("<16sQQ", data, 64)
        assert name.rstrip(b"\0") == b"tokens" and offset % 64 == 0
        parts.append(np.frombuffer(data, {2: "<u2", 4: "<u4"}[element_bytes], num_tokens, offset))
    stream = np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
    assert len(stream) == index["num_tokens"]
    return stream


def read_documents(folder: Path) -> list[tuple[int, ...]]:
    """The documents, without their EOS."""
    eos = json.loads((folder / "index.json").read_text())["tokenizer"]["eos_token_id"]
    stream = read_stream(folder)
    assert stream[-1] == eos
    ends = np.flatnonzero(stream == eos)
    return [tuple(part[part != eos].tolist()) for part in np.split(stream, ends[:-1] + 1)]


def write_corpus(folder: Path, num_documents: int = 40) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    texts = [f"Story {i}.\n" + STORY * (1 + i % 5) for i in range(num_documents)]
    for i, text in enumerate(texts):
        (folder / f"{i:03d}.txt").write_text(text)
    return texts
