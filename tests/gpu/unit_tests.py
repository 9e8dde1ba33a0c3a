"""Runs GoogleTest binaries, each test in a process of its own: after an error that stays, a GPU fails all that follows in its process."""

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

NO_GPU = 77  # tacc-gpu-tests


@dataclass
class Outcome:
    """Of a suite."""

    binary: str
    suite: str
    passed: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # What each failed test said, or how its process ended.
    no_gpu: bool = False  # Nothing was run.

    def add(self, test: str, result: str) -> None:
        """`result`: "passed", "skipped", "no GPU", or else what a failed test said."""
        self.passed += result == "passed"
        self.skipped += result == "skipped"
        self.no_gpu |= result == "no GPU"
        if result not in ("passed", "skipped", "no GPU"):
            self.failures[test] = result


def tests_of(binary: Path) -> dict[str, list[str]]:
    """By suite."""
    listed = subprocess.run([binary, "--gtest_list_tests"], check=True, capture_output=True, text=True, timeout=60).stdout
    tests: dict[str, list[str]] = {}
    for line in listed.splitlines():
        name = line.partition("#")[0].strip()
        if name.endswith(".") and not line.startswith(" "):
            suite = name.rstrip(".")
            tests[suite] = []
        elif name and line.startswith(" "):
            tests[suite].append(name)
    return tests


def run_test(binary: Path, test: str, work: Path, limit: float) -> str:
    """A result as of Outcome.add."""
    report = work / f"{binary.name}-{test.replace('/', '-')}.json"
    command = [binary, f"--gtest_filter={test}", f"--gtest_output=json:{report}"]
    # What the references take of the processors is nothing; that many processes leave none for more.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=limit, env=environment)
    except subprocess.TimeoutExpired as hung:
        said = hung.stdout or b""
        return f"not done in {limit:.0f} s; {(said if isinstance(said, str) else said.decode(errors='replace'))[-1000:]}"
    if ended.returncode == NO_GPU:
        return "no GPU"
    try:
        found = json.loads(report.read_text())["testsuites"][0]["testsuite"][0]
    except (OSError, ValueError, LookupError):
        return f"ended with {ended.returncode}: {ended.stdout[-1000:]}"
    if found.get("failures"):
        return "\n".join(failure["failure"] for failure in found["failures"][:4])
    if ended.returncode != 0:
        return f"ended with {ended.returncode} after the test: {ended.stdout[-1000:]}"
    return "skipped" if found.get("result") == "SKIPPED" else "passed"


def run_all(binaries: dict[Path, int], work: Path, limit: float) -> Iterator[Outcome]:
    """Each suite as soon as its last test has ended. `binaries`: with how many processes at once each runs, one binary after the other; `limit`: seconds of a
    test."""
    work.mkdir(parents=True, exist_ok=True)
    for binary, processes in binaries.items():
        with ThreadPoolExecutor(processes) as pool:
            suites = tests_of(binary)
            outcomes = {suite: Outcome(binary.name, suite) for suite in suites}
            names = [(suite, test) for suite, tests in suites.items() for test in tests]
            first = run_test(binary, ".".join(names[0]), work, limit)
            if first == "no GPU":  # Nor for the others.
                for outcome in outcomes.values():
                    outcome.no_gpu = True
                yield from outcomes.values()
                continue
            left = {suite: len(tests) for suite, tests in suites.items()}
            known: Future = Future()
            known.set_result(first)
            pending = {known: names[0]} | {pool.submit(run_test, binary, ".".join(name), work, limit): name for name in names[1:]}
            for future in as_completed(pending):
                suite, test = pending[future]
                outcomes[suite].add(test, future.result())
                left[suite] -= 1
                if left[suite] == 0:
                    yield outcomes[suite]
