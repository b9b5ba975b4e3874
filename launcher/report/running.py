"""Runs what is to be recorded, through `rueda run`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rueda.report.recorder import VARIABLE, put_aside

from ..errors import LaunchError
from ..processes import become_killable

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
    line = [sys.executable, "-m", "rueda.launcher", "run", "-np", str(ranks), *launch, *command]
    process = subprocess.Popen(
        line,
        env={**os.environ, VARIABLE: str(folder.resolve())},
        stdout=output,
        # `rueda run` ends its ranks where it is ended itself, and that it is where this process is killed.
        preexec_fn=partial(become_killable, os.getpid(), signal.SIGTERM),
    )
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
