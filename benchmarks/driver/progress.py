"""The progress of a long run: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

import click


class Progress:
    """A context manager. Text printed with `say()` appears above the bar."""

    def __init__(self) -> None:
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, steps: int) -> None:
        """Sets the total number of steps."""
        if self._bar is not None:
            self._bar.update(self._task, total=steps)

    def tell(self, what: str, steps: int) -> None:
        """Shows what is being done, and advances the bar by `steps`."""
        if self._bar is not None:
            self._bar.update(self._task, description=what[:60], advance=steps)

    def say(self, text: str) -> None:
        """Prints a result on standard output."""
        if self._bar is not None and sys.stdout.isatty():
            self._bar.console.out(text, highlight=False)
        else:
            click.echo(text)
