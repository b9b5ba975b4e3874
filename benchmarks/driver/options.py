"""Options that several commands of `rueda bench` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def ranks_option(least: int) -> Decorator:
    """The option -np; its value is passed as `ranks`."""
    return click.option(
        "-np",
        "-n",
        "--num-proc",
        "ranks",
        type=click.IntRange(min=least),
        default=2,
        metavar="N",
        help="Number of ranks. Default 2.",
    )


def file_option(flag: str, text: str) -> Decorator:
    """An option that names an output file; its value is passed as `FLAG_file`."""
    name = flag.removeprefix("--") + "_file"
    return click.option(flag, name, type=click.Path(path_type=Path), metavar="FILE", help=text)
