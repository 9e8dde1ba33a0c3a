"""PyTorch models as graphs: torch.export traces a model, and a table turns its ATen ops into those of the text form."""

from tacc.exporting.aten import Unmapped, UnsupportedOpsError
from tacc.exporting.coverage import Coverage
from tacc.exporting.export import Exported, GraphInput, export_model
from tacc.exporting.trace import ExportError

__all__ = ["Coverage", "ExportError", "Exported", "GraphInput", "Unmapped", "UnsupportedOpsError", "export_model"]
