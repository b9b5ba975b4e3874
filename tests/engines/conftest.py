"""Gives the tests of an engine its environment: tests/engines/<engine> runs in .engines/<engine>."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python")]

from engines.environments import Engine, find  # noqa: E402


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    """The environment of the engine in whose folder the test is; without it the test is skipped."""
    found = find(request.path.relative_to(HERE).parts[0])
    if isinstance(found, str):
        pytest.skip(found)
    return found
