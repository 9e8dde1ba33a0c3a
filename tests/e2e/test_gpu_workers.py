"""Workers of GPUs as coordinator, planner, daemons and taccctl see them. The GPUs, and what runs on them, are a script in tacc-rank's place: nothing here needs or touches one."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request

import cluster as clusters
import pytest
from cluster import ROOT, Cluster, Process, write_job

# A tacc-rank of a machine with two H100: what it prints is docs/contracts.md's. A file lost-cuda:N makes a GPU fall off its bus.
RANK = r'''
import json, os, select, sys, time
here = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30

ATTENTION = [{"shape": "bf16[1,64,4,16] of [1,64,2,16] causal, scale 0.25", "backend": "flash", "timings": [
    {"backend": "tiles", "forward_seconds": 9e-3, "backward_seconds": 3e-2}, {"backend": "flash", "forward_seconds": 1e-3, "backward_seconds": 2e-3},
    {"backend": "cudnn", "refused": "rank 1: its dq is 2 from that of plain cores, at most 0.03"}]}]

def look(name):
    return {"name": name, "kind": "cuda", "model": "NVIDIA H100 80GB HBM3", "total_memory_bytes": 80 * GIB, "free_memory_bytes": 10 * GIB,
            "compute_capability": "9.0", "links": {"cuda:1" if name == "cuda:0" else "cuda:0": "nvlink"}, "driver": "580.65"}

def probe(name):
    return {**look(name), "threads": 1, "memory_bytes": 9 * GIB, "memory_bytes_per_second": 2.9e12, "link_bytes_per_second": 3.7e11, "link_latency_seconds": 5e-6,
            "cpus": 16, "matmul_flops_per_second": {"f32": 5.1e13, "tf32": 4.1e14, "bf16": 7.2e14, "f16": 7.2e14, "fp8": 1.4e15},
            "matmul_fraction": 0.85, "attention_flops_per_second": {"tiles": 5e12, "flash": 3.5e14, "cudnn": 0}}

def lost(name):
    return os.path.exists(f"{here}/lost-{name}")

def say(event, **fields):
    print(json.dumps({"event": event, "time": time.time(), **fields}), flush=True)

question = sys.argv[1]
if question == "--devices":
    print(json.dumps([{"name": "cpu", "kind": "cpu", "model": "test"}] + [{"name": n, "kind": "cuda", "model": "test"} for n in ("cuda:0", "cuda:1")]))
elif question in ("--look", "--probe"):
    name = sys.argv[sys.argv.index("--device") + 1]
    if lost(name):
        sys.exit(f"error: {name}: cudaErrorDevicesUnavailable (46)")
    print(json.dumps(look(name) if question == "--look" else probe(name)))
else:
    start = json.load(open(sys.argv[2]))
    device, rank = start["device"], start["rank"]
    with open(f"{here}/started", "a") as started:
        started.write(json.dumps({key: start.get(key) for key in ("device", "rank", "memory_bytes", "threads", "attention")}) + "\n")
    say("started", pid=os.getpid(), version=start["version"])
    if rank == 0 and start["world"] > 1:
        say("listening", port=1)
    choices = {"attention": ATTENTION} if rank == 0 else {}
    say("ready", step=0, resumed_from="", arena_bytes=5 * GIB, load_seconds=0.1, device_memory_used_bytes=5 * GIB + rank, **choices)
    for step in range(1, start["train"]["max_steps"] + 1):
        if lost(device):
            say("failed", code="device", message=f"{device} (NVIDIA H100 80GB HBM3): cudaErrorLaunchFailure (719) in update, call 1")
            sys.exit(1)
        if rank == 0:
            say("step", step=step, loss=2.5, grad_norm=1.0, learning_rate=0.1, tokens=128, target_tokens=128, seconds=0.05, data_wait_seconds=0.0,
                communication_seconds=0.001, tokens_per_second=2560.0, skipped=0, device_idle_share=0.25, device_memory_used_bytes=6 * GIB)
        while select.select([sys.stdin], [], [], 0.05)[0]:
            if not os.read(0, 4096):
                sys.exit(1)  # the daemon has gone
    say("finished", step=step)
'''


class GpuCluster(Cluster):
    def start_worker(self, name: str, env: dict | None = None) -> None:
        self.workers[name] = Process(
            [clusters.BUILD / "tacc-worker", "--coordinator", self.address, "--insecure", "--name", name, "--device", f"cuda:{name[-1]}", "--advertise", "127.0.0.1",
             "--state-dir", self.folder / name, *self.metrics],
            self.folder / f"{name}.log", "attached", env={"XDG_CACHE_HOME": str(self.folder / "cache")})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The binaries under test beside the scripted tacc-rank, which they find as they find the real one."""
    folder = tmp_path_factory.mktemp("gpu")
    build, clusters.BUILD = clusters.BUILD, folder / "bin"
    clusters.BUILD.mkdir()
    for name in ("tacc-coordinator", "tacc-worker", "tacc-plan", "tacc-data", "taccctl"):
        shutil.copy2(build / name, clusters.BUILD / name)
    (clusters.BUILD / "libtacc_cuda.so").touch()
    (clusters.BUILD / "tacc-rank").write_text(f"#!{sys.executable}\n{RANK}")
    (clusters.BUILD / "tacc-rank").chmod(0o755)
    yield folder
    clusters.BUILD = build


def started(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "bin/started").read_text().splitlines()]


def job(folder, name, workers, **changes):
    return write_job(folder, name=name, workers=workers, compute={"bf16": True}, **changes)


def test_a_lost_gpu(folder):
    """Two GPUs train; MFU, memory and idle share are shown; one is lost: its daemon stays and says so, the job waits and says why."""
    with GpuCluster(folder / "cluster", workers=2, metrics=True) as cluster:
        workers = {w["name"]: w for w in map(json.loads, cluster.ctl("workers", "-o", "json").stdout.splitlines())}
        assert {w["device"]["name"] for w in workers.values()} == {"cuda:0", "cuda:1"}
        device = workers["w1"]["device"]
        assert device["memory_bytes"] == 9 << 30 and device["reserve_bytes"] == 1 << 30 and device["links"] == {"cuda:0": "nvlink"}
        assert device["peak_flops_per_second"]["bf16"] == 989e12 and device["attention_flops_per_second"] == {"tiles": 5e12, "flash": 3.5e14}

        name = cluster.submit(job(folder, "gpus", 2, train={"max_steps": 1_000_000}))
        shown = cluster.wait(lambda: (found := cluster.json("get", name)).get("step", 0) > 3 and found, "steps")
        assert {(s["device"], s["rank"]) for s in started(folder)} == {("cuda:0", 0), ("cuda:1", 1)}
        assert all(s["memory_bytes"] == 9 << 30 for s in started(folder))
        plan, step = shown["plan"], shown["last_step"]
        assert plan["precision"] == "bf16" and plan["peak_source"] == "table" and plan["peak_flops_per_second"] == 2 * 989e12
        assert step["mfu"] == pytest.approx(plan["flops_per_step"] / (0.05 * 2 * 989e12))
        assert step["device_idle_share"] == 0.25 and shown["measured"]["device_idle_share"] == 0.25
        assert re.search(r"memory of a rank +[0-9.]+ [KMG]iB +6.0 GiB", text := cluster.ctl("get", name).stdout), text
        assert "GPU idle" in text
        (attention,) = shown["measured"]["attention"]
        assert attention["backend"] == "flash" and attention["timings"][2]["refused"].startswith("rank 1: ")
        assert re.search(r"\nbf16\[1,64,4,16\] of \[1,64,2,16\] causal, scale 0.25 +tiles +9 ms +30 ms +-\n +flash +1 ms +2 ms +chosen\n", text), text
        listing = cluster.ctl("workers").stdout
        assert "350TFLOP/s" in listing and "fp8 1.4PFLOP/s" in listing, listing

        # As docs/metrics.md has it.
        section = (ROOT / "docs/metrics.md").read_text().split("\n## Of ranks on GPUs\n")[1].split("\n## ")[0]
        rows = re.findall(r"^\| `(tacc_\w+)` \| gauge \| ([\w, ]+) \| (.*) \|$", section, re.M)
        addresses = (cluster.json("version")["coordinator"]["metrics_address"], cluster.metrics_of("w0"), cluster.metrics_of("w1"))

        def pages_with_all_ranks():  # A daemon's page has a rank's memory once it has sampled it.
            pages = [urllib.request.urlopen(f"http://{address}/metrics", timeout=20).read().decode() for address in addresses]
            return all("\ntacc_rank_device_memory_bytes{" in page for page in pages[1:]) and pages

        pages = cluster.wait(pages_with_all_ranks, "the memory of both ranks")
        served = re.findall(r"^(tacc_\w+_device_\w+(?:ratio|bytes))\{([^}]*)\} (\S+)$", "\n".join(pages), re.M)
        assert {metric for metric, _, _ in rows} == {metric for metric, _, _ in served} and len(rows) == 4
        for metric, labels, words in rows:
            assert f"# HELP {metric} {words}\n" in "\n".join(pages)
            assert all(re.findall(r'(\w+)="', found) == labels.split(", ") for served_name, found, _ in served if served_name == metric)
        memory = {re.search(r'rank="(\d)"', labels)[1]: float(value) for metric, labels, value in served if metric == "tacc_rank_device_memory_bytes"}
        assert memory == {"0": 6 << 30, "1": (5 << 30) + 1}

        (folder / "bin/lost-cuda:1").touch()
        trouble = "cuda:1 cannot be used: "
        reason = cluster.wait(lambda: trouble in (found := cluster.json("get", name)).get("reason", "") and found["reason"], "the reason why it waits")
        assert reason.startswith("needs 2 workers, 1 free; w1: ") and "cudaErrorDevicesUnavailable (46)" in reason
        assert "cudaErrorLaunchFailure (719) in update" in cluster.json("get", name)["restarts"][0]["cause"]
        listing = cluster.ctl("workers").stdout
        assert "unusable" in listing and f"w1: {trouble}" in listing
        assert cluster.workers["w1"].popen.poll() is None
        # It goes on when the GPU is back, with the attention that it began with.
        assert all(s["attention"] is None for s in started(folder))
        (folder / "bin/lost-cuda:1").unlink()
        again = cluster.wait(lambda: [s for s in started(folder) if s["attention"]], "another attempt")
        assert again[0]["attention"] == {"bf16[1,64,4,16] of [1,64,2,16] causal, scale 0.25": "flash"}
        cluster.ctl("cancel", "--now", name)


def test_local_takes_a_gpu(folder):
    """`submit --local` finds the GPUs; a job that wants more of them than there are runs on CPUs only where it may."""
    (folder / "bin/started").unlink(missing_ok=True)

    def ctl(*arguments):
        return subprocess.run([clusters.BUILD / "taccctl", *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")})

    result = ctl("submit", "--local", job(folder / "one", "one", 1))
    assert result.returncode == 0, result.stderr
    assert [s["device"] for s in started(folder)] == ["cuda:0"]
    result = ctl("submit", "--local", "--device", "cuda", job(folder / "four", "four", 4))
    assert result.returncode == 2
    assert "--device cuda: this machine has 2 GPUs (cuda:0, cuda:1), and 4 are wanted" in result.stderr
