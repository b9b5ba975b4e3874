"""Arrays of one operation that lie in the same memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rueda import dtypes
from rueda.adapter import Refusal, View

__all__ = ["are_apart", "repeated"]


def are_apart(pointers: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether no memory of ``sizes`` bytes at ``pointers`` is that of another one: then :func:`repeated` finds none."""
    end = 0
    for pointer, size in sorted(zip(pointers, sizes, strict=True)):
        if size > 0 and pointer < end:
            return False
        end = max(end, pointer + size)
    return True


def repeated(views: Sequence[View]) -> list[int]:
    """Numbers of those whose memory is that of one before them. Raises Refusal where two overlap in part.

    Reduced in place at once, such memory would be read by one while it is written by the other.
    """
    spans = sorted(
        (view.pointer, number, math.prod(view.shape) * dtypes.item_size(view.dtype))
        for number, view in enumerate(views)
    )
    found = []
    first, end = -1, 0  # of all so far: who reaches the farthest, and where that is
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
