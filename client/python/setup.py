"""Generates what follows from proto/ before the package is built; pyproject.toml says the rest."""

import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


class Build(build_py):
    def run(self) -> None:
        subprocess.run([sys.executable, HERE / "generate.py", HERE.parents[1] / "proto", HERE / "tacc"], check=True)
        super().run()


setup(cmdclass={"build_py": Build})
