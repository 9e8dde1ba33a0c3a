"""Each file includes only what the table in docs/architecture.md allows its folder. Tests beside the code may also include tests/."""

import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]



def read_table(page: Path) -> dict[str, list[str]]:
    """Folder -> folders (or files, by prefix) of this project that it may include, itself always."""
    section = page.read_text().split("\n## Folders, and what each may include\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")]
    return {folder.strip("`"): re.findall("`([^`]+)`", allowed) for folder, _, allowed in rows}


ALLOWED = read_table(ROOT / "docs/architecture.md") | {"tests": [""]}
# The rooms of a folder -> the rooms beside it that each may include. What lies in the folder itself may include all of them; nothing in a
# room includes what lies in the folder itself.
ROOMS = {
    "graph/import": {"decoder": [], "finetune": [""]},
    "graph/passes": {
        "modules": [],
        "training": ["modules"],
        "partition": ["modules", "training"],
        "memory": ["modules"],
        "rewrite": ["partition", "memory"],
        "stages": ["modules", "partition", "rewrite"],
    },
    "worker/checkpoint": {"files": [], "tensors": ["files"]},
    "worker/daemon": {"supervision": [], "host": ["supervision"], "answers": ["supervision", "host"]},
    "worker/rank": {
        "device": [],
        "protocol": ["device"],
        "collectives": ["device", "protocol"],
        "program": ["device", "protocol", "collectives"],
        "timing": ["device", "protocol", "collectives", "program"],
        "tuning": ["device", "collectives"],
        "state": ["device", "protocol", "collectives", "program"],
        "session": ["device", "collectives", "program"],
        "gpu": ["device", "protocol", "collectives"],
        "torch": ["device", "protocol", "collectives"],
        "reference": ["device"],
        "run": ["device", "protocol", "collectives", "program", "timing", "tuning", "state", "session", "gpu", "torch"],
        "cuda": ["device", "protocol", "collectives", "program", "gpu", "torch"],
    },
    "worker/rank/cuda": {
        "device": [],
        "memory": ["device"],
        "tuning": ["device", "memory"],
        "collectives": ["device"],
    },
    "client/taccctl": {"session": [], "local": ["session"], "show": ["session", "local"]},
    "kernels/cuda": {"launch": []},
}
# Stand-ins for tests: included by tests, by benches and by each other alone.
TESTING = "testing"
# Libraries from outside, by the first component of an include, that only these files may use.
CONFINED = {
    "ATen": ["kernels/cpu/", "kernels/cuda/", "worker/rank/torch/", "worker/rank/cuda/", "bench/", "tests/op_library/"],
    "c10": ["kernels/cpu/", "kernels/cuda/", "worker/rank/torch/", "worker/rank/cuda/"],
    "torch": ["kernels/cpu/", "kernels/cuda/", "worker/rank/torch/", "tests/op_library/"],
    "cuda_runtime.h": ["kernels/cuda/", "worker/rank/cuda/"],
    "cuda.h": ["worker/rank/cuda/"],
    "nccl.h": ["worker/rank/cuda/"],
    "grpcpp": ["identity/", "worker/daemon/", "coordinator/", "client/", "tests/"],
    "openssl": ["identity/", "worker/checkpoint/", "coordinator/service/access_test.cc"],
    "google": ["proto/", "worker/daemon/", "coordinator/", "jobfile/", "client/", "tests/"],
    "prometheus": ["metrics/", "coordinator/metrics/", "coordinator/service/", "worker/daemon/"],
    "yaml-cpp": ["jobfile/", "coordinator/kubernetes/"],
    "curl": ["coordinator/kubernetes/"],
    "sqlite3.h": ["coordinator/"],
}
OURS = re.compile(r'^\s*#include "([^"]+)"', re.M)
OTHERS = re.compile(r"^\s*#include <([^>]+)>", re.M)


GENERATED = "tacc/v1/"  # from proto/


def folder_of(path: str) -> str:
    return max((f for f in ALLOWED if path.startswith(f + "/")), key=len, default="")


def rooms_of(path: str) -> list[tuple[str, str]]:
    """The folders with rooms that hold the file, the innermost first, with its room ("" where it lies in the folder itself)."""
    found = []
    for area in sorted((a for a in ROOMS if path.startswith(a + "/")), key=len, reverse=True):
        room, _, rest = path.removeprefix(area + "/").partition("/")
        found.append((area, room if rest else ""))
    return found


def may_enter(path: str, include: str) -> bool:
    """Whether the rooms of the innermost folder that holds both allow it."""
    targets = dict(rooms_of(include))
    for area, room in rooms_of(path):
        if area in targets:
            target = targets[area]
            rooms = ROOMS[area]
            return target == room or (room == "" and target in rooms and "" not in rooms[target]) or target in rooms.get(room, [])
    return True


def is_test(path: str) -> bool:
    return path.endswith(("_test.cc", "_test.cu", "_cases.h")) or f"/{TESTING}/" in path


def may_include(path: str, folder: str, include: str) -> bool:
    if include.startswith(GENERATED):
        return folder == "proto" or "proto" in ALLOWED[folder] or folder == "tests"
    if not (ROOT / include).exists():
        return may_use(path, include)
    if is_test(path) and (folder_of(include) in (folder, "tests") or f"/{TESTING}/" in include):
        return True
    if f"/{TESTING}/" in include:
        return folder in ("tests", "bench")
    target = folder_of(include)
    return (target == folder and may_enter(path, include)) or any(include.startswith(allowed) for allowed in ALLOWED[folder] if target != folder)


def may_use(path: str, include: str) -> bool:
    """A header from outside the project."""
    users = CONFINED.get(include.split("/")[0])
    return users is None or any(path.startswith(user) for user in users)


def test_rooms_are_the_folders_there_are():
    for area, rooms in ROOMS.items():
        found = {p.name for p in (ROOT / area).iterdir() if p.is_dir() and any(p.glob("**/*.h"))}
        assert found - {TESTING, "gloo_declarations", "simd", "testdata"} == set(rooms), area


def test_the_arrows_between_rooms_have_no_circle():
    for area, rooms in ROOMS.items():
        seen = [""]  # A room that includes the folder's own files is above them, and included by none of them.
        for room, users in rooms.items():
            assert set(users) <= set(seen), f"{area}/{room} includes a room that is declared behind it"
            seen.append(room)


def test_includes_follow_the_table():
    files = subprocess.run(["git", "ls-files", "*.cc", "*.h", "*.cu", "*.cuh"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert len(files) > 50
    wrong = []
    for path in files:
        folder = folder_of(path)
        if not folder:
            wrong.append(f"{path}: its folder is not in the table")
            continue
        text = (ROOT / path).read_text()
        wrong += [f"{path}: may not include {i}" for i in OURS.findall(text) if not may_include(path, folder, i)]
        wrong += [f"{path}: may not include <{i}>" for i in OTHERS.findall(text) if not may_use(path, i)]
    assert not wrong, "\n".join(wrong)


def test_headers_of_several_types_open_with_a_comment():
    """Above the guard, on what they have in common; of a header with one type the type's comment is enough."""
    headers = subprocess.run(["git", "ls-files", "*.h"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    types = re.compile(r"^(?:class|struct|enum class)\s+(\w+)[^;\n]*\{", re.M)
    texts = {header: (ROOT / header).read_text() for header in headers}
    assert len(texts) > 100
    assert [header for header, text in texts.items() if len(set(types.findall(text))) > 1 and not text.startswith("//")] == []


def test_folders_and_files_are_small():
    """40 files in a folder, 500 lines in a .cc; folders with a file for each kernel may have more."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    sizes = Counter(str(Path(path).parent) for path in listed)
    assert len(sizes) > 50
    assert {folder for folder, size in sizes.items() if size > 40} <= {"kernels/cpu", "kernels/cuda"}
    assert [path for path in listed if path.endswith(".cc") and (ROOT / path).read_text().count("\n") > 500] == []
