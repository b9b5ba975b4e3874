"""Runs what is to be recorded, through `rueda run`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rueda.report.recorder import VARIABLE, put_aside

from ..companion import run_to_end
from ..errors import LaunchError

__all__ = ["run_recorded"]


def run_recorded(
    ranks: int, launch: Sequence[str], command: Sequence[str], folder: Path, output: int
) -> int:
    """Its exit code. What it prints goes to the descriptor ``output``.

    Raises LaunchError, before anything is run, where nothing can be recorded in the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        put_aside(folder)  # else it would be taken for this run's, should this one record nothing
    except OSError as error:
        raise LaunchError(f"cannot record in '{folder}': {error.strerror}") from error
    environment = {**os.environ, VARIABLE: str(folder.resolve())}
    arguments = ["-np", str(ranks), *launch, *command]
    return run_to_end(arguments, env=environment, stdout=output)
