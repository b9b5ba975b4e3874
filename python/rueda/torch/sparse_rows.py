"""Rows of sparse tensors and their sums.

A row is the values at one index of the sparse dimensions. Its key is that index as a single number: the row's position
in the dense tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from rueda import _native
from rueda.adapter import Refusal
from rueda.torch.tensors import code_of

__all__ = [
    "SIGNED",
    "Rows",
    "indices_of",
    "keys_of",
    "sum_at",
    "sum_of",
]

_MAX_KEYS = 2**63 - 1
SIGNED = {
    getattr(torch, unsigned): getattr(torch, signed)
    for unsigned, signed in (("uint16", "int16"), ("uint32", "int32"), ("uint64", "int64"))
    if hasattr(torch, unsigned)  # torch before 2.3 has none of them
}


class Rows(NamedTuple):
    """Rows and their keys, which are distinct and ascending unless something else is said."""

    keys: torch.Tensor  # int64, or as they are sent
    values: torch.Tensor  # one row for each key, in one dimension

    def places(self, counts: Sequence[int]) -> list[tuple[int, int, int]]:
        """Consecutive parts with these numbers of rows, as for :func:`sum_at`: valid as long as the tensors are."""
        key_bytes = self.keys.dtype.itemsize
        row_bytes = self.values.shape[1] * self.values.dtype.itemsize
        keys, values = self.keys.data_ptr(), self.values.data_ptr()
        begins = accumulate(counts, initial=0)
        return [
            (keys + begin * key_bytes, values + begin * row_bytes, count)
            for begin, count in zip(begins, counts, strict=False)
        ]


def keys_of(indices: torch.Tensor, extents: Sequence[int]) -> torch.Tensor:
    """Raises Refusal for an index outside the tensor, and for a tensor with too many rows."""
    if math.prod(extents) > _MAX_KEYS:
        raise Refusal(f"the sparse dimensions {list(extents)} have more than 2^63 rows", True)
    keys = torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
    for number, extent in enumerate(extents):
        row = indices[number]
        if len(row):
            least, most = (int(end) for end in torch.aminmax(row))
            if least < 0 or most >= extent:
                raise Refusal(
                    f"the index {least if least < 0 else most} of sparse dimension {number} is outside of its "
                    f"extent {extent}"
                )
        keys = row if number == 0 else keys * extent + row
    return keys


def indices_of(keys: torch.Tensor, extents: Sequence[int]) -> torch.Tensor:
    """The inverse of :func:`keys_of`."""
    if len(extents) == 1:
        return keys.unsqueeze(0)
    rows = []
    for extent in reversed(extents):
        rows.append(keys % extent)
        keys = keys // extent
    return torch.stack(rows[::-1]) if rows else keys.new_empty(0, len(keys))


def sum_of(rows: Rows, factor: float = 1.0) -> Rows:
    """The sums of rows with the same key, in their order, as of :func:`sum_at`. Keys may repeat and have any order."""
    plain = Rows(rows.keys.contiguous(), _plain(rows.values))
    places = plain.places([len(plain.keys)])
    return sum_at(
        places, plain.keys.dtype, plain.values.shape[1], plain.values.dtype, factor=factor
    )


def sum_at(
    places: Sequence[tuple[int, int, int]],
    key: torch.dtype,
    width: int,
    dtype: torch.dtype,
    divisor: int = 1,
    factor: float = 1.0,
) -> Rows:
    """The sums of rows with the same key, in the order of the parts, and of the rows within each part.

    ``places``: at least one part, by the addresses of its keys and of its values, and its number of rows. Sums of
    16-bit floats are formed in float32; all are divided (integers round towards negative infinity), multiplied, and
    only then rounded.
    """
    code = code_of(dtype)
    assert code is not None, f"{dtype} was not refused"
    sums = _native.RowSums(places, key.itemsize, width, code)
    union = torch.empty(sums.count, dtype=torch.int64, device="cpu")
    total = torch.empty(sums.count, width, dtype=dtype, device="cpu")
    sums.write(union.data_ptr(), total.data_ptr(), divisor, factor)
    return Rows(union, total)


def _plain(values: torch.Tensor) -> torch.Tensor:
    """The values as they lie in memory."""
    return values.resolve_conj().resolve_neg().contiguous()
