"""PyTorch models as graphs: torch.export traces a model, and a table turns its ATen ops into those of the text form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacc.exporting.results import Coverage, Exported, ExportError, GraphInput, Unmapped, UnsupportedOpsError
from tacc.extras import what_to_install

if TYPE_CHECKING:
    import torch

    from tacc.exporting.forward import Loss

__all__ = ["Coverage", "ExportError", "Exported", "GraphInput", "Unmapped", "UnsupportedOpsError", "export_model"]


def export_model(
    model: torch.nn.Module, example: Any, folder: str | Path, *, loss: Loss | None = None, tokens: str | None = None
) -> Exported:
    """Writes the model as a graph: `model.graph` in the text form, and its weights, `model.safetensors`.

    The model is traced by torch.export in the mode in which it is (train() for training), with its parameters where they are.

    Args:
        model: Any module. It is not changed.
        example: A batch: a dict of keyword arguments of the model, a tuple or list of positional ones, or a tensor. Dim 0 of its
            tensors is the samples, of which a micro-batch of the job may have any number; dim 1 of ids of tokens is the sequence.
        folder: Where to write; made if it is not there. A graph and weights that are there are replaced.
        loss: A function of (outputs, batch) that returns a tensor with one element. None: the model returns its loss, as models of
            transformers do that are given `labels`. With it, what the model's forward does not take goes to the loss alone, and so
            does the last of a tuple if the forward has a default for it (`mask=None`); a dict says which argument is which.
        tokens: For a model that trains from token data folders (`data.path`): the name of the argument that takes the ids of tokens.
            The graph's inputs are `tokens` and `targets` then, and its loss that of the next token, from the model's `logits`.

    Returns:
        What was made.

    Raises:
        ExportError: The model cannot be traced; the message names the line of the model and what to do.
        UnsupportedOpsError: Ops that a graph cannot have, with their lines.
        InputError: The example or the loss does not fit.
        ImportError: torch is not installed.
    """
    try:
        from tacc.exporting.export import export
    except ModuleNotFoundError as error:
        if (said := what_to_install(error)) is None:
            raise
        raise ImportError(f"tacc.export_model: {said}", name=error.name) from error
    return export(model, example, folder, loss=loss, tokens=tokens)
