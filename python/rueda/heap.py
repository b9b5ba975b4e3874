"""Keeps memory that is freed and allocated again in every step, such as that of gradients, in the process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["HeapLimits", "is_user_tuned", "keep_in_heap", "limits_for"]

# Parameters of glibc's mallopt().
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# How far glibc raises its limits on its own: it maps a larger block afresh each time, whatever was freed before.
_GLIBC_MAX_MMAP_THRESHOLD = 32 << 20
_GLIBC_MAX_TRIM_THRESHOLD = 2 * _GLIBC_MAX_MMAP_THRESHOLD
_MAX_LIMIT = (1 << 31) - 1  # mallopt() takes an int
_BLOCK_OVERHEAD = 64 << 10  # alignment and malloc's header
# If any of these is set, the user has tuned malloc, and Rueda leaves it alone.
_VARIABLES = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TOP_PAD_",
)
_TUNABLES = ("mmap_threshold", "trim_threshold", "mmap_max", "top_pad")


@dataclass(frozen=True)
class HeapLimits:
    """In bytes: the size from which malloc maps a block separately, and how much free memory it keeps at its top."""

    mmap_threshold: int = _GLIBC_MAX_MMAP_THRESHOLD
    trim_threshold: int = _GLIBC_MAX_TRIM_THRESHOLD


_current = HeapLimits()


def is_user_tuned(environment: Mapping[str, str]) -> bool:
    """Whether the user has set malloc's limits, through its variables or GLIBC_TUNABLES."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    return any(name in environment for name in _VARIABLES) or any(
        f"glibc.malloc.{name}" in tunables for name in _TUNABLES
    )


def limits_for(sizes: Iterable[int], before: HeapLimits) -> HeapLimits:
    """Limits with which blocks of these sizes, in bytes, stay in the process; never below ``before``."""
    known = list(sizes)
    largest, total = max(known, default=0), sum(known)
    return HeapLimits(
        min(max(before.mmap_threshold, largest + _BLOCK_OVERHEAD), _MAX_LIMIT),
        min(max(before.trim_threshold, 2 * total), _MAX_LIMIT),
    )


def keep_in_heap(sizes: Iterable[int]) -> bool:
    """Raises malloc's limits so that blocks of these sizes, in bytes, reuse memory that was freed before.

    By default glibc maps a block of more than 32 MiB afresh each time and unmaps it when it is freed, and returns free
    memory beyond 64 MiB to the system. The pages of such a block are faulted in again each time, which can take as
    long as computing their contents. The limits apply to the whole process and are only ever raised. Returns False
    without doing anything if no block needs it, if the user has set malloc's limits (MALLOC_MMAP_THRESHOLD_,
    MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES), or if malloc is not glibc's.
    """
    global _current
    limits = limits_for(sizes, _current)
    if limits == _current or is_user_tuned(os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Setting either one disables glibc's own adjustment, so both are set; old versions refuse a large first one.
    if not mallopt(_M_MMAP_THRESHOLD, limits.mmap_threshold):
        return False
    mallopt(_M_TRIM_THRESHOLD, limits.trim_threshold)
    _current = limits
    return True
