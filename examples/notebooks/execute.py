"""Runs the notebooks of this folder, from top to bottom and in their order, and writes their outputs into them.

    .venv/bin/python examples/notebooks/execute.py [FOLDER]

FOLDER is where they run, and leave their data and runs: by default a temporary one. They use the daemon that `TACC_ADDRESS` names, else this
machine's, which is to have two workers (`taccctl up --workers 2`).
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in `folder`. nbclient.exceptions.CellExecutionError: a cell failed."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # When it ran.
        if cell.cell_type == "code":  # Lines of progress.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    # Where it ran is of no interest, nor is the version of this Python.
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"}}
    text = json.dumps(notebook).replace(json.dumps(str(folder))[1:-1] + "/", "").replace(json.dumps(str(folder))[1:-1], ".")
    return nbformat.from_dict(json.loads(text))


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.path.realpath(sys.argv[1] if len(sys.argv) > 1 else temporary))
        for path in NOTEBOOKS:
            print(path.name, flush=True)
            nbformat.write(execute(path, folder), path)


if __name__ == "__main__":
    main()
