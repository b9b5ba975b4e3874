"""The accuracy that codecs cost in training on digits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launching import check

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "compression" / "train_digits.py"
CODECS = ["none", "int8", "topk:0.1", "topk:0.01", "topk:0.01-feedback"]


def test_digits_lose_little_to_codecs_and_much_without_error_feedback() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    rank = check(PROGRAM, 2, ["--seeds", "1", *CODECS])[0]
    rows = re.findall(r"^\| ([\w:.]+(?:, no error feedback)?) \| ([\d.]+) \|", rank.output, re.M)
    accuracy = {name: float(percent) for name, percent in rows}
    assert len(accuracy) == len(CODECS), rank.output
    assert accuracy["int8"] >= accuracy["none"] - 0.5, accuracy
    assert accuracy["topk:0.1"] >= accuracy["none"] - 0.5, accuracy
    assert accuracy["topk:0.01, no error feedback"] < accuracy["topk:0.01"] - 1, accuracy
