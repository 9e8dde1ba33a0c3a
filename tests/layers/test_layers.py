"""Each file includes only what the table in docs/architecture.md allows its folder. Tests beside the code may also include tests/."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Folder -> folders (or files, by prefix) of this project that it may include, itself always.
ALLOWED = {
    "proto": [],
    "graph/ir": [],
    "graph/ops": ["graph/ir"],
    "graph/verify": ["graph/ir", "graph/ops"],
    "graph/trace": ["graph/ir", "graph/ops"],
    "graph/analysis": ["graph/ir", "graph/ops", "graph/verify"],
    "graph/passes": ["graph/ir", "graph/ops", "graph/verify", "graph/analysis"],
    "graph/planner": ["graph/ir", "graph/ops", "graph/verify", "graph/trace", "graph/analysis", "graph/passes", "page"],
    "graph/import": ["graph/ir", "graph/ops", "graph/verify", "machine"],
    "graph/tools": ["graph/", "page"],
    "kernels": [],
    "failpoint": [],
    "machine": [],
    "page": [],
    "worker/data": ["machine", "failpoint"],
    "worker/data/tool": ["machine", "worker/data", "worker/checkpoint"],
    "worker/checkpoint": ["failpoint"],
    "worker/run_folder": ["machine", "worker/checkpoint", "page"],
    "worker/rank": ["machine", "graph/ir", "graph/ops", "graph/verify", "graph/trace", "kernels", "worker/data", "worker/checkpoint", "worker/run_folder", "failpoint"],
    "worker/daemon": ["proto", "machine", "worker/rank/status_block.h", "worker/checkpoint", "worker/run_folder/run_report.h", "failpoint"],
    "coordinator": ["proto", "machine", "graph/ir", "failpoint"],
    "client": ["proto", "machine", "page"],
    "tests": [""],
    "bench": ["kernels", "worker/data", "graph/"],
}
# Libraries from outside, by the first component of an include, that only these folders may use.
CONFINED = {
    "ATen": ["kernels", "worker/rank", "bench"], "c10": ["kernels", "worker/rank"], "torch": ["kernels", "worker/rank"],
    "grpcpp": ["worker/daemon", "coordinator", "client", "tests"], "google": ["proto", "worker/daemon", "coordinator", "client", "tests"],
    "prometheus": ["worker/daemon", "coordinator"], "yaml-cpp": ["client"], "sqlite3.h": ["coordinator"],
}
OURS = re.compile(r'^\s*#include "([^"]+)"', re.M)
OTHERS = re.compile(r"^\s*#include <([^>]+)>", re.M)


GENERATED = "tacc/v1/"  # from proto/


def folder_of(path: str) -> str:
    return max((f for f in ALLOWED if path.startswith(f + "/")), key=len, default="")


def may_include(path: str, folder: str, include: str) -> bool:
    if include.startswith(GENERATED):
        return folder == "proto" or "proto" in ALLOWED[folder] or folder == "tests"
    if not (ROOT / include).exists():
        return may_use(folder, include)
    target = folder_of(include)
    if target == folder or any(include.startswith(allowed) for allowed in ALLOWED[folder]):
        return True
    is_test = path.endswith("_test.cc") or "_for_test" in path or path.endswith("_cases.h")
    return is_test and target == "tests"


def may_use(folder: str, include: str) -> bool:
    """A header from outside the project."""
    users = CONFINED.get(include.split("/")[0])
    return users is None or any(folder == user or folder.startswith(user + "/") for user in users)


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
        wrong += [f"{path}: may not include <{i}>" for i in OTHERS.findall(text) if not may_use(folder, i)]
    assert not wrong, "\n".join(wrong)
