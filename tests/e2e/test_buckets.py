"""Batches of several lengths: one plan, one compilation a length, and the losses that the samples have unpadded."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tacc
import torch
from cluster import Cluster, write_model
from torch import nn

ROUNDING = 2e-5  # Sums in fp32 in another order.
LENGTHS, SAMPLES, PARTS = [8, 12, 16], 8, 2
ONE = {"dp": {"size": 1}, "fsdp": {"size": 1}}
FSDP = {"dp": {"size": 1}, "fsdp": {"size": 2}}
PP = {"fsdp": {"size": 1}, "pp": {"size": 2, "num_micro_batches": PARTS}}
PARTS_OF_STEPS = [(8, 16), (12, 12), (16, 8), (8, 8), (16, 12), (12, 8)]  # Lengths of the micro-batches.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def client(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("TACC_ADDRESS", cluster.address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with tacc.Client() as client:
        yield client
        for job in client.jobs():
            job.cancel(now=True)
            while job.status().phase not in ("finished", "failed", "cancelled"):
                pass


def submit(client, tmp_path, name, dist, *, buckets=(8, 12), **train):
    workers = int(np.prod([axis["size"] for axis in dist.values()]))
    write_model(tmp_path / "model")
    return client.submit({
        "name": name, "model": {"path": str(tmp_path / "model"), "weights": "random"}, "data": {"client": {"buckets": list(buckets)}, "seq_len": 16},
        "train": {"max_steps": 8, "global_batch_size": SAMPLES, "per_device_train_batch_size": SAMPLES // PARTS // (1 if "pp" in dist else workers),
                  "learning_rate": 0.003, "seed": 3, **train},
        "compute": {"bf16": False}, "dist": dist, "checkpoint": {"dir": str(tmp_path / name), "save_steps": 2}, "resources": {"workers": workers},
    })


def part(length, seed, padded_to=None):
    tokens = np.random.default_rng(seed).integers(0, 97, (SAMPLES // PARTS, length), np.int32)
    widths = ((0, 0), (0, (padded_to or length) - length))
    targets = np.pad(tokens[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    return {"tokens": np.pad(tokens, widths), "targets": np.pad(targets, widths, constant_values=-1)}


def parts(step, padded_to=None):
    return [part(length, 10 * step + m, padded_to) for m, length in enumerate(PARTS_OF_STEPS[step])]


@pytest.fixture(scope="module")
def padded(cluster, tmp_path_factory):
    """What a training gives whose samples are all padded to the longest length."""
    folder = tmp_path_factory.mktemp("padded")
    with tacc.Client(cluster.address) as client:
        job = submit(client, folder, "padded", ONE, buckets=())
        with tacc.Session(job) as session:
            assert session.lengths == []
            found = [session.step(parts(step, 16)) for step in range(len(PARTS_OF_STEPS))]
            session.finish()
        job.wait(progress=False)
    return found


def compilations(job):
    return [event.message.split(" in ")[0] for event in job.events() if event.type == "compiled" and "length" in event.message]


@pytest.mark.parametrize("dist", [ONE, FSDP], ids=["one", "fsdp"])
@pytest.mark.parametrize("link", ["memory", "tcp", "compressed"])
def test_micro_batches_of_several_lengths_are_one_step(client, padded, tmp_path, monkeypatch, dist, link):
    monkeypatch.setattr("tacc.live.packing._LEAST_BYTES", 1 if link == "compressed" else 1 << 30)
    monkeypatch.setattr("tacc.live.packing._WANTED", 1.0)  # Of a few random tokens little is gained.
    monkeypatch.setattr("tacc.live.session_link.Link.bytes_per_second", 1.0)
    job = submit(client, tmp_path, "lengths", dist)
    with tacc.Session(job, shared_memory=link == "memory") as session:
        assert (session.lengths, session.num_micro_batches) == (LENGTHS, PARTS)
        staged = session.stage(parts(0))
        assert bool(staged._packed) == (link == "compressed")
        session.discard(staged)
        for step, want in enumerate(padded):
            if step % 2:  # One by one.
                sums = [session.micro_batch(one) for one in parts(step)]
                assert sum(s.target_tokens for s in sums) == want.target_tokens
                result = session.update()
            else:
                result = session.step(parts(step))
            assert (result.loss, result.grad_norm) == pytest.approx((want.loss, want.grad_norm), rel=ROUNDING)
            assert result.target_tokens == want.target_tokens
        short, longest = (session.forward([part(8, seed, to) for seed in (1, 2)]).loss for to in (8, 16))
        assert short == pytest.approx(longest, rel=ROUNDING)
        with pytest.raises(tacc.InputError, match=r"'tokens' has the shape \[8, 9\].*compiled for samples of 8, 12, 16 tokens"):
            session.step({name: np.zeros((SAMPLES, 9), np.int32) for name in ("tokens", "targets")})
        with pytest.raises(tacc.InputError, match="a list of 1 micro-batches; wanted 2"):
            session.step([part(8, 0)])
        session.finish()
    status = job.wait(progress=False)
    # Each length once, whatever came in which order; what a step says of itself follows its lengths.
    assert compilations(job) == [f"compiled for length {length}" for length in LENGTHS]
    flops = {bucket.seq_len: bucket.flops_per_step for bucket in status.plan.buckets}
    assert list(flops) == LENGTHS and flops[16] == status.plan.flops_per_step and flops[8] < 0.5 * flops[16]
    points = list(job.watch(events=False))
    assert [p.tokens for p in points] == [SAMPLES // PARTS * sum(lengths) for lengths in PARTS_OF_STEPS]
    assert [p.flops for p in points] == pytest.approx([sum(flops[length] for length in lengths) / PARTS for lengths in PARTS_OF_STEPS])


def test_a_pipeline_takes_steps_of_one_length(client, padded, tmp_path):
    job = submit(client, tmp_path, "stages", PP)
    with tacc.Session(job) as session:
        with pytest.raises(tacc.TaccError, match="several micro-batches at once, so that all of a step have one length"):
            session.step(parts(0))
        first = session.step(parts(0, 16))
        assert (first.loss, first.grad_norm) == pytest.approx((padded[0].loss, padded[0].grad_norm), rel=ROUNDING)
        second = session.step(parts(1))
        assert (second.loss, second.grad_norm) == pytest.approx((padded[1].loss, padded[1].grad_norm), rel=ROUNDING)
        session.finish()
    job.wait(progress=False)


def test_a_killed_rank_goes_on_with_all_lengths(cluster, client, padded, tmp_path):
    job = submit(client, tmp_path, "killed", FSDP)
    with tacc.Session(job) as session:
        got = [session.step(parts(step)).loss for step in range(3)]
        cluster.wait(lambda: job.status().last_checkpoint, "the checkpoint of step 2")
        os.kill(rank_pid(cluster, "w1"), signal.SIGKILL)
        with pytest.raises(tacc.SessionRestartedError, match="after step 2"):
            session.step(parts(3))
        again = [session.step(parts(step)).loss for step in range(2, len(padded))]
        assert again[0] == got[2]  # The same bits.
        assert got[:2] + again == pytest.approx([p.loss for p in padded], rel=ROUNDING)
        session.finish()
    job.wait(progress=False)
    assert len(compilations(job)) == len(LENGTHS)


def rank_pid(cluster, worker):
    """The process that a worker has started."""
    parent = cluster.workers[worker].popen.pid
    children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return next(pid for pid in children if "tacc-rank" in Path(f"/proc/{pid}/comm").read_text())


def test_an_async_loader_pads_to_the_next_length(client, tmp_path):
    job = submit(client, tmp_path, "loader", ONE)
    given = [{name: np.concatenate([rows, rows]) for name, rows in part(length, length).items()} for length in (5, 12, 7, 16)]
    with tacc.Session(job) as session:
        loader = tacc.AsyncLoader(given, session, pad_value_dict={"tokens": 0, "targets": -1})
        got = [session.step(batch).target_tokens for batch in loader]
        assert got == [SAMPLES * (length - 1) for length in (5, 12, 7, 16)]
        longer = {name: np.zeros((SAMPLES, 17), np.int32) for name in ("tokens", "targets")}
        with pytest.raises(tacc.InputError, match="samples of 17 tokens; the job is compiled for 8, 12, 16"):  # Behind those that it has had.
            list(tacc.AsyncLoader([*given, longer], session, pad_value_dict={"tokens": 0, "targets": -1}))
        session.finish()
    job.wait(progress=False)
    assert [p.tokens for p in job.watch(events=False)] == [SAMPLES * length for length in (8, 12, 8, 16)]


# --- tacc.accelerate ----------------------------------------------------------------------------------------------------


def texts():
    """Batches of texts, each padded to its own longest."""
    random = torch.Generator().manual_seed(11)
    for length in (11, 6, 16, 8):
        ids = torch.randint(1, 61, (SAMPLES, length), generator=random)
        mask = (torch.arange(length)[None] < torch.randint(4, length + 1, (SAMPLES, 1), generator=random)).long()
        yield {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def bert():
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(5)
    settings = BertConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=16,
                          hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2)
    return BertForMaskedLM(settings)


def trained(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in texts():
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("workers", [1, 2], ids=["one", "fsdp"])
def test_accelerated_batches_are_padded_to_the_next_length(workers):
    plain = bert()
    want = trained(plain)
    config = {"dist": {"fsdp": {"size": workers}}, "resources": {"workers": workers}}
    with tacc.accelerate(bert(), config=config, buckets=LENGTHS) as model:
        assert trained(model) == pytest.approx(want, rel=ROUNDING)
        model.eval()
        batch = next(texts())
        with torch.no_grad():
            out, here = model(**batch), plain.eval()(**batch)
        assert out.loss.item() == pytest.approx(here.loss.item(), rel=1e-4)
        assert out.logits.shape == here.logits.shape
        seen = batch["attention_mask"].bool()
        torch.testing.assert_close(out.logits[seen], here.logits[seen], rtol=1e-3, atol=1e-3)
        unknown = {"input_ids": torch.full((SAMPLES, 9), 61), "attention_mask": torch.ones(SAMPLES, 9, dtype=torch.long)}
        with pytest.raises(tacc.InputError, match=r"'input_ids' has 61 in sample 0 of the batch, which is out of range: the model takes 0 to 60$"):
            model(**unknown)
        with pytest.raises(tacc.InputError, match="samples of 17 tokens; the job is compiled for 8, 12, 16"):
            model(input_ids=torch.ones(SAMPLES, 17, dtype=torch.long), attention_mask=torch.ones(SAMPLES, 17, dtype=torch.long))
        job = model.job
    assert [p.tokens for p in job.watch(events=False)] == [SAMPLES * length for length in (12, 8, 16, 8)]


class Pooled(nn.Module):
    """Reads all tokens, whatever they are."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(61, 16), nn.Linear(16, 61)

    def forward(self, input_ids, labels):
        pooled = self.embed(input_ids) + self.embed(input_ids).mean(1, keepdim=True)
        return {"loss": nn.functional.cross_entropy(self.head(pooled).flatten(0, 1), labels.flatten())}


class FixedLength(nn.Module):
    """Has a weight for each position."""

    def __init__(self):
        super().__init__()
        self.embed, self.position, self.head = nn.Embedding(61, 16), nn.Parameter(torch.zeros(12, 16)), nn.Linear(16, 61)

    def forward(self, input_ids, labels):
        return {"loss": nn.functional.cross_entropy(self.head(self.embed(input_ids) + self.position).flatten(0, 1), labels.flatten())}


def test_lengths_are_refused_where_they_would_change_the_loss():
    def batch(length):
        return {"input_ids": torch.ones(SAMPLES, length, dtype=torch.long), "labels": torch.ones(SAMPLES, length, dtype=torch.long)}

    config = {"resources": {"workers": 1}}
    with tacc.accelerate(Pooled(), config=config, buckets=LENGTHS) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(**batch(12))  # As long as the job has it.
        with pytest.raises(tacc.InputError, match="what fills samples up changes 'loss' of the model: its batches need an 'attention_mask'"):
            model(**batch(11))
        optimizer.zero_grad()
    module = FixedLength()
    fixed = tacc.accelerate(module, config=config, buckets=LENGTHS, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(tacc.InputError, match=r"the exported model has one length \(a sample has always 12 tokens: the model fixes the length of 'input_ids'"):
        fixed(**batch(12))
    with pytest.raises(tacc.InputError, match="wanted lengths of at least 2 tokens"):
        tacc.accelerate(Pooled(), buckets=[])
