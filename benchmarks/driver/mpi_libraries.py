"""The MPI libraries of this machine, each with the launcher that belongs to it."""

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
        """Up to the program. Ranks are not bound: the benchmark places all contenders' alike."""
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
    # /lib may be /usr/lib by another name.
    system = (path.resolve() for path in ldconfig("libmpi.so.40"))
    return next((path for path in system if path.is_relative_to(prefix.resolve())), None)


def find_open_mpis() -> list[OpenMpi]:
    """That of this Python's environment and those on the PATH, one of each version."""
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
        except LaunchError:  # another MPI's
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
        """What its launcher and ranks need to find each other's files. Ranks are not bound."""
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
    """How to get one."""
    folder = _intel_cache()
    return (
        "no Intel MPI was found: it needs an environment of its own, "
        f"'python -m venv {folder} && {folder}/bin/pip install impi-rt', or name one with --impi"
    )


def find_intel_mpi(prefix: Path | None) -> IntelMpi | None:
    """That of --impi, of I_MPI_ROOT, or of the folder that the hint names."""
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
