"""The states of the global random number generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["random_states", "set_random_states"]


def random_states() -> dict[str, Any]:
    """The states of ``random``, ``numpy.random`` and torch on this rank, for ``save(each_rank=...)``.

    For torch, these are the states of the CPU and, if CUDA is in use, of the current GPU.

    Example::

        >>> kept = rueda.checkpoint.random_states()
        >>> drawn = torch.rand(1)
        >>> rueda.checkpoint.set_random_states(kept)
        >>> torch.equal(torch.rand(1), drawn)
        True
    """
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Restores the states from :func:`random_states`. A GPU's state is skipped if there is no GPU.

    Example::

        >>> rueda.checkpoint.set_random_states(rueda.checkpoint.random_states())
    """
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
