"""What of a job GPUs capture as CUDA graphs, as `taccctl plan` says beforehand. Prints the quickstart's; leaves it in $TACC_BUILD/capture_plan.txt."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["TACC_BUILD"])
QUICKSTART = ROOT / "examples/quickstart"


def plan(job: Path, gpus: int, *options: str) -> str:
    command = [BUILD / "taccctl", "plan", job, "--gpus", str(gpus), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "TACC_ADDRESS": "127.0.0.1:1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def capture(job: Path, gpus: int) -> list[dict]:
    return json.loads(plan(job, gpus, "-o", "json").splitlines()[0])["capture"]


def table(job: Path, gpus: int) -> str:
    text = plan(job, gpus, "-v")
    return text[text.index("STAGE  GRAPH"):].split("\n\n")[0] + "\n"


def test_the_quickstart_is_captured_whole():
    job = QUICKSTART / "job.yaml"
    parts = capture(job, 2)
    # A graph a part, collectives included.
    assert [part["graph"] for part in parts] == ["forward_backward", "update", "eval"]
    assert all(part["stage"] == 0 and part["nodes"] > 0 and part["first_node"] and "not_captured" not in part for part in parts)
    shown = table(job, 2)
    assert shown.count("captured\n") == 3 and "not captured" not in shown
    text = f"the quickstart on 2 GPUs: CUDA graphs\n{shown}"
    print(text)
    (BUILD / "capture_plan.txt").write_text(text)


def test_a_pipeline_says_what_is_not_captured_and_why(tmp_path):
    text = (QUICKSTART / "job.yaml").read_text().replace("  fsdp:\n    size: 2\n", "  pp:\n    size: 2\n  fsdp:\n    size: 2\n")
    text = text.replace("path: model ", f"path: {QUICKSTART}/model ").replace("workers: 2", "workers: 4")
    job = tmp_path / "job.yaml"
    job.write_text(text)
    parts = capture(job, 4)
    assert {part["stage"] for part in parts} == {0, 1}
    captured = {part["graph"] for part in parts if "not_captured" not in part}
    assert {"forward.0", "backward.0", "update"} <= captured
    reasons = {part["not_captured"] for part in parts if "not_captured" in part}
    assert "a message may outlast the graph" in reasons
    assert "not captured: a message may outlast the graph" in table(job, 4)
