"""The fixtures that make labs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .lab import Lab
from .lab.fixture import make_lab, or_skip

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python")]

__all__ = ["make_lab"]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts for all tests of a file: they leave its links as they were."""
    with or_skip():
        made = Lab(3)
        made.up()
    yield made
    made.down()
