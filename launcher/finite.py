"""Values that JSON can represent."""

from __future__ import annotations

import math

__all__ = ["finite"]


def finite(value: object) -> object:
    """A copy with None in place of infinities and NaN, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
