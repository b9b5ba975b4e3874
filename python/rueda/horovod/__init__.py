"""Horovod's API on Rueda: ``import rueda.horovod as hvd`` is ``import rueda.horovod.torch as hvd``.

Submodules are imported on first use, so that this package can be imported without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rueda.horovod.torch import *  # noqa: F403

__version__ = "0.28.1"
"""The Horovod version whose API this implements; scripts compare it."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'rueda.horovod' has no attribute '{name}'")
    if name in ("torch", "tensorflow", "keras", "spark", "ray", "runner"):
        return importlib.import_module(f"rueda.horovod.{name}")
    if name == "run":
        return importlib.import_module("rueda.horovod.runner").run
    api = importlib.import_module("rueda.horovod.torch")
    try:
        return getattr(api, name)
    except AttributeError:
        raise AttributeError(
            f"module 'rueda.horovod' has no attribute '{name}', see docs/horovod.md"
        ) from None
