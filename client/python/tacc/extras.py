"""The extras of the wheel: what brings the modules that only some names and tools need."""

from __future__ import annotations

from tacc.errors import this_python

# Module -> the extra that brings it.
EXTRAS = {"numpy": "data", "tokenizers": "data", "safetensors": "data", "transformers": "chat", "pyarrow": "parquet", "torch": "torch", "sympy": "torch"}


def what_to_install(error: ModuleNotFoundError) -> str | None:
    """How to get the module that is missing. None: no extra brings it."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return f"{module} is not installed; install what this needs: {this_python()} -m pip install 'tacc[{EXTRAS[module]}]'"
