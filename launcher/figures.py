"""Plots with matplotlib, which is imported only if a plot is requested."""

from __future__ import annotations

import importlib.util
from typing import Any

from .errors import LaunchError

__all__ = ["new_pyplot", "require_matplotlib"]


def require_matplotlib(option: str) -> None:
    """Raises LaunchError if matplotlib is missing. Called before anything runs."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LaunchError(f"{option} needs matplotlib: pip install matplotlib")


def new_pyplot() -> Any:
    """Returns matplotlib.pyplot, set up to draw without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
