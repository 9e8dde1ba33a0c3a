"""Lists each test case that was skipped, with its reason, from the reports (JUnit XML) that a run of all tests has left in a folder.

Ends with 1 where a program ran no case at all, and in CI (CI=true) where a case was skipped that this machine can run. What a machine may lack is
in LACKING: by the word with which a skip's reason begins, whether it is so. It is looked up here and not taken from the test that skipped."""

import importlib.util
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import NamedTuple


def has_gpu() -> bool:
    return any(re.fullmatch(r"nvidia\d+", device.name) for device in Path("/dev").iterdir())


def is_privileged() -> bool:
    """May mount, and make namespaces and network devices: CAP_SYS_ADMIN and CAP_NET_ADMIN."""
    effective = int(re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.M).group(1), 16)
    return bool(effective >> 21 & effective >> 12 & 1)


def cgroup_mount() -> Path | None:
    """Of version 2, where this process may make cgroups."""
    mounts = re.findall(r"^(?:\S+ ){4}(\S+) .* - cgroup2 ", Path("/proc/self/mountinfo").read_text(), re.M)
    return next((Path(mount) for mount in mounts if os.access(mount, os.W_OK)), None)


def lacks_limits() -> bool:
    """What lies in the mounted cgroup is given no limits of memory and processes."""
    mount = cgroup_mount()
    return mount is None or not {"memory", "pids"} <= set((mount / "cgroup.subtree_control").read_text().split())


def lacks_package(name: str) -> bool:
    return importlib.util.find_spec(name) is None


LACKING = {
    "no GPU": lambda: not has_gpu(),
    "there is a GPU": has_gpu,
    "needs root": lambda: not is_privileged(),
    "no cgroups": lambda: cgroup_mount() is None,
    "no limits of cgroups": lacks_limits,
    # Packages that people have beside tacc, and that requirements.txt does not bring.
    **{f"no {package}": partial(lacks_package, package) for package in ("datasets", "pandas", "trl")},
}


class Skip(NamedTuple):
    program: str
    case: str
    reason: str

    def is_right(self) -> bool:
        return any(self.reason.startswith(word) and lacks() for word, lacks in LACKING.items())

    def __str__(self) -> str:
        return f"{self.program} {self.case}: {self.reason}"


def reason_of(message: str) -> str:
    """GoogleTest begins with a line FILE:LINE."""
    return " ".join(re.sub(r"\A\S+:\d+\n", "", message).split())


def read(report: Path) -> tuple[int, list[Skip]]:
    """The number of cases, and those that were skipped."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    skips = [Skip(report.stem, f"{case.get('classname').split('.')[-1]}.{case.get('name')}", reason_of(skipped.get("message", "")))
             for case in cases if (skipped := case.find("skipped")) is not None]
    return sum(case.get("status") != "notrun" for case in cases), skips


def main(folder: Path) -> int:
    num_cases, skips, empty = 0, [], []
    for report in sorted(folder.glob("*.xml")):
        cases, skipped = read(report)
        num_cases += cases
        skips += skipped
        if cases == 0:
            empty.append(report.stem)
    print(f"{len(skips)} of {num_cases} test cases skipped{':' if skips else ''}")
    for skip in skips:
        print(f"  {skip}")
    errors = [f"{program} ran no test case" for program in empty]
    if os.environ.get("CI", "").lower() in ("true", "1"):
        errors += [f"CI must not skip what this machine can run: {skip}" for skip in skips if not skip.is_right()]
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
