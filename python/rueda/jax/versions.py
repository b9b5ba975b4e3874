"""Which JAX :mod:`rueda.jax` can work with."""

from __future__ import annotations

import re

__all__ = ["check_version"]

_OLDEST = (0, 6)  # has jax.ffi and jax.typeof


def check_version(version: str) -> None:
    """Raises ImportError, in one sentence, for a JAX that has not all that is used."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST:
        oldest = ".".join(str(number) for number in _OLDEST)
        raise ImportError(
            f"rueda.jax needs JAX {oldest} or newer and JAX {version} is installed: pip install 'jax>={oldest}'",
            name="jax",
        )
