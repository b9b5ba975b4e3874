"""The cases: loops like those of ordinary programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One loop. Each allreduce in it is timed."""

    name: str
    bytes: int
    calls: int
    dtypes: tuple[str, ...] = ("float32",)  # one array each; they are used in turn
    barrier: bool = False  # an untimed barrier before each allreduce
    rewritten: bool = False  # whether the array is rewritten before each allreduce


def _private(size: int, text: str) -> Case:
    calls = max(60, min(1000, (128 << 20) // size))
    return Case(f"private {text}", size, calls, rewritten=True)


CASES = {
    case.name: case
    for case in (
        Case("loop", 4, 2000),
        Case("barrier", 4, 1000, barrier=True),
        Case("names", 4, 2000, dtypes=("float32",) * 8),
        Case("dtypes", 8, 2000, dtypes=("float32", "float64", "int32", "int64")),
        _private(4 << 10, "4K"),
        _private(64 << 10, "64K"),
        _private(512 << 10, "512K"),
        _private(1 << 20, "1M"),
        _private(2 << 20, "2M"),
        _private(4 << 20, "4M"),
    )
}
