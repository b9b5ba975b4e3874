"""Which Spark :mod:`rueda.spark` can work with."""

from __future__ import annotations

import re

__all__ = ["check_version"]

_MAJOR = 4


def check_version(version: str) -> None:
    """Raises ImportError, in one sentence, for a pyspark that is older or newer than what is used here."""
    found = re.match(r"\d+", version)
    if found is None or int(found[0]) != _MAJOR:
        raise ImportError(
            f"rueda.spark needs pyspark {_MAJOR} and pyspark {version} is installed: "
            f"pip install 'pyspark[sql]>={_MAJOR},<{_MAJOR + 1}' and run a Spark of the same version",
            name="pyspark",
        )
