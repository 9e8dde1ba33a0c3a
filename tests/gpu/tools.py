"""Parts of scripts/gpu_check by NVIDIA's own tools, where a machine has them: memory checkers on kernels as they run, and
counters of the kernels that take the time beside products and attention."""

import csv
import io
import os
import re
import shutil
import subprocess
from pathlib import Path

import trainings
from gpu_step import Bench, earlier_figures
from parts import Context, last_lines
from unit_tests import NO_GPU

CUDA_TOOLS = "/usr/local/cuda/bin"  # Not always on PATH where they are installed.
STEPS, MEMCHECK_SECONDS = 3, 100
# CUPTI, by which a rank traces when its GPU works, takes one subscriber of a process: these tools are to have it alone.
WITHOUT_CUPTI = ("--no-gap-trace",)
RACE_TESTS = ("AttentionOnTensorCores.StaysWithinDocuments", "AttentionOnTensorCores.OfQueriesThatSeeNoKeyIsZero")
# By the functors' names (kernels/cuda/*.cu): those that move most memory.
KERNELS = {"swiglu": "SwigluOf", "swiglu_grad": "SwigluGradOf", "norm gradient": "NormGradRows", "adamw": "UpdateChunk",
           "casts": "CastChunk"}
IN_OTHERS = {"casts"}  # Where kernels write narrow results beside wide ones there may be none.
METRICS = {"seconds": "gpu__time_duration.sum", "read_bytes": "dram__bytes_read.sum",
           "written_bytes": "dram__bytes_write.sum",
           "memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
           "active_warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
           "registers": "launch__registers_per_thread"}
UNITS = {"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1.0, "s": 1.0,
         "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def find_tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{CUDA_TOOLS}")


# Of a GPU or driver that the tool does not know.
NOT_SUPPORTED = "Device not supported"


def sanitizer(context: Context) -> None:
    """Whether kernels of a training touch memory that is not theirs, and threads of attention on tensor cores each
    other's shared memory."""
    tool = find_tool("compute-sanitizer")
    if tool is None:
        for check in ("memcheck", "racecheck"):
            context.skip(check, "compute-sanitizer is not on PATH")
        return
    memcheck(context, tool)
    racecheck(context, tool)


def memcheck(context: Context, tool: str) -> None:
    log, check = context.results / "memcheck.log", f"memcheck of {STEPS} steps"
    # To measure products under the tool would take most of its time: what the part `replay` has trained by is named, but
    # LibTorch for each of its shapes, of which nothing is measured.
    products = dict.fromkeys(earlier_figures(context, "replay").get("products", {}), "libtorch")
    wrapper = (tool, "--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no",
               "--log-file", str(log))
    run = trainings.train(context.build, context.bundle / "small", "bf16", context.device, context.work / "memcheck",
                          wrapper=wrapper, arguments=WITHOUT_CUPTI, limit=MEMCHECK_SECONDS, train={"max_steps": STEPS},
                          checkpoint={"dir": ""}, products=products)
    if NOT_SUPPORTED in text_of(log) + run.log:
        context.skip(check, f"compute-sanitizer: {NOT_SUPPORTED}")
        return
    if run.timed_out:
        context.skip(check, f"{run.error}, {len(products)} products were not to be measured")
        return
    if not context.ended_well(check, run):
        return
    errors = count(log, r"ERROR SUMMARY: (\d+) error")
    context.judge(check, errors == 0 and len(run.losses()) == STEPS, f"{said(errors, 'errors')} in {len(run.losses())} steps",
                  "0 errors", "" if errors == 0 else text_of(log))


def racecheck(context: Context, tool: str) -> None:
    log, check = context.results / "racecheck.log", "racecheck of attention on tensor cores"
    command = [tool, "--tool", "racecheck", "--log-file", log, context.build / "tacc-gpu-tests",
               f"--gtest_filter={':'.join(RACE_TESTS)}"]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               timeout=60)
    except subprocess.TimeoutExpired:
        context.skip(check, "not done in 60 s")  # A kernel takes a hundred times as long so: no fault of its own.
        return
    if NOT_SUPPORTED in text_of(log) + ended.stdout:
        context.skip(check, f"compute-sanitizer: {NOT_SUPPORTED}")
        return
    if ended.returncode == NO_GPU:
        context.skip(check, "no GPU")
        return
    hazards, ran = count(log, r"RACECHECK SUMMARY: (\d+) hazard"), len(re.findall(r"\[       OK \]", ended.stdout))
    context.judge(check, ended.returncode == 0 and hazards == 0 and ran == len(RACE_TESTS),
                  f"{said(hazards, 'hazards')}, {ran} tests passed, ended with {ended.returncode}",
                  f"0 hazards in {len(RACE_TESTS)} tests", f"{ended.stdout}\n{text_of(log)}")


def text_of(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def count(log: Path, pattern: str) -> int | None:
    """Of a tool's summary; None: it wrote none."""
    found = re.findall(pattern, text_of(log))
    return sum(map(int, found)) if found else None


def said(number: int | None, what: str) -> str:
    return "no summary" if number is None else f"{number} {what}"


def profile(context: Context) -> None:
    """Time, memory traffic and occupancy of kernels of a step of OLMo-1B: of each size of each the second call."""
    check, tool = "counters of kernels", find_tool("ncu")
    if tool is None:
        context.skip(check, "ncu is not on PATH")
        return
    bench, log = Bench(context, "olmo-1b"), context.results / "ncu.csv"
    batch = bench.facts["equal"][0]
    wrapper = (tool, "--clock-control", "none", "--target-processes", "all", "--kernel-name-base", "demangled",
               "--kernel-name", f"regex:{'|'.join(KERNELS.values())}", "--filter-mode", "per-launch-config",
               "--launch-skip", "1", "--launch-count", "1", "--metrics", ",".join(METRICS.values()), "--csv",
               "--page", "raw", "--print-units", "base", "--log-file", str(log))
    run = trainings.train(context.build, bench.case, f"bf16-{batch}", context.device, context.work / "profile",
                          wrapper=wrapper, arguments=WITHOUT_CUPTI, limit=110, threads=os.cpu_count() or 1,
                          train={"max_steps": 2}, checkpoint={"dir": ""},
                          data={"path": str(bench.tokens(batch) / "data"), "global_batch_size": batch})
    text = text_of(log)
    if "ERR_NVGPUCTRPERM" in text + run.log:
        context.skip(check, "this machine gives its GPU's counters to administrators only (ERR_NVGPUCTRPERM)")
        return
    if not context.ended_well(check, run):
        return
    found = counters(text)
    context.note("kernels", found)
    words = "; ".join(f"{kernel['kernel']} {1e6 * kernel.get('seconds', 0):.0f} us, "
                      f"{kernel.get('memory_percent', 0):.0f} % of the memory's peak" for kernel in found)
    wanted = [name for name in KERNELS if name not in IN_OTHERS]
    context.measure(check, {kernel["kernel"] for kernel in found} >= set(wanted), words or last_lines(text),
                    f"one of each: {', '.join(wanted)}")


def counters(text: str) -> list[dict]:
    """Of ncu's raw page, as csv: what METRICS names of each kernel, in seconds and bytes, and which of KERNELS it is."""
    rows = list(csv.DictReader(io.StringIO("\n".join(line for line in text.splitlines() if line.startswith('"')))))
    if not rows or rows[0].get("ID"):
        return []
    units, found = rows[0], []  # The first row has no number but the units.
    for row in rows[1:]:
        # The longest functor that its name holds: a gradient's name may hold the other's.
        functors = {value: name for name, value in KERNELS.items() if value in row["Kernel Name"]}
        kernel = {"kernel": functors[max(functors, key=len)] if functors else "", "name": row["Kernel Name"],
                  "grid": row.get("Grid Size", "")}
        for name, metric in METRICS.items():
            value = row.get(metric, "").replace(",", "")
            if re.fullmatch(r"[\d.eE+-]+", value):
                kernel[name] = float(value) * UNITS.get(units.get(metric, ""), 1.0)
        found.append(kernel)
    return found
