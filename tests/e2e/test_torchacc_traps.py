"""Jobs that TorchAcc's `Config` refuses, or trains in another way than it says: here they do what their options say.

What they are there is in its sources (AlibabaPAI/torchacc: torchacc/config.py, dist/, utils/checkpoint.py). That attention keeps a model's own mask, scale
and window is shown beside transformers, for every family: tests/parity (cases "window", "scale", "own head size") and, for documents that share a sample,
tests/e2e/test_packed_documents.py.
"""

import pytest
import tacc
from cluster import Cluster, write_job

LAYER = "OlmoDecoderLayer"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a model and data."""
    folder = tmp_path_factory.mktemp("folder")
    write_job(folder)
    return folder


@pytest.fixture
def train(cluster, folder, monkeypatch):
    """Trains a config with these changes; its status and losses."""
    monkeypatch.chdir(folder)

    def run(name: str, change) -> tuple[tacc.JobStatus, list[float]]:
        config = tacc.Config.from_yaml(folder / "tiny.yaml")
        config.name = name
        config.dist = None
        change(config)
        with tacc.Client(cluster.address) as client:
            job = client.submit(config)
            status = job.wait(timeout=120, progress=False)
            return status, [item.loss for item in job.watch(events=False)]

    return run


@pytest.fixture(scope="module")
def one_worker(cluster, folder) -> list[float]:
    """The losses that every layout has."""
    config = tacc.Config.from_yaml(folder / "tiny.yaml")
    config.update({"name": "one", "dist": {"fsdp": {"size": 1}}, "resources": {"workers": 1}})
    with tacc.Client(cluster.address) as client:
        job = client.submit(config)
        job.wait(timeout=120, progress=False)
        return [item.loss for item in job.watch(events=False)]


def fsdp(config: tacc.Config) -> None:
    config.dist.fsdp.size = 2
    config.dist.fsdp.wrap_layer_cls = {LAYER}


def test_buckets_are_accepted(train, one_worker):
    """There its check asks that another option is the list."""

    def change(config: tacc.Config) -> None:
        fsdp(config)
        with pytest.warns(tacc.ConfigNote, match=r"dataloader.buckets: samples are packed"):
            config.dataloader.buckets = [8, 16]

    status, losses = train("buckets", change)
    assert status.plan.seq_len == 16 and losses == pytest.approx(one_worker, rel=1e-5)


def test_ulysses_in_the_topology_trains(train, one_worker):
    """There sp is an axis of its own; here it is that of cp, in which it lies."""

    def change(config: tacc.Config) -> None:
        config.dist.sp.size = 2
        config.dist.topology = ["dp", "fsdp", "pp", "tp", "sp"]

    status, losses = train("sp", change)
    assert status.plan.mesh["sp"] == 2 and status.spec["dist"]["topology"][-1] == "cp"
    assert losses == pytest.approx(one_worker, rel=1e-5)


@pytest.mark.parametrize("layout", ["fsdp", "one worker"])
def test_layers_that_are_wrapped_and_checkpointed_are_both(train, layout):
    """There a class that FSDP has wrapped is no longer found for checkpointing: nothing is recomputed, and nothing says so."""

    def change(config: tacc.Config) -> None:
        if layout == "fsdp":
            fsdp(config)
        else:
            config.resources.workers = 1
        config.data.seq_len = 64
        config.memory.gc = False

    def recomputing(config: tacc.Config) -> None:
        change(config)
        config.memory.gc = True
        config.memory.gc_cls = {LAYER}

    name = layout.replace(" ", "-")
    kept, kept_losses = train(f"kept-{name}", change)
    recomputed, losses = train(f"recomputed-{name}", recomputing)
    assert losses == kept_losses  # To the bit.
    assert recomputed.plan.memory_bytes["arena"] < kept.plan.memory_bytes["arena"]
    assert max(rank.arena_bytes for rank in recomputed.ranks) < max(rank.arena_bytes for rank in kept.ranks)


def test_some_layers_can_be_recomputed_in_any_layout(train):
    """There gc_cnt is for FSDP alone."""

    def layers(count: int):
        def change(config: tacc.Config) -> None:
            config.resources.workers = 1
            config.data.seq_len = 64
            config.train.per_device_train_batch_size = 8
            config.memory.gc = True
            config.memory.gc_cnt = count

        return change

    one, one_losses = train("one-layer", layers(1))
    two, two_losses = train("two-layers", layers(2))
    assert one_losses == two_losses and two.plan.memory_bytes["arena"] < one.plan.memory_bytes["arena"]


def test_a_pipeline_needs_no_split_points(train, one_worker):
    """There their number must be one less than the stages."""

    def change(config: tacc.Config) -> None:
        config.dist.pp.size = 2

    status, losses = train("pipeline", change)
    assert status.plan.mesh["pp"] == 2 and losses == pytest.approx(one_worker, rel=1e-5)


def test_a_checkpoint_goes_on_with_another_size_of_fsdp(train, one_worker):
    """There checkpoints are consolidated and cut anew by a tool, before a job of another size can start."""

    def half(config: tacc.Config) -> None:
        fsdp(config)
        config.train.max_steps = 6
        config.train.lr_scheduler_type = "constant"

    def rest(config: tacc.Config) -> None:
        config.resources.workers = 1
        config.train.lr_scheduler_type = "constant"

    def whole(config: tacc.Config) -> None:
        rest(config)

    _, wanted = train("whole", whole)
    _, first = train("half", half)
    status, second = train("half", rest)
    assert status.plan.mesh["fsdp"] == 1 and status.step == 12 and len(second) == 6
    assert [*first, *second] == pytest.approx(wanted, rel=1e-5)


def test_names_may_be_a_list_a_set_or_one_text(train):
    """There they must be a set."""
    losses = []
    for name, given in (("list", [LAYER]), ("set", {LAYER}), ("text", LAYER)):

        def change(config: tacc.Config, given=given) -> None:
            config.dist.fsdp.size = 2
            config.dist.fsdp.wrap_layer_cls = given

        losses.append(train(f"names-{name}", change)[1])
    assert losses[0] == losses[1] == losses[2]


def test_both_half_precisions_are_refused(cluster, folder):
    config = tacc.Config.from_yaml(folder / "tiny.yaml")
    config.compute.fp16 = config.compute.bf16 = True
    with tacc.Client(cluster.address) as client, pytest.raises(tacc.InvalidJobError, match="bf16"):
        client.check(config)
