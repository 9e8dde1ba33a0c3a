"""Which nodes of a graph each ATen op becomes, one family a file. To add an op: a function with @row(NAME) in its family's file."""

from tacc.exporting.rows import (
    attention,
    batch_norm,
    complex,
    convolution,
    creation,
    dropout,
    image,
    indexing,
    lookup,
    matmul,
    norm,
    pointwise,
    random,
    reduction,
    rotary,
    shape,
)
from tacc.exporting.table import TABLE

__all__ = [
    "TABLE",
    "attention",
    "batch_norm",
    "complex",
    "convolution",
    "creation",
    "dropout",
    "image",
    "indexing",
    "lookup",
    "matmul",
    "norm",
    "pointwise",
    "random",
    "reduction",
    "rotary",
    "shape",
]
