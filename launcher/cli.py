"""The `rueda` command. A subcommand is a file with a click command and one line in `build()`."""

from __future__ import annotations

import importlib.metadata

import click

from .check import make_check_command
from .native import Native, load_native
from .run import make_run_command


def rueda_version() -> str:
    """Version of the installed distribution."""
    try:
        return importlib.metadata.version("rueda")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


def build(native: Native) -> click.Group:
    """The command tree; `native` gives the table of options that become flags of `rueda run`."""

    @click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
    @click.version_option(rueda_version(), prog_name="rueda")
    def rueda() -> None:
        """Ring all-reduce for training across processes: starts jobs, says what is installed."""

    rueda.add_command(make_run_command(native))
    rueda.add_command(make_check_command(native))
    return rueda


def main() -> None:
    """The console script."""
    build(load_native())(prog_name="rueda")
