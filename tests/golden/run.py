"""Golden tests: runs the commands in *.golden beside this file and compares what they print.

A file holds cases, separated by lines of `====`:

    # What the case shows.
    $ tacc-opt - --passes dce
    the input, given on standard input
    ----
    the exact output: standard output, then standard error, then `exit N` unless 0

Commands are programs of the build folder (environment variable TACC_BUILD). `run.py --rewrite [FILE...]` writes what is printed
now; commit only a difference that you can explain.
"""

import argparse
import difflib
import os
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(command: str, text: str, build: Path) -> str:
    words = shlex.split(command)
    done = subprocess.run([build / words[0], *words[1:]], input=text, capture_output=True, text=True, timeout=60, cwd=HERE)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        output += f"exit {done.returncode}\n"
    return output


def check(path: Path, build: Path, rewrite: bool) -> tuple[int, int]:
    """Returns the numbers of cases and of those that differ."""
    written, different = [], 0
    for number, case in enumerate(path.read_text().split("\n====\n"), 1):
        head, separator, wanted = case.strip("\n").partition("\n----")
        lines = head.split("\n")
        at = next((i for i, line in enumerate(lines) if line.startswith("$ ")), None)
        if at is None or not separator or not lines[0].startswith("# "):
            sys.exit(f"{path.name}: case {number} wants a comment, a line `$ command` and a line `----`")
        got = run(lines[at][2:], "\n".join(lines[at + 1:]) + "\n", build).rstrip("\n")
        wanted = wanted.strip("\n")
        if got != wanted:
            different += 1
            if not rewrite:
                print(f"{path.name}: case {number}: {lines[0]}\n{lines[at]}")
                print("\n".join(difflib.unified_diff(wanted.split("\n"), got.split("\n"), "wanted", "got", lineterm="")))
        written.append(f"{head}\n----\n{got}\n")
    if rewrite:
        path.write_text("====\n".join(written))
    return len(written), different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rewrite", action="store_true")
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    build = Path(os.environ.get("TACC_BUILD", HERE.parents[1] / "build"))
    results = [check(path, build, args.rewrite) for path in args.files or sorted(HERE.glob("*.golden"))]
    cases, different = sum(r[0] for r in results), sum(r[1] for r in results)
    print(f"{cases} cases, {different} {'rewritten' if args.rewrite else 'differ'}")
    sys.exit(0 if args.rewrite or (different == 0 and cases > 0) else 1)


if __name__ == "__main__":
    main()
