"""The console for tables."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

from rich.console import Console

__all__ = ["console"]

_AS_WIDE_AS_NEEDED = 1000  # columns


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Leaves the matter to the command. By default rich exits with 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console() -> Console:
    """Standard output: as wide as the terminal, or as wide as a table needs if it is a file or a pipe.

    By default rich assumes 80 columns for files and pipes and truncates words. ``COLUMNS`` overrides the width.
    """
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return _Console(width=_AS_WIDE_AS_NEEDED if is_free else None)
