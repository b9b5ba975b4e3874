"""Registers with XLA what it is to call: the functions of ``librueda_jax.so``."""

from __future__ import annotations

import ctypes
from pathlib import Path

import jax

import rueda

__all__ = ["COLLECTIVE", "NOTHING", "register"]

COLLECTIVE = "rueda_jax_collective"
NOTHING = "rueda_jax_nothing"


def register() -> None:
    """Makes both functions known to XLA's CPU backend. Once in a process."""
    library = ctypes.CDLL(str(Path(rueda.__file__).parent / "lib" / "librueda_jax.so"))
    for name in (COLLECTIVE, NOTHING):
        function = getattr(library, name)
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
