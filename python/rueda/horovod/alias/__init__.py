"""Aliases ``import horovod`` to ``rueda.horovod``, for unmodified scripts."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

__all__ = ["FOLDER", "install", "is_installed"]

FOLDER = Path(__file__).parent / "path"
"""Directory that provides ``horovod`` to every Python process if on ``PYTHONPATH``; its package calls install()."""

NAME = "horovod"
TARGET = "rueda.horovod"
# Exceptions to the rule that horovod.common.x is rueda.horovod.x.
_MOVED = {
    "horovod.common": "rueda.horovod",
    "horovod.common.elastic": "rueda.horovod.elastic_state",
}
_HINT = "'horovod' means 'rueda.horovod' here, which has the API for PyTorch, TensorFlow and Keras, see docs/horovod.md"
# Alternatives for missing modules, by name prefix.
_HINTS = {
    "horovod.spark.": "only run() of horovod.spark is available; for estimators and stores use rueda.spark.fit(), "
    "which trains on a DataFrame, see docs/spark.md",
    "horovod.ray.": "only RayExecutor and ray_logger of horovod.ray are available, see docs/ray.md",
    "horovod.runner.": "only run() of horovod.runner is available; `rueda run` starts all other jobs, "
    "see docs/horovod.md",
}


def _target_of(name: str) -> str:
    """Returns the Rueda module for a Horovod module."""
    return _MOVED.get(name) or TARGET + name.replace(".common.", ".")[len(NAME) :]


class _Loader(importlib.abc.Loader):
    """Puts the Rueda module in ``sys.modules`` under Horovod's name."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        sys.modules[name] = importlib.import_module(_target_of(name))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``horovod`` and its submodules."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != NAME and not fullname.startswith(f"{NAME}."):
            return None
        try:
            found = importlib.util.find_spec(_target_of(fullname))
        except ModuleNotFoundError:
            found = None
        if found is None:
            hints = (hint for name, hint in _HINTS.items() if fullname.startswith(name))
            hint = next(hints, _HINT)
            raise ModuleNotFoundError(f"Rueda has no '{fullname}': {hint}", name=fullname)
        return importlib.machinery.ModuleSpec(
            fullname, _Loader(), is_package=found.submodule_search_locations is not None
        )


def is_installed() -> bool:
    """Whether ``import horovod`` imports ``rueda.horovod`` in this process.

    Example::

        >>> is_installed()
        False
    """
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def install() -> None:
    """Aliases ``import horovod`` to ``rueda.horovod`` in this process from now on. Repeated calls do nothing.

    Raises ``ImportError`` if the real Horovod is imported already.

    Example::

        import rueda.horovod.alias
        rueda.horovod.alias.install()
        import horovod.torch as hvd
    """
    if is_installed():
        return
    present = sys.modules.get(NAME)
    ours = present is None or Path(getattr(present, "__file__", None) or "").parent.parent == FOLDER
    if not ours:
        raise ImportError("another horovod has been imported already", name=NAME)
    sys.meta_path.insert(0, _Finder())
    if present is not None:
        sys.modules[NAME] = importlib.import_module(TARGET)
