"""A client whose machine shares no folder with coordinator and workers: weights, states and batches reach the ranks all the same."""

import json
import re
import sys
from pathlib import Path

import pytest
from cluster import ROOT
from two_hosts import TwoHosts, why_not

reason = why_not()
pytestmark = pytest.mark.skipif(bool(reason), reason=reason)
HERE = Path(__file__).resolve().parent


def counted(hosts: TwoHosts, name: str) -> int:
    page = hosts["host-a"].run(f"{sys.executable} -c \"import urllib.request as u; print(u.urlopen('http://10.0.0.2:7071/metrics').read().decode())\"")
    return int(float(re.search(rf"^{name} (\S+)$", page.stdout, re.M)[1]))


def test_a_model_trains_without_a_path_in_common(tmp_path):
    with TwoHosts(tmp_path, shares=False) as hosts:
        b = hosts["host-b"]
        assert b.start("build/tacc-coordinator --listen 10.0.0.2:7070 --metrics-listen 10.0.0.2:7071 --insecure --state-dir /tmp/coordinator")
        for name in ("w0", "w1"):
            assert b.start(f"build/tacc-worker --coordinator 10.0.0.2:7070 --name {name} --device cpu --threads 1 --memory 2GiB --insecure "
                           f"--state-dir /tmp/{name}")
        result = hosts["host-a"].run(f"PYTHONPATH={ROOT}/client/python PYTHONDONTWRITEBYTECODE=1 {sys.executable} {HERE}/remote_training.py 10.0.0.2:7070")
        assert result.returncode == 0, result.stdout + result.stderr[-4000:] + hosts.logs()
        found = json.loads(result.stdout.splitlines()[-1])
        for losses in found["losses"]:
            assert losses == pytest.approx(found["wanted"], rel=1e-5)
        assert found["error"] < 1e-5 and found["loaded"] == 0
        # The export, in the workers' folder, has the graph.
        for path in found["exported"]:
            assert {"model.graph", "model.safetensors"} <= set(b.run(f"ls {path}").stdout.split())

        # Two jobs of one model, and states of each that are the model's own: the weights went up once, the states once, and each to the machine
        # of both workers once.
        received, sent = (counted(hosts, f"tacc_coordinator_upload_{way}_bytes_total") for way in ("received", "sent"))
        assert found["graph"][0] == found["graph"][1] and found["graph"][0].startswith("upload:")
        assert sent == received
        assert 2 * found["weight_bytes"] < received < 2 * found["weight_bytes"] + 20_000
