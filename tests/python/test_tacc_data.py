"""`tacc-data` on prepared folders, against the order and hash as docs/data.md defines them."""

import hashlib
import json
import math
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_folder import read_stream, write_corpus

TACC_DATA = Path(os.environ.get("TACC_BUILD", "build")).absolute() / "tacc-data"
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def tacc_data(*args):
    return subprocess.run([TACC_DATA, *map(str, args)], capture_output=True, text=True)


def output(*args):
    result = tacc_data(*args)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def errors(*args):
    result = tacc_data(*args)
    assert result.returncode == 2 and result.stdout == "", result.stdout
    lines = result.stderr.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    return [line.removeprefix("error: ") for line in lines]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_corpus(root / "text", 100)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "tacc",
            "data",
            "prepare",
            "--train-tokenizer",
            "300",
            "--input",
            root / "text",
            "--out",
            root / "data",
            "--eval-fraction",
            "0.1",
            "--shard-tokens",
            "1000",
            "--seq-len",
            "33",
            "--processes",
            "1",
        ],
        check=True,
    )
    return root / "data"


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def sample_at(position, num_samples, seed):
    epoch, x = divmod(position, num_samples)
    key = mix((mix((seed + GOLDEN) & MASK) + GOLDEN * (epoch + 1)) & MASK)
    half = max(1, ((num_samples - 1).bit_length() + 1) // 2)
    while True:
        left, right = x >> half, x & ((1 << half) - 1)
        for i in range(8):
            left, right = right, left ^ (mix(right ^ mix((key + GOLDEN * (i + 1)) & MASK)) & ((1 << half) - 1))
        x = left << half | right
        if x < num_samples:
            return x


def batch_hash(rows):
    total = 0
    for row, tokens in enumerate(rows):
        state = mix(row + 1)
        for token in tokens:
            state = (state ^ token) * GOLDEN & MASK
        total += mix(state)
    return f"{total & MASK:016x}"


def test_show_gives_the_documented_order_and_hash(data):
    stream = read_stream(data)
    num_samples = len(stream) // 20
    seen = []
    for step in (1, 2, 3, 50, 1_000_000_000):
        shown = output(
            "show", "--data", data, "--seq-len", 20, "--global-batch-size", 6, "--seed", 7, "--step", step, "--json"
        )
        samples = [sample_at((step - 1) * 6 + k, num_samples, 7) for k in range(6)]
        assert shown == {
            "step": step,
            "batch_hash": batch_hash(shown["tokens"]),
            "samples": samples,
            "tokens": [stream[k * 20 : k * 20 + 20].tolist() for k in samples],
        }
        seen.append(shown["batch_hash"])
    assert len(set(seen)) == len(seen)
    text = tacc_data("show", "--data", data, "--seq-len", 20, "--global-batch-size", 6, "--seed", 7, "--step", 3).stdout
    shown = output(
        "show", "--data", data, "--seq-len", 20, "--global-batch-size", 6, "--seed", 7, "--step", 3, "--json"
    )
    assert [[int(token) for token in line.split(" ")] for line in text.splitlines()] == shown["tokens"]
    assert len(output("show", "--data", data, "--global-batch-size", 1, "--step", 1, "--json")["tokens"][0]) == 33


def test_show_prints_several_steps_as_it_prints_each(data):
    def shown(step: int, *options) -> str:
        return tacc_data("show", "--data", data, "--seq-len", 20, "--global-batch-size", 6, "--seed", 7, "--step", step, *options).stdout

    for options in ([], ["--json"]):
        assert shown(3, "--num-steps", 4, *options) == "".join(shown(step, *options) for step in range(3, 7))


def test_an_epoch_shows_every_sample_once(data):
    num_samples = len(read_stream(data)) // 50
    shown = output("show", "--data", data, "--seq-len", 50, "--global-batch-size", num_samples, "--step", 2, "--json")
    assert sorted(shown["samples"]) == list(range(num_samples))


def test_held_out_data_is_shown_in_order(data):
    stream = read_stream(data / "eval")
    num_samples = len(stream) // 20
    last = -(-num_samples // 4)
    rows = []
    for step in range(1, last + 1):
        rows += output(
            "show",
            "--data",
            data,
            "--split",
            "eval",
            "--seq-len",
            20,
            "--global-batch-size",
            4,
            "--step",
            step,
            "--json",
        )["tokens"]
    assert rows == stream[: num_samples * 20].reshape(-1, 20).tolist()
    assert (
        f"the held-out data has {last} batches"
        in errors(
            "show", "--data", data, "--split", "eval", "--seq-len", 20, "--global-batch-size", 4, "--step", last, "--num-steps", 2
        )[0]
    )


def test_info(data):
    info = output("info", "--data", data)
    for part, folder in ((info, data), (info["eval"], data / "eval")):
        stream = read_stream(folder)
        frequency = np.bincount(stream) / len(stream)
        entropy = -sum(p * math.log(p) for p in frequency if p > 0)
        assert math.isclose(part["unigram_entropy_nats"], entropy, rel_tol=1e-12)
        assert part["num_tokens"] == len(stream) and part["num_samples"] == len(stream) // 33
        assert (part["vocab_size"], part["eos_token"], part["eos_token_id"]) == (300, "<|endoftext|>", 0)


def test_check_of_good_data(data):
    num_tokens, eval_tokens = len(read_stream(data)), len(read_stream(data / "eval"))
    summary = output(
        "check",
        "--data",
        data,
        "--eval",
        data / "eval",
        "--seq-len",
        20,
        "--global-batch-size",
        8,
        "--vocab-size",
        300,
        "--full",
    )
    assert summary == {
        "vocab_size": 300,
        "seq_len": 20,
        "num_tokens": num_tokens,
        "num_samples": num_tokens // 20,
        "eval_tokens": eval_tokens,
        "separate_documents": False,
        "fingerprint": json.loads((data / "index.json").read_text())["fingerprint"],
    }
    assert output("check", "--data", data)["seq_len"] == 33
    assert output("check", "--data", data)["eval_tokens"] == 0


def test_check_against_a_model(data, tmp_path):
    config = {"vocab_size": 320, "max_position_embeddings": 24}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert output("check", "--data", data, "--model", tmp_path)["seq_len"] == 24, "at most the model's"
    tokenizer = json.loads((data / "tokenizer/tokenizer.json").read_text())
    # Another layout of the file, other padding, merges as pairs or texts: still the same tokenizer.
    tokenizer["padding"] = {"strategy": "BatchLongest"}
    tokenizer["model"]["merges"] = [
        " ".join(merge) if isinstance(merge, list) else merge.split(" ") for merge in tokenizer["model"]["merges"]
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    output("check", "--data", data, "--eval", data / "eval", "--model", tmp_path)
    tokenizer["model"]["merges"].reverse()
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    problems = errors("check", "--data", data, "--eval", data / "eval", "--model", tmp_path)
    assert len(problems) == 2 and "prepared with another tokenizer" in problems[0]
    assert f"python -m tacc data prepare --tokenizer {tmp_path}" in problems[0]


def test_check_names_every_problem(data, tmp_path):
    problems = errors(
        "check",
        "--data",
        data,
        "--eval",
        tmp_path / "none",
        "--seq-len",
        1000,
        "--global-batch-size",
        100,
        "--vocab-size",
        256,
        "--tokenizer-fingerprint",
        "beef",
    )
    assert len(problems) == 4, problems
    assert "none: no such folder" in problems[0]
    assert "samples of seq_len = 1000, but one global batch needs 100 (100000 tokens)" in problems[1]
    assert "holds the token id 2" in problems[2] and "the model's vocabulary has 256 (ids 0 to 255)" in problems[2]
    assert "wanted beef" in problems[3]


def test_check_of_damaged_data(data, tmp_path):
    def damaged(name):
        shutil.copytree(data, tmp_path / name)
        return tmp_path / name

    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.txt").write_text("hello")
    raw = errors("check", "--data", tmp_path / "raw")[0]
    command = raw.split("it looks like raw text; prepare it with: ")[1].split(" --tokenizer MODEL_DIR")[0]
    pasted = subprocess.run(f"{command} --help", shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert pasted.returncode == 0 and "--tokenizer" in pasted.stdout, (command, pasted.stderr)

    folder = damaged("flipped")
    with open(folder / "00001.tacc", "r+b") as file:
        file.seek(500)
        file.write(b"\x01\x00" if file.read(2) != b"\x01\x00" else b"\x02\x00")
    output("check", "--data", folder)
    assert "00001.tacc: damaged: its SHA-256 is" in errors("check", "--data", folder, "--full")[0]

    folder = damaged("short")
    os.truncate(folder / "00000.tacc", 1000)
    (folder / "00001.tacc").unlink()
    problems = errors("check", "--data", folder)
    assert "00000.tacc: 1000 bytes, but the index says 2128 (cut short)" in problems[0]
    assert "00001.tacc: cannot be opened: No such file or directory" in problems[1]

    folder = damaged("version")
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | {"version": 2}))
    assert "format version 2, this program reads version 1" in errors("check", "--data", folder)[0]


def test_a_page_of_nonsense_never_crashes(data, tmp_path):
    """Random damage to index and shards: exit 0 or 2, never a signal."""
    random = np.random.default_rng(0)
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    for name in ("index.json", "00000.tacc"):
        good = (folder / name).read_bytes()
        for _ in range(150):
            bad = bytearray(good)
            for place in random.integers(0, min(len(bad), 200 if name.endswith(".tacc") else len(bad)), 3):
                bad[place] = random.integers(0, 256)
            (folder / name).write_bytes(
                bytes(bad[: random.integers(1, len(bad) + 1)] if random.random() < 0.2 else bad)
            )
            assert tacc_data("info", "--data", folder).returncode in (0, 2)
        (folder / name).write_bytes(good)


def test_the_worked_example_of_the_docs(tmp_path):
    (tmp_path / "a.txt").write_text("Hi")
    (tmp_path / "b.txt").write_text("By")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "tacc",
            "data",
            "prepare",
            "--train-tokenizer",
            "257",
            "--input",
            tmp_path / "a.txt",
            tmp_path / "b.txt",
            "--out",
            tmp_path / "out",
            "--seq-len",
            "4",
        ],
        check=True,
    )
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    shown = bytearray(140)
    for line in page.splitlines():
        if line.startswith("000000"):
            row = bytes.fromhex(line[8:58].replace(" ", ""))
            shown[int(line[:8], 16) : int(line[:8], 16) + len(row)] = row
    assert (tmp_path / "out/00000.tacc").read_bytes() == bytes(shown)
    text = tacc_data(
        "show", "--data", tmp_path / "out", "--seq-len", 3, "--global-batch-size", 2, "--seed", 42, "--step", 1
    ).stdout
    assert f"```\n{text}```" in page


@pytest.mark.parametrize("is_hard", [False, True], ids=["at first", "at all"])
def test_a_checkpoint_of_more_files_than_may_be_open(tmp_path, is_hard):
    """Each rank writes a file of it, and the soft limit that a shell gives is often 1,024."""
    ranks, soft = 100, 64
    header = json.dumps({"weights/w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    names = [f"rank-{rank:05}.safetensors" for rank in range(ranks)]
    checkpoint = tmp_path / "step-00000001.a1"
    checkpoint.mkdir()
    files = []
    for rank, name in enumerate(names):
        shard = len(header).to_bytes(8, "little") + header + np.float32(rank).tobytes()
        (checkpoint / name).write_bytes(shard)
        files.append({"name": name, "bytes": len(shard), "sha256": hashlib.sha256(shard).hexdigest()})
    slices = [{"file": name, "offset": [rank], "shape": [1]} for rank, name in enumerate(names)]
    tensors = {"weights/w": {"dtype": "F32", "shape": [ranks], "stored_shape": [ranks], "slices": slices}}
    manifest = {"format": 1, "version": "0.1.0", "job": "j", "step": 1, "attempt": 1, "identity": {}, "layout": {}, "cursor": {"step": 1}}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest | {"files": files, "tensors": tensors}))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")

    hard = soft if is_hard else resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    command = [TACC_DATA, "export", "--checkpoint", checkpoint, "--model", tmp_path / "model", "--out", tmp_path / "hf"]
    result = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    )
    assert result.returncode == 0, result.stderr
    exported = (tmp_path / "hf/model.safetensors").read_bytes()
    assert exported.endswith(np.arange(ranks, dtype=np.float32).tobytes())


def test_usage(data):
    assert tacc_data("--version").stdout.startswith("tacc-data ")
    assert tacc_data("--help").returncode == 0
    assert "--step" in errors("show", "--data", data, "--global-batch-size", 1, "--step", 0)[0]
    assert errors("show")[0].endswith("see --help")
    assert errors("frobnicate")
    assert (
        "no held-out data"
        in errors("show", "--data", data / "eval", "--split", "eval", "--global-batch-size", 1, "--step", 1)[0]
    )
