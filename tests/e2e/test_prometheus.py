"""Debian's Prometheus scrapes the coordinator and a worker of a running job."""

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from cluster import ROOT, Cluster, write_data, write_job

PROMETHEUS = shutil.which("prometheus")
assert PROMETHEUS and shutil.which("promtool"), "make setup installs Debian's package prometheus, which has both"


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Prometheus:
    """A server of its own, on a free port."""

    def __init__(self, folder: Path, targets: dict[str, str]):
        folder.mkdir()
        self.log = folder / "prometheus.log"
        jobs = [{"job_name": name, "scrape_interval": "1s", "static_configs": [{"targets": [address]}]} for name, address in targets.items()]
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": jobs}))  # JSON is YAML
        self.folder = folder
        self.process = None

    def start(self, cluster: Cluster) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([PROMETHEUS, f"--config.file={self.folder / 'prometheus.yml'}", f"--storage.tsdb.path={self.folder / 'tsdb'}",
                                             f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        cluster.wait(self.ready, f"prometheus: {self.log}", 60)

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return fetch(self.url + "/-/ready")[0] == 200
        except OSError:
            return False

    def query(self, expression: str) -> list[dict]:
        status, body = fetch(f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert status == 200, body
        return json.loads(body)["data"]["result"]

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A cluster that trains a job with held-out data, and its metrics addresses."""
    folder = tmp_path_factory.mktemp("prometheus")
    write_data(folder / "eval", num_tokens=512)
    with Cluster(folder / "cluster", workers=2, metrics=True) as cluster:
        path = write_job(folder, name="metered", workers=2, data={"eval_path": "eval"}, train={"max_steps": 1_000_000, "eval_steps": 5},
                         checkpoint={"save_steps": 50})
        cluster.job = cluster.submit(path)
        cluster.wait(lambda: cluster.json("get", cluster.job).get("last_checkpoint"), "a checkpoint", 120)
        cluster.targets = {"coordinator": cluster.json("version")["coordinator"]["metrics_address"]}
        for name in cluster.workers:
            cluster.targets[name] = cluster.metrics_of(name)
        yield cluster
        cluster.ctl("cancel", "--now", cluster.job)


@pytest.fixture(scope="module")
def prometheus(running, tmp_path_factory):
    server = Prometheus(tmp_path_factory.mktemp("server") / "data", running.targets)
    try:
        server.start(running)
        running.wait(lambda: len(server.query("up == 1")) == len(running.targets), "three targets up", 60)
        yield server
    finally:
        server.stop()


def value(prometheus, running, expression: str) -> float:
    """The one sample of an expression."""
    series = running.wait(lambda: prometheus.query(expression), expression, 60)
    assert len(series) == 1, series
    return float(series[0]["value"][1])


def test_series_of_the_job(prometheus, running):
    selector = f'{{training_job="{running.job}"}}'

    def read(name):
        return value(prometheus, running, name + selector)

    assert 0 < read("tacc_job_loss") < 10
    assert 0 < read("tacc_job_eval_loss") < 10
    assert read("tacc_job_tokens_per_second") > 0
    assert 0 < read("tacc_job_mfu_ratio") < 1
    seconds = read("tacc_job_step_seconds")
    assert 0 < seconds < 60
    assert 0 <= read("tacc_job_data_wait_seconds") < 60
    assert 0 < read("tacc_job_communication_seconds") < 60
    assert read("tacc_job_restarts_total") == 0
    assert read("tacc_job_step") > 0
    assert read("tacc_job_checkpoint_step") >= 50
    arenas = prometheus.query("tacc_job_arena_bytes" + selector)
    assert sorted(series["metric"]["rank"] for series in arenas) == ["0", "1"]
    assert all(float(series["value"][1]) > 10_000 for series in arenas)


def test_states(prometheus, running):
    assert value(prometheus, running, f'tacc_job_state{{training_job="{running.job}",state="running"}}') == 1
    assert value(prometheus, running, f'sum(tacc_job_state{{training_job="{running.job}"}})') == 1
    assert value(prometheus, running, 'tacc_jobs{state="running"}') == 1
    assert value(prometheus, running, 'tacc_workers{state="busy"}') == 2
    assert value(prometheus, running, 'tacc_workers{state="lost"}') == 0
    assert value(prometheus, running, 'sum(tacc_worker_attached)') == 2
    assert value(prometheus, running, 'sum(tacc_worker_rank_running)') == 2
    assert value(prometheus, running, f'count(tacc_rank_step{{training_job="{running.job}"}})') == 2


def test_promtool_has_nothing_to_say(running):
    for name, address in running.targets.items():
        status, text = fetch(f"http://{address}/metrics")
        assert status == 200
        lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        assert lint.returncode == 0 and not (lint.stdout + lint.stderr).strip(), f"{name}: {lint.stdout}{lint.stderr}"
        names = re.findall(r"^# TYPE (\S+)", text, re.M)
        assert names and all(n.startswith("tacc_") for n in names)


def test_health(running):
    for address in running.targets.values():
        assert fetch(f"http://{address}/healthz")[0] == 200
        assert fetch(f"http://{address}/readyz")[0] == 200


def test_documented(running):
    """docs/metrics.md has a row for each series, with its labels, type and help."""
    rows: dict[str, dict[str, str]] = {"coordinator": {}, "worker": {}}
    for name, address in running.targets.items():
        text = fetch(f"http://{address}/metrics")[1]
        help_texts = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
        for metric, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
            sample = re.search(rf"^{metric}(?:{{(.*)}})? ", text, re.M)
            labels = ", ".join(re.findall(r'(\w+)="', sample.group(1) or ""))
            rows["worker" if name in running.workers else "coordinator"][metric] = f"| `{metric}` | {kind} | {labels} | {help_texts[metric]} |"
    page = (ROOT / "docs/metrics.md").read_text()
    for process, wanted in rows.items():
        section = page.split(f"\n## {process.capitalize()}\n")[1].split("\n## ")[0]
        documented = re.findall(r"^\| `tacc_.*$", section, re.M)
        assert set(documented) >= set(wanted.values()), "docs/metrics.md wants:\n" + "\n".join(sorted(set(wanted.values()) - set(documented)))
        assert {row.split("`")[1] for row in documented} <= set(wanted), f"{process} has no such metric"
