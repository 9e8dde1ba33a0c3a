"""libtacc_cuda.so without a GPU: it loads, holds code for each target, and tacc-rank says what is missing; a rank on a
CPU never loads it."""
import json
import os
import pathlib
import re
import struct
import subprocess

import triton

BUILD = pathlib.Path(os.environ["TACC_BUILD"])
RANK = BUILD / "tacc-rank"


def run(*arguments, **environment):
    return subprocess.run([RANK, *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def has_gpu():
    return any(device["kind"] == "cuda" for device in json.loads(run("--devices").stdout))


def fat_binaries(data):
    """Of each fat binary, the kinds of code and their targets: 1 is PTX, 2 machine code. (The code itself is compressed.)"""
    magic, found = struct.pack("<I", 0xBA55ED50), []
    at = data.find(magic)
    while at >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, at)
        entry, end, parts = at + header, at + header + size, set()
        while entry < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, entry)
            parts.add((kind, *struct.unpack_from("<I", data, entry + 28)))
            entry += entry_header + entry_size
        found.append(parts)
        at = data.find(magic, end)
    return found


def test_the_module_has_code_for_every_target():
    """A100, H100 and H200, B200, and PTX for what comes after, in the fat binary of every file of kernels."""
    binaries = fat_binaries((BUILD / "libtacc_cuda.so").read_bytes())
    assert len(binaries) > 15
    for parts in binaries:
        assert parts == {(2, 80), (2, 90), (2, 100), (1, 100)}


def resources():
    """Of each target, by kernel: registers of a thread, bytes of its stack (spills among them), of static shared and of local memory."""
    tool = next(pathlib.Path(triton.__file__).parent.glob("backends/nvidia/bin/cuobjdump"))
    text = subprocess.run([tool, "--dump-resource-usage", BUILD / "libtacc_cuda.so"], check=True, capture_output=True, text=True).stdout
    found, target, kernel = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            target = match[1]
        elif match := re.match(r" Function (\S+):", line):
            kernel = match[1]
        elif match := re.match(r"  REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            found.setdefault(target, {})[kernel] = tuple(map(int, match.groups()))
    return found


def test_every_kernel_fits_every_target():
    """A launch that asks for more than a multiprocessor has fails on a GPU only. Limits: CUDA C++ Programming Guide, compute capabilities."""
    registers, user_shared = 64 << 10, 48 << 10
    dynamic = 47 << 10  # kMaxSharedBytes of kernels/cuda/launch/launch.h
    found = resources()
    assert set(found) == {"sm_80", "sm_90", "sm_100"}
    assert len(found["sm_80"]) > 150 and set(found["sm_80"]) == set(found["sm_90"]) == set(found["sm_100"])
    for target, kernels in found.items():
        reserved = 1024 if target != "sm_80" else 0  # by the system, beside what a block may have
        for kernel, (per_thread, stack, shared, local) in kernels.items():
            teams = re.search(r"6launch5TeamsILi(\d+)E", kernel)
            assert teams or "6launch8Elements" in kernel, kernel
            threads = int(teams[1]) if teams else 256
            of_a_warp = -(-per_thread * 32 // 256) * 256
            assert of_a_warp * (threads // 32) <= registers, (target, kernel, per_thread)
            assert shared - reserved + (dynamic if teams else 0) <= user_shared, (target, kernel, shared)
            assert stack <= 64 and local == 0, (target, kernel, stack, local)


def test_the_module_is_small_enough_to_copy(tmp_path):
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", stripped, BUILD / "libtacc_cuda.so"], check=True)
    assert stripped.stat().st_size < 60 << 20


def test_without_a_gpu_the_probe_says_what_is_missing():
    if has_gpu():
        profile = json.loads(run("--probe", "--device", "cuda:0").stdout)
        assert profile["kind"] == "cuda" and profile["matmul_flops_per_second"]["bf16"] > 0
        return
    answer = run("--probe", "--device", "cuda:0")
    assert answer.returncode == 2, answer
    assert re.search(r"driver|no such GPU|no GPU", answer.stderr), answer.stderr


def test_a_cpu_does_not_load_it(tmp_path):
    """LD_DEBUG lists each library that is loaded."""
    answer = run("--look", "--device", "cpu", LD_DEBUG="files", LD_DEBUG_OUTPUT=str(tmp_path / "files"))
    assert answer.returncode == 2
    loaded = "".join(path.read_text(errors="replace") for path in tmp_path.glob("files.*"))
    assert "libtorch_cpu" in loaded and "libtacc_cuda" not in loaded
