"""Pictures by matplotlib, which is imported only where one is asked for, and the files that they go to."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from .errors import LaunchError

__all__ = ["new_pyplot", "require_folder", "require_matplotlib"]


def require_matplotlib(option: str) -> None:
    """Raises LaunchError where no picture could be drawn, before anything is run."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LaunchError(f"{option} needs matplotlib: pip install matplotlib")


def require_folder(option: str, path: Path) -> None:
    """Raises LaunchError where no file could be written for want of a folder, before anything is run."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise LaunchError(f"{option} {path}: there is no folder '{folder}'")


def new_pyplot() -> Any:
    """matplotlib.pyplot, drawing without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
