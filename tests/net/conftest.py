"""Fixtures that make labs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .lab import Lab
from .lab.fixture import make_lab, or_skip
from .launching import Launcher
from .pods import Pods

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python")]

__all__ = ["make_lab"]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts shared by all tests of a file, which must leave the links unchanged."""
    with or_skip():
        made = Lab(3)
        made.up()
    yield made
    made.down()


@pytest.fixture
def launcher(lab: Lab, tmp_path: Path) -> Iterator[Launcher]:
    """Starts jobs; fails if a process is left on any host."""
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    yield launcher
    launcher.wait_until_gone()


@pytest.fixture
def pods(lab: Lab, tmp_path: Path) -> Iterator[Pods]:
    """Starts one launcher per node; fails if a process is left on any host."""
    made = Pods(lab, tmp_path)
    yield made
    made.close()
    made.looks.wait_until_gone()
