"""Worlds of ranks that share this machine's GPU, started by ``rueda run``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launching import Ended, run_to_end

RANKS = Path(__file__).resolve().parent / "ranks"
LIMIT = 120.0  # seconds a world may take
REHEARSAL = os.environ.get("RUEDA_TEST_DEVICE") == "cpu"


def run_world(
    script: str,
    size: int,
    arguments: Sequence[str] = (),
    extra: dict[str, str] | None = None,
    limit: float = LIMIT,
    under: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Ended:
    """Runs a script of ``ranks/`` to completion.

    ``under``: a command that runs each rank's Python; ``options``: of ``rueda run``.
    """
    rank = [*under, sys.executable, str(RANKS / script), *arguments]
    line = [sys.executable, "-m", "rueda", "run", "--no-mpi", "-np", str(size), *options, *rank]
    return run_to_end(line, {**_device(), **(extra or {})}, limit, "the world")


def check_world(
    script: str,
    size: int,
    extra: dict[str, str] | None = None,
    limit: float = LIMIT,
    options: Sequence[str] = (),
) -> None:
    """Runs a script on all ranks; ``options`` may tolerate lost ranks."""
    ended = run_world(script, size, extra=extra, limit=limit, options=options)
    assert ended.returncode == 0, ended.output
    assert "ok check_" in ended.output, ended.output


def path(size: int) -> dict[str, str]:
    """Returns the default path of tensors: NCCL does not let two ranks share a GPU."""
    return {"EXPECTED_ROAD": "nccl" if size == 1 else "staged"}


def _device() -> dict[str, str]:
    # run_to_end() drops all of Rueda's variables, including this one.
    return {"RUEDA_TEST_DEVICE": "cpu"} if REHEARSAL else {}
