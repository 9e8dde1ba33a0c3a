"""Imported graphs mean what the reference models compute: logits, loss and gradients in float64, by an interpreter that
shares no code with ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch_interpreter
from cases import GRAPH_CASES, STRETCHED, Case
from references import KeepDouble, bloom_slopes_in_double, build, in_double, inv_freqs_of, loss_of, make_tokens, save, stored, stored_buffers

PLAN = Path(os.environ["TACC_BUILD"]) / "tacc-plan"


def tolerance_of(case: Case) -> float:
    """Of float64 rounding, but where the reference itself is less exact."""
    if case.family == "bloom":
        return 1e-7  # its GELU writes sqrt(2/pi) with eight digits
    return 1e-7 if case.name == STRETCHED else 1e-10  # its table is made anew in fp32


def use_reference_frequencies(case: Case, module: torch.nn.Module, nodes: list[torch_interpreter.Node]) -> None:
    """The fp32 frequencies may differ in the last bits, by the processor's power function. Checks that, then takes the
    reference's."""
    tables = [node for node in nodes if node.op == "rope_table"]
    for node, wanted in zip(tables, inv_freqs_of(case, module), strict=True):
        ours = torch.tensor(node.attrs["inv_freq"], dtype=torch.float64)
        assert ((ours - wanted) / wanted).abs().max() <= 4e-7
        node.attrs["inv_freq"] = wanted.tolist()


def graph_text(folder: Path, case: Case, outputs: str) -> str:
    options = ["--batch", str(case.batch), "--seq-len", str(case.seq_len), "--outputs", outputs]
    run = subprocess.run([PLAN, "import", "--model", folder, *options], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("case", GRAPH_CASES, ids=lambda c: f"{c.family}: {c.name}")
def test_logits_loss_and_gradients(case: Case, tmp_path: Path):
    reference = build(case, seed=11)
    save(case, reference, tmp_path)
    (tokens, targets), = make_tokens(case, seed=7)
    targets[0, 2] = -1
    undo = bloom_slopes_in_double()
    try:
        double = in_double(case, reference)
        with KeepDouble():
            wanted = double(tokens)
            loss = loss_of(double, wanted, targets)
            loss.backward()
    finally:
        undo()

    params = {name: t.double().requires_grad_() for name, t in stored(reference).items()}
    params |= {name: t.double() for name, t in stored_buffers(reference).items()}
    inputs = {"tokens": tokens.int(), "targets": targets.int(), "sample": torch.arange(case.batch)}
    run = {}
    for kind in ("logits", "loss"):
        nodes = torch_interpreter.parse(graph_text(tmp_path, case, kind))
        use_reference_frequencies(case, double, nodes)
        run[kind] = torch_interpreter.run(nodes, inputs, params)
    logits, outputs = run["logits"]["logits"], run["loss"]
    count = int((targets >= 0).sum())
    assert outputs["target_tokens"].item() == count
    tolerance = tolerance_of(case)
    assert (logits - wanted).norm() <= tolerance * wanted.norm()
    assert abs(outputs["loss"].item() / count - loss.item()) <= tolerance * loss.item()

    (outputs["loss"] / count).backward()
    for name, gradient in stored(double, lambda p: p.grad).items():
        difference = (params[name].grad - gradient).norm()
        assert difference <= 10 * tolerance * gradient.norm() + 1e-14, name


def test_chatglm_reference_is_glm_in_other_words():
    """Our reference for ChatGLM against transformers' class for the same models in their later format."""
    from transformers import AutoConfig, AutoModelForCausalLM

    case = next(case for case in GRAPH_CASES if case.name == "as ChatGLM3")
    c, chatglm = case.config, build(case, seed=5).state_dict()
    heads = (c["num_attention_heads"], c["multi_query_group_num"])
    glm_config = AutoConfig.for_model(
        "glm", vocab_size=c["padded_vocab_size"], hidden_size=c["hidden_size"], intermediate_size=c["ffn_hidden_size"],
        num_hidden_layers=c["num_layers"], num_attention_heads=heads[0], num_key_value_heads=heads[1],
        head_dim=c["kv_channels"], rms_norm_eps=1e-5, max_position_embeddings=64, pad_token_id=None,
    )
    names = {
        "transformer.embedding.word_embeddings": "model.embed_tokens",
        "transformer.encoder.final_layernorm": "model.norm",
        "transformer.encoder.layers": "model.layers",
        "transformer.output_layer": "lm_head",
        "self_attention.dense": "self_attn.o_proj",
        "mlp.dense_h_to_4h": "mlp.gate_up_proj",
        "mlp.dense_4h_to_h": "mlp.down_proj",
    }
    weights = {}
    for name, value in chatglm.items():
        for old, new in names.items():
            name = name.replace(old, new)
        if "self_attention.query_key_value" not in name:
            weights[name] = value
            continue
        rows = [c["kv_channels"] * count for count in (heads[0], heads[1], heads[1])]
        for letter, part in zip("qkv", value.split(rows)):
            weights[name.replace("self_attention.query_key_value", f"self_attn.{letter}_proj")] = part
    glm = AutoModelForCausalLM.from_config(glm_config, attn_implementation="eager")
    glm.load_state_dict(weights)
    (tokens, _), = make_tokens(case, seed=7)
    wanted, got = glm(tokens, use_cache=False).logits, build(case, seed=5)(tokens)
    assert (got - wanted).norm() <= 1e-6 * wanted.norm()
