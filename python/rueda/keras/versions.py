"""Which Keras :mod:`rueda.keras` can work with."""

from __future__ import annotations

import re

__all__ = ["check_version"]

_MAJOR = 3


def check_version(version: str) -> None:
    """Raises ImportError, in one sentence, for a Keras whose optimizers have no ``apply()`` of Keras 3."""
    found = re.match(r"\d+", version)
    if found is None or int(found[0]) != _MAJOR:
        raise ImportError(
            f"rueda.keras needs Keras {_MAJOR} and Keras {version} is installed: "
            f"pip install 'keras>={_MAJOR},<{_MAJOR + 1}'",
            name="keras",
        )
