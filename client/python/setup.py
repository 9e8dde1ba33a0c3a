"""Generates what follows from proto/, a folder of the package among it, before anything asks which there are; pyproject.toml says the rest."""

import subprocess
import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent

subprocess.run([sys.executable, HERE / "generate.py", HERE.parents[1] / "proto", HERE / "tacc"], check=True)
setup()
