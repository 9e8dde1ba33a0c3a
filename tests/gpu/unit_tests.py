"""Runs GoogleTest binaries, each suite in a process of its own: after an error that stays, a GPU fails all that follows in its process."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

NO_GPU = 77  # tacc-gpu-tests


@dataclass
class Outcome:
    suite: str
    passed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()  # Each failed test with its first words, or how the process ended.
    no_gpu: bool = False  # Nothing was run.


def suites_of(binary: Path) -> list[str]:
    listed = subprocess.run([binary, "--gtest_list_tests"], check=True, capture_output=True, text=True, timeout=60).stdout
    return [line.split()[0].rstrip(".") for line in listed.splitlines() if line and not line.startswith((" ", "Running main"))]


def run_suite(binary: Path, suite: str, work: Path, timeout: float) -> Outcome:
    report = work / f"{binary.name}-{suite.replace('/', '-')}.json"
    command = [binary, f"--gtest_filter={suite}.*", f"--gtest_output=json:{report}"]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout)
    except subprocess.TimeoutExpired:
        return Outcome(suite, failures=(f"not done in {timeout:.0f} s",))
    report.with_suffix(".log").write_text(ended.stdout)
    if ended.returncode == NO_GPU:
        return Outcome(suite, no_gpu=True)
    if not report.exists():
        return Outcome(suite, failures=(f"ended with {ended.returncode}: " + " ".join(ended.stdout.split())[-300:],))
    tests = [test for group in json.loads(report.read_text())["testsuites"] for test in group["testsuite"]]
    failures = tuple(f"{test['name']}: " + " ".join(test["failures"][0]["failure"].split())[:300] for test in tests if test.get("failures"))
    if ended.returncode != 0 and not failures:
        failures = (f"ended with {ended.returncode}",)
    skipped = sum(test.get("result") == "SKIPPED" for test in tests)
    return Outcome(suite, len(tests) - skipped - len(failures), skipped, failures)


def run_binary(binary: Path, work: Path, timeout: float, pool: ThreadPoolExecutor) -> list[Outcome]:
    suites = suites_of(binary)
    first = run_suite(binary, suites[0], work, timeout)
    if first.no_gpu:  # Nor for the others.
        return [Outcome(suite, no_gpu=True) for suite in suites]
    return [first, *pool.map(lambda suite: run_suite(binary, suite, work, timeout), suites[1:])]


def run_all(binaries: list[Path], work: Path, timeout: float, processes: int) -> dict[str, list[Outcome]]:
    """By the binary's name."""
    work.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(processes) as pool:
        return {binary.name: run_binary(binary, work, timeout, pool) for binary in binaries}
