"""The wheel: what is in it, and that it works where nothing but gRPC and protobuf is installed. No network is needed."""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TACC_BUILD", ROOT / "build"))
INSTALLED = Path(sysconfig.get_path("purelib"))
MAX_BYTES = 1 << 20

pytest.importorskip("setuptools", reason="the wheel is built by setuptools, and there is none")


def run(*command, **options) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, **options)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "v1", "config_sections.py", "messages.py", "foreign_names.py")
    shutil.copytree(ROOT / "client/python", folder / "client/python", ignore=unwanted)
    shutil.copytree(ROOT / "proto", folder / "proto")
    (folder / "jobfile").mkdir()
    shutil.copy(ROOT / "jobfile/foreign_names.cc", folder / "jobfile")
    built = run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder / "out", folder / "client/python")
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (folder / "out").iterdir()
    return wheel


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Of an environment with the wheel, gRPC and protobuf, and no other package."""
    folder = tmp_path_factory.mktemp("environment")
    made = run(sys.executable, "-m", "venv", "--without-pip", folder)
    assert made.returncode == 0, made.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("grpc", "google", "typing_extensions.py"):
        (packages / name).symlink_to(INSTALLED / name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return folder / "bin/python"


def test_it_holds_the_package_and_nothing_else(wheel):
    assert wheel.stat().st_size <= MAX_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {f"tacc/{path.relative_to(ROOT / 'client/python/tacc')}" for pattern in ("*.py", "accelerating/*.py", "exporting/**/*.py", "live/*.py", "preparing/*.py", "show/*.py") for path in (ROOT / "client/python/tacc").glob(pattern)}
    generated = {f"tacc/v1/{name}_pb2.py{i}" for name in ("coordinator", "job", "options", "worker") for i in ("", "i")}
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == modules | generated | {"tacc/config_sections.py", "tacc/foreign_names.py", "tacc/messages.py", "tacc/py.typed"} | {
        "tacc/v1/__init__.py",
        "tacc/v1/coordinator_pb2_grpc.py",
    }


def test_it_says_what_it_is_and_needs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(archive.read(name))
        text = archive.read("tacc/version.py").decode()
        stub = archive.read("tacc/v1/coordinator_pb2_grpc.py").decode()
    needs = about.get_all("Requires-Dist")
    assert about["Name"] == "tacc" and f'"{about["Version"]}"' in text and about["Requires-Python"] == ">=3.11"
    assert [need for need in needs if "extra ==" not in need] == ["grpcio>=1.85.1", "protobuf>=7.35.1"]
    assert "GRPC_GENERATED_VERSION = '1.85.1'" in stub  # It asks for at least that version of gRPC when it is imported.
    assert {"data", "chat", "parquet", "yaml", "pandas", "torch"} <= set(about.get_all("Provides-Extra"))


def test_a_tool_says_which_extra_is_missing(python, tmp_path):
    for command in (["data", "prepare", "--input", "x", "--out", "y"], ["convert", "x"], ["--help"]):
        done = run(python, "-m", "tacc", *command, cwd=tmp_path)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: numpy is not installed; install what this needs: ") and line.endswith(" -m pip install 'tacc[data]'")


def test_every_name_is_there_without_extras(python, tmp_path):
    """help(tacc), as a notebook's completion, looks at all of them."""
    done = run(python, "-c", "import pydoc, tacc; from tacc import *; print(len(pydoc.render_doc(tacc)) > 10_000, prepare.__name__)", cwd=tmp_path)
    assert done.stdout == "True prepare\n", done.stderr


def test_it_names_what_optional_packages_are_for(python, tmp_path):
    done = run(python, "-c", "import tacc; tacc.Config.from_yaml('job.yaml')", cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "ImportError: Config.from_yaml needs PyYAML: pip install pyyaml; or submit the path itself"


def test_a_name_says_which_extra_is_missing(python, tmp_path):
    done = run(python, "-c", "import tacc; tacc.prepare(['x'], 'y', tokenizer='z')", cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: tacc.prepare: numpy is not installed; install what this needs: ") and last.endswith("'tacc[data]'")


SCRIPT = """
import tacc

config = tacc.Config(name="tiny", model={"path": "model"}, data=tacc.DataConfig(path="data"))
config.train.max_steps = 3
config.dist.fsdp.size = 2
config.memory.gc = True
with tacc.Client() as client:
    job = client.submit(config)
    for item in job.watch():
        if isinstance(item, tacc.StepMetrics):
            loss: float = item.loss
    status: tacc.JobStatus = job.wait(timeout=60)
    mesh: dict[str, int] = client.plan(config, gpus=8).best.mesh


async def follow() -> list[str]:
    async with tacc.AsyncClient() as connected:
        return [line.text async for line in (await connected.job("tiny")).logs()]
"""


@pytest.mark.parametrize(
    "right, wrong, wanted",
    [
        ("", "", ""),
        ("train.max_steps = 3", "train.max_stepz = 3", 'has no attribute "max_stepz"'),
        ("config.memory.gc = True", "print(config.memory.gz)", 'has no attribute "gz"'),
        ("max_steps = 3", 'max_steps = "3"', "Incompatible types in assignment"),
        ("item.loss", "item.los", 'has no attribute "los"'),
        ("tacc.StepMetrics", "tacc.StepMetric", 'has no attribute "StepMetric"'),
        ("gpus=8", "gpu=8", 'Unexpected keyword argument "gpu"'),
        ("dict[str, int]", "dict[int, int]", "Incompatible types in assignment"),
    ],
)
def test_its_types_hold_for_who_uses_it(python, tmp_path, right, wrong, wanted):
    """By the mark py.typed: mypy believes the installed package's annotations."""
    script = tmp_path / f"script_{abs(hash(wrong))}.py"  # mypy's cache, of which the installed package's part is of use, knows files by name.
    script.write_text(SCRIPT.replace(right, wrong))
    done = run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", python.parent / "cache", script.name, cwd=tmp_path)
    assert wanted in done.stdout and (done.returncode == 0) == (not wanted), done.stdout


def test_a_client_of_it_works(python, tmp_path):
    coordinator = subprocess.Popen(
        [str(BUILD / "tacc-coordinator"), "--listen", "127.0.0.1:0", "--insecure", "--state-dir", str(tmp_path / "coordinator")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    try:
        address = coordinator.stdout.readline().split()[-1]
        code = f"import tacc; client = tacc.Client({address!r}); print(client.version().pid, client.workers(), client.jobs())"
        done = run(python, "-c", code, cwd=tmp_path)
        assert done.stdout == f"{coordinator.pid} [] []\n", done.stderr
    finally:
        coordinator.terminate()
        coordinator.wait()
        coordinator.stdout.close()
