"""Reads data folders for tests, from docs/data.md alone; and small inputs."""

import json
import struct
from pathlib import Path

import numpy as np

STORY = "Once upon a time there was a small daemon.\nIt moved numbers from here to there, and was content.\n"


def read_columns(folder: Path) -> dict[str, np.ndarray]:
    index = json.loads((folder / "index.json").read_text())
    parts: dict[str, list[np.ndarray]] = {}
    for shard in index["shards"]:
        data = (folder / shard["name"]).read_bytes()
        assert len(data) == shard["num_bytes"]
        magic, version, num_columns, num_tokens = struct.unpack_from("<8sIIQ", data)
        assert (magic, version, num_tokens) == (b"taccdata", 1, shard["num_tokens"])
        for i in range(num_columns):
            name, element_bytes, offset = struct.unpack_from("<16sQQ", data, 64 + 32 * i)
            assert offset >= 64 + 32 * num_columns and (i > 0 or offset % 64 == 0)
            values = np.frombuffer(data, {1: "u1", 2: "<u2", 4: "<u4"}[element_bytes], num_tokens, offset)
            parts.setdefault(name.rstrip(b"\0").decode(), []).append(values)
    columns = {name: np.concatenate(values).astype(np.int64) for name, values in parts.items()}
    assert all(len(column) == index["num_tokens"] for column in columns.values())
    return columns


def read_stream(folder: Path) -> np.ndarray:
    """The tokens of a folder without other columns."""
    columns = read_columns(folder)
    assert set(columns) <= {"tokens"}
    return columns.get("tokens", np.empty(0, np.int64))


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
