"""`python -m tacc data prepare`, against a plain reading of the input and of docs/data.md."""

import collections
import contextlib
import filecmp
import hashlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from data_folder import STORY, read_documents, read_stream, write_corpus
from tacc.__main__ import main
from tacc.errors import this_python
from tacc.preparing import corpus, encoding
from tokenizers import Tokenizer, models, pre_tokenizers


def run(*args, ok=True):
    """In this process, and by one process unless the arguments say otherwise: that is quick."""
    arguments = ["data", "prepare", *map(str, args)]
    if "--processes" not in arguments:
        arguments += ["--processes", "1"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as exit:
            code = exit.code
    assert (code == 0) == ok, out.getvalue() + err.getvalue()
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def fails(*args):
    result = run(*args, ok=False)
    assert result.returncode == 2 and result.stdout == ""
    assert all(line.startswith("error: ") for line in result.stderr.splitlines()), result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    """A tokenizer trained on the stories."""
    root = tmp_path_factory.mktemp("tokenizer")
    write_corpus(root / "text")
    run("--train-tokenizer", 300, "--input", root / "text", "--out", root / "data")
    return root / "data" / "tokenizer"


def encode_all(tokenizer_dir, texts):
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    return [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]


def test_documents_are_shuffled_and_joined_with_eos(tmp_path, tokenizer_dir):
    texts = write_corpus(tmp_path / "text")
    run("--tokenizer", tokenizer_dir, "--input", tmp_path / "text", "--out", tmp_path / "data")
    want = encode_all(tokenizer_dir, texts)
    got = read_documents(tmp_path / "data")
    assert collections.Counter(got) == collections.Counter(want)
    assert got != want, "the order of the input"
    index = json.loads((tmp_path / "data" / "index.json").read_text())
    assert index["num_documents"] == len(texts)
    assert index["num_tokens"] == sum(len(document) + 1 for document in want)
    assert index["max_token_id"] == max(max(document) for document in want)
    shard = tmp_path / "data" / "00000.tacc"
    assert index["shards"][0]["sha256"] == hashlib.sha256(shard.read_bytes()).hexdigest()
    tokenizer = (tmp_path / "data" / "tokenizer" / "tokenizer.json").read_bytes()
    assert index["tokenizer"]["fingerprint"] == hashlib.sha256(tokenizer).hexdigest()
    assert tokenizer == (tokenizer_dir / "tokenizer.json").read_bytes()
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["00000.tacc", "index.json", "tokenizer"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "text"], "nothing else is left"


def test_same_seed_same_bytes_whatever_the_processes(tmp_path, tokenizer_dir):
    write_corpus(tmp_path / "text")
    (tmp_path / "text" / "more.jsonl").write_text(
        "".join(json.dumps({"text": f"{i} {STORY}"}) + "\n" for i in range(100))
    )

    def prepare(name, *args):
        run(
            "--tokenizer",
            tokenizer_dir,
            "--input",
            tmp_path / "text",
            "--out",
            tmp_path / name,
            "--eval-fraction",
            0.1,
            *args,
        )
        return tmp_path / name

    one, three, other = (
        prepare("1"),
        prepare("3", "--processes", 3),
        prepare("other", "--seed", 7),
    )
    for name in ("index.json", "00000.tacc", "eval/index.json", "eval/00000.tacc", "tokenizer/tokenizer.json"):
        assert filecmp.cmp(one / name, three / name, shallow=False), name
    assert read_stream(one).tolist() != read_stream(other).tolist()


def test_training_a_tokenizer_is_reproducible_and_transformers_loads_it(tmp_path):
    texts = write_corpus(tmp_path / "text")
    for name in ("a", "b"):
        run("--train-tokenizer", 320, "--input", tmp_path / "text", "--out", tmp_path / name)
    assert filecmp.cmp(tmp_path / "a/tokenizer/tokenizer.json", tmp_path / "b/tokenizer/tokenizer.json", shallow=False)

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a" / "tokenizer")
    assert len(tokenizer) == 320 and tokenizer.is_fast
    assert tokenizer.eos_token == "<|endoftext|>" and tokenizer.eos_token_id == 0
    for text in (*texts[:3], "naïve 漢字 \t\r\n  🙂", "    def f(x):\n        return x\n"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tuple(tokenizer(texts[5])["input_ids"]) in read_documents(tmp_path / "a")


def test_eval_fraction_holds_out_whole_documents(tmp_path, tokenizer_dir):
    texts = write_corpus(tmp_path / "text", 200)
    run("--tokenizer", tokenizer_dir, "--input", tmp_path / "text", "--out", tmp_path / "data", "--eval-fraction", 0.1)
    train, held_out = read_documents(tmp_path / "data"), read_documents(tmp_path / "data" / "eval")
    assert collections.Counter(train + held_out) == collections.Counter(encode_all(tokenizer_dir, texts))
    share = sum(map(len, held_out)) / sum(map(len, train + held_out))
    assert 0.1 <= share <= 0.12
    assert json.loads((tmp_path / "data/eval/index.json").read_text())["tokenizer"]["vocab_size"] == 300


@pytest.mark.parametrize("num_documents", [1, 2])
def test_eval_fraction_of_few_documents_is_cut_off_the_end_of_one(tmp_path, tokenizer_dir, num_documents):
    texts = [STORY * 50 + f"the end {i}" for i in range(num_documents)]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    run(
        "--tokenizer",
        tokenizer_dir,
        "--input",
        *(tmp_path / f"{i}.txt" for i in range(num_documents)),
        "--out",
        tmp_path / "data",
        "--eval-fraction",
        0.05,
    )
    train, held_out = read_documents(tmp_path / "data"), read_documents(tmp_path / "data" / "eval")
    want = encode_all(tokenizer_dir, texts)
    assert len(held_out) == 1 and len(train) == num_documents
    assert collections.Counter(train) + collections.Counter() != collections.Counter(want)
    assert any(document + held_out[0] in want for document in train)
    assert len(held_out[0]) == round(0.05 * sum(map(len, want)))


def test_shard_borders_lose_no_tokens(tmp_path, tokenizer_dir):
    write_corpus(tmp_path / "text")
    for name, size in (("one", 1 << 20), ("many", 97)):
        run(
            "--tokenizer",
            tokenizer_dir,
            "--input",
            tmp_path / "text",
            "--out",
            tmp_path / name,
            "--shard-tokens",
            size,
            "--processes",
            1,
        )
    index = json.loads((tmp_path / "many" / "index.json").read_text())
    assert len(index["shards"]) > 10
    assert {shard["num_tokens"] for shard in index["shards"][:-1]} == {97}
    assert sum(shard["num_documents"] for shard in index["shards"]) == index["num_documents"] == 40
    assert read_stream(tmp_path / "many").tolist() == read_stream(tmp_path / "one").tolist()


def test_what_cannot_be_listed_is_said(tmp_path, tokenizer_dir, monkeypatch):
    """A part of the texts would be missing, and nobody would know. (Root may list all: the system's answer is made up.)"""
    text = tmp_path / "text"
    for name in ("a.txt", "open/b.txt", "secret/c.txt", "half/d.txt", "[it's]/e.txt", "i/f.txt", "gone/g.txt"):
        (text / name).parent.mkdir(parents=True, exist_ok=True)
        (text / name).write_text("Once upon a time.")
    denied, gone = PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file or directory")

    def refusing(function, refused):
        def wrapper(path, *args, **options):
            error = refused.get(os.path.relpath(path, text))
            if error is not None:
                raise type(error)(error.errno, error.strerror, os.fspath(path))
            return function(path, *args, **options)

        return wrapper

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", refusing(scandir, {"secret": denied, "[it's]": denied, "gone": gone}))
    monkeypatch.setattr(os, "lstat", refusing(os.lstat, {"half/d.txt": denied}))
    options = ("--tokenizer", tokenizer_dir, "--input", text)
    message = fails(*options, "--out", tmp_path / "all")
    assert message.splitlines() == [
        f"error: {text}/[it's]: Permission denied; make it readable, or --exclude '[[]it'\"'\"'s]/*'",
        f"error: {text}/half/d.txt: Permission denied; make it readable, or --exclude half/d.txt",
        f"error: {text}/secret: Permission denied; make it readable, or --exclude 'secret/*'",
    ]
    advice = shlex.split(" ".join("--exclude" + line.split(" --exclude")[1] for line in message.splitlines()))
    run(*options, *advice, "--out", tmp_path / "rest")
    assert len(read_documents(tmp_path / "rest")) == 3
    # Without the folder itself there is nothing.
    monkeypatch.setattr(os, "scandir", refusing(scandir, {".": denied}))
    assert fails(*options, "--out", tmp_path / "none") == f"error: {text}: Permission denied; make it readable\n"


def test_jsonl_of_several_pieces(tmp_path, tokenizer_dir, monkeypatch):
    """Lines on both sides of a piece's border, read by different processes in the real run, are each read once."""
    texts = [f"{i}: " + "x" * (i * 7 % 113) for i in range(500)]
    path = tmp_path / "corpus.jsonl"
    path.write_text(
        "\ufeff"
        + "\n\n".join(json.dumps({"id": i, "body": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts))
    )
    for piece_bytes in (1, 50, 1000, 1 << 20):
        monkeypatch.setattr(corpus, "JSONL_PIECE_BYTES", piece_bytes)
        files = corpus.find_files([str(path)], [], [])
        assert [
            text for task in corpus.plan_tasks(files) for text in corpus.read_documents(task, "body", corpus.Counts())
        ] == texts
    run("--tokenizer", tokenizer_dir, "--input", path, "--text-field", "body", "--out", tmp_path / "data")
    assert collections.Counter(read_documents(tmp_path / "data")) == collections.Counter(
        encode_all(tokenizer_dir, texts)
    )


def test_long_text_is_cut_at_line_ends_or_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_DOCUMENT_BYTES", 100)
    lines, no_lines = "a line of words\n" * 40, "漢字" * 200
    for text in (lines, no_lines):
        (tmp_path / "t.txt").write_text(text)
        files = corpus.find_files([str(tmp_path / "t.txt")], [], [])
        counts = corpus.Counts()
        pieces = [piece for task in corpus.plan_tasks(files) for piece in corpus.read_documents(task, "text", counts)]
        assert "".join(pieces) == text and len(pieces) > 5 and not counts.undecodable
        assert all(len(piece.encode()) <= 100 for piece in pieces)
        if text is lines:
            assert all(piece.endswith("\n") for piece in pieces)


def test_source_tree(tmp_path, tokenizer_dir):
    tree = tmp_path / "tree"
    for folder in ("a/b", ".git", "__pycache__", "a/node_modules", "old"):
        (tree / folder).mkdir(parents=True)
    (tree / "a/b/main.py").write_text("print('hello')\n")
    (tree / "a/readme.md").write_text("# Hello\n")
    (tree / "a/empty.py").write_text("\n \n")
    (tree / "a/latin.py").write_bytes(b"# caf\xe9\n")
    (tree / "a/binary.dat").write_bytes(b"\0\1\2")
    (tree / "a/records.jsonl").write_text('{"text": "one"}\n{"text": ""}\n{"text": "half \\ud83d pair"}\n')
    (tree / ".git/config").write_text("secret")
    (tree / "__pycache__/x.txt").write_text("secret")
    (tree / "a/node_modules/x.js").write_text("secret")
    (tree / "old/index.json").write_text("{}")
    (tree / "old/00000.tacc").write_text("secret")
    os.symlink(tree / "a/readme.md", tree / "link.md")
    result = run("--tokenizer", tokenizer_dir, "--input", tree, "--out", tmp_path / "all")
    texts = ["print('hello')\n", "# Hello\n", "one", "half \ufffd pair"]
    assert collections.Counter(read_documents(tmp_path / "all")) == collections.Counter(
        encode_all(tokenizer_dir, texts)
    )
    assert "warning: skipped 2 empty documents" in result.stderr
    assert "warning: skipped 2 files that are not UTF-8 text: " in result.stderr and "latin.py" in result.stderr
    assert "1 records hold half of a surrogate pair" in result.stderr
    assert "\r" not in result.stderr, "no progress bar outside a terminal"
    run(
        "--tokenizer",
        tokenizer_dir,
        "--input",
        tree,
        tree / "a/b/main.py",
        "--include",
        "*.py",
        "--exclude",
        "a/empty*",
        "--out",
        tmp_path / "py",
    )
    assert read_documents(tmp_path / "py") == encode_all(tokenizer_dir, texts[:1]), "a file given twice is read once"


def test_ids_above_65535_take_four_bytes(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words = {f"w{i}": i for i in range(70_000)} | {"<eos>": 70_000, "<unk>": 70_001}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)  # As some published tokenizers ask for; a corpus is never truncated.
    tokenizer.enable_padding(length=5)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<eos>", "__type": "AddedToken"}})
    )
    (tmp_path / "t.txt").write_text("w1 w69999 w5 w65536")
    run("--tokenizer", folder, "--input", tmp_path / "t.txt", "--out", tmp_path / "data")
    assert read_stream(tmp_path / "data").tolist() == [1, 69_999, 5, 65_536, 70_000]


def test_eos_may_come_from_the_models_configuration_or_the_command(tmp_path, tokenizer_dir):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((tokenizer_dir / "tokenizer.json").read_bytes())
    (tmp_path / "t.txt").write_text("hello")
    message = fails("--tokenizer", folder, "--input", tmp_path / "t.txt", "--out", tmp_path / "x")
    assert "the tokenizer has no EOS token" in message and "--eos-token" in message
    message = fails(
        "--tokenizer", folder, "--input", tmp_path / "t.txt", "--out", tmp_path / "x", "--eos-token", "<nope>"
    )
    assert "'<nope>' is not in the vocabulary" in message
    run("--tokenizer", folder, "--input", tmp_path / "t.txt", "--out", tmp_path / "named", "--eos-token", "!")
    (folder / "config.json").write_text('{"eos_token_id": [1, 2]}')
    run("--tokenizer", folder, "--input", tmp_path / "t.txt", "--out", tmp_path / "configured")
    assert read_stream(tmp_path / "named")[-1] == read_stream(tmp_path / "configured")[-1] == 1
    # The folder of the result says it too, so that it can be used again.
    index = json.loads((tmp_path / "configured/index.json").read_text())
    assert index["tokenizer"]["eos_token"] == "!"


def test_bad_input_is_named(tmp_path, tokenizer_dir):
    text = tmp_path / "t.txt"
    text.write_text("hello world")
    out = tmp_path / "out"
    trained = ("--train-tokenizer", 300)

    assert "nothing.txt: no such file or folder" in fails(
        *trained, "--input", tmp_path / "nothing.txt", text, "--out", out
    )
    assert "no such folder" in fails("--tokenizer", tmp_path / "none", "--input", text, "--out", out)
    assert "has no tokenizer.json; write one with" in fails("--tokenizer", tmp_path, "--input", text, "--out", out)
    assert "must be at least 257" in fails("--train-tokenizer", 256, "--input", text, "--out", out)
    problems = fails(*trained, "--eval-fraction", 1, "--seq-len", 1, "--input", text, "--out", out).splitlines()
    assert len(problems) == 2 and "--eval-fraction 1.0: must be at least 0 and below 1" in problems[0]
    assert "--seq-len 1: must be at least 2" in problems[1]

    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{")
    assert "not a tokenizer" in fails("--tokenizer", broken, "--input", text, "--out", out)

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no input text: no files found" in fails(*trained, "--input", empty, "--out", out)
    (empty / "e.txt").write_text("")
    assert "no input text: 1 files found, all of them empty" in fails(*trained, "--input", empty, "--out", out)
    (empty / "e.txt").write_text(" \n")
    (empty / "b.txt").write_bytes(b"\xff\xfe")
    message = fails("--tokenizer", tokenizer_dir, "--input", empty, "--out", out)
    assert "no input text: 1 empty documents and 1 files that are not UTF-8 text were skipped" in message

    records = tmp_path / "r.jsonl"
    for line, want in (
        ("{", "r.jsonl:3: not a JSON record"),
        ("[1]", "r.jsonl:3: a JSON list"),
        (
            '{"content": "a"}',
            'r.jsonl:3: no field "text"; its fields: "content"; say which is the text with --text-field',
        ),
        (
            '{"messages": []}',
            'no field "text"; its fields: "messages"; these look like conversations: give --chat, or say which is the text',
        ),
        ('{"prompt": "a", "completion": "b"}', 'its fields: "prompt", "completion"; these look like conversations: give --chat'),
        ('{"prompt": "a"}', 'its fields: "prompt"; say which is the text with --text-field'),
        ('{"text": 3}', 'r.jsonl:3: field "text" is not a text'),
        ("[" * 100_000, "r.jsonl:3: not a JSON record"),
    ):
        records.write_text('{"text": "a"}\n\n' + line + "\n")
        assert want in fails("--tokenizer", tokenizer_dir, "--input", records, "--out", out), line[:20]

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broken",
        "empty",
        "r.jsonl",
        "t.txt",
    ], "nothing was left behind"
    out.mkdir()
    (out / "mine").write_text("keep")
    message = fails(*trained, "--input", text, "--out", out)
    assert "is there already and is not empty; choose another --out, or delete the folder first" in message
    assert (out / "mine").read_text() == "keep"
    assert "is not a folder" in fails(*trained, "--input", text, "--out", text)


# A child that has sent half of a result, and nothing of the other half.
HALF_RESULT = """
import os, struct, time
from pathlib import Path

def send_half(send, encoding, marker):
    os.write(send.__self__.fileno(), struct.pack("!i", 1000) + b"half")
    Path(marker).touch()
    time.sleep(600)
"""


def test_an_interrupt_does_not_wait_for_the_rest_of_a_result(tmp_path, monkeypatch):
    (tmp_path / "half_result.py").write_text(HALF_RESULT)
    monkeypatch.syspath_prepend(tmp_path)
    import half_result

    monkeypatch.setattr(encoding, "_encode_in_worker", half_result.send_half)
    marker = tmp_path / "sent"

    def interrupt_when_sent():
        while not marker.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_when_sent, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        next(encoding.encode_all([str(marker)], None, processes=2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_processes_and_leaves_nothing(tmp_path, tokenizer_dir, number):
    (tmp_path / "text").mkdir()
    for i in range(60):
        (tmp_path / "text" / f"{i}.txt").write_text(STORY * 2000)
    command = [
        sys.executable,
        "-m",
        "tacc",
        "data",
        "prepare",
        "--tokenizer",
        tokenizer_dir,
        "--input",
        tmp_path / "text",
        "--processes",
        "2",
    ]
    process = subprocess.Popen(
        [*command, "--out", tmp_path / "out"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 0 for path in tmp_path.glob(".out.*/shuffle/*")):  # First results are there.
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    errors = process.communicate(timeout=60)[1]
    assert "Traceback" not in errors
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not members(process.pid)
    if number != signal.SIGKILL:
        assert [path.name for path in tmp_path.iterdir()] == ["text"]


def members(group):
    """Processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def holds_interrupts_back(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    is_working = "tacc.preparing.workers" in Path(f"/proc/{pid}/cmdline").read_text()
    return is_working and int(status.split("SigBlk:")[1].split()[0], 16) >> (signal.SIGINT - 1) & 1 == 1


def test_a_full_disk_is_an_error(tmp_path, tokenizer_dir):
    """A limit on the size of a file stands for the disk."""
    write_corpus(tmp_path / "text", 200)
    limited = "import resource, sys; from tacc.__main__ import main\n"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); sys.exit(main())"
    command = [
        "data",
        "prepare",
        "--tokenizer",
        tokenizer_dir,
        "--input",
        tmp_path / "text",
        "--out",
        tmp_path / "out",
        "--processes",
        "1",
    ]
    result = subprocess.run([sys.executable, "-c", limited, *command], capture_output=True, text=True)
    assert (
        result.returncode == 1 and result.stderr.startswith("error: ") and "File too large" in result.stderr
    ), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_usage_errors_exit_with_2(tmp_path):
    for args in (
        (),
        ("--input", "x", "--out", "y"),
        ("--tokenizer", "a", "--train-tokenizer", "300", "--input", "x", "--out", "y"),
    ):
        assert run(*args, ok=False).returncode == 2


def test_memory_is_bounded_by_buckets(tmp_path, monkeypatch):
    """Several buckets give every document once, in an order that mixes the input, and that one bucket gives too."""
    from tacc.preparing import shuffle

    monkeypatch.setattr(shuffle, "BUCKET_TEXT_BYTES", 100)
    orders = {}
    for text_bytes in (1000, 10):
        shuffler = shuffle.Shuffler(tmp_path / "s", np.dtype("<u2"), seed=1, text_bytes=text_bytes)
        lengths = np.arange(1, 101)
        for begin in range(0, 100, 10):
            part = lengths[begin : begin + 10]
            shuffler.add(np.concatenate([np.full(n, n, "<u2") for n in part]), part)
        sizes = [path.stat().st_size for path in (tmp_path / "s").iterdir()]
        assert len(sizes) == text_bytes // 100 + 1
        documents = orders[text_bytes] = list(shuffler.documents())
        assert not list((tmp_path / "s").iterdir())
        (tmp_path / "s").rmdir()
    assert [number for number, _ in orders[1000]] == [number for number, _ in orders[10]]
    assert sorted(number for number, _ in documents) == list(range(100))
    assert all(tokens.tolist() == [number + 1] * (number + 1) for number, tokens in documents)
    numbers = [number for number, _ in documents]
    assert abs(np.corrcoef(numbers, range(100))[0, 1]) < 0.4


def test_separate_documents_writes_where_documents_begin(tokenizer_dir, tmp_path):
    write_corpus(tmp_path / "text", 300)
    options = ("--tokenizer", tokenizer_dir, "--input", tmp_path / "text", "--shard-tokens", 1000)
    run(*options, "--out", tmp_path / "joined")
    run(*options, "--out", tmp_path / "apart", "--separate-documents")
    index = json.loads((tmp_path / "apart" / "index.json").read_text())
    tokens, segments = [], []
    for shard in index["shards"]:
        data = (tmp_path / "apart" / shard["name"]).read_bytes()
        assert len(data) == shard["num_bytes"] and int.from_bytes(data[12:16], "little") == 2
        offsets = [int.from_bytes(data[at : at + 8], "little") for at in (88, 120)]
        assert data[96:112].rstrip(b"\0") == b"segment" and data[112] == 1
        tokens.append(np.frombuffer(data, "<u2", shard["num_tokens"], offsets[0]))
        segments.append(np.frombuffer(data, "u1", shard["num_tokens"], offsets[1]))
    stream, segments = np.concatenate(tokens), np.concatenate(segments)
    assert np.array_equal(stream, read_stream(tmp_path / "joined")), "the stream itself is the same"
    eos = index["tokenizer"]["eos_token_id"]
    assert np.array_equal(np.flatnonzero(np.diff(segments)), np.flatnonzero(stream == eos)[:-1])


RECORDS = [{"text": "one"}, {"text": 'two, "quoted"'}, {"text": "three\nlines\n"}]


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


@pytest.mark.parametrize(
    "name, content",
    [
        ("r.json", json.dumps(RECORDS)),
        ("r.json", "\ufeff" + json.dumps({"version": "1", "data": RECORDS, "tags": ["a"]}, indent=1)),
        ("r.csv", "id,text\r\n" + "".join(f"{i},{quoted(r['text'])}\r\n" for i, r in enumerate(RECORDS))),
        ("r.TSV", "text\tid\n" + "".join(f"{quoted(r['text'])}\t{i}\n" for i, r in enumerate(RECORDS))),
    ],
)
def test_files_of_records_are_read_as_records(tmp_path, tokenizer_dir, name, content):
    (tmp_path / name).write_text(content, newline="")
    run("--tokenizer", tokenizer_dir, "--input", tmp_path / name, "--out", tmp_path / "data")
    texts = [record["text"] for record in RECORDS]
    assert sorted(read_documents(tmp_path / "data")) == sorted(encode_all(tokenizer_dir, texts))


def test_files_of_records_may_be_taken_as_text(tmp_path, tokenizer_dir):
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "package.json").write_text('{"name": "x"}')
    message = fails("--tokenizer", tokenizer_dir, "--input", tree, "--out", tmp_path / "x")
    assert 'package.json: record 1: no field "text"; its fields: "name"; say which is the text with --text-field' in message
    assert "--exclude '*.json', or take them as plain text with --as-text '*.json'" in message
    run("--tokenizer", tokenizer_dir, "--input", tree, "--as-text", "*.json", "--out", tmp_path / "data")
    assert read_documents(tmp_path / "data") == encode_all(tokenizer_dir, ['{"name": "x"}'])


@pytest.mark.parametrize(
    "name, content, want",
    [
        ("a.json", b"{", "a.json: not JSON: "),
        ("a.json", b"[1]", "a.json: element 1 is a JSON int; wanted an array of objects"),
        ("a.json", b'"words"', "a.json: a JSON str; wanted an array of objects"),
        ("a.json", b'[{"text": "x"}, {"body": "y"}]', 'a.json: record 2: no field "text"; its fields: "body"'),
        ("a.csv", b"body\nx\n", 'a.csv:2: no field "text"; its fields: "body"'),
        ("a.csv", b"text,id\nx,1\ny\n", "a.csv:3: a row with more or fewer fields than the 2 of the first line"),
        ("a.csv", b'text\n"x\n', "not a table: unexpected end of data"),
        ("a.csv", b"text\n\xff\n", "not a table: 'utf-8' codec"),
        ("a.jsonl.gz", b"\x1f\x8b\x08", "a.jsonl.gz: it is compressed; unpack it first: gunzip "),
        ("a.txt.zst", b"\x28\xb5", "a.txt.zst: it is compressed; unpack it first: unzstd "),
        ("a.arrow", b"ARROW1\0\0", "a.arrow: Arrow files are not read; write the data set as parquet"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a.txt: a pointer of git-lfs"),
    ],
)
def test_what_is_not_text_or_records_is_refused(tmp_path, tokenizer_dir, name, content, want):
    """Named or in a folder, and whatever else is there."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "good.txt").write_text("good")
    (folder / name).write_bytes(content)
    for given in (folder, folder / name):
        assert want in fails("--tokenizer", tokenizer_dir, "--input", given, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, tokenizer_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    message = fails("--tokenizer", tokenizer_dir, "--input", tmp_path / "a.parquet", "--out", tmp_path / "out")
    assert "a.parquet: reading parquet needs pyarrow: " in message
    python = message.split("needs pyarrow: ")[1].split(" -m pip install pyarrow")[0]
    assert os.path.samefile(python, sys.executable)


def test_the_usage_names_a_command_that_runs(tmp_path):
    for folder in (Path(sys.executable).parents[2], Path(sys.executable).parent, tmp_path):
        usage = subprocess.run([sys.executable, "-m", "tacc"], cwd=folder, capture_output=True, text=True, timeout=60)
        assert usage.returncode == 2
        command = usage.stderr.split("usage: ")[1].split(" [-h]")[0]
        pasted = subprocess.run(f"{command} convert --help", shell=True, cwd=folder, capture_output=True, text=True, timeout=60)
        assert pasted.returncode == 0 and "--out" in pasted.stdout, (command, pasted.stderr)


def test_this_python_is_named_where_the_folder_has_gone(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    assert this_python() == sys.executable


def test_a_binary_file_by_name_and_a_tokenizer_not_fetched_are_refused(tmp_path, tokenizer_dir):
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    message = fails("--tokenizer", tokenizer_dir, "--input", tmp_path / "a.bin", "--out", tmp_path / "out")
    assert "a.bin: a binary file" in message
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    message = fails("--tokenizer", tmp_path, "--input", tmp_path / "a.txt", "--out", tmp_path / "out")
    assert "tokenizer.json: a pointer of git-lfs, not the file itself; fetch it in its repository: git lfs pull" in message


@pytest.mark.parametrize("eos, warns", [(2, True), ([2, 3], True), (0, False), ([2, 0], False), (None, False)])
def test_an_eos_that_is_not_the_models_is_warned_of(tmp_path, tokenizer_dir, eos, warns):
    model = tmp_path / "model"
    shutil.copytree(tokenizer_dir, model)
    (model / "config.json").write_text(json.dumps({"eos_token_id": eos}))
    (tmp_path / "t.txt").write_text("hello")
    message = run("--tokenizer", model, "--input", tmp_path / "t.txt", "--out", tmp_path / "data").stderr
    assert (f"eos_token_id is {eos}, but documents end with '<|endoftext|>', which is 0" in message) == warns


@pytest.mark.parametrize("tokenizer, num_children", [("trained", 1), ("given", 2)])
def test_ctrl_c_does_not_wait_for_the_library(tmp_path, tokenizer_dir, tokenizer, num_children):
    """It can work on a long line for minutes, and looks at no signal meanwhile; a stopped process stands for that."""
    (tmp_path / "text.jsonl").write_text((json.dumps({"text": STORY * 2000}) + "\n") * 200)
    options = ["--train-tokenizer", "300"] if tokenizer == "trained" else ["--tokenizer", tokenizer_dir]
    command = [sys.executable, "-m", "tacc", "data", "prepare", *options, "--processes", "2"]
    process = subprocess.Popen(
        [*command, "--input", tmp_path / "text.jsonl", "--out", tmp_path / "out"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    working = []
    while len(working) < num_children:  # Which leave Ctrl-C to their parent.
        assert process.poll() is None
        working = [pid for pid in members(process.pid) if pid != str(process.pid) and holds_interrupts_back(pid)]
        time.sleep(0.01)
    for pid in working:
        os.kill(int(pid), signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    try:
        errors = process.communicate(timeout=60)[1]
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130 and "interrupted; nothing was written" in errors and "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["text.jsonl"]
