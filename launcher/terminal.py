"""The console for tables, and tables whose figures are not cut."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

__all__ = ["console", "print_table"]

_AS_WIDE_AS_NEEDED = 1000  # columns


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Leaves the matter to the command. By default rich exits with 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console() -> Console:
    """Standard output: as wide as the terminal, or as wide as a table needs if it is a file or a pipe.

    By default rich assumes 80 columns for files and pipes and truncates words. ``COLUMNS`` overrides the width, unless
    it is 0, as where a terminal does not know its own.
    """
    rest = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    columns = os.environ.get("COLUMNS", "")
    asked = int(columns) if columns.isdecimal() else 0
    otherwise = None if sys.stdout.isatty() else _AS_WIDE_AS_NEEDED
    return _Console(width=asked or otherwise, _environ=rest)


def print_table(console: Console, table: Table) -> None:
    """Prints a table, wider than the console if that is too narrow for its figures. Words in headings may be cut."""
    free = console.options.update_width(_AS_WIDE_AS_NEEDED)
    for column in table.columns:
        words = [Measurement.get(console, free, cell).minimum for cell in column.cells]
        column.min_width = max(words, default=1)
    # With a space on both sides of each column, and lines between them and around them.
    needed = sum((column.min_width or 1) + 3 for column in table.columns) + 1
    if needed > console.width:
        table.width = needed
    console.print(table, crop=False)
