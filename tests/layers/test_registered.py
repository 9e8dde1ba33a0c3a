"""CTest runs every file of tests: C++ ones are compiled into a program of CTest's, Python ones are named by a command of CTest's."""

import json
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TACC_BUILD", ROOT / "build"))


def words_of_ctest() -> set[Path]:
    """All words of all commands, as paths."""
    tests = json.loads(subprocess.run(["ctest", "--show-only=json-v1"], cwd=BUILD, capture_output=True, text=True, check=True).stdout)["tests"]
    return {Path(word) for test in tests for word in test.get("command", [])}


def sources_of(programs: list[Path]) -> set[Path]:
    targets = [os.path.relpath(program, BUILD) for program in programs]
    inputs = subprocess.run(["ninja", "-C", BUILD, "-t", "inputs", *targets], capture_output=True, text=True, check=True).stdout
    files = {Path(os.path.normpath(BUILD / line)) for line in inputs.splitlines()}
    batches = [file for file in files if file.parent.name == "Unity" and file.suffix == ".cxx"]
    return files | {Path(name) for batch in batches for name in re.findall(r'^#include "(.*)"$', batch.read_text(), re.MULTILINE)}


def files_of_tests() -> set[Path]:
    tracked = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {ROOT / path for path in tracked.splitlines() if re.search(r"(_test\.(cc|cu|py)|(^|/)test_\w+\.py)$", path)}


def test_every_file_of_tests_is_run_by_ctest():
    words = words_of_ctest()
    run = words | sources_of([word for word in words if word.is_relative_to(BUILD / "tests")])
    files = files_of_tests()
    assert len(files) > 100
    assert sorted(str(path.relative_to(ROOT)) for path in files - run) == []
