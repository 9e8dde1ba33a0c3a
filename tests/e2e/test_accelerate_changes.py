"""`tacc.accelerate`: what a loop changes in the module behind the ranks' back, or wants of them that they do not give, is refused and named."""

from collections.abc import Iterator

import pytest
import tacc
import torch
from cluster import Cluster
from torch import nn

ONE = {"resources": {"workers": 1}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def folders(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TACC_ADDRESS", cluster.address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_gradients_of_inputs_are_refused():
    """Of a module in front of the accelerated one, and of a GAN's generator, whose discriminator is accelerated."""
    torch.manual_seed(0)
    front = nn.Linear(3, 4)
    with tacc.accelerate(nn.Sequential(nn.Linear(4, 2)), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = front(torch.randn(8, 3))
        for _ in range(2):
            with pytest.raises(tacc.InputError, match=r"requires a gradient, which the ranks do not send back.*detach\(\)"):
                model(x).sum()
            model(x.detach()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            assert model(x).shape == (8, 2)
