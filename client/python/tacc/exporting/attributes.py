"""What a model's forward keeps in plain attributes from one call to the next. A graph is one call: it has the value that was there when it was made."""

from __future__ import annotations

import ast
import linecache
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from tacc.exporting.results import ExportError

# Of torch.nn.Module itself, or what it declares: a graph has these, or other checks speak of them.
_OF_MODULES = frozenset([*vars(torch.nn.Module()), "_is_full_backward_hook"])
_CONTAINERS = (list, dict, set, deque)
_MUTATORS = frozenset(["add", "append", "appendleft", "clear", "extend", "update"])
_CLOSE = 1e-6

Key = tuple[int, str]  # a module by id, and the attribute's name


class Kept:
    """The attributes of a module and its parts as they are now.

    Args:
        model: The module.
    """

    def __init__(self, model: torch.nn.Module):
        self._modules = dict(model.named_modules())
        self._values = {path: {k: v for k, v in vars(m).items() if k not in _OF_MODULES} for path, m in self._modules.items()}
        self._contents = {
            (path, name): value.copy() for path, of in self._values.items() for name, value in of.items() if isinstance(value, _CONTAINERS)
        }

    def changed(self) -> dict[Key, str]:
        """The paths of attributes that are others now."""
        found = {}
        for path, module in self._modules.items():
            now, before = vars(module), self._values[path]
            for name in {*now, *before} - _OF_MODULES:
                same = _same(now.get(name, _GONE), before.get(name, _GONE))
                if not same or not _same_contents(now.get(name), self._contents.get((path, name))):
                    found[id(module), name] = f"{path}.{name}".lstrip(".")
        return found

    def restore(self) -> None:
        """They are as they were."""
        for path, module in self._modules.items():
            now = module.__dict__
            for name in [name for name in now if name not in _OF_MODULES and name not in self._values[path]]:
                del now[name]
            now.update(self._values[path])
        for (path, name), content in self._contents.items():
            value = self._values[path][name]
            if not _same_contents(value, content):
                value.clear()
                value.update(content) if isinstance(value, (dict, set)) else value.extend(content)


_GONE = object()


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    plain = (bool, int, float, complex, str, bytes, tuple, torch.Size, torch.dtype, torch.device)
    try:
        return type(a) is type(b) and isinstance(a, plain) and bool(a == b)
    except (RuntimeError, ValueError):  # Of tensors in a tuple.
        return False


def _same_contents(now: Any, before: Any) -> bool:
    if before is None or type(now) is not type(before):
        return True
    if isinstance(now, Mapping):
        return now.keys() == before.keys() and all(_same(now[k], before[k]) for k in now)
    if isinstance(now, set):
        return bool(now == before)
    return len(now) == len(before) and all(map(_same, now, before))


Line = tuple[str, int]  # file and number


@dataclass
class _Accesses:
    """Lines of one call that have to do with one attribute, in order.

    Attributes:
        reads: Those that read what was there before the call.
        all_reads: Those that read it.
        writes: Those that assigned it.
    """

    reads: list[Line] = field(default_factory=list)
    all_reads: list[Line] = field(default_factory=list)
    writes: list[Line] = field(default_factory=list)


@contextmanager
def _watched(keys: Mapping[Key, str]) -> Iterator[dict[Key, _Accesses]]:
    """Which lines read and write these attributes meanwhile."""
    found: dict[Key, _Accesses] = {key: _Accesses() for key in keys}
    own = torch.nn.Module.__setattr__

    def get(module: torch.nn.Module, name: str) -> Any:
        if (of := found.get((id(module), name))) is not None:
            line = _line(sys._getframe(1))
            of.all_reads.append(line)
            if not of.writes:
                of.reads.append(line)
        return object.__getattribute__(module, name)

    def put(module: torch.nn.Module, name: str, value: Any) -> None:
        if (of := found.get((id(module), name))) is not None:
            of.writes.append(_line(sys._getframe(1)))
        own(module, name, value)

    torch.nn.Module.__getattribute__ = get
    torch.nn.Module.__setattr__ = put
    try:
        yield found
    finally:
        del torch.nn.Module.__getattribute__
        torch.nn.Module.__setattr__ = own


def _line(frame: FrameType) -> Line:
    return frame.f_code.co_filename, frame.f_lineno


def _goes_nowhere(line: Line, name: str) -> bool:
    """Whether what the line reads of the attribute ends in the attribute: `self.NAME += 1`, `self.NAME.append(...)`."""
    try:
        statement = ast.parse(linecache.getline(*line).strip()).body
    except SyntaxError:
        return False
    if len(statement) != 1:
        return False
    if isinstance(statement[0], ast.AugAssign):
        return _is_attribute(statement[0].target, name) and not any(_is_attribute(node, name) for node in ast.walk(statement[0].value))
    call = statement[0].value if isinstance(statement[0], ast.Expr) else None
    return (
        isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _MUTATORS and _is_attribute(call.func.value, name)
        and not any(_is_attribute(node, name) for arg in [*call.args, *call.keywords] for node in ast.walk(arg))
    )


def _is_attribute(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name


def check_attributes(forward: torch.nn.Module, model: torch.nn.Module, changed: Mapping[Key, str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Of a model whose attributes a trace has changed: two forwards say whether one of them hands something to the next.

    Args:
        forward: Computes of the tensors what the graph does.
        model: The model, with the attributes as they were.
        changed: Of these, those that the trace has changed.
        tensors: A batch.

    Raises ExportError: they do.
    """
    kept, buffers = Kept(model), [(b, b.clone()) for b in model.buffers()]
    results, accesses = [], []
    try:
        for _ in range(2):
            with torch.random.fork_rng(devices=[]), torch.no_grad(), _watched(changed) as found:
                before = Kept(model)
                results.append([leaf for leaf in torch.utils._pytree.tree_leaves(forward(tensors)) if isinstance(leaf, torch.Tensor)])
                accesses.append({key: (of, key in before.changed()) for key, of in found.items()})
            for buffer, value in buffers:
                buffer.copy_(value)
    finally:
        kept.restore()
    for key, path in changed.items():
        for of, hands_on in ((accesses[0][key][0], not _alike(*results)), accesses[1][key]):
            if hands_on and of.reads and not all(_goes_nowhere(line, key[1]) for line in of.all_reads):
                raise ExportError(_explained(path, key[1], of, model))


def _alike(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.allclose(x.double(), y.double(), rtol=_CLOSE, atol=_CLOSE, equal_nan=True) for x, y in zip(a, b)
    )


def _explained(path: str, name: str, of: _Accesses, model: torch.nn.Module) -> str:
    file, line = (of.writes or of.all_reads)[0]
    read = next((f"{at[0]}:{at[1]}" for at in of.reads if at != (file, line)), f"{file}:{line}")
    return (
        f"{file}:{line}: {linecache.getline(file, line).strip()}: forward keeps {path} of {type(model).__name__} from one call to the next ({read} reads it), "
        f"and a graph would have the value of its first call for ever: make it a buffer, self.register_buffer({name!r}, torch.zeros(())), and change that with "
        f"tensor operations, as self.{name}.add_(1) or self.{name}.copy_(x.detach()); or let the loop give it, as an argument of forward"
    )
