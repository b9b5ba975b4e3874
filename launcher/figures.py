"""Plots with matplotlib, which is imported only if a plot is requested."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from .errors import LaunchError
from .result_files import require_file, write_file

__all__ = ["new_pyplot", "require_matplotlib", "require_plot", "save_plot"]


def require_matplotlib(option: str) -> None:
    """Raises LaunchError if matplotlib is missing. Called before anything runs."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LaunchError(f"{option} needs matplotlib: pip install matplotlib")


def require_plot(path: Path) -> None:
    """Raises LaunchError if --plot with this file is impossible. Called before anything runs."""
    require_matplotlib("--plot")
    if path.suffix not in {".svg", ".png", ".pdf"}:
        raise LaunchError(f"--plot {path}: the name must end in .svg, .png or .pdf")
    require_file("--plot", path)


def new_pyplot() -> Any:
    """Returns matplotlib.pyplot, set up to draw without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_plot(figure: Any, path: Path, **options: Any) -> None:
    """Writes a figure of pyplot's and closes it. Raises LaunchError; then the file is as it was.

    ``options``: those of savefig(). The file's suffix is the format.
    """
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=path.suffix[1:], **options)
    finally:
        new_pyplot().close(figure)
    write_file(path, drawn.getvalue())
