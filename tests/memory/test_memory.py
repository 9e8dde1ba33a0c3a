"""The memory of a rank is what the plan said: nothing large is allocated once it runs, and its peak is the prediction."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/e2e")]
from bare_ranks import Training, idle_bytes  # noqa: E402
from cluster import BUILD, write_data, write_model  # noqa: E402

SEQ, VOCAB, STEPS = 128, 2003, 6
MODEL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 704,
         "vocab_size": VOCAB, "max_position_embeddings": SEQ}
# What libraries take by themselves in a step, by size: none is known.
ALLOWED_AFTER_STEP_3: set[int] = set()
MIB = 1 << 20


def run(folder: Path, memory: str | None = None, **options) -> dict:
    """`memory`: what of the plan's figures the rank has; without it no limit."""
    write_model(folder / "model", **MODEL)
    write_data(folder / "data", vocab_size=VOCAB, num_tokens=SEQ * 100, period=4096)
    training = Training(BUILD, folder, VOCAB, SEQ, global_batch_size=16, max_steps=STEPS, evaluates=True, **options)
    if memory is not None:
        training = replace(training, memory_bytes=summary(training)["memory"][memory])
    return train(training)


def summary(training: Training) -> dict:
    return json.loads((training.compile() / "summary.json").read_text())


def train(training: Training) -> dict:
    """Peaks are of each rank, the rest is rank 0's."""
    result = {"memory": summary(training)["memory"], "steps": [], "events": [], "idle_bytes": idle_bytes(BUILD), "peaks": [0] * training.world}
    allocations = training.folder / "allocations"
    hook = {"LD_PRELOAD": str(BUILD / "tests/liblarge_allocations.so"), "TACC_ALLOCATIONS": str(allocations)}
    with training.start(hook) as ranks:
        for event in ranks.events():
            result["events"].append(event)
            if event["event"] == "step":
                result["steps"].append(event["time"])
            if event["event"] in ("step", "eval"):
                result["peaks"] = [max(both) for both in zip(result["peaks"], ranks.peaks())]
    result["peak_bytes"] = result["peaks"][0]
    result["allocations"] = [(float(t), int(b)) for t, b in (line.split() for line in allocations.read_text().splitlines())]
    return result


def check_peak(result: dict, predicted: int) -> None:
    check(result["peak_bytes"] - result["idle_bytes"], predicted - result["memory"]["idle_bytes"])


def check(measured: int, predicted: int) -> None:
    print(f"measured {measured / MIB:.1f} MiB, predicted {predicted / MIB:.1f} MiB")
    assert abs(measured - predicted) <= max(0.02 * predicted, 16 * MIB)


def check_nothing_late(result: dict) -> None:
    assert result["allocations"], "the hook counted nothing at all"
    late = [b for t, b in result["allocations"] if result["steps"][1] < t < result["steps"][-1] and b not in ALLOWED_AFTER_STEP_3]
    assert not late, f"allocations of 64 KiB or more after step 2: {late}"


@pytest.mark.parametrize("world,precision", [(1, "f32"), (1, "bf16"), (2, "f32"), (2, "bf16")])
def test_memory_is_the_prediction(tmp_path, world, precision):
    result = run(tmp_path, world=world, precision=precision)
    assert len(result["steps"]) == STEPS
    check_nothing_late(result)
    check_peak(result, result["memory"]["total_bytes"])


@pytest.mark.parametrize("world", [1, 2])
def test_a_checkpoint_takes_its_copy_and_no_more(tmp_path, world):
    result = run(tmp_path, world=world, save_steps=2)
    check_peak(result, result["memory"]["total_bytes"] + result["memory"]["checkpoint_bytes"])
    checkpoints = [e for e in result["events"] if e["event"] == "checkpoint"]
    assert [e["step"] for e in checkpoints] == [2, 4, 6]
    assert sum(e["stall_seconds"] < e["seconds"] for e in checkpoints) == 2  # all but the last


def test_without_room_a_checkpoint_takes_no_copy(tmp_path):
    result = run(tmp_path, memory="total_bytes", save_steps=2)
    check_peak(result, result["memory"]["total_bytes"])
    assert ["no room for a copy" in e["message"] for e in result["events"] if e["event"] == "log"] == [True]
    assert [e["step"] for e in result["events"] if e["event"] == "checkpoint"] == [2, 4, 6]


# Large enough that a copy of any part of the state would show; few tokens, so that a step takes half a second.
LARGE_SEQ, LARGE_VOCAB = 64, 12001
LARGE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 640, "num_hidden_layers": 4, "num_attention_heads": 8,
         "num_key_value_heads": 4, "intermediate_size": 1920, "rms_norm_eps": 1e-6, "vocab_size": LARGE_VOCAB,
         "max_position_embeddings": LARGE_SEQ}
MIXTURE = {**LARGE, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 4,
           "num_experts_per_tok": 2, "intermediate_size": 1536}


def pipeline(**options) -> dict:
    return {"pp": {"size": 2, "num_micro_batches": 4, **options}}


LAYOUTS = {
    "dp=2": (2, LARGE, {"dp": {"size": 2}, "fsdp": {"size": 1}}),
    "fsdp=2": (2, LARGE, {"fsdp": {"size": 2}}),
    "fsdp=2 zero_stage=1": (2, LARGE, {"fsdp": {"size": 2, "zero_stage": 1}}),
    "fsdp=2 zero_stage=2": (2, LARGE, {"fsdp": {"size": 2, "zero_stage": 2}}),
    "tp=2": (2, LARGE, {"tp": {"size": 2}}),
    "cp=2": (2, LARGE, {"cp": {"size": 2}}),
    "sp=2": (2, LARGE, {"sp": {"size": 2}}),
    "ep=2": (2, MIXTURE, {"ep": {"size": 2}}),
    "pp=2": (2, LARGE, pipeline()),
    "pp=2 interleaved": (2, LARGE, pipeline(schedule="PIPELINE_SCHEDULE_INTERLEAVED", num_chunks=2)),
    "pp=2 zero_bubble": (2, LARGE, pipeline(schedule="PIPELINE_SCHEDULE_ZERO_BUBBLE")),
    "fsdp=2 tp=2": (4, LARGE, {"fsdp": {"size": 2}, "tp": {"size": 2}}),
    "fsdp=2 pp=2": (4, LARGE, {"fsdp": {"size": 2}, **pipeline(num_micro_batches=2)}),
    "cp=2 tp=2": (4, LARGE, {"cp": {"size": 2}, "tp": {"size": 2}}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_memory_of_each_rank_is_its_programs(tmp_path, name):
    world, model, dist = LAYOUTS[name]
    write_model(tmp_path / "model", **model)
    write_data(tmp_path / "data", vocab_size=LARGE_VOCAB, num_tokens=LARGE_SEQ * 40, period=2048)
    training = Training(BUILD, tmp_path, LARGE_VOCAB, LARGE_SEQ, global_batch_size=8, max_steps=3, saves=False, world=world, dist=dist)
    result = train(training)
    check_nothing_late(result)
    memory = result["memory"]
    predicted = []
    for rank in range(world):
        arena, workspace = re.search(r"^arena bytes=(\d+) workspace=(\d+)$", training.program(rank).read_text(), re.M).groups()
        predicted.append(int(arena) + int(workspace) + memory["buffers_bytes"])
    assert max(predicted) + memory["idle_bytes"] == memory["total_bytes"]
    for measured, bytes in zip(result["peaks"], predicted):
        check(measured - result["idle_bytes"], bytes)
