"""Models that train from token data folders: their batches are `tokens` and `targets`, and their loss is that of the next token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tacc.errors import InputError

IGNORED = -1  # a target that is not counted


def token_example(example: Any, argument: str) -> dict[str, Any]:
    """The example with the tensor of `argument` as tokens, and targets beside it."""
    if not isinstance(example, Mapping) or not isinstance(example.get(argument), torch.Tensor):
        raise InputError(f"tokens={argument!r}: the example batch has no tensor of that name; give a dict with it")
    tokens = example[argument]
    if tokens.dim() != 2 or tokens.is_floating_point():
        raise InputError(f"tokens={argument!r} is a tensor of shape {list(tokens.shape)}; wanted ids of tokens, [samples, tokens]")
    rest = {k: v for k, v in example.items() if k not in (argument, "labels")}
    if tensors := [k for k, v in rest.items() if isinstance(v, torch.Tensor)]:
        raise InputError(f"a token data folder gives no {', '.join(tensors)}; leave them out of the example")
    return {argument: tokens, "targets": tokens.clone(), **rest}


def next_token_loss(outputs: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """The mean cross-entropy of the logits against the targets."""
    logits = outputs["logits"] if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten(), ignore_index=IGNORED)
