"""What `rueda equiv` tells a run: a folder, named by the variable ``RUEDA_EQUIV``, with a file of settings."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from rueda.errors import InvalidArgumentError

__all__ = ["SETTINGS_FILE", "VARIABLE", "RunSettings", "settings_of_environment"]

VARIABLE = "RUEDA_EQUIV"
SETTINGS_FILE = "run.json"


@dataclass(frozen=True)
class RunSettings:
    """One run of the script.

    - ``strategy``: as :func:`rueda.torch.wrap` takes it as a text.
    - ``perturbation``: whether this is a twin: a run whose state is moved by a unit in the last place, at random, at
      the beginning and after each step, to see what rounding comes to.
    - ``every``: state is recorded in each step that this divides, and at the end.
    - ``variables``: what the run has in its environment besides.
    """

    ranks: int
    strategy: str
    seed: int
    command: tuple[str, ...]
    launch: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    perturbation: bool = False
    every: int = 1

    def write(self, folder: Path) -> None:
        """Into a new folder."""
        folder.mkdir(parents=True)
        (folder / SETTINGS_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RunSettings:
        """Raises OSError and ValueError."""
        content = json.loads((folder / SETTINGS_FILE).read_text())
        content["command"] = tuple(content["command"])
        content["launch"] = tuple(content["launch"])
        content["variables"] = tuple((name, value) for name, value in content["variables"])
        return cls(**content)


def settings_of_environment() -> tuple[Path, RunSettings] | None:
    """The folder and settings of this run; None where `rueda equiv` has not started it.

    Raises:
        InvalidArgumentError: the variable names a folder without readable settings.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    try:
        return Path(folder), RunSettings.read(Path(folder))
    except (OSError, TypeError, ValueError, KeyError) as error:
        raise InvalidArgumentError(
            f"{VARIABLE}={folder!r} has no readable {SETTINGS_FILE} ({error}): `rueda equiv` sets that variable; "
            f"unset it"
        ) from error
