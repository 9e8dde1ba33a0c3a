"""Mixtures of experts, trained as their reference implementations train them (`training_comparison`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import TRAINING_CASES, Case
from training_comparison import compare_training, parity_table


@pytest.fixture(scope="module")
def table():
    with parity_table("mixtures") as rows:
        yield rows


@pytest.mark.parametrize("case", [case for case in TRAINING_CASES if case.has_experts], ids=lambda c: f"{c.family}: {c.name}")
def test_training(case: Case, tmp_path: Path, table: list):
    compare_training(case, tmp_path, table)
