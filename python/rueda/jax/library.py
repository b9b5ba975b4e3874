"""Registers with XLA what it is to call: the functions of ``librueda_jax.so``."""

from __future__ import annotations

import ctypes
from pathlib import Path

import jax

import rueda

__all__ = ["COLLECTIVE", "NOTHING", "register", "set_world"]

COLLECTIVE = "rueda_jax_collective"
NOTHING = "rueda_jax_nothing"


def register() -> None:
    """Makes both functions known to XLA's CPU backend. Once in a process."""
    for name in (COLLECTIVE, NOTHING):
        function = getattr(_library(), name)
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")


def set_world(number: int) -> None:
    """Tells the library in which world numbers of process sets are those of now; 0 once the world has been left.

    It refuses calls that were traced for a set of another world, whose number may be another set's now.
    """
    _library().rueda_jax_set_world(number)


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(rueda.__file__).parent / "lib" / "librueda_jax.so"))
