"""The cases: loops like those of ordinary programs."""

from __future__ import annotations

from dataclasses import dataclass

from ..sizes import parse_size


@dataclass(frozen=True)
class Case:
    """One loop. Each allreduce in it is timed."""

    name: str
    bytes: int
    calls: int
    dtypes: tuple[str, ...] = ("float32",)  # one array each; they are used in turn
    barrier: bool = False  # an untimed barrier before each allreduce
    rewritten: bool = False  # whether the array is rewritten before each allreduce
    registered: bool = False  # in memory that the ranks share, of contenders that offer it


def _sized(kind: str, text: str) -> Case:
    """One array; ``text`` is its size."""
    size = parse_size(text)
    calls = max(60 if size <= 8 << 20 else 20, min(1000, (128 << 20) // size))
    return Case(f"{kind} {text}", size, calls, rewritten=True, registered=kind == "registered")


_PRIVATE = ("256", "1K", "4K", "16K", "64K", "512K", "1M", "2M", "4M", "16M", "64M")
_REGISTERED = ("256", "4K", "64K", "512K", "1M", "4M", "16M", "64M")


CASES = {
    case.name: case
    for case in (
        Case("loop", 4, 2000),
        Case("barrier", 4, 1000, barrier=True),
        Case("names", 4, 2000, dtypes=("float32",) * 8),
        Case("dtypes", 8, 2000, dtypes=("float32", "float64", "int32", "int64")),
        *(_sized("private", size) for size in _PRIVATE),
        *(_sized("registered", size) for size in _REGISTERED),
    )
}
