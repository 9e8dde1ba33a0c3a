"""Which tests a change touches, on a small checkout and on this one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from run_tests import Inputs, ctest_tests, outcomes, reasons, remembered

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "examples/toy/model.json": "{}",
    "examples/other.json": "{}",
    "tests/e2e/test_toy.py": 'from helper import start\nFOLDER = "examples/toy"\n',
    "tests/e2e/CMakeLists.txt": "",
    "tests/helper.py": 'PROGRAM = "tacc-worker"\n',
    "tests/unused.py": "",
    "tests/golden/run.py": "",
    "tests/golden/plan.golden": "$ tacc-plan plan\n",
    "graph/plan.cc": "",
    "requirements.txt": "",
    "graph/plan_test.cc": '#include "graph/plan.h"\n#include "graph/testing/fake.h"\nRead("graph/testdata");\n',
    "graph/plan.h": "",
    "graph/testing/fake.h": 'Open("tacc-data");\n',
    "graph/testdata/a.script": "",
    "client/python/tacc/__init__.py": "",
    "client/python/tacc/data.py": "",
    "tests/python/test_data.py": "from tacc import data\n",
}
PROGRAMS = ["tacc-worker", "tacc-rank", "tacc-plan", "tacc-data", "taccctl", "tests/plan_test"]


@pytest.fixture
def checkout(tmp_path):
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in PROGRAMS:
        program = tmp_path / "build" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shutil.which("true"), program)
    return tmp_path


def touched(checkout: Path, changed: str) -> list[str]:
    """The tests whose digest another content of this file changes."""
    tests = {
        "plan_test": [str(checkout / "build/tests/plan_test"), "--gtest_output=xml:x", f"TACC_SOURCES={checkout}/graph/plan_test.cc"],
        "data_test": ["/usr/bin/python", str(checkout / "tests/python/test_data.py")],
        "toy_test": ["/usr/bin/python", "-m", "pytest", str(checkout / "tests/e2e/test_toy.py")],
        "golden_test": ["/usr/bin/python", str(checkout / "tests/golden/run.py")],
        "lint_test": ["scripts/lint"],
    }

    def digests():
        inputs = Inputs(checkout, checkout / "build", list(SOURCES))
        return {name: inputs.digest(command, ["tree"] if name == "lint_test" else []) for name, command in tests.items()}

    before = digests()
    with open(checkout / changed, "a") as file:
        file.write("\n")
    after = digests()
    return [name for name in tests if before[name] != after[name]]


@pytest.mark.parametrize(
    "changed,names",
    [
        ("build/tests/plan_test", ["plan_test"]),
        ("build/tacc-rank", ["toy_test"]),  # a worker starts it
        ("build/tacc-plan", ["toy_test", "golden_test"]),  # a golden file names it
        ("build/tacc-data", ["plan_test", "toy_test"]),  # a stand-in names it
        ("build/taccctl", []),
        ("graph/testdata/a.script", ["plan_test", "lint_test"]),
        ("graph/plan.h", ["lint_test"]),
        ("client/python/tacc/data.py", ["data_test", "lint_test"]),
        ("tests/e2e/test_toy.py", ["toy_test", "lint_test"]),
        ("tests/helper.py", ["toy_test", "lint_test"]),
        ("tests/golden/plan.golden", ["golden_test", "lint_test"]),
        ("examples/toy/model.json", ["toy_test", "lint_test"]),
        ("examples/other.json", ["lint_test"]),
        ("tests/unused.py", ["lint_test"]),
        ("requirements.txt", ["data_test", "toy_test", "golden_test", "lint_test"]),
        ("graph/plan.cc", ["lint_test"]),  # else by the program that it becomes
    ],
)
def test_a_change_touches_what_is_made_of_it(checkout, changed, names):
    assert touched(checkout, changed) == names


def test_a_file_that_is_gone_touches_too(checkout):
    command = ["/usr/bin/python", str(checkout / "tests/e2e/test_toy.py")]
    before = Inputs(checkout, checkout / "build", list(SOURCES)).digest(command, [])
    (checkout / "build/tacc-rank").unlink()
    assert Inputs(checkout, checkout / "build", list(SOURCES)).digest(command, []) != before


def test_only_what_passed_counts(tmp_path):
    (tmp_path / "report.xml").write_text(
        '<testsuite><testcase name="a" status="run"/><testcase name="b" status="fail"><failure message=""/></testcase>'
        '<testcase name="c" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase></testsuite>'
    )
    assert outcomes(tmp_path / "report.xml") == {"a": True, "b": False, "c": False}


def test_says_why_tests_failed(tmp_path):
    (tmp_path / "report.xml").write_text(
        '<testsuite><testcase name="fine" status="run"><system-out>a.cc:1: Failure</system-out></testcase>'
        '<testcase name="google" status="fail"><failure message=""/><system-out>noise\n/a.cc:7: Failure\nExpected: 1\nWhich is: 2\n</system-out></testcase>'
        '<testcase name="py" status="fail"><failure message=""/><system-out>noise\n&gt;   assert x\nE   AssertionError: x\nmore</system-out></testcase>'
        '<testcase name="killed" status="fail"><failure message=""/><system-out>started\n</system-out></testcase></testsuite>'
    )
    assert reasons(tmp_path / "report.xml") == [
        "google failed:", "  /a.cc:7: Failure", "  Expected: 1", "  Which is: 2", "py failed:", "  E   AssertionError: x", "killed failed:", "  started"
    ]


def test_one_that_fails_is_forgotten():
    known = {"passes": "old", "fails": "same", "not run": "x", "gone": "y"}
    digests = {"passes": "new", "fails": "same", "not run": "z"}
    assert remembered(known, digests, {"passes": True, "fails": False}) == {"passes": "new", "not run": "x"}


def test_the_tests_here_are_made_of_what_they_start():
    build = Path(os.environ["TACC_BUILD"])
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    inputs, tests = Inputs(ROOT, build, listed), ctest_tests(build)

    def made_of(name):
        return {str(p.relative_to(build if p.is_relative_to(build) else ROOT)) for p in inputs.of(*tests[name])}

    assert "tests/planner_test" in made_of("planner_test") and not {"tacc-plan", "tacc-rank"} & made_of("planner_test")
    assert "client/python/tacc/data.py" in made_of("data_prepare_test")
    assert "coordinator/core/testdata/cancel.script" in made_of("coordinator_core_script_test")
    assert any(name.startswith("bench/data/") for name in made_of("published_test"))
    assert {"tacc-coordinator", "failpoints/tacc-coordinator"} <= made_of("coordinator_kill_test")
    assert {"tacc-worker", "tacc-rank"} <= made_of("worker_binary_test")
    assert "proto/tacc/v1/job.proto" in made_of("job_docs_test")
    assert {"machine/device_peaks.h", "bench/gpu_step.py", "requirements.txt"} <= made_of("gpu_check_test")
    assert {"tacc-rank", "failpoints/tacc-rank", "tacc-plan", "tests/e2e/cluster.py"} <= made_of("e2e_faults_test")
    assert {"tacc-rank", "tacc-plan", "tests/parity/cases.py", "client/python/tacc/shards.py"} <= made_of("parity_training_test")
    assert not {"tacc-coordinator", "taccctl"} & made_of("parity_training_test")
    assert "docs/contracts.md" in made_of("protocol_test")
    assert "tacc-opt" in made_of("golden_test")
    assert {"docs/architecture.md", "graph/ir/program.h"} <= made_of("layers_test")
