"""Errors that the user can fix: one sentence on standard error and exit code 2."""

from __future__ import annotations

from typing import IO, Any

import click

RAISE_PROCESS_LIMITS = (
    "raise the limit on processes (ulimit -u, or the container's pids limit) or on virtual memory "
    "(ulimit -v)"
)
"""What helps where the system has no more processes or threads. Virtual memory: for their stacks."""

MAX_QUOTED = 300
"""Letters of a text that a message quotes at most."""


class LaunchError(click.ClickException):
    """A job cannot be started as requested. The message is one sentence that says what to change."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints the sentence, without click's usage line."""
        click.echo(f"rueda: {self.format_message()}", file=file, err=True)


def quoted(text: str) -> str:
    """The text in quotation marks, cut to MAX_QUOTED letters: a line of a file or a program may have any length."""
    return f"'{text}'" if len(text) <= MAX_QUOTED else f"'{text[:MAX_QUOTED]}...'"
