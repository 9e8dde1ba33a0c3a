"""docs/python.md: its blocks run as they stand, in order, in one session as of a notebook."""

import ast
import asyncio
import inspect
import re

import pytest
from cluster import ROOT, Cluster, write_job

BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/python.md").read_text(), re.M | re.S)


def run_cell(code: str, session: dict, loop: asyncio.AbstractEventLoop) -> object:
    """Runs the code, which may await, as a notebook's cell. The value of its last expression."""
    tree = ast.parse(code)
    last = None
    if isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    value = None
    for part, mode in ((tree, "exec"), (last, "eval")):
        if part is None:
            continue
        value = eval(compile(part, "docs/python.md", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), session)
        if inspect.iscoroutine(value):
            value = loop.run_until_complete(value)
    return value if last is not None else None


def test_the_guide_s_blocks_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas", reason="the guide shows DataFrames, and pandas is not installed")
    write_job(tmp_path, data={"path": "data", "eval_path": "data", "seq_len": 16}, train={"max_steps": 20}).rename(tmp_path / "job.yaml")
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        monkeypatch.setenv("TACC_ADDRESS", cluster.address)
        monkeypatch.chdir(tmp_path)
        loop = asyncio.new_event_loop()
        session: dict = {}
        values = [run_cell(code, session, loop) for code in BLOCKS]
        loop.close()
    shown = dict(zip(BLOCKS, values))
    printed = capsys.readouterr().out

    def value_of(part: str) -> object:
        (found,) = (value for code, value in shown.items() if part in code)
        return found

    assert value_of("client.workers()") == [("w0", "idle"), ("w1", "idle")]
    assert value_of('submit("job.yaml")') == ("finished", 20, str(tmp_path / "runs/tiny/hf"))
    assert value_of("client.check(config)") == str(tmp_path / "model")
    assert 'did you mean "max_steps"?' in printed and "train.lr_scheduler_type" in printed and "train.max_steps" in printed
    loss, job = value_of("trainer.evaluate()")
    assert loss < 5 and job.startswith("llamaforcausallm-")
    assert value_of("tacc.Session(live)") == 4 and re.search(r"^4 [\d.]+$", printed, re.M)
    mesh, seconds, memory = value_of("gpus=16")
    assert mesh and seconds > 0 and memory > 0
    assert re.search(r"^20 [\d.]+$", printed, re.M) and "checkpoint" in printed
    assert list(value_of("metrics = job.metrics()")["step"]) == [28, 29, 30]
    step, attempts = value_of("max_steps = 40")
    assert step == 40 and "step-00000030" in attempts[0] or "step 30" in attempts[0], attempts
    assert value_of('"name": "tuned"') == 5
    assert value_of("run = tacc.fit(") == ("hf", 10) and (tmp_path / "runs/adapted/hf/adapter_model.safetensors").exists()
    assert value_of("trained = tacc.fit(") == (16, ["export.json", "model.graph", "model.safetensors", "tacc_export.json"])
    assert value_of("job.export") == (40, str(tmp_path / "my-model")) and (tmp_path / "my-model/model.safetensors").exists()
    assert value_of("AsyncClient") == (5, "finished")
    assert "no job nope" in printed
