"""Where in the user's model an FX node comes from."""

from __future__ import annotations

import re
from typing import Any

import torch

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')
_SLICE = re.compile(r"\bslice\([^()]*\)\.")
_OURS = ("/tacc/exporting/", "/torch/", "<eval_with_key>")


def source_line(node: torch.fx.Node) -> str:
    """ "FILE:LINE, in FUNCTION: CODE" of the innermost line that is not PyTorch's own; empty where export kept none."""
    return innermost(node.meta.get("stack_trace") or "")


def innermost(trace: str) -> str:
    """The same of the text of a traceback."""
    frames = [f for f in _FRAME.findall(trace) if not any(part in f[0] for part in _OURS)]
    if not frames:
        return ""
    file, line, function, code = frames[-1]
    return f"{file}:{line}, in {function}: {code.strip()}"


def module_path(node: torch.fx.Node, prefix: str) -> str:
    """The path of the module that the node belongs to, without `prefix`; empty: the model itself."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path = next(reversed(stack.values()))[0]
    return without_prefix(str(path), prefix)


def module_type(node: torch.fx.Node) -> str:
    """The name of the class of the module that the node belongs to."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    of = next(reversed(stack.values()))[1] if stack else ""
    return of if isinstance(of, str) else of.__name__


def without_prefix(path: str, prefix: str) -> str:
    """The path as the user's model has it. A module that is called twice is PATH@1 the second time; one of `layers[:2]` is in layers.slice(..)."""
    path = _SLICE.sub("", path.partition("@")[0])
    if path == prefix:
        return ""
    return path.removeprefix(prefix + ".") if path.startswith(prefix + ".") else ""
