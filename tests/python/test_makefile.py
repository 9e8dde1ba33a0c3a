"""What `make` says to who does not know it."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str) -> str:
    # Not that of a `make test` around it.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_make_alone_lists_every_target():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    listed = {line.split()[0]: line.split()[1:] for line in make().splitlines()[1:]}
    assert list(listed) == targets
    assert all(listed.values())
    assert make("help") == make()


def test_a_build_ends_with_the_next_step_unless_one_follows():
    assert re.search(r"\necho .*make quickstart.*/taccctl help\"\n$", make("-n", "build"))
    assert "Next:" not in make("-n", "install")
