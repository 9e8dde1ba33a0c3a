"""Metrics in MLflow and Weights & Biases, by stand-ins for the calls of these libraries that are made."""

import math
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python"))

import tacc  # noqa: E402
from job_items import evaluation, job_status, step  # noqa: E402
from tacc.reporting import Reporter, check_names  # noqa: E402


class FakeWandb(types.ModuleType):
    """Runs by id, with a row for each step; as wandb, it drops a row of an earlier step than the newest."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = {}

    def init(self, *, project, id, name, resume, reinit, tags):
        assert resume == "allow" and reinit == "create_new"
        run = self.runs.setdefault(id, FakeWandbRun(project, name))
        run.step = max(run.rows) + 1 if run.rows else 0
        run.ended = None
        return run


class FakeWandbRun:
    def __init__(self, project, name):
        self.project, self.name, self.rows, self.config, self.ended = project, name, {}, FakeWandbConfig(), None

    def log(self, values, *, step):
        assert step >= self.step, "a row that would be dropped"
        self.step = step
        self.rows.setdefault(step, {}).update(values)

    def finish(self, *, exit_code):
        self.ended = exit_code


class FakeWandbConfig(dict):
    def update(self, values, *, allow_val_change):
        assert allow_val_change
        super().update(values)


class FakeMlflow(types.ModuleType):
    """The fluent calls and the client, over a dict of runs; every point is kept, also one that comes twice."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.active = {}, []
        self.MlflowClient = lambda: self
        self.entities = types.ModuleType("mlflow.entities")
        self.entities.Metric = lambda key, value, timestamp, step: types.SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)
        self.entities.Param = lambda key, value: types.SimpleNamespace(key=key, value=value)
        self.entities.RunTag = self.entities.Param

    def search_runs(self, *, filter_string, max_results, output_format):
        wanted = filter_string.removeprefix("tags.`tacc.run` = '").removesuffix("'")
        return [run for run in self.runs.values() if run.data.tags["tacc.run"] == wanted]

    def active_run(self):
        return self.active[-1] if self.active else None

    def start_run(self, *, run_id=None, run_name=None, nested, tags=None):
        assert nested == bool(self.active)
        if run_id is None:
            run_id = f"run{len(self.runs)}"
            self.runs[run_id] = types.SimpleNamespace(
                info=types.SimpleNamespace(run_id=run_id, status="RUNNING"), name=run_name,
                data=types.SimpleNamespace(tags=dict(tags), params={}), points=[], batches=[])
        self.active.append(self.runs[run_id])
        return self.runs[run_id]

    def end_run(self, status):
        self.active.pop().info.status = status

    def get_run(self, run_id):
        return self.runs[run_id]

    def set_tag(self, run_id, key, value):
        self.runs[run_id].data.tags[key] = value

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        run = self.runs[run_id]
        assert len(metrics) + len(params) + len(tags) <= 1000 and len(params) <= 100
        for param in params:
            assert run.data.params.setdefault(param.key, param.value) == param.value, "a param cannot change"
        run.points += [(metric.key, metric.step, metric.value) for metric in metrics]
        run.data.tags.update({tag.key: tag.value for tag in tags})
        run.batches.append(len(metrics))


@pytest.fixture
def trackers(monkeypatch):
    wandb, mlflow = FakeWandb(), FakeMlflow()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", mlflow.entities)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return wandb, mlflow


def report(status, items, phase="finished"):
    reporter = Reporter(status, "127.0.0.1:7070", ("mlflow", "wandb"))
    for item in items:
        reporter.take(item)
    reporter.close(phase)


def losses(run, key="train/loss"):
    return [(step, value) for name, step, value in run.points if name == key]


def test_points_settings_and_the_end(trackers, tmp_path):
    wandb, mlflow = trackers
    status = job_status(checkpoint_dir=str(tmp_path), spec={"name": "tiny", "train": {"max_steps": 4}})
    report(status, [step(1, 3.5), step(2, math.nan), evaluation(2, 3.25), step(3, 2.5, mfu=0.4)])
    (run,) = wandb.runs.values()
    assert (run.project, run.name, run.ended) == ("tacc", "tiny", 0)
    assert run.rows[1]["train/loss"] == 3.5 and math.isnan(run.rows[2]["train/loss"])
    assert run.rows[2]["eval/loss"] == 3.25 and run.rows[3]["perf/mfu"] == 0.4 and "perf/mfu" not in run.rows[1]
    assert run.config == {"name": "tiny", "train.max_steps": 4, "tacc_job": "tiny-1"}
    (run,) = mlflow.runs.values()
    assert [step for step, _ in losses(run)] == [1, 2, 3] and losses(run, "eval/loss") == [(2, 3.25)]
    assert run.data.params == {"name": "tiny", "train.max_steps": "4"}
    assert run.info.status == "FINISHED" and not mlflow.active
    assert len(run.batches) <= 3  # Not a call for each step.


@pytest.mark.parametrize(("phase", "status", "code"), [("failed", "FAILED", 1), ("cancelled", "KILLED", 1), ("running", "RUNNING", 1)])
def test_ends(trackers, tmp_path, phase, status, code):
    wandb, mlflow = trackers
    report(job_status(checkpoint_dir=str(tmp_path)), [step(1, 3.5)], phase)
    assert next(iter(mlflow.runs.values())).info.status == status and next(iter(wandb.runs.values())).ended == code


def test_nothing_comes_twice(trackers, tmp_path):
    """A reporter that begins anew, a restart that does steps again, and a job that goes on in the folder."""
    wandb, mlflow = trackers
    first = job_status(checkpoint_dir=str(tmp_path))
    items = [step(1, 4.0), step(2, 3.0), evaluation(2, 3.5), step(3, 2.0), step(2, 3.0, attempt=2), evaluation(2, 3.5, attempt=2), step(3, 2.0, attempt=2), step(4, 1.0, attempt=2)]
    report(first, items[:3], "running")
    report(first, items)
    on = job_status(id="tiny-2", checkpoint_dir=str(tmp_path), spec={"name": "tiny", "train": {"max_steps": 6}})
    report(on, [step(5, 0.5), step(6, 0.25)])
    wanted = [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0), (5, 0.5), (6, 0.25)]
    (run,) = mlflow.runs.values()
    assert losses(run) == wanted and losses(run, "eval/loss") == [(2, 3.5)] and run.data.tags["tacc.job"] == "tiny-2"
    (run,) = wandb.runs.values()
    assert [(step, row["train/loss"]) for step, row in run.rows.items()] == wanted
    # A training that begins anew in the folder is another run.
    report(job_status(id="tiny-3", checkpoint_dir=str(tmp_path)), [step(1, 4.0)])
    assert len(mlflow.runs) == len(wandb.runs) == 2


def test_a_folder_that_is_not_here(trackers):
    """The run then follows from the job alone."""
    wandb, mlflow = trackers
    status = job_status(checkpoint_dir="/nowhere/at/all")
    report(status, [step(1, 4.0)])
    report(status, [step(1, 4.0), step(2, 3.0)])
    assert len(mlflow.runs) == len(wandb.runs) == 1 and losses(mlflow.runs["run0"]) == [(1, 4.0), (2, 3.0)]


def test_within_a_run_of_the_user(trackers, tmp_path):
    _, mlflow = trackers
    mlflow.start_run(run_name="mine", nested=False, tags={"tacc.run": ""})
    report(job_status(checkpoint_dir=str(tmp_path)), [step(1, 4.0)])
    assert [run.name for run in mlflow.active] == ["mine"] and len(mlflow.runs) == 2


def test_a_tracker_that_fails_leaves_no_other_one_open(trackers, tmp_path, monkeypatch):
    """As wandb, where nobody has logged in, and one whose server is away at the end."""
    wandb, mlflow = trackers

    def refuse(*arguments, **options):
        raise RuntimeError("not logged in")

    reporter = Reporter(job_status(checkpoint_dir=str(tmp_path)), "127.0.0.1:7070", ("mlflow", "wandb"))
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", refuse)
        with pytest.raises(RuntimeError, match="not logged in"):
            reporter.take(step(1, 4.0))
    reporter.close("")
    assert not mlflow.active
    monkeypatch.setattr(FakeWandbRun, "finish", refuse)
    for names in (("mlflow", "wandb"), ("wandb", "mlflow")):
        reporter = Reporter(job_status(checkpoint_dir=str(tmp_path)), "127.0.0.1:7070", names)
        reporter.take(step(1, 4.0))
        with pytest.raises(RuntimeError, match="not logged in"):
            reporter.close("finished")
        assert not mlflow.active


def test_names(monkeypatch):
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert check_names("wandb") == ("wandb",) and check_names(["mlflow", "wandb"]) == ("mlflow", "wandb") and check_names(()) == ()
    with pytest.raises(tacc.InputError, match="no tracker 'comet'; there are 'mlflow', 'wandb'"):
        check_names(["comet"])
    with pytest.raises(tacc.InputError, match='leave "tensorboard" out: its files are always written'):
        check_names("tensorboard")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="wandb is not installed here: pip install wandb"):
        check_names("wandb")
