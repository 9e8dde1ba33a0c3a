"""README.md's own commands on two hosts: the same losses as on one machine. What may not be reached from outside is refused."""

import json
import os
import subprocess

import pytest
from cluster import BUILD, write_job
from two_hosts import ADDRESSES, SHARED, TwoHosts, readme_commands, why_not

reason = why_not()
pytestmark = pytest.mark.skipif(bool(reason), reason=reason)


def step_lines(text: str) -> list[dict]:
    return [p for p in map(json.loads, text.splitlines()) if "grad_norm" in p]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with TwoHosts(tmp_path_factory.mktemp("two-hosts")) as two:
        yield two


@pytest.fixture(scope="module")
def warnings(hosts):
    """README's daemons, started; returns what each wrote to its log, by host."""
    for host, command in readme_commands():
        if "submit" not in command:
            assert hosts[host].start(command)
    return {name: hosts[name].log.read_text() for name in ADDRESSES}


def submit_command() -> str:
    host, command = readme_commands()[-1]
    assert host == "host-a" and command.endswith("submit --follow job.yaml")
    return command


def test_readme_has_the_commands():
    assert [(host, "submit" in command) for host, command in readme_commands()] == [
        ("host-a", False), ("host-a", False), ("host-b", False), ("host-a", True)]


def test_not_without_insecure(hosts):
    for host, command in readme_commands():
        if "--insecure" in command:
            refused = hosts[host].run(command.replace(" --insecure", ""), timeout=60)
            assert refused.returncode == 2, refused.stderr
            assert refused.stderr.startswith("error: ") and "--insecure" in refused.stderr, refused.stderr
            assert refused.stdout == ""


def test_insecure_warns(warnings):
    assert warnings["host-a"].count("neither encrypted nor authenticated") >= 2, warnings["host-a"]
    assert "neither encrypted nor authenticated" in warnings["host-b"], warnings["host-b"]


def test_same_losses_as_on_one_machine(hosts, warnings, tmp_path):
    write_job(hosts.shared, name="job", workers=2)
    result = hosts["host-a"].run(submit_command() + " -o json")
    assert result.returncode == 0, result.stdout + result.stderr + hosts.logs()
    got = step_lines(result.stdout)

    local = subprocess.run([BUILD / "taccctl", "submit", "--local", "-o", "json", "--threads", "1", "--memory", "2GiB", write_job(tmp_path, name="job", workers=2)],
                           capture_output=True, text=True, timeout=300)
    assert local.returncode == 0, local.stderr
    want = step_lines(local.stdout)

    assert [p["step"] for p in got] == [p["step"] for p in want] == list(range(1, 13))
    assert [p["batch_hash"] for p in got] == [p["batch_hash"] for p in want]
    for g, w in zip(got, want):
        assert g["loss"] == pytest.approx(w["loss"], rel=1e-6)
    # Both hosts computed: each has a rank of its own.
    view = json.loads(hosts["host-a"].run("TACC_ADDRESS=10.0.0.1:7070 build/taccctl get job -o json").stdout)
    assert sorted(rank["worker"] for rank in view["ranks"]) == ["host-a-cpu", "host-b-cpu"]
    control, among_ranks = view["unencrypted"]
    assert control.startswith("between the coordinator and its workers and clients: not encrypted"), control
    assert "10.0.0.1" in among_ranks and "10.0.0.2" in among_ranks, among_ranks


@pytest.mark.parametrize("unshared", ["model", "data", "checkpoint"])
def test_folder_that_only_one_host_sees(hosts, warnings, unshared):
    """Said with worker and path before any rank starts."""
    path = write_job(hosts.shared / unshared, name=f"lone-{unshared}", workers=2)
    job = json.loads(path.read_text())
    for section in ("model", "data"):
        job[section]["path"] = f"{SHARED}/{unshared}/{section}"
    job["checkpoint"]["dir"] = f"{SHARED}/{unshared}/runs"
    if unshared == "checkpoint":
        private = job["checkpoint"]["dir"] = "/tmp/runs"
    else:
        private = job[unshared]["path"] = f"/tmp/{unshared}"
        assert hosts["host-a"].run(f"cp -r {SHARED}/{unshared}/{unshared} {private}").returncode == 0
    path.write_text(json.dumps(job))
    result = hosts["host-a"].run(submit_command().replace("job.yaml", os.path.relpath(path, hosts.shared)))
    assert result.returncode == 2, result.stdout + result.stderr
    assert "host-b-cpu" in result.stderr and private in result.stderr, result.stderr
    events = hosts["host-a"].run(f"TACC_ADDRESS=10.0.0.1:7070 build/taccctl events lone-{unshared} -o json").stdout
    assert "rank_started" not in events
