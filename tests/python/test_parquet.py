"""`python -m tacc data prepare` of parquet files; needs pyarrow."""

import collections
import json

import numpy as np
import pyarrow as pa
import pytest
from data_folder import read_columns, read_documents, write_corpus
from pyarrow import parquet
from tacc.preparing import corpus
from test_data_prepare import encode_all, fails, run


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizer")
    write_corpus(root / "text")
    run("--train-tokenizer", 300, "--input", root / "text", "--out", root / "data")
    return root / "data" / "tokenizer"


def test_rows_of_all_groups_are_read_once(tmp_path, tokenizer_dir):
    texts = [f"{i}: " + "words " * (i % 50) for i in range(1000)]
    table = pa.table({"id": range(1000), "body": texts})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=300, compression="zstd")
    files = corpus.find_files([str(tmp_path / "a.parquet")], [], [])
    pieces = [piece for task in corpus.plan_tasks(files) for piece in task]
    assert [piece.row_group for piece in pieces] == [0, 1, 2, 3] and pieces[-1].end == files[0].num_bytes
    options = ["--tokenizer", tokenizer_dir, "--input", tmp_path / "a.parquet", "--text-field", "body"]
    run(*options, "--out", tmp_path / "data", "--processes", 2)
    want = collections.Counter(encode_all(tokenizer_dir, texts))
    assert collections.Counter(read_documents(tmp_path / "data")) == want


def test_conversations(tmp_path, tokenizer_dir):
    records = [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "no " * i + "."}]}
        for i in range(20)
    ]
    parquet.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet", row_group_size=7)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    columns = []
    for name in ("a.parquet", "a.jsonl"):
        run("--chat", "--tokenizer", tokenizer_dir, "--input", tmp_path / name, "--out", tmp_path / f"{name}.data")
        columns.append(read_columns(tmp_path / f"{name}.data"))
    assert all(np.array_equal(columns[0][name], columns[1][name]) for name in ("tokens", "loss_mask"))


def test_bad_files_are_named(tmp_path, tokenizer_dir):
    path = tmp_path / "a.parquet"

    def message(*options):
        return fails(*options, "--tokenizer", tokenizer_dir, "--input", path, "--out", tmp_path / "out")

    path.write_bytes(b"PAR1 and nothing")
    assert "a.parquet: not a parquet file: " in message()
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "a.parquet: a pointer of git-lfs" in message()
    parquet.write_table(pa.table({"body": ["x"], "id": [1]}), path)
    assert 'a.parquet: no column "text"; its columns: "body", "id"; say which is the text with --text-field' in message()
    parquet.write_table(pa.table({"messages": ["x"], "id": [1]}), path)
    assert 'its columns: "messages", "id"; these look like conversations: give --chat, or say which' in message()
    parquet.write_table(pa.table({"body": ["x"], "id": [1]}), path)
    assert 'a.parquet: no column "messages", "conversations", "prompt" and "completion", or "instruction" and "output"; its columns: "body", "id"' in message("--chat")
    parquet.write_table(pa.table({"text": ["x"] * 5 + [None]}), path, row_group_size=4)
    assert 'a.parquet: row 6: field "text" is not a text but null; leave the record out' in message()
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert "no input text: " in message()
    parquet.write_table(pa.table({"text": ["some words"] * 1000}), path, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)
    assert "a.parquet: cannot be read after row 0: " in message()
