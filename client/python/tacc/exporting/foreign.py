"""Ops that another C++ library than LibTorch registers with PyTorch's dispatcher. They become nodes `aten` too. A job does not choose which code a rank loads: whoever
runs the workers gives them the library (`tacc-worker --op-library FILE`). The graph has its path, and the model's line, for messages alone.
"""

from __future__ import annotations

import operator
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from tacc.exporting.graph_text import Value
    from tacc.exporting.lowering import Lowering

OF_PYTHON = "an op that is written in Python; put the ops that it consists of into the model"
_MAX_WORDS = 1024  # Bytes of what a graph says to people.
# Of a dispatcher's kernels, those that a rank on a CPU calls: by themselves, or for all devices.
_COMPUTES = ("CPU", "CompositeExplicitAutograd[alias]", "CompositeImplicitAutograd[alias]")
_NO_ARGUMENTS = ("__torch__", "Dict[", "Generator", "Stream", "Storage", "Any")
_WIDENED = (torch.uint8, torch.int8, torch.int16)  # a graph has them as i32
_DERIVES = ("AutogradCPU", "Autograd[alias]")


class RefusedError(Exception):
    """An op that no graph can have; the message has the reason."""


def is_of_libtorch(op: torch._ops.OpOverload) -> bool:
    """Whether ranks have it without a library. Beside `aten` LibTorch has some of other names: they were registered by sources of one tree."""
    if op.namespace == "aten":
        return True
    root, is_found, _ = _places(torch.ops.aten.add.Tensor).get("debug", "").partition("build/aten/")
    return bool(root and is_found) and _places(op).get("debug", "").startswith(root)


def check_foreign(node: torch.fx.Node) -> None:
    """Raises RefusedError for a call of an op that no library in C++ has registered as a whole, or of what a graph has not."""
    op = node.target
    places = _places(op)
    if not _is_cpp(places.get("debug", "")):
        raise RefusedError(OF_PYTHON)
    schema = op._schema
    if unknown := next((str(a.type) for a in schema.arguments if any(word in str(a.type) for word in _NO_ARGUMENTS)), None):
        raise RefusedError(f"it takes a {unknown}, which a graph has not")
    made = [str(r.type) for r in schema.returns]
    if made != ["List[Tensor]"] and (not made or set(made) != {"Tensor"}):
        raise RefusedError(f"it makes {', '.join(made) or 'nothing'}; a node makes tensors, or one list of tensors")
    for key in (*_COMPUTES, *_DERIVES):
        if key in places and not _is_cpp(places[key]):
            what = "kernel" if key in _COMPUTES else "derivative"
            raise RefusedError(f"its {what} is written in Python, which ranks have not; register one in C++, or put the ops that it consists of into the model")
    for operand in node.all_input_nodes:
        dtype = getattr(operand.meta.get("val"), "dtype", None)
        if dtype in _WIDENED:
            raise RefusedError(f"it takes elements of {dtype}, which ranks have as torch.int32; give it others, by x.to(torch.int32), if it takes them")


def check_derivative(lowering: Lowering, node: torch.fx.Node, operands: list[Value]) -> None:
    """Raises RefusedError for an op without a derivative whose operands depend on parameters that its results train: PyTorch would only warn, and train
    them by nothing.
    """
    places = _places(node.target)
    has_kernel = any(key in places for key in (*_DERIVES, "CompositeImplicitAutograd[alias]"))
    if has_kernel and not _refuses_to_derive(node) or _is_stopped(node):
        return
    behind = lowering.nodes_of(*(v for v in operands if v.is_floating), with_gradient=True)
    if any(one.op == "param" and "role" not in one.attrs and one.symbol not in lowering.fixed for one in behind):
        why = "its kernel for Autograd makes none" if has_kernel else "no kernel for Autograd in C++"
        raise RefusedError(
            f"it has no derivative ({why}), and what it takes depends on parameters; register one, or give it x.detach() if none shall be trained by it"
        )


def _refuses_to_derive(node: torch.fx.Node) -> bool:
    """Whether its kernel for Autograd is PyTorch's stand-in, which says only in the backward that there is no derivative."""
    mode = FakeTensorMode()

    def trained(n: torch.fx.Node) -> Any:
        value = n.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value
        sizes = [d if isinstance(d, int) else d.node.hint for d in value.shape]  # of the example
        return torch.empty(sizes, dtype=value.dtype).requires_grad_(value.is_floating_point())

    try:
        with mode, torch.enable_grad():
            made = node.target(*torch.fx.node.map_arg(node.args, trained), **torch.fx.node.map_arg(dict(node.kwargs), trained))
    except (RuntimeError, TypeError):
        return False  # It cannot be told: the rank will say so.
    return any("NotImplemented" in v.grad_fn.name() for v in tree_leaves(made) if isinstance(v, torch.Tensor) and v.grad_fn is not None)


def _is_stopped(node: torch.fx.Node) -> bool:
    """Whether nothing derives what it makes: it is under torch.no_grad(), or detached."""
    return all("detach" in str(user.target) or (user.target is operator.getitem and _is_stopped(user)) for user in node.users)


def words_for_people(op: torch._ops.OpOverload, source: str) -> dict[str, str]:
    """Attributes of its node."""
    found = {"library": library_of(op) or "", "source": source.partition(", in ")[0]}
    return {name: words for name, words in found.items() if words and len(words.encode()) <= _MAX_WORDS and words.isprintable() and '"' not in words}


def note_on(libraries: dict[str, str | None]) -> str:
    """On ops of other libraries, by name."""
    ops: dict[str | None, list[str]] = {}
    for name, library in sorted(libraries.items()):
        ops.setdefault(library, []).append(name)
    listed = ", ".join(", ".join(names) + (f" ({library})" if library else "") for library, names in ops.items())
    given = " ".join(f"--op-library {library or 'FILE'}" for library in ops)
    return (
        f"of other libraries than LibTorch, and computed whole on every rank: {listed}; each worker needs {given}, with the paths on its machine "
        "(taccctl up and taccctl submit --local take the same)"
    )


def library_of(op: torch._ops.OpOverload) -> str | None:
    """The shared library that has registered it, as far as can be found out."""
    return _library_of(str(op.namespace), str(op._opname))


@cache
def _library_of(namespace: str, name: str) -> str | None:
    of_torch = Path(torch.__file__).parent
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    candidates = [*sorted(torch.ops.loaded_libraries), *sorted({file for file in modules if file and file.endswith(".so")})]
    in_words = None  # one that has both names, but no schema: other libraries of that namespace may have them
    for path in dict.fromkeys(map(str, candidates)):
        if of_torch in Path(path).parents:
            continue
        try:
            code = Path(path).read_bytes()
        except OSError:
            continue
        if namespace.encode() not in code or name.encode() not in code:
            continue
        if any(before + name.encode() + b"(" in code for before in (b"\0", b"::", b"\n", b" ")):
            return path
        in_words = in_words or path
    return in_words


def _places(op: torch._ops.OpOverload) -> dict[str, str]:
    """Where the dispatcher has its schema ("debug") and its kernels, by key: "registered at FILE:LINE"."""
    pairs = (line.partition(": registered at ") for line in torch._C._dispatch_dump(op.name()).splitlines())
    return {key: place for key, mark, place in pairs if mark}


def _is_cpp(place: str) -> bool:
    return bool(place) and ".py:" not in place and "/dev/null" not in place
