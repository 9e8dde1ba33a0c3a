"""Runs tests by ctest and remembers what each that passed was made of; with --touched, only those that a change has touched since.

A C++ test is made of its program and of what the strings in its sources name, a Python test of the files in its folder, of the modules that it
imports from tests/ and client/python, and of what they all name: programs of the build folder with those that they start, and files and folders of
the checkout (C++ sources are in the programs). A test with the label `tree` reads the whole checkout.

  run_tests.py BUILD [--touched] [ctest's options]

Ends as ctest does. What passed is kept in BUILD/tests_passed.json, why others failed in BUILD/tests_failed.txt."""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

TOKEN = re.compile(rb"[A-Za-z0-9_.+-]+(?:/[A-Za-z0-9_.+-]+)*/?")
STRING = re.compile(rb'"(?:[^"\\\n]|\\.)*"')
CPP = (".cc", ".h", ".cu", ".c")
MODULES = "tests/"
PACKAGE = "client/python/tacc"
FIND_PROGRAM = re.compile(rb'find_program\("([\w-]+)"\)')
IMPORT_PATH = "client/python"  # Put on sys.path: what is imported from there counts, not all of it.
REQUIREMENTS = "requirements.txt"  # of every Python test
SOURCES = "TACC_SOURCES="  # In a test's environment: its C++ sources, separated by colons.
TESTING = re.compile(r"(^|/)(testing|tests)/")  # where stand-ins of C++ tests are
REASONS, REASON_LINES = 3, 6  # of each test that failed, and of each of them
# What a program starts or loads.
TOOLS = ("tacc-data", "tacc-plan", "tacc-rank", "libtacc_cuda.so")
STARTS = {
    "tacc-rank": ("libtacc_cuda.so", "libtacc_no_python.so", "libtacc_no_libtorch.so", "failpoints/tacc-rank"),
    "tacc-worker": TOOLS,
    "tacc-coordinator": (*TOOLS, "failpoints/tacc-coordinator"),
    "taccctl": (*TOOLS, "tacc-coordinator", "tacc-worker"),
}


def imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that are carried out: not those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from imports(child)


class Inputs:
    """What tests of one checkout and build folder are made of, by content."""

    def __init__(self, root: Path, build: Path, sources: list[str]):
        """`sources`: the files of the checkout, relative to `root`."""
        self.root, self.build = root, build
        self.sources = sorted(sources)
        self._named: dict[Path, frozenset[Path]] = {}
        self._hashes: dict[Path, str] = {}

    @cached_property
    def _folders(self) -> dict[str, list[str]]:
        """The files below each folder, C++ sources apart."""
        below: dict[str, list[str]] = {}
        for source in self.sources:
            if not source.endswith(CPP):
                for parent in list(Path(source).parents)[:-1]:
                    below.setdefault(str(parent), []).append(source)
        return below

    @cached_property
    def _modules(self) -> dict[str, list[str]]:
        """Python files by the name by which they may be imported."""
        by_name: dict[str, list[str]] = {}
        for source in self.sources:
            if source.endswith(".py") and source.startswith(MODULES):
                path = Path(source)
                by_name.setdefault(path.parent.name if path.stem == "__init__" else path.stem, []).append(source)
        return by_name

    def _resolve(self, token: str) -> set[Path]:
        """What a word in a file names: a single word no folder, for words like `graph` are everywhere."""
        is_folder, token = token.endswith("/"), token.rstrip("/.")
        found: set[Path] = set()
        if token in self._all_sources:
            found.add(self.root / token)
        if is_folder or ("/" in token and token != IMPORT_PATH):
            found |= {self.root / source for source in self._folders.get(token, [])}
        if token in self._programs or token in STARTS or token in TOOLS:
            found.add(self.build / token)
        return found

    @cached_property
    def _programs(self) -> set[str]:
        """Programs and modules of the build folder."""
        found = set()
        for folder, subfolders, files in os.walk(self.build):
            subfolders[:] = [name for name in subfolders if name != "CMakeFiles"]
            paths = [Path(folder, name) for name in files]
            found |= {str(path.relative_to(self.build)) for path in paths if path.suffix == ".so" or os.access(path, os.X_OK)}
        return found

    @cached_property
    def _all_sources(self) -> set[str]:
        return set(self.sources)

    def _names(self, path: Path) -> frozenset[Path]:
        """What the program at `path` starts, or what the file there names: Python, the sources and stand-ins of C++ tests, golden files, which begin
        with a command. Of other files it does not count."""
        if path not in self._named:
            if path.is_relative_to(self.build):
                found = {self.build / name for name in STARTS.get(path.name, ())}
            elif self._is_python(path):
                found = self._named_in(path.read_bytes()) | self._imported(path)
                if str(path.relative_to(self.root)).startswith(PACKAGE):  # It speaks of programs to people; these it starts.
                    found = {name for name in found if not name.is_relative_to(self.build)}
                    found |= {self.build / name.decode() for name in FIND_PROGRAM.findall(path.read_bytes())}
            elif path.suffix == ".golden":
                found = self._named_in(path.read_bytes())
            elif path.suffix in CPP:
                strings = b"\n".join(STRING.findall(path.read_bytes()))
                found = self._named_in(strings)
                if b"TACC_BUILD" in strings:
                    found |= {self.build / name for name in ("taccctl", *STARTS["taccctl"])}
                found = {name for name in found if name.suffix not in CPP or TESTING.search(str(name))}
            else:
                found = set()
            self._named[path] = frozenset(found)
        return self._named[path]

    def _is_python(self, path: Path) -> bool:
        return path.suffix == ".py" or path.read_bytes()[:40].split(b"\n")[0].endswith(b"python3")

    def _named_in(self, text: bytes) -> set[Path]:
        found: set[Path] = set()
        for token in set(TOKEN.findall(text)):
            found |= self._resolve(token.decode())
        return found

    def _imported(self, path: Path) -> set[Path]:
        text = path.read_text()
        found = self._of_module("tacc.__main__", True) if '"-m", "tacc"' in text else set()
        for node in imports(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                is_of_package = module.split(".")[0] == "tacc"
                names += [module, *(f"{module}.{alias.name}" if is_of_package else alias.name for alias in node.names)]
            for name in names:
                found = found | self._of_module(name, isinstance(node, ast.Import))
        return {self.root / source for source in found}

    @cached_property
    def _package(self) -> set[str]:
        """The package, and what its build makes parts of it from."""
        return {*self._folders.get(PACKAGE, []), *self._folders.get("proto", [])}

    def _of_module(self, name: str, is_whole: bool) -> set[str]:
        """The files of a module by its dotted name. The package gives names of any of its modules where it is imported whole, one module if that is."""
        parts = name.split(".")
        if parts[0] != "tacc":
            return {source for part in parts for source in self._modules.get(part, [])}
        # The package's own file, that of each folder on the way, and the module's; behind them a name that it has.
        ways = ["/".join((PACKAGE, *parts[1:end])) for end in range(1, len(parts) + 1)]
        module = {source for way in ways for source in (f"{way}.py", f"{way}/__init__.py") if source in self._all_sources}
        is_name = len(parts) > 1 and len(module) < 2
        return self._package if is_name or (is_whole and len(parts) == 1) else module

    def of(self, words: list[str], labels: list[str]) -> set[Path]:
        """The files that a test with these words (its command line and environment) and labels is made of."""
        if "tree" in labels:
            return {self.root / source for source in self.sources}
        paths = [Path(path) for word in words for path in (word.removeprefix(SOURCES).split(":") if word.startswith(SOURCES) else [word])]
        todo = [path for path in paths if path.is_file() and self._is_ours(path)]
        for path in list(todo):
            if path.suffix == ".py":
                folder = str(path.parent.relative_to(self.root))
                todo += [self.root / source for source in [*self._folders.get(folder, []), REQUIREMENTS]]
        inputs: set[Path] = set()
        while todo:
            path = todo.pop()
            if path not in inputs:
                inputs.add(path)
                todo += self._names(path)
        return inputs

    def _is_ours(self, path: Path) -> bool:
        return path.is_relative_to(self.build) or (path.is_relative_to(self.root) and str(path.relative_to(self.root)) in self._all_sources)

    def digest(self, words: list[str], labels: list[str]) -> str:
        parts = [json.dumps(words)]
        for path in sorted(self.of(words, labels)):
            if path not in self._hashes:
                self._hashes[path] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "away"
            parts.append(f"{path} {self._hashes[path]}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def ctest_tests(build: Path) -> dict[str, tuple[list[str], list[str]]]:
    """The words (command line and environment) and the labels of each test that ctest knows."""
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
    tests = {}
    for test in json.loads(shown)["tests"]:
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        tests[test["name"]] = (test.get("command", []) + properties.get("ENVIRONMENT", []), properties.get("LABELS", []))
    return tests


def outcomes(report: Path) -> dict[str, bool]:
    """Whether each test of a run passed, by ctest's report (JUnit XML). One that was skipped did not: it may run on another day."""
    cases = ElementTree.parse(report).iter("testcase")
    return {case.get("name"): case.get("status") == "run" and case.find("failure") is None for case in cases}


def reasons(report: Path) -> list[str]:
    """Why tests of a run failed, a few lines of each: what GoogleTest or pytest say of what was expected, or else the end of its output."""
    lines = []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is None:
            continue
        said = (case.findtext("system-out") or "").splitlines()
        begins = [i for i, line in enumerate(said) if line.endswith(": Failure") or line.startswith("E   ")]
        chosen = sorted({i + k for i in begins[:REASONS] for k in range(REASON_LINES if said[i].endswith(": Failure") else 1) if i + k < len(said)})
        lines.append(f"{case.get('name')} failed:")
        lines += [f"  {said[i][:200]}" for i in chosen] or [f"  {line[:200]}" for line in said[-REASON_LINES:]]
    return lines


def remembered(known: dict[str, str], digests: dict[str, str], ran: dict[str, bool]) -> dict[str, str]:
    """The digest of each test when it passed last, after this run: of one that has failed, none."""
    kept = {name: digest for name, digest in known.items() if name in digests and name not in ran}
    return kept | {name: digests[name] for name, has_passed in ran.items() if has_passed}


def main(build: Path, touched: bool, options: list[str]) -> int:
    root = Path(__file__).resolve().parents[2]
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, check=True)
    inputs = Inputs(root, build, [name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()])
    tests = ctest_tests(build)
    digests = {name: inputs.digest(*test) for name, test in tests.items()}
    state = build / "tests_passed.json"
    known = json.loads(state.read_text()) if state.exists() else {}
    if touched:
        chosen = sorted(name for name in tests if known.get(name) != digests[name])
        print(f"{len(chosen)} of {len(tests)} tests are touched by what changed since they passed", flush=True)
        if not chosen:
            return 0
        options = [*options, "-R", f"^({'|'.join(map(re.escape, chosen))})$"]
    report = build / "tests_report.xml"
    report.unlink(missing_ok=True)
    failed = build / "tests_failed.txt"
    failed.unlink(missing_ok=True)
    code = subprocess.run(["ctest", "--output-on-failure", "--no-tests=error", "--output-junit", report, *options], cwd=build).returncode
    if report.exists():
        state.write_text(json.dumps(remembered(known, digests, outcomes(report)), indent=1))
        failed.write_text("".join(f"{line}\n" for line in reasons(report)))
    return code


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(Path(arguments[0]).resolve(), "--touched" in arguments, [a for a in arguments[1:] if a != "--touched"]))
