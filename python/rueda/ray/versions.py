"""Which Ray :mod:`rueda.ray` can work with."""

from __future__ import annotations

import re

__all__ = ["check_version"]

_OLDEST = (2, 51)  # in which Ray Train v2 is what there is by default


def check_version(version: str) -> None:
    """Raises ImportError, in one sentence, for a Ray that is too old."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST:
        oldest = ".".join(str(number) for number in _OLDEST)
        raise ImportError(
            f"rueda.ray needs Ray {oldest} or newer and Ray {version} is installed: "
            f"pip install 'ray[train]>={oldest}'",
            name="ray",
        )
