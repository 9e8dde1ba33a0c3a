"""What is skipped is reported as skipped, listed, and refused in CI where this machine can run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import list_skips
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TACC_BUILD", ROOT / "build"))
SKIPPED = 77


def run_gtest(folder: Path, cases: str) -> int:
    command = [BUILD / "tests/skip-cases", f"--gtest_filter={cases}", f"--gtest_output=xml:{folder}/gtest.xml"]
    return subprocess.run(command, capture_output=True).returncode


def run_pytest(folder: Path, text: str) -> int:
    (folder / "cases.py").write_text("import pytest\n" + text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "all_skipped", f"--junitxml={folder}/pytest.xml", folder / "cases.py"]
    return subprocess.run(command, capture_output=True, cwd=folder).returncode


def list_of(folder: Path, ci: str = "") -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, list_skips.__file__, folder], capture_output=True, text=True, env={**os.environ, "CI": ci})


@pytest.mark.parametrize("cases, code", [("Cases.Pass", 0), ("Cases.Skip*", SKIPPED), ("Cases.Pass:Cases.Skip", 0),
                                         ("Cases.Fail", 1), ("Cases.Fail:Cases.Skip", 1)])
def test_code_of_a_gtest_program(tmp_path, cases, code):
    assert run_gtest(tmp_path, cases) == code


PASS = "def test_pass(): pass\n"
FAIL = "def test_fail(): assert False\n"
SKIP = "def test_skip(): pytest.skip('no teapot')\n"
SKIP_BY_MARK = "@pytest.mark.skipif(True, reason='no kettle')\ndef test_mark(): pass\n"
FIXTURE_FAILS = "@pytest.fixture\ndef broken(): assert False\ndef test_broken(broken): pass\n"


@pytest.mark.parametrize("text, code", [(PASS, 0), (SKIP + SKIP_BY_MARK, SKIPPED), (PASS + SKIP, 0), (FAIL, 1), (FAIL + SKIP, 1), (FIXTURE_FAILS + SKIP, 1)])
def test_code_of_a_pytest_file(tmp_path, text, code):
    assert run_pytest(tmp_path, text) == code


def test_every_test_of_ctest_is_asked_for_both():
    """A report, and the code of one that was skipped. The golden test and lint are programs of their own, which skip nothing."""
    tests = json.loads(subprocess.run(["ctest", "--show-only=json-v1"], cwd=BUILD, capture_output=True, text=True, check=True).stdout)["tests"]
    assert len(tests) > 100
    for test in tests:
        if test["name"] in ("golden_test", "lint_test"):
            continue
        properties = {p["name"]: p["value"] for p in test["properties"]}
        assert properties.get("SKIP_RETURN_CODE") == SKIPPED, test["name"]
        report = BUILD / "test_results" / f"{test['name']}.xml"
        assert {f"--gtest_output=xml:{report}", f"--junitxml={report}"} & set(test.get("command", [])), test["name"]


def test_list(tmp_path):
    run_gtest(tmp_path, "Cases.Pass:Cases.Skip")
    assert list_of(tmp_path).stdout == "1 of 2 test cases skipped:\n  gtest Cases.Skip: no teapot\n"
    run_pytest(tmp_path, PASS + SKIP + SKIP_BY_MARK)
    listed = list_of(tmp_path)
    assert listed.returncode == 0
    assert listed.stdout == ("3 of 5 test cases skipped:\n  gtest Cases.Skip: no teapot\n  pytest cases.test_skip: no teapot\n"
                             "  pytest cases.test_mark: no kettle\n")


def test_list_of_no_skips(tmp_path):
    run_pytest(tmp_path, PASS)
    assert list_of(tmp_path, ci="true").stdout == "0 of 1 test cases skipped\n"


def test_program_that_ran_nothing(tmp_path):
    """A filter that has come to match nothing passes by itself."""
    assert run_gtest(tmp_path, "Cases.Gone") == 0
    listed = list_of(tmp_path)
    assert listed.returncode == 1 and listed.stderr == "error: gtest ran no test case\n"


def test_ci_refuses_what_the_machine_can_run(tmp_path):
    run_gtest(tmp_path, "Cases.Skip")
    listed = list_of(tmp_path, ci="true")
    assert listed.returncode == 1
    assert listed.stderr == "error: CI must not skip what this machine can run: gtest Cases.Skip: no teapot\n"


@pytest.mark.parametrize("word", list_skips.LACKING)
def test_ci_takes_what_the_machine_lacks(monkeypatch, word):
    skip = list_skips.Skip("program", "case", f"{word} and more")
    monkeypatch.setitem(list_skips.LACKING, word, lambda: True)
    assert skip.is_right()
    monkeypatch.setitem(list_skips.LACKING, word, lambda: False)
    assert not skip.is_right()


def test_a_gpu_is_looked_for_and_not_believed(tmp_path):
    run_gtest(tmp_path, "Cases.SkipForAGpu")
    assert list_of(tmp_path, ci="true").returncode == (1 if list_skips.has_gpu() else 0)
