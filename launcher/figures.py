"""Pictures by matplotlib, which is imported only where one is asked for."""

from __future__ import annotations

import importlib.util
from typing import Any

from .errors import LaunchError

__all__ = ["new_pyplot", "require_matplotlib"]


def require_matplotlib(option: str) -> None:
    """Raises LaunchError where no picture could be drawn, before anything is run."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LaunchError(f"{option} needs matplotlib: pip install matplotlib")


def new_pyplot() -> Any:
    """matplotlib.pyplot, drawing without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
