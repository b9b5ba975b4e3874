"""Runs the simulator that is installed with the library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import LaunchError

__all__ = ["SLOW", "Simulator", "TooSlow", "find_simulator"]

# The limit for one simulation, in seconds.
SLOW = 60.0


class TooSlow(Exception):
    """A simulation took longer than SLOW."""


def find_simulator() -> Path | None:
    """The program, or None if Rueda was built without its benchmarks."""
    path = Path(__file__).parents[2] / "lib" / "rueda_simulate"
    return path if path.is_file() else None


class Simulator:
    """Simulates two steps with the program at ``path``. Returns the second's time in seconds. Caches results."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, ...], float] = {}

    def __call__(self, arguments: Sequence[str]) -> float:
        """Raises LaunchError if the program fails, and TooSlow."""
        asked = tuple(arguments)
        if asked not in self._known:
            self._known[asked] = self._run(asked)
        return self._known[asked]

    def _run(self, arguments: Sequence[str]) -> float:
        try:
            done = subprocess.run(
                [str(self._path), "--json", *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SLOW,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TooSlow from error
        except OSError as error:
            raise LaunchError(f"cannot run '{self._path}': {error.strerror}") from error
        if done.returncode != 0:
            raise LaunchError(f"the simulator failed: {done.stderr.strip()}")
        return float(json.loads(done.stdout)["steps"][-1]["seconds"])
