"""taccctl as its users run it: a service that stays, and training with --local. Nothing stays behind."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from cluster import BUILD, ROOT, write_data, write_job
from shell import Shell, lines, until

UP = ("up", "--metrics-listen", "127.0.0.1:0", "--threads", "1", "--memory", "2GiB")
LONG = {"train": {"max_steps": 1_000_000}, "checkpoint": {"save_steps": 1_000_000}}


def descendants(pid: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("service"))
    shell.up = shell.json(*UP, "--workers", "2")
    try:
        yield shell
    finally:
        shell.run("down")
        shell.nothing_left()


@pytest.fixture
def running(shell, tmp_path):
    """A job that trains until it is told otherwise."""
    job = shell.json("submit", write_job(tmp_path, name="long", **LONG))["id"]
    until(lambda: shell.step(job) > 0, "a step")
    yield job
    shell.run("cancel", "--now", job)
    until(lambda: shell.json("get", job)["phase"] in ("cancelled", "failed", "finished"), "the end of the job")
    until(lambda: all(w["state"] == "idle" for w in lines(shell.run("workers", "-o", "json").stdout)), "idle workers")


def test_submit_prints_the_id_and_commands_to_paste(shell, tmp_path):
    result = shell.run("submit", write_job(tmp_path, name="pasted"))
    job = result.stdout.strip()
    assert job.startswith("pasted") and "\n" not in job
    pasted = [line.split()[1:] for line in result.stderr.splitlines() if line.startswith(f"  {BUILD / 'taccctl'} ")]
    assert {command[0] for command in pasted} == {"watch", "get", "logs", "cancel"}
    watch, get, logs, _ = pasted
    shell.run(*watch)
    text = shell.run(*get).stdout
    assert "finished" in text and "12/12" in text and "100" in text
    shell.run(*logs)
    assert shell.run("cancel", job).stdout == f"{job}: finished\n"  # it had ended
    rerun = shell.run("submit", "--follow", tmp_path / "pasted.yaml")
    assert "max_steps" in rerun.stderr, rerun.stderr


def test_json_lines_when_following(shell, tmp_path):
    result = shell.run("submit", "--follow", "-o", "json", write_job(tmp_path, name="lines"))
    points = [p for p in lines(result.stdout) if "grad_norm" in p]
    assert [p["step"] for p in points] == list(range(1, 13))
    for point in points:
        assert {"step", "loss", "grad_norm", "learning_rate", "tokens_per_second", "mfu"} <= set(point)
        assert 0 < point["mfu"] < 1
    job = lines(result.stdout)[0]["id"]
    events = lines(shell.run("events", job, "-o", "json").stdout)
    assert all({"time", "type", "message"} <= set(event) for event in events)
    assert [event["type"] for event in events if event["type"] in ("accepted", "running", "ended")] == ["accepted", "running", "ended"]
    assert events[-1]["message"].startswith("finished")


def test_request_id_makes_one_job(shell, tmp_path):
    path = write_job(tmp_path, name="once")
    first = shell.run("submit", "--request-id", "the-one", path)
    again = shell.run("submit", "--request-id", "the-one", path)
    assert first.stdout == again.stdout
    shell.run("watch", "once")


def test_second_shell(shell, running, tmp_path):
    """List, workers, get, logs, metrics, a job that waits, cancel; the first shell watches."""
    watcher = shell.start("watch", running, "-o", "json")
    waiting = shell.json("submit", write_job(tmp_path / "b", name="behind"))["id"]
    until(lambda: "needs 2 workers, 0 free" in shell.json("get", waiting).get("reason", ""), "the reason why it waits")
    jobs = {job["id"]: job["phase"] for job in lines(shell.run("list", "-o", "json").stdout)}
    assert jobs[running] == "running"
    assert running in shell.run("list").stdout
    workers = lines(shell.run("workers", "-o", "json").stdout)
    assert [w["state"] for w in workers] == ["busy", "busy"] and {w["job"] for w in workers} == {running}
    assert workers[0]["name"] in shell.run("workers").stdout
    metrics = subprocess.run(["curl", "-sf", f"http://{shell.up['metrics_address']}/metrics"], capture_output=True, text=True, timeout=60)
    assert f'tacc_job_state{{training_job="{running}",state="running"}} 1' in metrics.stdout
    shell.run("cancel", running)
    errors = watcher.ended()
    assert watcher.returncode == 101, errors
    ended = shell.json("get", running)
    assert ended["phase"] == "cancelled" and ended["last_checkpoint"]["step"] == ended["step"] > 0
    assert "eta_seconds" not in ended and "ETA" not in shell.run("get", running).stdout
    stopped = ended["step"]
    assert re.search(rf" step {stopped} +checkpoint +checkpoint of step {stopped}: step-{stopped:08}.a1, ", shell.run("events", running).stdout)
    shell.run("watch", waiting)


def test_interrupt_in_watch_only_detaches(shell, running):
    for command in (["watch", running], ["logs", "--follow", running]):
        watcher = shell.start(*command)
        # Before it follows, there is nothing to detach from.
        until(lambda: watcher.stdout_path.stat().st_size > 0, "its first line")
        watcher.send_signal(signal.SIGINT)
        errors = watcher.ended()
        assert watcher.returncode == 1 and "detached" in errors, errors
        before = shell.step(running)
        until(lambda: shell.step(running) > before, "further steps")


def test_failed_job(shell, tmp_path):
    job = shell.json("submit", write_job(tmp_path, name="fails", max_restarts=0, **LONG))["id"]
    until(lambda: shell.step(job) > 0, "a step")
    os.kill(next(iter(shell.processes("tacc-rank"))), signal.SIGKILL)
    watched = shell.run("watch", job, code=100)
    assert "SIGKILL" in watched.stderr or "signal 9" in watched.stderr, watched.stderr
    assert shell.json("get", job)["phase"] == "failed"


def test_exit_codes_without_a_job(shell):
    assert "nobody" in shell.run("get", "nobody", code=3).stderr
    shell.run("cancel", "nobody", code=3)
    shell.run("watch", "nobody", code=3)
    away = shell.run("list", code=5, env={"TACC_ADDRESS": "127.0.0.1:1"})
    assert "127.0.0.1:1" in away.stderr and away.stdout == ""
    shell.run("frobnicate", code=2)
    shell.run("submit", "/nowhere.yaml", code=2)


def test_timeout_in_watch(shell, running):
    shell.run("watch", running, "--timeout", "1", code=7)


def test_up_offers_the_metrics_of_all(shell):
    assert len(shell.up["worker_metrics_addresses"]) == 2
    for address in shell.up["worker_metrics_addresses"]:
        text = urllib.request.urlopen(f"http://{address}/metrics", timeout=20).read().decode()
        assert "tacc_worker_attached" in text
    assert "tacc_workers" in urllib.request.urlopen(f"http://{shell.up['metrics_address']}/metrics", timeout=20).read().decode()


def test_up_twice_and_port_in_use(shell, tmp_path):
    twice = shell.run("up", code=6)
    assert shell.up["address"] in twice.stderr and "taccctl down" in twice.stderr
    other = Shell(tmp_path)
    for flag, address in (("--listen", shell.up["address"]), ("--metrics-listen", shell.up["metrics_address"])):
        free = "--metrics-listen" if flag == "--listen" else "--listen"
        taken = other.run("up", flag, address, free, "127.0.0.1:0", "--insecure", "--workers", "1", code=2)
        assert address in taken.stderr and taken.stdout == "", taken.stderr
        other.nothing_left()
    refused = other.run("up", "--listen", "127.0.0.1:0", "--workers", "1", code=2)
    assert "every user of this machine can reach a port" in refused.stderr and "--insecure" in refused.stderr, refused.stderr
    other.nothing_left()
    other.run("down", code=3)


def test_plan_data_export_version(shell, tmp_path):
    path = write_job(tmp_path, name="tools")
    candidates = lines(shell.run("plan", path, "-o", "json").stdout)
    assert any(c["fits"] for c in candidates) and all("predicted_step_seconds" in c and c["memory"]["total_bytes"] > 0 for c in candidates)
    assert "fsdp=2" in shell.run("plan", path).stdout
    shown = shell.json("data", "show", path, "--step", "3")
    assert len(shown["tokens"]) == 8 and all(len(row) in (16, 17) for row in shown["tokens"])
    rows = shell.run("data", "show", path, "--step", "3").stdout.splitlines()
    assert [[int(t) for t in row.split()] for row in rows] == shown["tokens"]
    result = shell.run("submit", "--follow", "-o", "json", path)
    point = next(p for p in lines(result.stdout) if p.get("step") == 3 and "grad_norm" in p)
    assert point["batch_hash"] == shown["batch_hash"]
    exported = shell.run("export", "tools", "--out", tmp_path / "hf").stdout.strip()
    assert shell.json("data", "show", "tools", "--step", "3") == shown
    job = shell.json("get", "tools")
    assert (Path(exported) / "model.safetensors").read_bytes() == (Path(job["exported_path"]) / "model.safetensors").read_bytes()
    version = shell.json("version")
    assert version["client"] == version["coordinator"]["version"] and version["address"] == shell.up["address"]


def test_local_trains_and_leaves_nothing(tmp_path):
    shell = Shell(tmp_path)
    result = shell.run("submit", "--local", "--follow", write_job(tmp_path, name="local"))
    assert "step 12/12 100.0%" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    assert (tmp_path / "runs/local/hf/config.json").exists()
    assert not list(tmp_path.glob("tacc-*")), "the scratch folder stays behind"
    shell.nothing_left()


def test_local_killed_leaves_no_process(tmp_path):
    shell = Shell(tmp_path)
    local = shell.start("submit", "--local", "-o", "json", "--threads", "1", "--memory", "2GiB", write_job(tmp_path, name="killed", **LONG))
    local.wait_for_step(1)
    names = sorted(Path(command.split()[0]).name for command in shell.processes().values())
    assert names == ["tacc-coordinator", "tacc-rank", "tacc-rank", "tacc-worker", "tacc-worker", "taccctl"]
    assert set(shell.processes()) == descendants(local.pid) | {local.pid}
    local.kill()
    local.ended()
    shell.nothing_left()
    assert len(list(tmp_path.glob("tacc-local-*"))) == 1
    shell.run("submit", "--local", "--threads", "1", "--memory", "2GiB", write_job(tmp_path, name="other"))
    assert not list(tmp_path.glob("tacc-local-*")), "the next one has not cleaned up"


def test_local_that_fails_leaves_its_logs_in_the_runs_folder(tmp_path):
    shell = Shell(tmp_path)
    path = write_job(tmp_path, name="broken", train={"max_steps": 40, "learning_rate": 1e30}, checkpoint={"save_steps": 100})
    failed = shell.run("submit", "--local", "--threads", "1", "--memory", "2GiB", path, code=100)
    logs = tmp_path / "runs/broken/logs"
    assert f"rank logs:   {logs}\n" in failed.stderr and f"other logs:  {logs}/local\n" in failed.stderr, failed.stderr
    assert {log.name for log in (logs / "local").iterdir()} == {"coordinator.log", "worker-0.log", "worker-1.log"}
    assert not list(tmp_path.glob("tacc-local-*"))
    shell.nothing_left()


def test_local_interrupted_goes_on_when_run_again(tmp_path):
    shell = Shell(tmp_path)
    command = ("submit", "--local", "-o", "json", "--threads", "1", "--memory", "2GiB")
    path = write_job(tmp_path, name="resumed", **LONG)
    local = shell.start(*command, path)
    local.wait_for_step(5)
    for _ in range(5):  # as where what stands in front of it sends on what its whole group has got
        local.send_signal(signal.SIGINT)
        time.sleep(0.01)
    errors = local.ended()
    assert local.returncode == 101 and errors.count("stopping after a checkpoint; again to stop at once") == 1, errors
    assert "stopping at once" not in errors, errors
    stopped = local.points()[-1]["step"]
    assert [folder.name for folder in (tmp_path / "runs/resumed").glob("step-*")] == [f"step-{stopped:08}.a1"]
    shell.nothing_left()

    max_steps = stopped + 7
    again = shell.run(*command, write_job(tmp_path, name="resumed", train={"max_steps": max_steps}))
    steps = [p["step"] for p in lines(again.stdout) if "grad_norm" in p]
    assert steps == list(range(stopped + 1, max_steps + 1))
    finished = shell.run(*command, path.with_name("resumed.yaml"))
    assert "max_steps" in finished.stderr and not [p for p in lines(finished.stdout) if "grad_norm" in p]
    shell.nothing_left()


def test_local_interrupted_says_so_at_once_and_ends_at_once_the_second_time(tmp_path):
    shell = Shell(tmp_path)
    local = shell.start("submit", "--local", "-o", "json", "--threads", "1", "--memory", "2GiB", write_job(tmp_path, name="hasty", **LONG))
    local.wait_for_step(5)
    # Neither of them answers.
    stopped = [next(iter(shell.processes(name))) for name in ("tacc-coordinator", "tacc-rank")]
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        local.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        said = next(line for line in local.stderr if "stopping" in line)
        assert said == "stopping after a checkpoint; again to stop at once\n" and time.monotonic() - begin < 4
        os.kill(stopped[0], signal.SIGCONT)
        time.sleep(1.5)
        assert local.poll() is None
        local.send_signal(signal.SIGTERM)
        errors = local.ended(timeout=60)
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert local.returncode == 101 and "stopping at once" in errors and "nothing was saved" in errors, errors
    assert not list((tmp_path / "runs/hasty").glob("step-*"))
    page = tmp_path / "runs/hasty/report.html"
    until(lambda: page.exists() and "<p>The training was cancelled at step " in page.read_text(), "the page")
    assert f"report:      {tmp_path}/runs/hasty/report.html" in errors
    shell.nothing_left()


def test_two_do_not_train_in_one_folder(shell, tmp_path):
    """With --local and in the service, whichever is first, until it has ended."""
    local_shell = Shell(tmp_path)
    command = ("submit", "--local", "-o", "json", "--threads", "1", "--memory", "2GiB")
    path = write_job(tmp_path, name="twice", workers=1, **LONG)
    used = f"checkpoint.dir {tmp_path}/runs/twice is used by job twice"

    local = local_shell.start(*command, path)
    local.wait_for_step(1)
    assert f"{used} (pid {local.pid} on " in local_shell.run(*command, path, code=6).stderr
    assert f"{used} (pid {local.pid} on " in shell.run("submit", "--follow", path, code=2).stderr
    local.wait_for_step(20)
    local.kill()
    local.ended()
    local_shell.nothing_left()

    job = shell.json("submit", path)["id"]
    until(lambda: shell.step(job) > 0, "a step")
    assert f"checkpoint.dir {tmp_path}/runs/twice is used by job {job} (pid " in local_shell.run(*command, path, code=6).stderr
    attempt = shell.json("get", job)["attempt"]
    rank = next(iter(shell.processes("tacc-rank")))
    os.kill(rank, signal.SIGKILL)
    until(lambda: shell.json("get", job)["attempt"] > attempt and shell.json("get", job)["phase"] == "running", "the next attempt")
    shell.run("cancel", "--now", job)
    until(lambda: shell.json("get", job)["phase"] == "cancelled" and not shell.processes("tacc-rank"), "the end of the job")
    local_shell.run(*command, write_job(tmp_path, name="twice", workers=1))
    local_shell.nothing_left()


def test_the_page_of_a_run_whose_ranks_are_killed(shell, tmp_path):
    """It never says of a run that trains that it has failed, and is there however it ended."""
    page, logs = tmp_path / "runs/page/report.html", tmp_path / "runs/page/logs"

    def kill(attempt: int, rank: int) -> None:
        log = logs / f"attempt-{attempt}/rank-0000{rank}.log"
        pid = until(lambda: log.exists() and re.search(r"--- job .* pid (\d+)", log.read_text()), "the rank's log")[1]
        os.kill(int(pid), signal.SIGKILL)

    path = write_job(tmp_path, name="page", max_restarts=1, train=LONG["train"], checkpoint={"save_steps": 20})
    job = shell.json("submit", path)["id"]
    until(lambda: "last_checkpoint" in shell.json("get", job), "a checkpoint")
    kill(attempt=1, rank=1)
    until(lambda: shell.json("get", job)["attempt"] == 2 and shell.json("get", job)["phase"] == "running", "the next attempt")
    # Rank 0 may have had no time for a page before it was ended.
    until(lambda: not page.exists() or "<p>The training goes on: attempt 2 began after step " in page.read_text(), "its page")
    assert not page.exists() or "The training failed" not in page.read_text()
    shell.run("cancel", "--now", job)
    shell.run("watch", job, code=101)
    said = until(lambda: page.exists() and "goes on" not in (text := page.read_text()) and text, "its page")
    assert re.search(r"<p>The training was cancelled at step \d", said), said
    assert "rank 1 on " in said and "SIGKILL" in said, said

    again = shell.json("submit", write_job(tmp_path, name="page", max_restarts=0, train=LONG["train"], checkpoint={"save_steps": 20}))["id"]
    until(lambda: shell.json("get", again)["phase"] == "running", "another job there")
    until(lambda: "<p>The training goes on: attempt 3 began after step " in page.read_text(), "its page")
    kill(attempt=3, rank=0)
    shell.run("watch", again, code=100)
    said = until(lambda: "goes on" not in (text := page.read_text()) and text, "its page")
    assert "<p>The training failed at step " in said and re.search(r"<p>rank 0 on .*: killed by signal 9 \(SIGKILL\)", said), said
    assert "Where another attempt follows" not in said


def test_local_stops_after_its_timeout(tmp_path):
    shell = Shell(tmp_path)
    command = ("submit", "--local", "-o", "json", "--threads", "1", "--memory", "2GiB")
    stopped = shell.run(*command, "--timeout", "8", write_job(tmp_path, name="late", **LONG), code=7)
    job = lines(stopped.stdout)[-1]
    saved = [folder.name for folder in (tmp_path / "runs/late").glob("step-*")]
    if saved:
        assert saved == [job["last_checkpoint"]["name"]] and (tmp_path / "runs/late/report.html").exists()
        said = f"stopped after a checkpoint at step {job['last_checkpoint']['step']}; submit again to go on"
    else:  # a busy machine has not begun to train by then
        said = "stopped, and nothing was saved; submit again to begin anew"
    assert f"late-1 had not ended after 8 s: {said}\n" in stopped.stderr and "goes on" not in stopped.stderr
    shell.nothing_left()


def test_local_starts_again_what_is_killed(tmp_path):
    shell = Shell(tmp_path)
    path = write_job(tmp_path, name="again", train={"max_steps": 1_000_000}, checkpoint={"save_steps": 20})
    local = shell.start("submit", "--local", "-o", "json", "--threads", "1", "--memory", "2GiB", path)
    local.wait_for_step(30)
    os.kill(next(iter(shell.processes("tacc-coordinator"))), signal.SIGKILL)
    killed = time.time()
    local.wait_for_point(lambda point: point["time"] > killed + 1, "a step after the coordinator's end")
    for name in ("tacc-worker", "tacc-rank"):
        attempt = local.points()[-1]["attempt"]
        os.kill(next(iter(shell.processes(name))), signal.SIGKILL)
        local.wait_for_point(lambda point: point["attempt"] > attempt, "the next attempt")
    local.send_signal(signal.SIGINT)
    local.ended()
    assert local.returncode == 101
    shell.nothing_left()

    # What was said of the ranks has outlived them, their workers and the folder of --local.
    *_, killed, last = sorted((tmp_path / "runs/again/logs").iterdir(), key=lambda folder: int(folder.name.removeprefix("attempt-")))
    assert {path.name for path in killed.iterdir()} == {path.name for path in last.iterdir()} == {"rank-00000.log", "rank-00001.log"}
    ended = [text for text in (path.read_text() for path in killed.iterdir()) if text.endswith("--- signal 9\n")]
    assert len([text for text in ended if "--- killed by " not in text]) == 1, "of one rank its worker does not know why"
    assert re.search(rf"--- {killed.name.replace('-', ' ')} ended: rank . on .*SIGKILL", (last / "rank-00000.log").read_text())
    assert all(path.read_text().endswith("--- exit code 0\n") for path in last.iterdir())


def test_plan_without_a_coordinator(tmp_path):
    assert "dp=1 fsdp=1" in Shell(tmp_path).run("plan", "--local", write_job(tmp_path, workers=1)).stdout


def test_plan_of_a_pipeline(tmp_path):
    """For GPUs that are not there: two stages of two, what they send, and when."""
    shell = Shell(tmp_path)
    path = write_job(tmp_path, workers=2, dist={"pp": {"size": 2, "num_micro_batches": 4}}, resources={"workers": 4}, memory={"gc": False})
    trace = tmp_path / "step.json"
    said = shell.run("plan", "--gpus", 4, "--trace", trace, "--explain", "send", path).stdout
    assert "send of activations over pp on stage 0: 4 a step" in said and "send of activations over pp on stage 1: 4 a step" in said, said
    assert "it is made on stage 0 and used on stage 1" in said
    assert "on stage 1 of 2" in shell.run("plan", "--gpus", 4, "--explain", "layers.1.mlp.up_proj.weight", path).stdout
    events = json.loads(trace.read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["stage 0: each of 2 ranks", "stage 1: each of 2 ranks"]
    assert sum(e["name"] == "send to stage 1" for e in events) == sum(e["name"] == "recv from stage 0" for e in events) == 4
    assert "nearest: " in shell.run("plan", "--gpus", 4, "--explain", "sends", path, code=2).stderr


def test_plan_in_epochs_for_gpus_that_are_not_there(tmp_path):
    """The data says how many steps they are; without it max_steps is to be given."""
    shell = Shell(tmp_path)
    path = write_job(tmp_path)
    sets = ("train.max_steps=null", "train.num_train_epochs=2", "dist=null", "resources=null")
    options = ("--gpus", 4, *(word for setting in sets for word in ("--set", setting)))
    assert "taken" in shell.run("plan", *options, path).stdout
    shutil.rmtree(tmp_path / "data")
    said = shell.run("plan", *options, path, code=2).stderr
    assert "the number of steps is not known: train.num_train_epochs is given, and data.path" in said and "give train.max_steps" in said


def test_graph_of_the_examples(tmp_path):
    """A model written by hand: the example's own job file, on less data and for fewer steps."""
    shell = Shell(tmp_path)
    shutil.copytree(ROOT / "examples/graph", tmp_path / "graph", ignore=shutil.ignore_patterns("runs"))
    write_data(tmp_path / "quickstart/data", vocab_size=8192, num_tokens=16 * 256, period=64)
    write_data(tmp_path / "quickstart/data/eval", vocab_size=8192, num_tokens=256, period=64)
    job = tmp_path / "graph/job.yaml"
    job.write_text(job.read_text().replace("max_steps: 200", "max_steps: 12"))
    result = shell.run("submit", "--local", "-o", "json", "--threads", "1", "--memory", "2GiB", job)
    losses = [p["loss"] for p in lines(result.stdout) if "grad_norm" in p]
    assert len(losses) == 12 and losses[-1] < 0.9 * losses[0]
    evals = [p for p in lines(result.stdout) if "eval_loss" in p]
    assert [p["step"] for p in evals] == [12] and evals[0]["eval_loss"] < losses[0]
    ended = lines(result.stdout)[-1]
    assert ended["phase"] == "finished" and ended["exported_path"] == str(tmp_path / "graph/runs/graph/model")
    assert {path.name for path in Path(ended["exported_path"]).iterdir()} == {"model.graph", "model.safetensors", "tacc_export.json"}


def test_up_again_starts_what_has_ended(tmp_path):
    """A worker that dies is told of by every command; `up` brings it back, and the job goes on by itself."""
    shell = Shell(tmp_path)
    started = shell.json(*UP, "--workers", "2")
    try:
        before = shell.processes("tacc-worker")
        job = shell.json("submit", write_job(tmp_path, name="repaired", checkpoint={"save_steps": 5}, train={"max_steps": 1_000_000}))["id"]
        until(lambda: "last_checkpoint" in shell.json("get", job), "a checkpoint")
        killed = next(iter(before))
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in shell.processes("tacc-worker"), "the worker's end")
        for command in (["get", job], ["workers"], ["list"]):
            told = shell.run(*command).stderr
            assert "has ended" in told and "worker-" in told and "`taccctl up` starts it again" in told, told
        refused = shell.run("up", "--workers", "3", code=6).stderr
        assert "but for worker-" in refused and "without options" in refused, refused
        again = shell.run("up", "-o", "json")
        assert json.loads(again.stdout) == started and "started again: worker-" in again.stderr
        assert len(shell.processes("tacc-worker")) == 2
        restarted = until(lambda: (found := shell.json("get", job))["restarts"] and found["phase"] == "running" and found, "the job's next attempt")
        assert "lost" in restarted["restarts"][0]["cause"]
        # The coordinator as well, where it was and with what it knew.
        coordinator = next(iter(shell.processes("tacc-coordinator")))
        os.kill(coordinator, signal.SIGKILL)
        until(lambda: coordinator not in shell.processes("tacc-coordinator"), "the coordinator's end")
        assert "coordinator, which `taccctl up` started, has ended" in shell.run("get", job, code=5).stderr
        assert json.loads(shell.run("up", "-o", "json").stdout) == started
        step = shell.step(job)
        until(lambda: shell.step(job) > step, "further steps")
    finally:
        shell.run("down")
    shell.nothing_left()


def test_down_stops_a_running_job_after_a_checkpoint(tmp_path):
    shell = Shell(tmp_path)
    address = shell.json(*UP, "--workers", "1")["address"]
    job = shell.json("submit", write_job(tmp_path, name="downed", workers=1, **LONG))["id"]
    until(lambda: shell.step(job) > 0, "a step")
    shell.run("down")
    shell.nothing_left()
    assert not shell.state.exists() or not list(shell.state.rglob("*")), list(shell.state.rglob("*"))
    shell.run("list", code=5, env={"TACC_ADDRESS": address})
    assert list((tmp_path / "runs/downed").glob("step-*/manifest.json"))
    # With the next `up`, ids of jobs do not come back, though nothing else is known of them.
    shell.run(*UP, "--workers", "1")
    try:
        assert not shell.run("list", "-o", "json").stdout
        assert int(shell.run("submit", write_job(tmp_path, name="downed", workers=1, **LONG)).stdout.split("-")[-1]) > int(job.split("-")[-1])
    finally:
        shell.run("down")
    shell.nothing_left()
