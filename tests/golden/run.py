"""Golden tests: runs the commands in *.golden beside this file and in tests/bad_input, and compares what they print.

A file holds cases, separated by lines of `====`:

    # What the case shows.
    $ tacc-opt - --passes dce
    the input, given on standard input
    ----
    the exact output: standard output, then standard error, then `exit N` unless 0

An input that begins with a line `-- NAME` is files of the command's folder, each after such a line. After `-- NAME escaped`, \\n, \\t, \\\\ and \\xHH
stand for bytes, and there is no final newline. The folder's path prints as DIR. Commands are programs of the build folder (environment variable
TACC_BUILD); no coordinator runs. `run.py --rewrite [FILE...]` writes what is printed now; commit only a difference that you can explain.
"""

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = [HERE, HERE.parent / "bad_input"]
ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\([nt\\])|[^\\]+")
ESCAPES = {"n": b"\n", "t": b"\t", "\\": b"\\"}


def write_files(folder: Path, lines: list[str]) -> None:
    starts = [i for i, line in enumerate(lines) if line.startswith("-- ")] + [len(lines)]
    for start, end in zip(starts, starts[1:]):
        name, _, escaped = lines[start][3:].partition(" ")
        text = "\n".join(lines[start + 1:end])
        data = (text + "\n" if end > start + 1 else text).encode()
        if escaped:
            data = b"".join(bytes.fromhex(m[1]) if m[1] else ESCAPES[m[2]] if m[2] else m[0].encode() for m in ESCAPE.finditer(text))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def run(command: str, lines: list[str], build: Path) -> str:
    words = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(lines) + "\n"
        if lines and lines[0].startswith("-- "):
            write_files(Path(folder), lines)
            text = ""
        # Nothing of the caller's, and an address where nobody listens.
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder, "TZ": "UTC", "LC_ALL": "C.UTF-8", "TACC_ADDRESS": "127.0.0.1:1"}
        done = subprocess.run([build / words[0], *words[1:]], input=text.encode(), capture_output=True, timeout=60, cwd=folder, env=environment)
    output = (done.stdout + done.stderr).decode(errors="backslashreplace").replace(os.path.realpath(folder), "DIR")
    if done.returncode != 0:
        output += f"exit {done.returncode}\n"
    return output


def check(path: Path, build: Path, rewrite: bool) -> tuple[int, int]:
    """Returns the numbers of cases and of those that differ."""
    written, different, parsed = [], 0, []
    for number, case in enumerate(path.read_text().split("\n====\n"), 1):
        head, separator, wanted = case.strip("\n").partition("\n----")
        lines = head.split("\n")
        at = next((i for i, line in enumerate(lines) if line.startswith("$ ")), None)
        if at is None or not separator or not lines[0].startswith("# "):
            sys.exit(f"{path.name}: case {number} wants a comment, a line `$ command` and a line `----`")
        parsed.append((number, head, lines, at, wanted.strip("\n")))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outputs = list(pool.map(lambda case: run(case[2][case[3]][2:], case[2][case[3] + 1:], build).rstrip("\n"), parsed))
    for (number, head, lines, at, wanted), got in zip(parsed, outputs):
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
    results = [check(path, build, args.rewrite) for path in args.files or [path for folder in FOLDERS for path in sorted(folder.glob("*.golden"))]]
    cases, different = sum(r[0] for r in results), sum(r[1] for r in results)
    print(f"{cases} cases, {different} {'rewritten' if args.rewrite else 'differ'}")
    sys.exit(0 if args.rewrite or (different == 0 and cases > 0) else 1)


if __name__ == "__main__":
    main()
