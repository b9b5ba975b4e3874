"""Input values and expected results: small integers, which are exact in every dtype."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from .collectives import REDUCTION, Collective

_ELEMENT = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
DTYPES = tuple(_ELEMENT)
OPERATIONS = ("sum", "average", "min", "max", "product", "bit_and", "bit_or", "bit_xor")

# Elements of a table of nearly 8 KiB, by element size. Primes, so that no chunk is a multiple of a table.
_PERIODS = {1: 8191, 2: 4093, 4: 2039, 8: 1021, 16: 509}

# The largest sum, and the largest sum for an average: fits an int8.
_HIGHEST_SUM = 127

_Integers = npt.NDArray[np.int64]


def element_size(dtype: str) -> int:
    """Bytes of an element."""
    return _ELEMENT[dtype]


def period(dtype: str) -> int:
    """The number of elements of a table, after which the values repeat."""
    return _PERIODS[element_size(dtype)]


def _highest(op: str, dtype: str, ranks: int) -> int:
    """The largest input value. With few enough ranks, no sum exceeds an int8."""
    if dtype == "bool":
        return 1
    if op == "sum":
        return max(1, _HIGHEST_SUM // ranks)
    if op == "average":
        return max(1, _HIGHEST_SUM // ranks**2)
    return _HIGHEST_SUM


def _contributors(op: str, ranks: int) -> int:
    """How many ranks may have a non-zero value in one element, so that no sum exceeds an int8."""
    least = {"sum": 1, "average": ranks}.get(op)  # of one rank
    return ranks if least is None else min(ranks, max(1, _HIGHEST_SUM // least))


def fits(op: str, dtype: str, ranks: int) -> bool:
    """Whether values exist whose reduction over that many ranks is exact in the dtype."""
    return op != "average" or element_size(dtype) > 1 or ranks <= _HIGHEST_SUM


def _integers(rank: int, ranks: int, op: str, dtype: str) -> _Integers:
    generator = np.random.default_rng(rank)
    count = period(dtype)
    if op == "product" and dtype != "bool":
        return generator.integers(1, 3, count)
    values = generator.integers(0, _highest(op, dtype, ranks) + 1, count)
    if (contributors := _contributors(op, ranks)) < ranks:
        values[(rank - np.arange(count)) % ranks >= contributors] = 0
    return values * ranks if op == "average" else values


def _reduced(ranks: int, op: str, dtype: str) -> _Integers:
    inputs = np.stack([_integers(rank, ranks, op, dtype) for rank in range(ranks)])
    if op == "average":
        average: _Integers = inputs.sum(0) // ranks
        return average
    reductions: dict[str, np.ufunc] = {
        "sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
        "bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
    }  # fmt: skip
    result: _Integers = reductions[op].reduce(inputs, axis=0)
    return np.minimum(result, 1) if dtype == "bool" else result


def as_bytes(values: _Integers, dtype: str) -> bytes:
    """The values as elements of `dtype`."""
    if dtype == "bfloat16":  # the upper half of a float32, whose lower half is 0 for these values
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(dtype).tobytes()


@functools.lru_cache(maxsize=64)
def table(whose: int, ranks: int, op: str, dtype: str) -> bytes:
    """The values of rank `whose`, or the reduction of all ranks' values if it is `REDUCTION`."""
    if whose == REDUCTION:
        return as_bytes(_reduced(ranks, op, dtype), dtype)
    return as_bytes(_integers(whose, ranks, op, dtype), dtype)


def expectation(
    collective: Collective, rank: int, ranks: int, count: int, root: int, op: str, dtype: str
) -> tuple[str, bytes]:
    """What the driver sends a rank: the blocks of its result, and the tables; its own values come first."""
    tables = [table(rank, ranks, op, dtype)]
    numbers: dict[int, int] = {}
    blocks = []
    for whose, phase, length in collective.result(rank, ranks, count, root):
        if whose not in numbers:
            numbers[whose] = len(tables)
            tables.append(table(whose, ranks, op, dtype))
        blocks.append(f"{numbers[whose]},{phase % period(dtype)},{length}")
    return " ".join(blocks), b"".join(tables)
