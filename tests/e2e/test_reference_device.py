"""A third kind of device, in double precision, through the whole system: what another vendor's would have to be."""

import json
from pathlib import Path

import pytest
from cluster import ROOT, Cluster, write_data, write_job

STEPS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The quickstart's model, and a job on few tokens: the device is slow."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "model").symlink_to(ROOT / "examples/quickstart/model")
    write_data(folder / "data", vocab_size=8192)
    return folder


def train(folder: Path, device: str) -> list[dict]:
    job = write_job(folder, name=device, train={"max_steps": STEPS, "global_batch_size": 2}, checkpoint={"save_steps": STEPS})
    with Cluster(folder / f"cluster-{device}", device=device) as cluster:
        name = cluster.submit(job)
        ended = cluster.finish(name)
        assert ended.returncode == 0, ended.stdout[-3000:] + cluster.logs()
        workers = [json.loads(line) for line in cluster.ctl("workers", "-o", "json").stdout.splitlines()]
        assert [worker["device"]["kind"] for worker in workers] == [device] * 2
        return cluster.points(name)


def test_the_quickstarts_model_trains_as_on_a_cpu(folder):
    reference, cpu = train(folder, "reference"), train(folder, "cpu")
    assert [point["step"] for point in reference] == list(range(1, STEPS + 1))
    for name in ("loss", "grad_norm"):
        assert [point[name] for point in reference] == pytest.approx([point[name] for point in cpu], rel=1e-5), name
    assert reference[-1]["loss"] < reference[0]["loss"]
