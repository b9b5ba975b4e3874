"""Lets what JAX has under way end before the world is left."""

from __future__ import annotations

import threading
from contextlib import suppress

import jax
import jax.numpy as jnp

from rueda.jax.library import set_world

__all__ = ["drain"]

# Seconds. Longer than that waits only what no other rank takes part in, which then fails with a ShutdownError.
_LIMIT = 30.0


def drain() -> None:
    """Returns when all that was dispatched before has ended, well or with an error, or after 30 s.

    From then on, calls that were traced for one of the world's process sets are refused.
    """
    waiting = threading.Thread(target=_wait, name="rueda-jax-drain", daemon=True)
    with suppress(RuntimeError):  # no thread can be started while the interpreter ends
        waiting.start()
        waiting.join(_LIMIT)
    set_world(0)


def _wait() -> None:
    for array in jax.live_arrays():
        with suppress(Exception):  # whoever asks for the array is told
            array.block_until_ready()
    # Of what nobody holds an array any more. XLA's CPU backend begins one large program after the other has ended.
    with suppress(Exception):
        large = jnp.ones((256, 256))
        jax.jit(lambda x: x @ x)(large).block_until_ready()
