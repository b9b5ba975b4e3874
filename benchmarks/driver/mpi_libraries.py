"""Finds this machine's MPI libraries and their launchers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rueda.launcher.check.shared_object import ldconfig
from rueda.launcher.errors import LaunchError
from rueda.launcher.mpirun import inspect_mpirun


@dataclass(frozen=True)
class OpenMpi:
    """An mpirun and its libmpi."""

    mpirun: Path
    library: Path
    major: int
    version: str

    @property
    def name(self) -> str:
        return f"openmpi-{self.version}"

    def command_line(self, ranks: int, oversubscribed: bool) -> list[str]:
        """The command line up to the program. No binding: the benchmark places all contenders' ranks alike."""
        argv = [str(self.mpirun), "-np", str(ranks), "--bind-to", "none"]
        if oversubscribed:
            argv += ["--map-by", ":OVERSUBSCRIBE"] if self.major >= 5 else ["--oversubscribe"]
        if os.geteuid() == 0:
            argv.append("--allow-run-as-root")
        return argv


def _library_beside(mpirun: Path) -> Path | None:
    prefix = mpirun.parent.parent
    for folder in (prefix / "lib", prefix / "lib64"):
        library = folder / "libmpi.so.40"
        if library.exists():
            return library
    # Resolved because /lib may be a link to /usr/lib.
    system = (path.resolve() for path in ldconfig("libmpi.so.40"))
    return next((path for path in system if path.is_relative_to(prefix.resolve())), None)


def find_open_mpis() -> list[OpenMpi]:
    """Open MPIs in this Python's environment and on the PATH, one per version."""
    folders = [str(Path(sys.executable).parent), *os.get_exec_path()]
    found: dict[str, OpenMpi] = {}
    for folder in dict.fromkeys(os.path.realpath(folder) for folder in folders):
        mpirun = Path(folder) / "mpirun"
        if not os.access(mpirun, os.X_OK):
            continue
        library = _library_beside(mpirun)
        if library is None:
            continue
        try:
            tool = inspect_mpirun(str(mpirun))
        except LaunchError:  # it belongs to another MPI
            continue
        found.setdefault(tool.version, OpenMpi(mpirun, library, tool.major, tool.version))
    return list(found.values())


@dataclass(frozen=True)
class IntelMpi:
    """An installation of Intel MPI."""

    prefix: Path

    @property
    def launcher(self) -> Path:
        return self.prefix / "bin" / "mpiexec.hydra"

    @property
    def library(self) -> Path:
        return self.prefix / "lib" / "libmpi.so.12"

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` plus what the launcher and the ranks need to find Intel MPI's files. Ranks are not bound."""
        libraries = [str(self.prefix / "lib"), base.get("LD_LIBRARY_PATH", "")]
        return {
            **base,
            "PATH": f"{self.prefix / 'bin'}{os.pathsep}{base.get('PATH', os.defpath)}",
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "I_MPI_ROOT": str(self.prefix),
            "I_MPI_PIN": "0",
            "I_MPI_HYDRA_BOOTSTRAP": "fork",
        }

    @property
    def is_complete(self) -> bool:
        return self.launcher.exists() and self.library.exists()


def _intel_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rueda" / "impi"


def intel_mpi_hint() -> str:
    """How to install Intel MPI."""
    folder = _intel_cache()
    return (
        "no Intel MPI was found: it needs an environment of its own, "
        f"'python -m venv {folder} && {folder}/bin/pip install impi-rt', or name one with --impi"
    )


def find_intel_mpi(prefix: Path | None) -> IntelMpi | None:
    """Intel MPI in `prefix` (--impi), else in I_MPI_ROOT if that is set, else in the folder that the hint names.

    Returns None if there is none. Raises LaunchError if the installation in `prefix` is incomplete.
    """
    if prefix is not None:
        intel = IntelMpi(prefix.absolute())
        if not intel.is_complete:
            raise LaunchError(
                f"--impi {prefix}: there is no {intel.launcher} or no {intel.library}"
            )
        return intel
    named = os.environ.get("I_MPI_ROOT")
    for candidate in [Path(named)] if named else [] + [_intel_cache()]:
        if IntelMpi(candidate).is_complete:
            return IntelMpi(candidate)
    return None
