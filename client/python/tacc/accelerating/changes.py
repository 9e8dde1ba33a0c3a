"""What a loop changes in a module that the ranks have: they go on with what was exported, so each change is refused instead of ignored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tacc.accelerating.remote_tensors import without_reading
from tacc.errors import InputError

_PLAIN = (bool, int, float, complex, str, type(None), torch.Tensor, torch.nn.Module)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PARTS = ("_parameters", "_buffers", "_modules")


@contextmanager
def in_training(module: torch.nn.Module) -> Iterator[None]:
    """As the module trains: as it is if it is in training, with the modules in evaluation that the loop has put there."""
    with _modes_kept(module):
        if not module.training:
            module.train()
        yield


@contextmanager
def in_evaluation(module: torch.nn.Module) -> Iterator[None]:
    """In evaluation; afterwards each of its modules is as it was."""
    with _modes_kept(module):
        module.eval()
        yield


@contextmanager
def _modes_kept(module: torch.nn.Module) -> Iterator[None]:
    before = [(m, m.training) for m in module.modules()]
    try:
        yield
    finally:
        for m, was in before:
            m.training = was


class Changes:
    """Looks for changes since the export. It costs less than 1 us a module, for lists of the same objects are compared by identity.

    Args:
        module: As it was exported.
        outside: Tensors that are none of its own and constants of the graph, each with the line that uses it.
    """

    def __init__(self, module: torch.nn.Module, outside: Iterable[tuple[str, torch.Tensor]] = ()):
        self._module = module
        named = [("parameter", *n) for n in module.named_parameters()] + [("buffer", *n) for n in module.named_buffers()]
        for path, m in module.named_modules():
            named += [("tensor", f"{path}.{key}".lstrip("."), value) for key, value in vars(m).items() if isinstance(value, torch.Tensor)]
        own = {id(tensor) for _, _, tensor in named}
        named += [("outside", line, tensor) for line, tensor in outside if id(tensor) not in own]
        self._names = [f"{kind} {name}" for kind, name, _ in named]
        self._tensors = [tensor for _, _, tensor in named]
        self._parameters = list(module.parameters())
        self.note_tensors()
        self.note_attributes()

    def note_tensors(self, names: Iterable[str] | None = None) -> None:
        """What tensors are now is what the ranks have.

        Args:
            names: Of parameters and buffers; None: all.
        """
        if names is None:
            self._versions = self._versions_now()
            return
        noted = set(names)
        for i, version in enumerate(self._versions_now()):
            if self._names[i].partition(" ")[2] in noted:
                self._versions[i] = version

    def note_attributes(self) -> None:
        """The same of all other attributes; the modes are to be those of the export."""
        self._paths: list[str] = []
        self._dicts: list[dict[str, Any]] = []  # Of modules: their attributes, parameters, buffers and parts,
        self._before: list[dict[str, Any]] = []  # and what these were.
        self._known: dict[bool, list[list[Any]]] = {}  # In training, and in evaluation: values that were compared with those.
        self._lists: list[tuple[str, Any]] = []
        hooks = []
        for path, module in self._module.named_modules():
            at = f"{path}." if path else ""
            own = vars(module)
            hooks += [(f"{at.rstrip('.') or 'the model'}", getattr(module, kind)) for kind in _HOOKS]
            for part in (own, *(own[part] for part in _PARTS if own.get(part))):
                self._paths.append(at)
                self._dicts.append(part)
                self._before.append(dict(part))
            self._lists += [(f"{at}{key}", value) for key, value in own.items() if type(value) is list and all(type(v) in (int, float, bool) for v in value)]
        self._hooks, self._hooked = [of for of, _ in hooks], [h for _, h in hooks]
        self._num_hooks = list(map(len, self._hooked))
        self._contents = [value for _, value in self._lists]
        self._copies = [list(value) for value in self._contents]

    def _versions_now(self) -> list[int]:
        with without_reading():
            return [t._version for t in self._tensors]

    def has_tensors_changed(self) -> bool:
        """Whether a parameter or a buffer was written to here."""
        return self._versions_now() != self._versions

    def check_tensors(self) -> None:
        """InputError: a parameter or a buffer was written to here."""
        if not self.has_tensors_changed():
            return
        now = self._versions_now()
        i = next(i for i, version in enumerate(now) if version != self._versions[i])
        kind, _, name = self._names[i].partition(" ")
        if kind == "outside":
            raise InputError(
                f"{name}: a tensor that is none of the model's was changed here since the training began, as of another model that the loop trains or averages, "
                "and the ranks have it as it was: what changes from step to step belongs into the batch, as an argument of the loss or of forward"
            )
        how = (
            "what changes from step to step belongs into the batch, as an argument of forward" if kind != "parameter"
            else "bounds of weights belong into forward, as weight.clamp(-0.1, 0.1)"
        )
        raise InputError(
            f"{kind} {name} was changed here since the training began, and the ranks have their own: model.load_state_dict gives them other values; {how}"
        )

    def check_attributes(self, *, trains: bool) -> None:
        """InputError: something else was changed that the ranks do not see: an attribute, a part, a hook.

        Args:
            trains: The modes are to be those of the export, too.
        """
        with without_reading():
            self._check_attributes(trains)

    def _check_attributes(self, trains: bool) -> None:
        if (lengths := list(map(len, self._hooked))) != self._num_hooks:
            i = next(i for i, n in enumerate(lengths) if n != self._num_hooks[i])
            raise InputError(f"{self._hooks[i]} has got a hook, or lost one, since the training began, and the ranks compute as before: register it before the first forward")
        now = [list(of.values()) for of in self._dicts]
        try:
            is_known = now == self._known.get(trains)
        except (RuntimeError, ValueError):  # Of tensors, or arrays, that are not the same.
            is_known = False
        if not is_known:
            for at, of, before in zip(self._paths, self._dicts, self._before):
                self._compare(at, of, before, trains)
            self._known[trains] = now
        if self._contents != self._copies:
            name, value = next((name, copy) for (name, now), copy in zip(self._lists, self._copies) if now != copy)
            _refuse(name, value)
        if any(p._backward_hooks for p in self._parameters):
            raise InputError("a parameter has got a gradient hook (register_hook), and its gradient is computed by the ranks: remove it")

    def _compare(self, at: str, now: dict[str, Any], before: dict[str, Any], trains: bool) -> None:
        for key, value in before.items():
            if (key == "training" and not trains) or key == "_is_full_backward_hook":  # It says what the hooks say.
                continue
            if isinstance(value, _PLAIN) and not _same(now.get(key, _GONE), value):
                _refuse(f"{at}{key}", value)


_GONE = object()


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return False
    return type(a) is type(b) and bool(a == b)


def _refuse(name: str, before: Any) -> None:
    was = "" if isinstance(before, (torch.Tensor, torch.nn.Module)) else f" (it was {before!r})"
    raise InputError(
        f"{name} of the model has changed since the training began{was}, and the ranks compute as before: what changes from step to step belongs into the "
        "batch, as an argument of forward that is a tensor; else close the model, and accelerate again"
    )
