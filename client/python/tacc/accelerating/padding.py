"""Batches of texts, each padded to its own longest: filled up to the length that a model was exported with, and what it returns cut again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tacc.accelerating.batches import IGNORED
from tacc.errors import InputError
from tacc.live.pad import next_length

FILLS = {"attention_mask": 0, "decoder_attention_mask": 0, "labels": IGNORED, "token_type_ids": 0, "position_ids": 0}
TOKENS = ("input_ids", "decoder_input_ids")


class Padding:
    """Pads batches on the right.

    Args:
        first: The batch that the model is exported with.
        longest: Tokens of a sample, at most: by "input_ids" and, of an encoder with a decoder, "labels". Absent: as in the first batch.
        token: What an input of tokens is filled with.
        has_decoder: Labels have a length of their own, which what begins with "decoder_" has too.
        buckets: Lengths that batches are filled up to, the next one each; none: to the longest.
    """

    def __init__(self, first: Mapping[str, Any], longest: Mapping[str, int], token: int, *, has_decoder: bool, buckets: Sequence[int] = ()):
        self._buckets = buckets
        self._has_decoder = has_decoder
        self._fills = {**FILLS, **dict.fromkeys(TOKENS, token)}
        if not has_decoder and not _as_long(first.get("labels"), first.get("input_ids")):
            del self._fills["labels"]  # Not one a token, but several of a sample.
        self._lengths = {self._group(name): int(value.shape[1]) for name, value in first.items() if self._is_padded(name, value)}
        for name, length in longest.items():
            group = self._group(name)
            if group in self._lengths:
                self._lengths[group] = max(length, self._lengths[group])
        if buckets:
            self._lengths = dict.fromkeys(self._lengths, max(buckets))
        self._has_mask = "attention_mask" in first
        self._of_outputs: dict[str, dict[int, str]] | None = None

    def _is_padded(self, name: str, value: Any) -> bool:
        return name in self._fills and isinstance(value, torch.Tensor) and value.dim() == 2

    def _group(self, name: str) -> str:
        return "labels" if self._has_decoder and (name == "labels" or name.startswith("decoder_")) else "input_ids"

    def pad(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """The batch filled up, and the lengths that it had."""
        padded, lengths, filled = dict(batch), {}, {}
        for name, value in batch.items():
            if not self._is_padded(name, value) or (group := self._group(name)) not in self._lengths:
                continue
            lengths[group], wanted = int(value.shape[1]), self._lengths[group]
            if self._buckets and lengths[group] <= wanted:
                wanted = next_length(self._buckets, lengths[group])
            if lengths[group] > wanted:
                raise InputError(
                    f"a batch has {lengths[group]} tokens a sample in {name!r}; the job computes with {wanted}, the most that was known when it began: "
                    f"give tacc.accelerate_hf_trainer max_length={lengths[group]} or more"
                )
            filled[group] = wanted
            padded[name] = torch.nn.functional.pad(value, (0, wanted - lengths[group]), value=self._fills[name])
        if not self._has_mask and lengths.get("input_ids", 0) < filled.get("input_ids", 0):
            raise InputError(
                f"a batch has {lengths['input_ids']} tokens a sample, the job computes with {filled['input_ids']}, and without 'attention_mask' in "
                "the batches what fills them up would be read: let the tokenizer return it, or pad all samples to one length"
            )
        return padded, lengths

    def shorter(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch without the last token of each sample."""
        return {k: v[:, :-1] if self._is_padded(k, v) else v for k, v in batch.items()}

    def cut(self, outputs: Mapping[str, torch.Tensor], lengths: Mapping[str, int], shapes: Callable[[Mapping[str, Any]], dict[str, Any]],
            sample: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs without what filled the batch up.

        Args:
            outputs: By name.
            lengths: That `pad` returned.
            shapes: The shapes of what the model returns of a batch.
            sample: A batch to find out with which dims have tokens.
        """
        if all(length == self._lengths[group] for group, length in lengths.items()):
            return dict(outputs)
        if self._of_outputs is None:
            self._of_outputs = self._dims_with_tokens(shapes, sample)
        for name, dims in self._of_outputs.items():
            for dim, group in dims.items():
                if name in outputs and group in lengths:
                    outputs = {**outputs, name: outputs[name].narrow(dim, 0, lengths[group])}
        return dict(outputs)

    def _dims_with_tokens(self, shapes: Callable[[Mapping[str, Any]], dict[str, Any]], sample: Mapping[str, torch.Tensor]) -> dict[str, dict[int, str]]:
        """Which dims are shorter for samples with a token less."""
        found: dict[str, dict[int, str]] = {}
        whole = shapes(sample)
        for group in self._lengths:
            shorter = shapes({k: v[:, :-1] if self._is_padded(k, v) and self._group(k) == group else v for k, v in sample.items()})
            for name, shape in whole.items():
                for dim, (a, b) in enumerate(zip(shape, shorter[name])):
                    if a == b + 1:
                        found.setdefault(name, {})[dim] = group
        return found


def _as_long(labels: Any, tokens: Any) -> bool:
    return isinstance(labels, torch.Tensor) and isinstance(tokens, torch.Tensor) and labels.shape == tokens.shape and not labels.is_floating_point()


def pads_to_longest(collator: Any) -> bool:
    """Whether a collator of transformers pads each batch to its longest sample."""
    padding = getattr(collator, "padding", True)
    return hasattr(collator, "pad_to_multiple_of") and (padding is True or getattr(padding, "value", padding) == "longest")


def longest(datasets: Iterable[Any], multiple: int | None) -> dict[str, int]:
    """The most tokens that a sample has in "input_ids" and in "labels". Reads all samples of those that can be indexed."""
    found: dict[str, int] = {}
    for dataset in datasets:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            continue
        for i in range(len(dataset)):
            sample = dataset[i]
            for name in ("input_ids", "labels"):
                value: Any = sample.get(name) if isinstance(sample, Mapping) else None
                if isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1:
                    found[name] = max(found.get(name, 0), len(value))
    if multiple:
        found = {name: -(-length // multiple) * multiple for name, length in found.items()}
    return found
