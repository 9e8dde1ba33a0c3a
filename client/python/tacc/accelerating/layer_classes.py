"""`memory.gc_cls` and `dist.fsdp.wrap_layer_cls` of an exported model: a graph has no classes, the module has."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tacc.config_base import ConfigNote, _caller, plain_job
from tacc.errors import InputError

_GC, _WRAP = "memory.gc_cls", "dist.fsdp.wrap_layer_cls"


def without_classes(module: torch.nn.Module, units: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with `memory.gc_cnt` in place of classes whose instances compute their activations again, and without those that FSDP is to wrap.

    Args:
        module: What was exported.
        units: Of its graph (`Exported.units`).
        config: Fields of a job.

    Raises:
        InputError: The model has no module of a class, or the units of a class are not the first ones, which are what a job can compute again.
    """
    plain = plain_job(config)
    memory, fsdp = plain.get("memory", {}), plain.get("dist", {}).get("fsdp", {})
    if memory.get("gc") is True and (classes := _names(memory.pop("gc_cls", None))):  # Without gc the coordinator refuses them.
        count = _num_first_units(module, units, classes)
        if count < len(units):
            memory["gc_cnt"] = min(count, memory.get("gc_cnt", count))
    if wrapped := _names(fsdp.pop("wrap_layer_cls", None)):
        _check(module, wrapped, _WRAP)
        as_layer = f", as {units[0]}," if units else ""
        warnings.warn(
            f"{_WRAP}: FSDP gathers the weights of an exported model layer by layer{as_layer} whatever their class", ConfigNote, stacklevel=_caller()
        )
    return plain


def _names(given: Iterable[str] | str | None) -> list[str]:
    return [given] if isinstance(given, str) else sorted(given or ())


def _check(module: torch.nn.Module, classes: Iterable[str], option: str) -> None:
    known = {type(m).__name__ for m in module.modules()}
    for name in classes:
        if name not in known:
            raise InputError(f'{option}: the model has no module of class "{name}"; it has {", ".join(sorted(known))}')


def _num_first_units(module: torch.nn.Module, units: Sequence[str], classes: Sequence[str]) -> int:
    """How many units are, have or lie in a module of these classes; they are the first ones."""
    _check(module, classes, _GC)
    inside = [path for path, m in module.named_modules() if type(m).__name__ in classes]
    chosen = [any(_is_in(path, unit) or _is_in(unit, path) for path in inside) for unit in units]
    count = sum(chosen)
    if count == 0:
        of = f"its layers are {', '.join(units[:3])}" if units else "it has no numbered layers"
        raise InputError(f"{_GC}: no layer of the model has a module of {' or '.join(classes)}: {of}. Leave it out")
    if not all(chosen[:count]):
        first = units[chosen.index(False)]
        raise InputError(
            f"{_GC}: a job computes the activations of a model's first layers again, and {first}, a {type(module.get_submodule(first)).__name__}, comes "
            f"before others of {' or '.join(classes)}: name its class too, or leave {_GC} out for all layers"
        )
    return count


def _is_in(path: str, outer: str) -> bool:
    return path == outer or outer == "" or path.startswith(outer + ".")
