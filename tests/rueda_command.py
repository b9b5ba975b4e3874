"""Runs the installed command `rueda` or, where rueda is not installed, that of this checkout."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


def _find_launcher() -> str | None:
    """A folder from which `rueda.launcher` can be imported, if one is needed."""
    if importlib.util.find_spec("rueda") is not None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="rueda-launcher-"))
    atexit.register(shutil.rmtree, folder)
    (folder / "rueda").mkdir()
    checkout = Path(__file__).parents[1]
    parts = {part.name: part for part in (checkout / "python" / "rueda").iterdir()}
    parts |= {"launcher": checkout / "launcher", "bench": checkout / "benchmarks" / "driver"}
    for name, part in parts.items():
        (folder / "rueda" / name).symlink_to(part)
    return str(folder)


_module_path = _find_launcher()
if _module_path is not None:
    sys.path.append(_module_path)


def launcher_environment() -> dict[str, str]:
    """The environment of the tests, from which the launcher can be imported."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if _module_path is not None:
        environment["PYTHONPATH"] = _module_path + os.pathsep + environment.get("PYTHONPATH", "")
    return environment


LAUNCHER = [sys.executable, "-m", "rueda.launcher"]


@dataclass
class Ran:
    """What a run of the launcher left."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.err.rstrip("\n").rpartition("\n")[2]


def run_rueda(
    folder: Path, arguments: Sequence[str], variables: Mapping[str, str], timeout: float
) -> Ran:
    """Runs `rueda` with `arguments` in `folder`; `variables` are added to its environment."""
    done = subprocess.run(
        [*LAUNCHER, *arguments],
        env={**launcher_environment(), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
