"""Runs the command to record, with `rueda run`."""

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
    """Returns the exit code. The command's output goes to the descriptor ``output``.

    Raises LaunchError, before anything runs, if nothing can be recorded in the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        put_aside(folder)  # or it would pass for this run's if this run records nothing
    except OSError as error:
        raise LaunchError(f"cannot record in '{folder}': {error.strerror}") from error
    environment = {**os.environ, VARIABLE: str(folder.resolve())}
    arguments = ["-np", str(ranks), *launch, *command]
    return run_to_end(arguments, env=environment, stdout=output)
