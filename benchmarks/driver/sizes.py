"""Parses and formats sizes, and lists the sizes to measure."""

from __future__ import annotations

import re

from rueda.launcher.errors import LaunchError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes: `4`, `64K`, `256M`, `1GiB`; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise LaunchError(f"'{text}' is not a size: write bytes, or a number with K, M or G")
    return int(match[1]) * _UNITS[match[2].upper()]


def format_size(size: int) -> str:
    """`64 Ki`, `256 Mi`, or the plain number if no unit divides it."""
    for unit in ("G", "M", "K"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]} {unit}i"
    return str(size)


def size_sequence(first: int, last: int, factor: int, element: int, parts: int = 1) -> list[int]:
    """Sizes from `first` to `last` bytes, each `factor` times the previous one.

    Each is rounded up to a multiple of `parts` elements of `element` bytes. Raises `LaunchError` if `first` exceeds
    `last` or is not a multiple of `element`, or if `factor` is less than 2.
    """
    if first > last:
        raise LaunchError(f"-b {first} is more than -e {last}: the smallest size comes first")
    if factor < 2:
        raise LaunchError(f"-f {factor}: sizes grow by a factor of at least 2")
    if first < 1 or first % element:
        raise LaunchError(f"-b {first} is not a multiple of {element}, the bytes of an element")
    step = element * parts
    sizes = []
    size = first
    while size <= last:
        sizes.append(-(-size // step) * step)
        size *= factor
    return sorted(set(sizes))
