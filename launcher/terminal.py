"""Where tables go."""

from __future__ import annotations

import os
import sys

from rich.console import Console

__all__ = ["console"]

_AS_WIDE_AS_NEEDED = 1000  # columns


def console() -> Console:
    """Standard output: as wide as the terminal, and as wide as a table needs where it is a file or a pipe.

    rich takes those for 80 columns wide and cuts words short, which nobody can widen afterwards. ``COLUMNS`` says
    otherwise.
    """
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_AS_WIDE_AS_NEEDED if is_free else None)
