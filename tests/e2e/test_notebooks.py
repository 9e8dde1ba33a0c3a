"""The notebooks of examples/notebooks, run from top to bottom, each in the folder of those before it."""

import re
import sys

import nbformat
import pytest
from cluster import ROOT, Cluster

sys.path.insert(0, str(ROOT / "examples/notebooks"))
import execute

# What each is to show: a part of the HTML of its outputs -> how often at least.
SHOWN = {
    "1-pretrain": {"<polyline": 2, 'role="progressbar"': 1, "<table": 1},
    "2-continue": {"<polyline": 6, 'role="progressbar"': 3, "<table": 1},
    "3-fine-tune": {"<polyline": 2, 'role="progressbar"': 1, "<table": 1},
    "4-metrics-and-plans": {"<polyline": 2, "<table": 4},
    "5-compare": {"<polyline": 8, 'role="progressbar"': 2, "<table": 2},
    "6-images": {"<polyline": 1, 'role="progressbar"': 1},
    "7-speech": {"<polyline": 1, 'role="progressbar"': 1},
}
NAMES = [path.stem for path in execute.NOTEBOOKS]


def outputs(notebook) -> list[list]:
    """Of each cell of code."""
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def html_of(notebook) -> str:
    return "\n".join(output.get("data", {}).get("text/html", "") for cell in outputs(notebook) for output in cell)


def text_of(notebook) -> str:
    return "\n".join(output.get("data", {}).get("text/plain", output.get("text", "")) for cell in outputs(notebook) for output in cell)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Notebooks that have run, by name; they follow each other, so one that fails ends it."""
    with pytest.MonkeyPatch.context() as environment, Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        environment.setenv("TACC_ADDRESS", cluster.address)
        environment.setenv("PYTHONPATH", str(ROOT / "client/python"))
        environment.setenv("OMP_NUM_THREADS", "1")
        folder = tmp_path_factory.mktemp("notebooks")
        yield {path.stem: execute.execute(path, folder) for path in execute.NOTEBOOKS}


@pytest.mark.parametrize("name", NAMES)
def test_all_cells_ran_and_show(executed, name):
    notebook = executed[name]
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    html = html_of(notebook)
    for part, least in SHOWN[name].items():
        assert html.count(part) >= least, (part, html.count(part))
    assert not any(output.output_type == "error" for cell in outputs(notebook) for output in cell)


def test_what_they_say_of_what_they_show(executed):
    """Losses fall, a continued training has the losses of one in one go, and runs differ in what they were given."""
    line = re.search(r"pretrain-\d+ finished  step 120 / 120  loss (\S+)  held-out loss (\S+)", text_of(executed["1-pretrain"]))
    assert float(line[1]) < 5.5 and float(line[2]) < 5.5
    assert float(outputs(executed["2-continue"])[-1][0]["data"]["text/plain"]) < 1e-4
    assert "'train.learning_rate': [0.001, 0.01]" in text_of(executed["5-compare"])
    assert "fsdp" in text_of(executed["4-metrics-and-plans"])
    right, seen = map(int, re.search(r"'(\d+) of (\d+)'", text_of(executed["6-images"])).groups())
    assert right > 0.4 * seen  # of ten digits
    assert float(outputs(executed["7-speech"])[-2][0]["data"]["text/plain"]) > 0.5  # of five vowels


@pytest.mark.parametrize("name", NAMES)
def test_those_of_the_repository_have_run(name):
    """With their outputs, which are small and say nothing of the machine that made them."""
    path = ROOT / f"examples/notebooks/{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    for part, least in SHOWN[name].items():
        assert html_of(notebook).count(part) >= least, part
    assert path.stat().st_size < 200_000
    assert not re.search(r"/(tmp|home|root|work|Users)/", path.read_text())


def test_every_notebook_is_said_to_be_there():
    readme = (ROOT / "examples/notebooks/README.md").read_text()
    assert all(f"({name}.ipynb)" in readme for name in NAMES) and sorted(NAMES) == sorted(SHOWN)
