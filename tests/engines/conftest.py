"""Gives the tests of an engine its environment: tests/engines/<engine> runs in .engines/<engine>."""

import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python")]

from engines.environments import Engine, find  # noqa: E402


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    """The environment of the engine named by the test's folder; skips the test without it."""
    found = find(request.path.relative_to(HERE).parts[0])
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for scripts that train scikit-learn's digits; not every environment has them."""
    reason = "scikit-learn, which has the digits, is not installed"
    datasets = pytest.importorskip("sklearn.datasets", reason=reason)
    images, labels = datasets.load_digits(return_X_y=True)
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, images=images, labels=labels)
    return {"DIGITS": str(path)}
