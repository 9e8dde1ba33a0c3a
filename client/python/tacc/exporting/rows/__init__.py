"""Which nodes of a graph each ATen op becomes, one family a file. To add an op: a function with @row(NAME) in its family's file."""

from tacc.exporting.rows import attention, convolution, creation, dropout, indexing, lookup, matmul, norm, pointwise, reduction, rotary, shape
from tacc.exporting.table import TABLE

__all__ = ["TABLE", "attention", "convolution", "creation", "dropout", "indexing", "lookup", "matmul", "norm", "pointwise", "reduction", "rotary", "shape"]
