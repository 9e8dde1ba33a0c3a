"""`tacc.prepare`, the function: what a program has in memory gives what `python -m tacc data prepare` makes of a file."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tacc
from data_folder import STORY, read_columns, read_documents, write_corpus
from tacc import PreparedData, prepare
from tacc.errors import InputError
from tacc.preparing import encoding, in_memory
from test_data_prepare import encode_all, run
from transformers import PreTrainedTokenizerFast

pytestmark = pytest.mark.filterwarnings("ignore:the (training|held-out) data has|the tokenizer has no chat:UserWarning")

TEXTS = [f"{i}: " + "naïve 漢字 🙂\r\n\u2028 words " * (i % 7) for i in range(300)]
TALKS = [
    [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "no " * (i % 9) + f"{i}."}] for i in range(60)
]


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizer")
    write_corpus(root / "text")
    run("--train-tokenizer", 300, "--input", root / "text", "--out", root / "data")
    return root / "data" / "tokenizer"


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Table:
    """What a `datasets.Dataset` is to the function: rows with an index, columns of which some may be taken, and a format."""

    format = {"type": "torch"}

    def __init__(self, records, is_plain=False):
        self.records, self.is_plain = records, is_plain
        self.column_names = list(records[0])

    def with_format(self, kind):
        assert kind is None
        return Table(self.records, is_plain=True)

    def select_columns(self, names):
        return Table([{name: record[name] for name in names} for record in self.records], self.is_plain)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, number):
        return self.records[number]

    def __iter__(self):
        assert self.is_plain, "rows of another format are no texts"
        assert "image" not in self.column_names, "which takes long to read"
        return iter(self.records)


def of_datasets(monkeypatch, records):
    monkeypatch.setitem(sys.modules, "datasets", type("module", (), {"Dataset": Table}))
    return Table(records)


def frame_of(records):
    return pytest.importorskip("pandas", reason="no pandas").DataFrame(records)


MAKERS = {
    "list": lambda monkeypatch, records: records,
    "generator": lambda monkeypatch, records: (record for record in records),
    "frame": lambda monkeypatch, records: frame_of(records),
    "table": of_datasets,
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("chunk_rows", [7, 1000])
def test_the_same_bytes_as_of_a_file(tmp_path, monkeypatch, tokenizer_dir, kind, chunk_rows):
    monkeypatch.setattr(in_memory, "CHUNK_ROWS", chunk_rows)
    records = [{"id": i, "body": text, "image": "x"} for i, text in enumerate(TEXTS)]
    options = ["--text-field", "body", "--eval-fraction", 0.1, "--seq-len", 64, "--seed", 7]
    run("--input", write_jsonl(tmp_path / "r.jsonl", records), "--tokenizer", tokenizer_dir, "--out", tmp_path / "file", *options)
    got = prepare(
        MAKERS[kind](monkeypatch, records),
        tmp_path / "memory",
        tokenizer=tokenizer_dir,
        text_field="body",
        eval_fraction=0.1,
        seq_len=64,
        seed=7,
        processes=2,
    )
    assert contents(tmp_path / "memory") == contents(tmp_path / "file")
    index, held_out = (json.loads((tmp_path / "file" / part / "index.json").read_text()) for part in (".", "eval"))
    assert got == PreparedData(
        path=tmp_path / "memory",
        eval_path=tmp_path / "memory" / "eval",
        tokenizer_path=tmp_path / "memory" / "tokenizer",
        num_tokens=index["num_tokens"],
        num_target_tokens=index["num_tokens"],
        num_documents=index["num_documents"],
        num_input_documents=len(TEXTS),
        num_eval_tokens=held_out["num_tokens"],
        num_eval_documents=held_out["num_documents"],
        seq_len=64,
        vocab_size=300,
        eos_token="<|endoftext|>",
        fingerprint=index["fingerprint"],
        chat=False,
        separate_documents=False,
        num_empty=0,
        num_dropped=0,
        num_truncated=0,
        num_input_bytes=got.num_input_bytes,
        warnings=(),
    )
    assert os.fspath(got) == str(tmp_path / "memory")


def test_a_tokenizer_is_trained_on_what_is_in_memory(tmp_path):
    run("--input", write_jsonl(tmp_path / "r.jsonl", [{"text": text} for text in TEXTS]), "--train-tokenizer", 300, "--out", tmp_path / "file")
    prepare(iter(TEXTS), tmp_path / "memory", train_tokenizer=300)
    assert contents(tmp_path / "memory") == contents(tmp_path / "file")


@pytest.mark.parametrize("kind", MAKERS)
def test_conversations_in_memory(tmp_path, monkeypatch, tokenizer_dir, kind):
    """They are told by the first record."""
    records = [{"id": i, "messages": talk, "image": "x"} for i, talk in enumerate(TALKS)]
    path = write_jsonl(tmp_path / "r.jsonl", records)
    run("--chat", "--input", path, "--tokenizer", tokenizer_dir, "--out", tmp_path / "file")
    with pytest.warns(UserWarning, match="the tokenizer has no chat template; a plain one was taken: copy .*/memory/tokenizer/chat_template"):
        got = prepare(MAKERS[kind](monkeypatch, records), tmp_path / "memory", tokenizer=tokenizer_dir)
    assert contents(tmp_path / "memory") == contents(tmp_path / "file")
    columns = read_columns(tmp_path / "memory")
    assert set(columns) == {"tokens", "loss_mask", "segment"}
    assert got.chat and got.separate_documents and got.num_documents == len(TALKS)
    assert got.num_target_tokens == columns["loss_mask"].sum() < got.num_tokens


def test_which_records_are_conversations(tmp_path, tokenizer_dir):
    both = [{"text": "some words", "messages": talk} for talk in TALKS]
    texts, talks = [{"text": "some words"}], [{"messages": talk} for talk in TALKS]
    for number, (records, chat, is_chat) in enumerate(((both, None, False), (both, True, True), (texts, None, False), (talks, None, True))):
        for place, data in (("memory", records), ("file", write_jsonl(tmp_path / "r.jsonl", records))):
            got = prepare(data, tmp_path / f"{number}.{place}", tokenizer=tokenizer_dir, chat=chat)
            assert got.chat == is_chat, (number, place)
    with pytest.raises(InputError, match=r'data\[0\]: no field "text"; its fields: "messages"; these look like .*: give chat=True, or'):
        prepare(talks, tmp_path / "no", tokenizer=tokenizer_dir, chat=False)
    with pytest.raises(InputError, match=r'data\[0\]: no field "body"; its fields: "messages"'):
        prepare(talks, tmp_path / "no", tokenizer=tokenizer_dir, text_field="body")
    # A text among the files says what they are.
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(InputError, match=r'r\.jsonl:1: no field "text"'):
        prepare([tmp_path / "a.txt", str(tmp_path / "r.jsonl")], tmp_path / "no", tokenizer=tokenizer_dir)


def test_rows_of_arrays_and_with_missing_values(tmp_path, tokenizer_dir):
    """As pandas reads them from parquet."""
    pandas = pytest.importorskip("pandas", reason="no pandas")
    import pyarrow
    from pyarrow import parquet

    rows = [{"messages": talk} for talk in TALKS] + [{"prompt": "2+2=", "completion": " 4"}]
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": None, "prompt": None, "completion": None} | row for row in rows]), tmp_path / "a.parquet")
    frame = pandas.read_parquet(tmp_path / "a.parquet")
    assert type(frame["messages"][0]).__name__ == "ndarray"
    frame.loc[:10, "prompt"] = float("nan")
    write_jsonl(tmp_path / "r.jsonl", rows)
    for name, data in (("file", tmp_path / "r.jsonl"), ("parquet", tmp_path / "a.parquet"), ("frame", frame)):
        prepare(data, tmp_path / name, tokenizer=tokenizer_dir, chat=True)
    assert contents(tmp_path / "frame") == contents(tmp_path / "file") == contents(tmp_path / "parquet")
    prepare(frame["completion"].dropna(), tmp_path / "series", tokenizer=tokenizer_dir)
    assert read_documents(tmp_path / "series") == encode_all(tokenizer_dir, [" 4"])


def test_a_dataset_itself(tmp_path, tokenizer_dir):
    datasets = pytest.importorskip("datasets", reason="no datasets: a stand-in is tested above")
    records = [{"messages": talk, "id": i} for i, talk in enumerate(TALKS)]
    prepare(records, tmp_path / "list", tokenizer=tokenizer_dir)
    given = datasets.Dataset.from_list(records)
    kinds = {"whole": given, "stream": given.to_iterable_dataset(), "torch": given.with_format("numpy"), "split": datasets.DatasetDict(train=given)["train"]}
    kinds["custom"] = given.with_transform(lambda rows: {"messages": rows["messages"]})
    kinds["unknown"] = datasets.IterableDataset.from_generator(lambda: iter(records))
    for name, data in kinds.items():
        prepare(data, tmp_path / name, tokenizer=tokenizer_dir)
        assert contents(tmp_path / name) == contents(tmp_path / "list"), name
    texts = datasets.Dataset.from_dict({"text": TEXTS})
    prepare(texts["text"], tmp_path / "column", tokenizer=tokenizer_dir)
    prepare(({"text": text} for text in TEXTS), tmp_path / "texts", tokenizer=tokenizer_dir)
    assert contents(tmp_path / "column") == contents(tmp_path / "texts")
    with pytest.raises(InputError, match=r"data is a DatasetDict; .*; give one of its splits: data\['train'\] or data\['test'\]"):
        prepare(datasets.DatasetDict(train=given, test=given), tmp_path / "no", tokenizer=tokenizer_dir)
    with pytest.raises(InputError, match=r'data\[0\]: no field "text"; its fields: "body", "id"'):
        prepare(datasets.Dataset.from_dict({"body": ["x"], "id": [1]}), tmp_path / "no", tokenizer=tokenizer_dir)


class Row(dict):
    """Counts those that are in memory."""

    alive = most = 0

    def __init__(self, *args):
        super().__init__(*args)
        Row.alive += 1
        Row.most = max(Row.most, Row.alive)

    def __del__(self):
        Row.alive -= 1


def test_a_stream_is_not_kept_in_memory(tmp_path, tokenizer_dir):
    gc.collect()
    prepare((Row({"text": f"{i} {STORY}"}) for i in range(5000)), tmp_path / "data", tokenizer=tokenizer_dir)
    assert Row.most <= 2


# In a script that protects nothing from being run again, as a notebook's cell does not.
SCRIPT = """
import sys, tacc
print("begins")
data = tacc.prepare(({"text": str(i) + " words" * 100} for i in range(9000)), sys.argv[1], tokenizer=sys.argv[2], processes=2)
print(data.num_documents)
"""


@pytest.mark.parametrize("is_file", [True, False], ids=["a script", "no file"])
def test_processes_do_not_run_the_callers_script_again(tmp_path, tokenizer_dir, is_file):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "script.py" if is_file else "-", tmp_path / "out", tokenizer_dir]
    result = subprocess.run(command, input=SCRIPT, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stdout, result.stderr) == (0, "begins\n9000\n", "")


def test_in_another_thread(tmp_path, tokenizer_dir):
    done = []
    work = threading.Thread(target=lambda: done.append(prepare(iter(TEXTS), tmp_path / "out", tokenizer=tokenizer_dir, processes=2)))
    work.start()
    work.join(60)
    assert done[0].num_documents == len(TEXTS)


def children():
    """Processes that this one has started and that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


STAGES = ["reading", "training the tokenizer", "tokenizing", "writing"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_progress_raises_leaves_nothing(tmp_path, stage, error):
    """As Ctrl-C in a notebook, at the end of each stage."""

    def stop(report):
        if report.stage == stage and report.done == report.total:
            raise error

    with pytest.raises(error):
        prepare([{"text": text} for text in TEXTS], tmp_path / "out", train_tokenizer=300, processes=2, progress=stop)
    assert not list(tmp_path.iterdir()) and not children()


def open_files(folder):
    names = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    return [name for name in names if name.startswith(str(folder))]


@pytest.mark.parametrize("stage", ["tokenizing", "writing", None])
def test_an_error_that_is_kept_keeps_no_files(tmp_path, tokenizer_dir, stage):
    """As a notebook keeps the last one: its frames would hold what was deleted, and its room on the disk."""

    def stop(report):
        if report.stage == stage and report.done == (report.total if stage == "writing" else 0):
            raise ValueError(stage)

    options = {"tokenizer": tokenizer_dir, "chat": True, "eval_fraction": 0.1, "progress": stop}
    talks = [{"messages": talk} for talk in TALKS]
    if stage is None:
        prepare(talks, tmp_path / "out", **options)
    else:
        with pytest.raises(ValueError, match=stage) as kept:
            prepare(talks, tmp_path / "out", **options)
        assert kept.traceback
    assert open_files(tmp_path) == []


def test_progress(tmp_path, capsys):
    reports, threads = [], set()

    def note(report):
        reports.append(report)
        threads.add(threading.current_thread())

    prepare([{"text": text} for text in TEXTS], tmp_path / "out", train_tokenizer=300, progress=note)
    assert list(dict.fromkeys(report.stage for report in reports)) == STAGES and threads == {threading.current_thread()}
    for stage in STAGES:
        of_stage = [report for report in reports if report.stage == stage]
        done = [report.done for report in of_stage]
        assert done[0] == 0 and done == sorted(done) and done[-1] == of_stage[-1].total > 0, stage
    assert {report.unit for report in reports} == {"records", "bytes", "tokens"}
    assert capsys.readouterr() == ("", "")
    stream = []
    prepare(iter(TEXTS), tmp_path / "stream", train_tokenizer=300, progress=stream.append)
    assert stream[0].total is None and [report.done for report in stream if report.stage == "reading"][-1] == len(TEXTS)


@pytest.mark.parametrize(
    "data, options, want",
    [
        (3, {}, "data is a int; wanted a path, a list of paths, a Dataset, a DataFrame, or an iterable of dicts or texts"),
        ({"text": ["x"]}, {}, "data is a dict; wanted a path"),
        (["some words", "more"], {}, "data[0]: 'some words': no such file or folder; in a list, strings are paths: give texts"),
        ("none.txt", {}, "data none.txt: no such file or folder"),
        ([{"text": "x"}, 3], {}, "data[1] is a int; wanted a dict or a text"),
        (iter([{"text": "x"}, 3]), {}, "data: record 1 (from 0) is a int"),
        ([], {}, "no input text: data has no records"),
        ([{"text": "x"}, {"text": None}], {}, 'data[1]: field "text" is not a text but null; leave the record out'),
        ([{"text": b"x"}], {}, 'data[0]: field "text" is not a text'),
        ([{"text": "x"}, {"body": "y"}], {}, 'data[1]: no field "text"; its fields: "body"'),
        (lambda: frame_of({"text": ["x", None]}), {}, 'data.iloc[1]: field "text" is not a text'),
        (lambda: frame_of({"body": ["x"], 3: [4]}), {}, 'data.iloc[0]: no field "text"; its fields: "body", "3"'),
        ([{"messages": TALKS[0]}, {"messages": TALKS[0][:1]}], {}, "data[1]: no message of the assistant: there is nothing to learn"),
        ([{"messages": TALKS[0], "tools": [object()]}], {}, 'data[0]: the field "tools" would change what is said'),
        ([{"messages": TALKS[8]}], {"seq_len": 8}, "tokens, more than seq_len 8: a sample would hold only a part; give a larger seq_len, "),
        (iter(TEXTS), {"on_long": "drop"}, "on_long goes with chat=True"),
        (iter(TEXTS), {"on_long": "cut"}, "on_long cut: must be one of error, drop, truncate"),
        (iter(TEXTS), {"eval_fraction": 1}, "eval_fraction 1: must be at least 0 and below 1"),
        (iter(TEXTS), {"train_tokenizer": 300}, "give either tokenizer, a folder, or train_tokenizer, the size"),
        (iter(TEXTS), {"tokenizer": 3}, "tokenizer is a int; wanted a folder with tokenizer.json, or a fast tokenizer"),
        (iter(TEXTS), {"tokenizer": "none"}, "tokenizer none: no such folder"),
        (iter(TEXTS), {"seq_len": "64"}, "seq_len '64': must be a whole number"),
        (iter(TEXTS), {"seq_len": float("nan")}, "seq_len nan: must be a whole number"),
        (iter(TEXTS), {"seed": 1.5}, "seed 1.5: must be a whole number"),
        (iter(TEXTS), {"processes": True}, "processes True: must be a whole number"),
        (iter(TEXTS), {"eval_fraction": "x"}, "eval_fraction 'x': must be a number"),
        (iter(TEXTS), {"chat": "yes"}, "chat 'yes': must be True or False"),
        (iter(TEXTS), {"separate_documents": 1}, "separate_documents 1: must be True or False"),
        (iter(TEXTS), {"eos_token": 5}, "eos_token 5: must be a text"),
        (iter(TEXTS), {"text_field": None}, "text_field None: must be a text"),
        (iter(TEXTS), {"include": 5}, "include: patterns must be texts"),
    ],
)
def test_what_cannot_be_is_named(tmp_path, monkeypatch, tokenizer_dir, data, options, want):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as raised:
        prepare(data() if callable(data) else data, "out", **{"tokenizer": tokenizer_dir, **options})
    assert want in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_files_of_a_folder(tmp_path, tokenizer_dir):
    """One pattern or several."""
    for name in ("a.py", "b.md", "c.json"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    for number, (options, want) in enumerate(
        (
            ({"include": "*.py"}, ["a.py"]),
            ({"include": ["*.py", "*.md"], "exclude": "a*"}, ["b.md"]),
            ({"as_text": "*.json", "exclude": ("*.py", "*.md")}, ["c.json"]),
        )
    ):
        got = prepare(tmp_path / "in", tmp_path / str(number), tokenizer=tokenizer_dir, **options)
        assert read_documents(got.path) == encode_all(tokenizer_dir, want)


def test_a_tokenizer_of_transformers(tmp_path, tokenizer_dir):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_dir)
    got = prepare(iter(TEXTS), tmp_path / "object", tokenizer=tokenizer)
    want = prepare(iter(TEXTS), tmp_path / "folder", tokenizer=tokenizer_dir)
    assert got.fingerprint == want.fingerprint
    assert PreTrainedTokenizerFast.from_pretrained(got.tokenizer_path).get_vocab() == tokenizer.get_vocab()


def test_importing_the_module_does_not_hide_the_function(tmp_path, tokenizer_dir):
    """The package has a function of the module's name, in whose place an import puts the module."""
    assert tacc.prepare(iter(TEXTS), tmp_path / "out", tokenizer=tokenizer_dir).num_documents == len(TEXTS)


def die(send, *args):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(send, *args):
    raise ZeroDivisionError("in a worker")


def test_a_worker_that_ends_or_fails_is_said(tmp_path, monkeypatch, tokenizer_dir):
    monkeypatch.setattr(encoding, "_encode_in_worker", die)
    with pytest.raises(InputError, match=r"a tokenizing process ended with -9 \(-9: out of memory\?\); use fewer with processes"):
        prepare(iter(TEXTS), tmp_path / "out", tokenizer=tokenizer_dir, processes=2)
    monkeypatch.setattr(encoding, "_encode_in_worker", fail)
    with pytest.raises(ZeroDivisionError, match="in a worker") as raised:
        prepare(iter(TEXTS), tmp_path / "out", tokenizer=tokenizer_dir, processes=2)
    assert "test_prepare.py" in raised.value.__notes__[0]
    monkeypatch.setattr(encoding, "_train", die)
    with pytest.raises(InputError, match="the process that trains the tokenizer ended with -9"):
        prepare(iter(TEXTS), tmp_path / "out", train_tokenizer=300)
    assert not list(tmp_path.iterdir()) and not children()


@pytest.mark.parametrize("count, sign", [("10**9", "records.jsonl"), ("60_000", "shuffle/*")], ids=["reading", "tokenizing"])
def test_ctrl_c_in_a_script(tmp_path, tokenizer_dir, count, sign):
    """Python says where it was, as a script does; nothing is left, and no worker speaks."""
    (tmp_path / "script.py").write_text(SCRIPT.replace("9000", count))
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", tmp_path / "out", tokenizer_dir], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 0 for path in tmp_path.glob(f".out.*/{sign}")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert errors.count("Traceback") == 1 and errors.endswith("KeyboardInterrupt\n")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
