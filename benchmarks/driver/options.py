"""Options that several commands of `rueda bench` have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def ranks_option(least: int) -> Decorator:
    """-np, as `ranks`."""
    return click.option(
        "-np",
        "-n",
        "--num-proc",
        "ranks",
        type=click.IntRange(min=least),
        default=2,
        metavar="N",
        help="How many ranks. Default 2.",
    )


def file_option(flag: str, text: str) -> Decorator:
    """A file that is written, as `FLAG_file`."""
    name = flag.removeprefix("--") + "_file"
    return click.option(flag, name, type=click.Path(path_type=Path), metavar="FILE", help=text)
