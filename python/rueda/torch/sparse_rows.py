"""Rows of sparse tensors and their sums.

A row is the values at one index of the sparse dimensions. Its key is that index as a single number: the row's position
in the dense tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from rueda.adapter import Refusal

__all__ = [
    "SIGNED",
    "Rows",
    "averaged",
    "distinct_rows",
    "indices_of",
    "key_dtype",
    "keys_of",
    "sum_of",
    "wide_dtype",
]

_MAX_KEYS = 2**63 - 1
SIGNED = {
    getattr(torch, unsigned): getattr(torch, signed)
    for unsigned, signed in (("uint16", "int16"), ("uint32", "int32"), ("uint64", "int64"))
    if hasattr(torch, unsigned)  # torch before 2.3 has none of them
}


class Rows(NamedTuple):
    """Distinct rows, sorted by key."""

    keys: torch.Tensor  # int64
    values: torch.Tensor  # one row for each key, in one dimension


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums of such values are formed: float32 for 16-bit floats."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def key_dtype(extent: int) -> torch.dtype:
    """The type in which the keys of ``extent`` rows are sent."""
    return torch.int32 if extent < 2**31 else torch.int64


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


def distinct_rows(keys: torch.Tensor, values: torch.Tensor, is_coalesced: bool) -> Rows:
    """Sums rows with the same key. The values are widened to the type of sums."""
    wide = values.to(wide_dtype(values.dtype))
    if is_coalesced:
        return Rows(keys, wide)
    union, places = torch.unique(keys, return_inverse=True)
    return Rows(union, _added(len(union), [(places, wide)]))


def sum_of(parts: Sequence[Rows]) -> Rows:
    """The sum, one part after another, so that it has the same bits wherever the parts have the same order."""
    if len(parts) == 1:
        return parts[0]
    union = torch.unique(torch.cat([part.keys for part in parts]))
    placed = [(torch.searchsorted(union, part.keys), part.values) for part in parts]
    return Rows(union, _added(len(union), placed))


def _added(count: int, placed: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    dtype = placed[0][1].dtype
    computed = SIGNED.get(dtype, dtype)  # sums have the same bits
    total = torch.zeros(count, placed[0][1].shape[1], dtype=computed, device="cpu")
    for places, values in placed:
        total.index_add_(0, places, values.view(computed))
    return total.view(dtype)


def averaged(values: torch.Tensor, divisor: int) -> torch.Tensor:
    """Divides; integers are rounded towards negative infinity."""
    if values.is_floating_point() or values.is_complex():
        return values.div(divisor)
    if values.dtype in SIGNED:
        return torch.from_numpy(values.numpy() // divisor)
    return values.div(divisor, rounding_mode="floor")
