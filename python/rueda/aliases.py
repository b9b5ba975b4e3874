"""Arrays of one operation that share memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rueda import dtypes
from rueda.adapter import Refusal, View

__all__ = ["are_apart", "repeated"]


def are_apart(pointers: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether no two blocks of ``sizes`` bytes at ``pointers`` overlap. If so, :func:`repeated` finds none."""
    end = 0
    for pointer, size in sorted(zip(pointers, sizes, strict=True)):
        if size > 0 and pointer < end:
            return False
        end = max(end, pointer + size)
    return True


def repeated(views: Sequence[View]) -> list[int]:
    """Indices of views that have the same memory as an earlier view. Raises Refusal if two overlap partially.

    Reducing both in place concurrently would read the memory for one while writing it for the other.
    """
    spans = sorted(
        (view.pointer, number, math.prod(view.shape) * dtypes.item_size(view.dtype))
        for number, view in enumerate(views)
    )
    found = []
    first, end = -1, 0  # the view that extends farthest so far, and its end
    for pointer, number, size in spans:
        if size == 0:
            continue
        if pointer >= end:
            first, end = number, pointer + size
            continue
        is_same = views[first].pointer == pointer and end == pointer + size
        if not is_same or views[first].dtype != views[number].dtype:
            one, other = sorted((first, number))
            raise Refusal(f"arrays {one} and {other} of the group overlap in memory")
        found.append(number)
    return found
