"""The message with which ranks begin a sparse allreduce.

A header describes a rank's tensor and its number of rows. Keys follow, and the values: of all rows if they are few,
otherwise only a sample of the keys (``sparse_sample.py``). Each is aligned so that it can be read in place.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rueda.torch.sparse_rows import Rows

__all__ = ["Agreed", "Header", "Layout", "Received", "headers_in"]

ALIGNMENT = 16


@dataclass(frozen=True)
class Layout:
    """The format in which a tensor's rows are sent."""

    extent: int  # rows of the dense tensor
    width: int  # values per row
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's values."""
        return self.width * self.dtype.itemsize

    @property
    def key_dtype(self) -> torch.dtype:
        """The type in which keys are sent."""
        return torch.int32 if self.extent < 2**31 else torch.int64

    @property
    def sent_bytes(self) -> int:
        """Bytes of one row's values and its key."""
        return self.row_bytes + self.key_dtype.itemsize

    def sent(self, keys: torch.Tensor) -> torch.Tensor:
        """Keys in the type in which they are sent."""
        return keys.to(self.key_dtype)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


# total bytes, rank, token, rows, keys in the sample (-1: all); then the fields that must be the same everywhere: op,
# prescale, postscale, dtype, dtype on the wire, algorithm, sparse dimensions, dimensions. The shape follows.
_HEAD = struct.Struct("=qqqqqqddqqqqq")

Agreed = tuple[int, tuple[float, float], tuple[int, int], int, int, tuple[int, ...]]
"""The fields that must be the same on every rank: see :class:`Header`."""


@dataclass(frozen=True)
class Header:
    """Describes this rank's tensor; ``dtypes`` and ``algorithm`` are numbers, ``token`` is unique to the rank."""

    rank: int
    token: int
    rows: int
    op: int
    factors: tuple[float, float]
    dtypes: tuple[int, int]
    algorithm: int
    sparse_dim: int
    shape: tuple[int, ...]
    keys: torch.Tensor  # of the sample, or of all rows
    inline: Rows | None = None  # all rows, if they are sent along

    def agreed(self) -> Agreed:
        """The fields that must be the same on every rank."""
        return self.op, self.factors, self.dtypes, self.algorithm, self.sparse_dim, self.shape

    def message(self, layout: Layout) -> torch.Tensor:
        """This header and what follows it."""
        key_type = layout.key_dtype
        dims = len(self.shape)
        keys_at = _aligned(_HEAD.size + 8 * dims)
        keys_end = keys_at + len(self.keys) * key_type.itemsize
        values_at = _aligned(keys_end)
        values_end = values_at + (self.rows * layout.row_bytes if self.inline is not None else 0)
        message = torch.zeros(_aligned(values_end), dtype=torch.uint8, device="cpu")
        raw = message.numpy().data
        _HEAD.pack_into(
            raw,
            0,
            len(message),
            self.rank,
            self.token,
            self.rows,
            len(self.keys) if self.inline is None else -1,
            self.op,
            *self.factors,
            *self.dtypes,
            self.algorithm,
            self.sparse_dim,
            dims,
        )
        struct.pack_into(f"={dims}q", raw, _HEAD.size, *self.shape)
        message[keys_at:keys_end].view(key_type).copy_(self.keys)
        if self.inline is not None:
            values = message[values_at:values_end].view(layout.dtype)
            values.copy_(self.inline.values.reshape(-1))
        return message


class Received(NamedTuple):
    """What a rank has said of its tensor. Addresses are within the message, which must be kept as long."""

    rank: int
    token: int
    rows: int
    agreed: Agreed
    keys: int
    """Address of the keys of its sample, or of all rows; 0 if its tensor does not match this rank's."""
    key_count: int
    """Number of keys."""
    values: int
    """Address of all rows' values; 0 if they were not sent along."""


def headers_in(memory: torch.Tensor, agreed: Agreed, layout: Layout) -> list[Received]:
    """What all ranks have said, in rank order. ``agreed``: this rank's fields."""
    found = []
    raw = memory.numpy().data
    address = memory.data_ptr()
    key_bytes = layout.key_dtype.itemsize
    place = 0
    while place < len(raw):
        total, rank, token, rows, keys, op, pre, post, dtype, wire, algorithm, sparse_dim, dims = (
            _HEAD.unpack_from(raw, place)
        )
        shape = struct.unpack_from(f"={dims}q", raw, place + _HEAD.size)
        theirs = op, (pre, post), (dtype, wire), algorithm, sparse_dim, shape
        begin = keys_at = values_at = 0
        count = rows if keys < 0 else keys
        if theirs == agreed:
            begin = address + place
            keys_at = _aligned(_HEAD.size + 8 * dims)
            values_at = _aligned(keys_at + count * key_bytes) if keys < 0 else 0
        found.append(
            Received(
                rank,
                token,
                rows,
                theirs,
                begin + keys_at,
                count,
                begin + values_at if values_at else 0,
            )
        )
        place += total
    return found
