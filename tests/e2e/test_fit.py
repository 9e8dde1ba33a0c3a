"""tacc.fit against a real coordinator with CPU workers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tacc
from cluster import ROOT, TINY_MODEL, Cluster, rank_of, write_data, write_model

CONFIG = {"data": {"seq_len": 16}, "compute": {"bf16": False}, "checkpoint": {"save_steps": 20}}
TRAIN = {"max_steps": 12, "global_batch_size": 8, "learning_rate": 0.003, "seed": 3}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with tacc.Client(cluster.address) as client:
        yield client


def test_a_new_model_and_on_with_it(client, tmp_path, capfd):
    from transformers import AutoModelForCausalLM, OlmoConfig

    data = write_data(tmp_path / "data")
    shape = OlmoConfig(**{key: value for key, value in TINY_MODEL.items() if key not in ("architectures", "model_type")})
    out = tmp_path / "runs/new one"
    result = tacc.fit(shape, data, output_dir=out, config=CONFIG, client=client, **TRAIN)
    assert result.status.phase == "finished" and result.job.name == "new-one"
    assert "step 12 / 12" in capfd.readouterr().err
    assert AutoModelForCausalLM.from_pretrained(result.path).config.hidden_size == 32
    assert list(result.metrics()["step"]) == list(range(1, 13))
    assert re.fullmatch(r"FitResult\('.*/runs/new one/hf', step 12, loss \d\.\d{4}\)", repr(result))
    # More steps: it goes on; the same shape as a dict, of another version of transformers, is the same model.
    written = {**json.loads((out / "model/config.json").read_text()), "transformers_version": "99.0.0"}
    on = tacc.fit(written, data, output_dir=out, config=CONFIG, client=client, **{**TRAIN, "max_steps": 20})
    assert list(on.metrics()["step"]) == list(range(13, 21))
    # The exported folder is a model to begin with; a Config is not changed by what is laid over it.
    config = tacc.Config(CONFIG, name="next")
    after = tacc.fit(on, data, output_dir=tmp_path / "next", config=config, client=client, progress=False, **TRAIN)
    assert after.job.name == "next" and after.metrics()["loss"][0] < result.metrics()["loss"][0]
    assert config.train.max_steps is None and config.model.path is None
    with pytest.raises(tacc.ConflictError, match=r"has the training of another model, .*config.json; choose another output_dir"):
        tacc.fit({**TINY_MODEL, "hidden_size": 64}, data, output_dir=out, client=client, **TRAIN)


def test_held_out_data_of_the_prepared_folder_is_evaluated_on(client, tmp_path):
    data = write_data(tmp_path / "data")
    write_data(data / "eval", seed=1)
    result = tacc.fit(TINY_MODEL, data, output_dir=tmp_path / "out", config=CONFIG, client=client, progress=False, **TRAIN, eval_steps=6)
    assert list(result.metrics("eval")["step"]) == [6, 12]


def test_config_alone_may_say_how_and_where_to_train(client, tmp_path, monkeypatch):
    """A folder in a job file is taken from there."""
    (tmp_path / "jobs").mkdir()
    job = tacc.Config(CONFIG, train={**TRAIN, "max_steps": 3}, checkpoint={"dir": "out"})
    job.to_yaml(tmp_path / "jobs/job.yaml")
    data = write_data(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    for config, folder in ((tmp_path / "jobs/job.yaml", tmp_path / "jobs/out"), (job, tmp_path / "out"), (CONFIG | {"train": job.train}, tmp_path / "runs/fit")):
        result = tacc.fit(TINY_MODEL, data, config=config, client=client, progress=False)
        assert result.status.step == 3 and result.status.spec["train"]["global_batch_size"] == 8
        assert result.path == folder / "hf"


def test_what_is_wrong(client, tmp_path, monkeypatch):
    data, model = write_data(tmp_path / "data"), write_model(tmp_path / "model")
    with pytest.raises(tacc.ConfigError, match='did you mean "max_steps"'):
        tacc.fit(model, data, client=client, max_stepz=3)
    with pytest.raises(tacc.InvalidJobError, match="learning_rate"):
        tacc.fit(model, data, output_dir=tmp_path / "out", client=client, max_steps=3, learning_rate=-1)
    with pytest.raises(tacc.InvalidJobError, match=r"nowhere does not exist; it is a folder"):
        tacc.fit(tmp_path / "nowhere", data, output_dir=tmp_path / "out", client=client, max_steps=3)
    with pytest.raises(tacc.InputError, match="prepare goes with data that is to be prepared"):
        tacc.fit(model, data, prepare={"seq_len": 3}, client=client, max_steps=3)
    with pytest.raises(tacc.InputError, match=r"not a float"):
        tacc.fit(1.5, data, client=client, max_steps=3)
    with pytest.raises(tacc.InputError, match="no tracker 'comet'"):
        tacc.fit(model, data, report_to="comet", client=client, max_steps=3)
    # Before data is prepared: also that nobody is there to run it.
    texts = [{"text": "1 and 2 are 3. " * 20}] * 9
    with pytest.raises(tacc.ConfigError, match='did you mean "max_steps"'):
        tacc.fit(model, texts, output_dir=tmp_path / "out", client=client, max_stepz=3)
    with pytest.raises(tacc.InvalidJobError, match="learning_rate"):
        tacc.fit(TINY_MODEL, texts, output_dir=tmp_path / "out", client=client, max_steps=3, learning_rate=-1)
    monkeypatch.setenv("TACC_ADDRESS", "127.0.0.1:9")
    with pytest.raises(tacc.CoordinatorError, match="nothing listens there"):
        tacc.fit(TINY_MODEL, texts, output_dir=tmp_path / "out", max_steps=3)
    assert not (tmp_path / "out").exists()


def test_a_shape_that_could_not_be_is_mended(client, tmp_path):
    """The model that nothing was trained of is no training of another model; its tokenizer is that of the data that is taken in the end."""
    arguments = {"output_dir": tmp_path / "out", "client": client, "progress": False, **TRAIN, "max_steps": 2}
    texts = [{"text": f"{n} and {n + 1} are {2 * n + 1}. " * 4} for n in range(200)]
    with pytest.raises(tacc.JobFailedError, match="3 heads do not divide the hidden size 32"):
        tacc.fit({**TINY_MODEL, "vocab_size": 300, "num_attention_heads": 3}, texts, **arguments)
    shutil.rmtree(tmp_path / "out/data")
    result = tacc.fit({**TINY_MODEL, "vocab_size": 280}, texts, **arguments)
    assert result.status.phase == "finished"
    data, exported = ((tmp_path / "out" / folder / "tokenizer.json").read_text() for folder in ("data/tokenizer", "hf"))
    assert json.loads(data)["model"]["vocab"] == json.loads(exported)["model"]["vocab"]
    with pytest.raises(tacc.ConflictError, match="has the training of another model"):
        tacc.fit(TINY_MODEL, texts, **arguments)


def test_adapters_are_exported_alone_or_merged(client, tmp_path):
    data = write_data(tmp_path / "data")
    arguments = {"config": CONFIG, "client": client, "progress": False, **TRAIN, "max_steps": 2}
    base = tacc.fit(TINY_MODEL, data, output_dir=tmp_path / "base", **arguments)
    tuned = tacc.fit(base, data, output_dir=tmp_path / "tuned", lora={"r": 2}, **arguments)
    assert sorted(file.name for file in tuned.path.glob("*.safetensors")) == ["adapter_model.safetensors"]
    merged = Path(tuned.job.export(tmp_path / "merged", merge=True))
    assert sorted(file.name for file in merged.glob("*.safetensors")) == ["model.safetensors"]
    with pytest.raises(tacc.InputError, match="merge"):
        base.job.export(tmp_path / "nothing", merge=True)


def test_a_kernel_that_dies_and_the_next_one(client, cluster, tmp_path):
    """The next call follows the job that still runs; with other settings it is another job, which is refused."""
    data, model = write_data(tmp_path / "data"), write_model(tmp_path / "model")
    settings = {**TRAIN, "max_steps": 2000}
    config = {**CONFIG, "model": {"weights": "random"}}
    code = f"""import tacc
tacc.fit({str(model)!r}, {str(data)!r}, output_dir={str(tmp_path / "out")!r}, config={config!r}, client=tacc.Client({cluster.address!r}), **{settings!r})"""
    kernel = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "client/python")}, stderr=subprocess.DEVNULL)
    job = cluster.wait(lambda: next((job for job in client.jobs() if job.name == "out" and job.status().step > 20), None), "steps")
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    with pytest.raises(tacc.ConflictError, match=rf"{job.id} trains in .*/out, and is another job"):
        tacc.fit(model, data, output_dir=tmp_path / "out", config=config, client=client, **{**settings, "seed": 4})
    result = tacc.fit(model, data, output_dir=tmp_path / "out", config=config, client=client, progress=False, **settings)
    assert result.job.id == job.id and list(result.metrics()["step"]) == list(range(1, 2001))


def test_it_goes_on_behind_a_cancelled_job(client, cluster, tmp_path):
    data, model = write_data(tmp_path / "data"), write_model(tmp_path / "model")
    config = {**CONFIG, "model": {"weights": "random"}}
    arguments = {"output_dir": tmp_path / "out", "config": config, "client": client, "progress": False, **TRAIN}
    with pytest.raises(tacc.AnswerTimeoutError):
        tacc.fit(model, data, timeout=3, **{**arguments, "max_steps": 1_000_000})
    client.job("out").cancel()
    with pytest.raises(tacc.JobCancelledError):
        client.job("out").wait(progress=False)
    done = client.job("out").status().step
    result = tacc.fit(model, data, **{**arguments, "max_steps": done + 5})
    assert list(result.metrics()["step"]) == list(range(done + 1, done + 6))
    assert Path(result) == tmp_path / "out/hf"


def test_data_is_prepared_once(client, tmp_path):
    """With a tokenizer of the new model's vocabulary, in samples that it takes."""
    texts = [{"text": f"{n} and {n + 1} are {2 * n + 1}. " * 4} for n in range(200)]
    arguments = {"output_dir": tmp_path / "out", "client": client, "progress": False, **TRAIN}
    shape = {**TINY_MODEL, "vocab_size": 300}
    result = tacc.fit(shape, texts, prepare={"eval_fraction": 0.1}, **arguments)
    index = json.loads((tmp_path / "out/data/index.json").read_text())
    assert len(json.loads((tmp_path / "out/data/tokenizer/tokenizer.json").read_text())["model"]["vocab"]) <= 300
    assert index["seq_len"] == 64 and len(result.metrics("eval")) == 1
    before = (tmp_path / "out/data/index.json").stat().st_mtime_ns
    tacc.fit(shape, texts, prepare={"eval_fraction": 0.1}, **{**arguments, "max_steps": 14})
    assert (tmp_path / "out/data/index.json").stat().st_mtime_ns == before
    with pytest.raises(tacc.ConflictError, match=r"out/data was prepared from other data, or otherwise"):
        tacc.fit(shape, texts, prepare={"eval_fraction": 0.2}, **arguments)
    with pytest.raises(tacc.ConflictError, match=r"out/data was prepared from other data, .*give the folder itself as data"):
        tacc.fit(shape, [*texts[:-1], {"text": "0 and 1 are 2. " * 4}], prepare={"eval_fraction": 0.1}, **arguments)
    assert tacc.fit(shape, tmp_path / "out/data", **{**arguments, "max_steps": 14}).status.step == 14
    # The tokenizer of a model's folder is taken.
    (tmp_path / "more.txt").write_text("1 and 2 are 3.\n" * 500)
    assert (tmp_path / "out/hf/tokenizer.json").exists()
    on = tacc.fit(result, tmp_path / "more.txt", **{**arguments, "output_dir": tmp_path / "on"})
    assert json.loads((tmp_path / "on/data/index.json").read_text())["tokenizer"] == index["tokenizer"] and on.status.phase == "finished"
    (tmp_path / "more.txt").write_text("1 and 2 are 3.\n" * 501)
    with pytest.raises(tacc.ConflictError, match=r"on/data was prepared from other data"):
        tacc.fit(result, tmp_path / "more.txt", **{**arguments, "output_dir": tmp_path / "on"})
    (tmp_path / "on/fit.json").write_text("{")
    with pytest.raises(tacc.ConflictError, match=r"on/fit.json cannot be read"):
        tacc.fit(result, tmp_path / "more.txt", **{**arguments, "output_dir": tmp_path / "on"})


def test_what_a_generator_gives_is_not_read_again(client, tmp_path):
    arguments = {"output_dir": tmp_path / "out", "client": client, "progress": False, **TRAIN, "max_steps": 2}
    shape = {**TINY_MODEL, "vocab_size": 300}
    tacc.fit(shape, ({"text": f"{n} and so on. " * 9} for n in range(50)), **arguments)
    with pytest.warns(UserWarning, match=r"data is not read: .*/out/data was prepared in an earlier call, and a generator cannot be compared") as warned:
        tacc.fit(shape, ({"text": "other"} for _ in range(50)), **arguments)
    assert warned[0].filename == __file__
    (tmp_path / "out/fit.json").unlink()
    with pytest.raises(tacc.ConflictError, match=r"not by tacc\.fit"):
        tacc.fit(shape, ({"text": "other"} for _ in range(50)), **arguments)


def test_patterns_of_files_are_no_paths(client, tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("1 and 2 are 3.\n" * 200)
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        settings = {**TRAIN, "max_steps": 2}
        tacc.fit(
            {**TINY_MODEL, "vocab_size": 300}, tmp_path / "texts", output_dir=tmp_path / "out", prepare={"include": ["*.txt"]}, client=client,
            progress=False, **settings,
        )


def test_a_sample_is_as_long_as_the_model_takes(client, tmp_path):
    from transformers import GPT2Config

    shape = GPT2Config(vocab_size=300, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    result = tacc.fit(shape, ({"text": f"{n} and so on. " * 9} for n in range(50)), output_dir=tmp_path / "out", client=client, progress=False, **TRAIN)
    assert json.loads((tmp_path / "out/data/index.json").read_text())["seq_len"] == 32 and result.status.step == 12


def _images(count, samples=8):
    import torch

    random = torch.Generator().manual_seed(7)
    return [(torch.randn(samples, 12, generator=random), torch.randint(0, 5, (samples,), generator=random)) for _ in range(count)]


def _perceptron():
    import torch

    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 5))


def _cross_entropy(logits, batch):
    import torch

    return torch.nn.functional.cross_entropy(logits, batch[1])


MODULE = {"config": {"compute": {"bf16": False}}, "loss": _cross_entropy, "learning_rate": 0.05, "optim": "sgd", "lr_scheduler_type": "constant",
          "weight_decay": 0.0, "max_grad_norm": 0.0}


def _train_by_torch(batches, epochs):
    import torch

    module = _perceptron()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    losses = []
    for batch in batches * epochs:
        loss = _cross_entropy(module(batch[0]), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, module


def test_a_module_and_its_loader(client, tmp_path, capfd):
    import torch
    from safetensors.torch import load_file

    batches, module = _images(5), _perceptron()
    losses, trained = _train_by_torch(batches, 3)
    result = tacc.fit(module, batches, output_dir=tmp_path / "out", client=client, num_train_epochs=3, **MODULE)
    assert "step 15 / 15" in capfd.readouterr().err
    assert list(result.metrics()["loss"]) == pytest.approx(losses, rel=2e-5)
    for name, value in trained.state_dict().items():
        assert torch.allclose(module.state_dict()[name].double(), value.double(), rtol=1e-4, atol=1e-5), name
    [file] = result.path.glob("*.safetensors")
    assert torch.equal(load_file(file)["0.weight"], module.state_dict()["0.weight"])


class Stateful:
    """A loader that says where it stands, and goes on there, as torchdata's."""

    def __init__(self, batches):
        self.batches, self.next, self.num_epochs, self.seen = batches, 0, 0, lambda: None

    def __iter__(self):
        self.num_epochs += 1
        while self.next < len(self.batches):
            self.next += 1
            self.seen()
            yield self.batches[self.next - 1]
        self.next = 0

    def __len__(self):
        return len(self.batches)

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def _shuffled(batches):
    """A DataLoader with a seed."""
    import torch

    class Loader(torch.utils.data.DataLoader):
        num_epochs = 0

        def __iter__(self):
            self.num_epochs += 1
            return super().__iter__()

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return len(images)

        def __getitem__(self, i):
            read.append(i)
            if len(read) % 8 == 0:
                loader.seen()
            return images[i], labels[i]

    images, labels = (torch.cat(tensors) for tensors in zip(*batches))
    loader = Loader(Images(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5))
    read, loader.seen = [], lambda: None
    return loader


@pytest.mark.parametrize("made", [_shuffled, Stateful])
def test_batches_of_a_module_come_in_the_order_of_a_plain_loop(client, tmp_path, made):
    """The loader is iterated over once an epoch, and the batch that was looked at is trained on."""
    plain = made(_images(5))
    losses, _ = _train_by_torch([batch for _ in range(3) for batch in plain], 1)
    loader = made(_images(5))
    result = tacc.fit(_perceptron(), loader, output_dir=tmp_path / "out", client=client, progress=False, num_train_epochs=3, **MODULE)
    assert loader.num_epochs == 3
    assert list(result.metrics()["loss"]) == pytest.approx(losses, rel=2e-5)


def test_a_loader_with_a_state_goes_on_in_the_next_call(client, tmp_path):
    """In its second epoch, and as if nobody had looked at its first batch."""
    losses, _ = _train_by_torch(_images(5), 3)
    arguments = {"output_dir": tmp_path / "out", "client": client, "progress": False, **MODULE}
    assert tacc.fit(_perceptron(), Stateful(_images(5)), max_steps=7, **arguments).status.step == 7
    result = tacc.fit(_perceptron(), Stateful(_images(5)), max_steps=15, **arguments)
    assert list(result.metrics()["step"]) == list(range(8, 16))
    assert list(result.metrics()["loss"]) == pytest.approx(losses[7:], rel=2e-5)


@pytest.mark.parametrize("made", [_shuffled, Stateful])
@pytest.mark.parametrize("has_checkpoint", [True, False], ids=["checkpoint", "no-checkpoint"])
def test_a_killed_rank_changes_no_order(client, cluster, tmp_path, made, has_checkpoint):
    """In the second epoch, or before the first checkpoint."""

    def seen():
        counts.append(1)
        if len(counts) == kill_at:
            job = cluster.wait(lambda: next((job for job in client.jobs() if job.name == name), None), "the job")
            if has_checkpoint:
                cluster.wait(lambda: getattr(job.status().last_checkpoint, "step", 0) >= 6, "a checkpoint")
            else:
                cluster.wait(lambda: job.status().step >= 1, "a step")
            os.kill(next(pid for pid in map(rank_of, cluster.workers.values()) if pid > 0), signal.SIGKILL)

    losses, _ = _train_by_torch([batch for loader in [made(_images(5))] for _ in range(3) for batch in loader], 1)
    name, counts, loader = f"killed-{made.__name__.strip('_').lower()}-{has_checkpoint}".lower(), [], made(_images(5))
    kill_at = 9 if has_checkpoint else 4
    loader.seen = seen
    options = {**MODULE, "config": {"compute": {"bf16": False}, "checkpoint": {"save_steps": 2 if has_checkpoint else 100}}}
    result = tacc.fit(_perceptron(), loader, output_dir=tmp_path / "out", name=name, client=client, progress=False, num_train_epochs=3, **options)
    assert len(counts) > kill_at
    assert len(result.job.status().restarts) == 1
    assert list(result.metrics()["step"]) == list(range(1, 16))
    assert list(result.metrics()["loss"]) == pytest.approx(losses, rel=2e-5)


def test_an_iterator_does_not_come_again_after_a_restart(client, cluster, tmp_path):
    """What was trained on behind the last checkpoint is not left out in silence: the next call goes on with it."""

    def batches():
        yield from images[:4]
        job = cluster.wait(lambda: next((job for job in client.jobs() if job.name == "killed-iterator"), None), "the job")
        cluster.wait(lambda: getattr(job.status().last_checkpoint, "step", 0) >= 2, "a checkpoint")
        os.kill(next(pid for pid in map(rank_of, cluster.workers.values()) if pid > 0), signal.SIGKILL)
        yield from images[4:]

    images = _images(5) * 3
    losses, _ = _train_by_torch(_images(5), 3)
    options = {**MODULE, "output_dir": tmp_path / "out", "name": "killed-iterator", "client": client, "progress": False, "max_steps": 15}
    options["config"] = {"compute": {"bf16": False}, "checkpoint": {"save_steps": 2}}
    with pytest.raises(tacc.InputError, match=r"begun again after step \d+: .*data is an iterator, .*call tacc.fit again with a new one"):
        tacc.fit(_perceptron(), batches(), **options)
    result = tacc.fit(_perceptron(), iter(images), **options)
    assert list(result.metrics()["loss"]) == pytest.approx(losses[-len(result.metrics()) :], rel=2e-5) and result.status.step == 15


def test_a_module_goes_on_where_its_loader_had_failed(client, tmp_path):
    class Failing:
        def __iter__(self):
            yield from batches[:3]
            raise OSError("the disk of the images is gone")

        def __len__(self):
            return len(batches)

    batches, out = _images(5), tmp_path / "out"
    losses, _ = _train_by_torch(batches, 2)
    with pytest.raises(OSError, match="the disk of the images is gone"):
        tacc.fit(_perceptron(), Failing(), output_dir=out, client=client, progress=False, num_train_epochs=2, **MODULE)
    result = tacc.fit(_perceptron(), batches, output_dir=out, client=client, progress=False, num_train_epochs=2, **MODULE)
    assert list(result.metrics()["step"]) == list(range(4, 11))
    assert list(result.metrics()["loss"]) == pytest.approx(losses[3:], rel=2e-5)
    # Nothing is left to do; an iterator is one epoch.
    again = tacc.fit(_perceptron(), batches, output_dir=out, client=client, progress=False, num_train_epochs=2, **MODULE)
    assert again.status.phase == "finished" and len(again.metrics()) == 0
    with pytest.warns(UserWarning, match="no more batches after step 5 of 7: the training ends here"):
        short = tacc.fit(_perceptron(), iter(batches), output_dir=tmp_path / "iterator", client=client, progress=False, max_steps=7, **MODULE)
    assert list(short.metrics()["loss"]) == pytest.approx(losses[:5], rel=2e-5)


@pytest.mark.parametrize(
    "data, options, message",
    [
        (lambda: [], {"max_steps": 2}, "data has no batch"),
        (lambda: iter(_images(1)), {}, "Give max_steps or num_train_epochs"),
        (lambda: iter(_images(1)), {"num_train_epochs": 2}, r"a list_iterator does not say \(len\); give max_steps"),
        (lambda: _images(1), {"max_steps": 2, "global_batch_size": 16}, "global_batch_size is 16, and the loader's batches have 8 samples"),
        (lambda: [images for images, _ in _images(1)], {"max_steps": 2, "loss": None}, "returns no loss"),
        (lambda: _images(1), {"max_steps": 2, "prepare": {"seq_len": 8}}, "a module is trained with the batches of a loader"),
    ],
)
def test_what_a_module_cannot_be_trained_with(client, tmp_path, data, options, message):
    with pytest.raises(tacc.InputError, match=message):
        tacc.fit(_perceptron(), data(), output_dir=tmp_path / "out", client=client, **{**MODULE, **options})
