"""Makes the bundle of scripts/gpu_check: what a machine with a GPU, LibTorch, Python, torch and transformers lacks. Nothing of it is compiled there.

bin/      tacc-rank, the CUDA module, test binaries; stripped
lib/      their libraries but LibTorch's, CUDA's and those of every Linux
python/   modules of the check
machine/  the header with the peaks of known GPUs
small/, steady/    trainings (trainings.py): of a tiny model, and of one with eight layers
families/NAME/     a training of each family, and reference.json: the losses of the reference implementation; those of "exported NAME" run the graph that
                   export_model makes of the reference
bench/NAME/        models of about 1 B, and `rehearsal`, with bench.json
"""

import gzip
import json
import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bare_ranks import Training

if TYPE_CHECKING:  # Imported where a family is packed, with all that they import.
    from cases import Case
    from references import TransformersModel
    from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
BINARIES = ("tacc-rank", "libtacc_cuda.so", "tacc-gpu-tests", "tacc-gpu-device-tests", "tacc-gpu-collectives")
MODULES = {"tests/bare_ranks.py": "", "tests/gpu/trainings.py": "", "tests/gpu/parts.py": "", "tests/gpu/tools.py": "",
           "tests/gpu/unit_tests.py": "", "bench/gpu_step.py": "",
           "bench/train_step.py": "", "bench/torch_train.py": "", "bench/inputs.py": "", "client/python/tacc/shards.py": "tacc",
           "client/python/tacc/__init__.py": "tacc", "client/python/tacc/version.py": "tacc"}
# Of glibc and g++, which PyTorch needs as well.
SYSTEM_LIBRARIES = re.compile(r"(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libutil|libstdc\+\+|libgcc_s|libgomp)\.so[.\d]*$")
LIBTORCH_OR_CUDA = re.compile(r"/(torch/lib|nvidia/\w+(/\w+)*)/[^/]+$")
MIB = 1 << 20
# Of the bundle and of the checkout's own files: together they are sent to machines that are lent for minutes.
MAX_BYTES = 60 * MIB
# Dense and grouped heads with scaled rotary tables, and a mixture: most kernels between them. Each of the others takes up to 2 MB.
FAMILIES = ("llama", "qwen3_moe")
# Of families too, but as graphs from PyTorch: learned positions and GELU, windows with soft caps, one head of keys and values for all queries.
EXPORTED = ("gpt2", "gemma2", "falcon")
DEFAULT = [*FAMILIES, *(f"exported {family}" for family in EXPORTED)]

# What the programs are planned for: an H100 with the memory of an H200. What a GPU has no room for is not run there.
GIB = 1 << 30
GPU = {"name": "cuda:0", "kind": "cuda", "model": "NVIDIA H100 80GB HBM3", "threads": 1, "memory_bytes": 138 * GIB,
       "matmul_flops_per_second": {"f32": 5e13, "tf32": 4e14, "bf16": 7e14, "f16": 7e14, "fp8": 0},
       "peak_flops_per_second": {"bf16": 9.89e14, "f16": 9.89e14}, "memory_bytes_per_second": 2.8e12, "link_bytes_per_second": 5e10,
       "link_latency_seconds": 5e-6, "cpus": 16, "devices_per_machine": 1}
CPU = {"name": "cpu", "kind": "cpu", "threads": 1, "memory_bytes": 0, "matmul_flops_per_second": {"f32": 1e11, "bf16": 1e11, "f16": 1e11},
       "memory_bytes_per_second": 1e10, "link_bytes_per_second": 1e9, "link_latency_seconds": 1e-4}
DEVICES = {"cpu": CPU, "cuda": GPU}

OLMO = {"architectures": ["OlmoForCausalLM"], "model_type": "olmo", "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": None,
        "eos_token_id": 0, "pad_token_id": 1, "initializer_range": 0.02}
SMALL = OLMO | {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96,
                "vocab_size": 97, "max_position_embeddings": 64, "initializer_range": 0.05}
STEADY = OLMO | {"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 704,
                 "vocab_size": 8000, "max_position_embeddings": 256}
# The shape of hf_olmo's OLMo-1B, as transformers' own class has it.
OLMO_1B = OLMO | {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 8192,
                  "vocab_size": 50_304, "max_position_embeddings": 2048, "tie_word_embeddings": True, "rope_theta": 10_000.0}
LLAMA_1B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128_256, "max_position_embeddings": 2048,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 0,
            "pad_token_id": 1, "initializer_range": 0.02}


@dataclass(frozen=True)
class Bench:
    """Samples of a step: those of the comparison at equal size, of which the first that fits is taken, and those that are tried as the largest, of which each
    side takes one. A sample takes about 3 GiB: 20 fit in 80 GB, 38 in an H200's 141 GB."""

    config: dict
    seq_len: int
    equal: tuple[int, ...]
    sizes: tuple[int, ...]  # Of tacc: for these there are programs.
    torch_sizes: tuple[int, ...]
    beside: str = ""  # Words for the class that PyTorch trains.


SIZES = (4, 8, 12, 16, 18, 20, 24, 32, 36, 38)
TORCH_SIZES = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64)
BENCHES = {"olmo-1b": Bench(OLMO_1B, 2048, (8, 4), SIZES, TORCH_SIZES, " in hf_olmo's shape (its own class is no part of transformers)"),
           "llama-1b": Bench(LLAMA_1B, 2048, (8, 4), SIZES, TORCH_SIZES),
           "rehearsal": Bench(SMALL | {"vocab_size": 512}, 64, (2,), (2, 4), (2, 4))}


class Packer:
    def __init__(self, build: Path, out: Path):
        self.build = build
        self.out = out
        self.version = subprocess.run([build / "tacc-rank", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]

    def compile(self, request: dict, case: Path, name: str, kinds=("cpu", "cuda")) -> None:
        for kind in kinds:
            out = case / f"{name}-{kind}"
            path = case / "request.json"
            path.write_text(json.dumps(request | {"device": DEVICES[kind]}))
            subprocess.run([self.build / "tacc-plan", "compile", "--request", path, "--out", out], check=True)
            path.unlink()
            (out / "plan.txt").unlink()
            program = out / "stage0.program"
            program.with_suffix(".program.gz").write_bytes(gzip.compress(program.read_bytes()))
            program.unlink()

    def write_start(self, case: Path, *, weights: str, seed: int, seq_len: int, batch: int, max_steps: int) -> None:
        start = {"version": self.version, "job": "gpu-check-1", "attempt": 1, "weights": weights, "seed": seed,
                 "data": {"path": "", "eval_path": "", "seq_len": seq_len, "global_batch_size": batch},
                 "train": {"max_steps": max_steps, "eval_steps": 1_000_000, "deterministic": False}, "compute": {"tf32": False},
                 "checkpoint": {"dir": "", "save_steps": 1_000_000, "resume": "", "export": ""}, "identity": {"model": "gpu-check"},
                 "collective_timeout_seconds": 60}
        (case / "start.json").write_text(json.dumps(start, indent=1))

    def write_model(self, case: Path, config: dict) -> None:
        (case / "model").mkdir(parents=True)
        (case / "model/config.json").write_text(json.dumps(config, indent=1))

    def training(self, case: Path, config: dict, seq_len: int, batch: int, precision: str, *, world: int = 1, micro_batch: int = 0,
                 deterministic: bool = False) -> dict:
        """The request of tacc-plan."""
        training = Training(self.build, case, config["vocab_size"], seq_len, batch, 1000, precision, world, micro_batch=micro_batch)
        request = training.request()
        request["job"]["train"]["deterministic"] = deterministic
        return request

    def pack_trainings(self) -> None:
        import numpy as np
        from tacc.shards import DatasetWriter

        for name, config, seq_len, batch in (("small", SMALL, 16, 8), ("steady", STEADY, 256, 4)):
            case = self.out / name
            self.write_model(case, config)
            self.write_start(case, weights="random", seed=3, seq_len=seq_len, batch=batch, max_steps=12)
            writer = DatasetWriter(case / "data", config["vocab_size"])
            writer.append(np.resize(np.random.default_rng(0).integers(2, config["vocab_size"], size=2048), 65_536))
            writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=seq_len)
            self.compile(self.training(case, config, seq_len, batch, "bf16"), case, "bf16")
        case = self.out / "small"
        self.compile(self.training(case, SMALL, 16, 8, "f32"), case, "f32")
        self.compile(self.training(case, SMALL, 16, 8, "f32", world=2), case, "f32-fsdp2")
        self.compile(self.training(case, SMALL, 16, 8, "bf16", deterministic=True), case, "bf16-deterministic")

    def pack_benches(self) -> None:
        for name, bench in BENCHES.items():
            case = self.out / "bench" / name
            self.write_model(case, bench.config)
            self.write_start(case, weights="random", seed=1, seq_len=bench.seq_len, batch=bench.equal[0], max_steps=0)
            for size in bench.sizes:
                request = self.training(case, bench.config, bench.seq_len, size, "bf16", micro_batch=size)
                # PyTorch recomputes nothing either; what does not fit is not run.
                request["job"]["memory"] = {"gc": False}
                self.compile(request, case, f"bf16-{size}", ("cpu", "cuda") if name == "rehearsal" else ("cuda",))
            facts = asdict(bench) | {"vocab_size": bench.config["vocab_size"]}
            del facts["config"]
            (case / "bench.json").write_text(json.dumps(facts, indent=1))

    def pack_families(self, only: list[str]) -> list[str]:
        """One case of each family of tests/parity and, as "exported NAME", of those in EXPORTED; `only`: of these names, or all."""
        from cases import TRAINING_CASES

        families = list(dict.fromkeys(case.family for case in TRAINING_CASES))
        known = families + [f"exported {family}" for family in EXPORTED]
        if unknown := [name for name in only if name != "all" and name not in known]:
            raise SystemExit(f"error: --families: no family is called {unknown[0]}; there are {', '.join(known)}")
        names = known if "all" in only else [name for name in known if name in only]
        for name in names:
            # The one whose deviation in bf16 needs the fewest draws of the weights.
            family = name.removeprefix("exported ")
            chosen = min((case for case in TRAINING_CASES if case.family == family), key=lambda case: case.bf16_draws)
            self.pack_family(name, chosen, exports=name != family)
        return names

    def pack_family(self, name: str, chosen: "Case", *, exports: bool) -> None:
        from references import build, save
        from training import INIT_SCALE, LEARNING_RATE, NUM_STEPS, SEED, batches, plan_request, pretrained, reference_run, write_data
        from training_options_test import FP16_CASES

        precisions = ("fp32", "bf16", "fp16") if chosen.name in FP16_CASES else ("fp32", "bf16")
        draws = max(5 if exports else 1, chosen.bf16_draws)
        case = self.out / "families" / name
        write_data(chosen, case / "data")
        steps = batches(chosen, case / "data")
        reference = {"case": chosen.name, "init_scale": INIT_SCALE, "draws": []}
        for seed in range(draws):
            if exports:
                export(build(chosen, seed), steps[0][0], case / f"model-{seed}")
            else:
                save(chosen, build(chosen, seed), case / f"model-{seed}")
            reference["draws"].append({p: reference_run(chosen, build(chosen, seed), steps, p).losses for p in precisions})
        reference["exact"] = reference_run(chosen, build(chosen, draws - 1), steps, "fp64").losses  # of the last draw
        (case / "reference.json").write_text(json.dumps(reference))
        model = {"graph": str(case / "model-0/model.graph"), "weights": "WEIGHTS_PRETRAINED"} if exports else pretrained(case / "model-0")
        for precision in precisions:
            self.compile(plan_request(chosen, model, case / "data", precision, NUM_STEPS, LEARNING_RATE), case, precision)
        self.write_start(case, weights="pretrained", seed=SEED, seq_len=chosen.seq_len, batch=chosen.batch, max_steps=NUM_STEPS)

    def pack_binaries(self) -> None:
        libraries: dict[str, Path] = {}
        for name in BINARIES:
            copy_stripped(self.build / name, self.out / "bin" / name)
            for line in subprocess.run(["ldd", self.build / name], check=True, capture_output=True, text=True).stdout.splitlines():
                found = re.match(r"\s*(\S+) => (\S+)", line)
                if found and found[2] == "not":
                    raise SystemExit(f"error: {self.build / name}: {found[1]} is not found")
                if found and not SYSTEM_LIBRARIES.search(found[1]) and not LIBTORCH_OR_CUDA.search(found[2]):
                    libraries[found[1]] = Path(found[2])
        for name, path in libraries.items():
            copy_stripped(path.resolve(), self.out / "lib" / name)

    def pack_python(self) -> None:
        for source, folder in MODULES.items():
            target = self.out / "python" / folder / Path(source).name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, target)
        shutil.copy(ROOT / "scripts/gpu_check", self.out / "gpu_check")
        (self.out / "machine").mkdir()
        shutil.copy(ROOT / "machine/device_peaks.h", self.out / "machine")


def export(module: "TransformersModel", tokens: "Tensor", folder: Path) -> None:
    """The reference as a graph that trains on data folders, with its weights."""
    import tacc

    module.inner.config.use_cache = False
    tacc.export_model(module.inner, {"input_ids": tokens}, folder, tokens="input_ids")


def copy_stripped(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "--strip-all" if "." not in source.name else "--strip-unneeded", "-o", target, source], check=True)
    target.chmod(0o755)


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def bytes_of_tree(root: Path, out: Path) -> int:
    """Of the checkout's files, tracked or not, but what git ignores and what lies in `out`; 0 where there is no git."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True)
    paths = {root / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
    return sum(path.lstat().st_size for path in paths if os.path.lexists(path) and not path.is_relative_to(out))


def check_size(out: Path, manifest: dict) -> None:
    total = manifest["bytes"] + manifest["tree_bytes"]
    if total > MAX_BYTES:
        raise SystemExit(f"error: {out} has {manifest['bytes'] / MIB:.1f} MiB and the checkout's own files "
                         f"{manifest['tree_bytes'] / MIB:.1f}: together they must stay below {MAX_BYTES / MIB:.0f} MiB to be copied; "
                         f"pack fewer families (--families {','.join(FAMILIES)})")


def pack(build: Path, out: Path, families: list[str]) -> dict:
    """The manifest. `families`: names, or all of them; DEFAULT where there are none."""
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"error: {out} is not empty: name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    packer = Packer(build.resolve(), out.resolve())
    packer.pack_binaries()
    packer.pack_python()
    packer.pack_trainings()
    packer.pack_benches()
    names = packer.pack_families(families or DEFAULT)
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    manifest = {"version": packer.version, "commit": commit or "unknown", "families": names, "bytes": bytes_of(out),
                "tree_bytes": bytes_of_tree(ROOT, out.resolve())}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1))
    check_size(out, manifest)
    return manifest
