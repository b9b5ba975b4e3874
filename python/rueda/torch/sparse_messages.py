"""The message with which ranks begin a sparse allreduce.

A header describes a rank's tensor and its number of rows. Keys follow, and the values: of all rows if they are few,
otherwise only a sample of the keys (``sparse_sample.py``). Each is aligned so that it can be read in place.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import torch

from rueda.torch.sparse_rows import Rows, key_dtype

__all__ = ["Header", "Layout", "headers_in"]

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
    def sent_bytes(self) -> int:
        """Bytes of one row's values and its key."""
        return self.row_bytes + key_dtype(self.extent).itemsize

    def sent(self, keys: torch.Tensor) -> torch.Tensor:
        """Keys in the type in which they are sent."""
        return keys.to(key_dtype(self.extent))


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    elements = tensor.reshape(-1)
    if elements.stride(0) != 1:  # even for a single element, which torch calls contiguous
        elements = elements.clone(memory_format=torch.contiguous_format)
    flat = elements.view(torch.uint8)
    rest = -len(flat) % ALIGNMENT
    return torch.nn.functional.pad(flat, (0, rest)) if rest else flat


# total bytes, rank, token, rows, keys in the sample (-1: all); then the fields that must be the same everywhere: op,
# prescale, postscale, dtype, dtype on the wire, algorithm, sparse dimensions, dimensions. The shape follows.
_HEAD = struct.Struct("=qqqqqqddqqqqq")


@dataclass(frozen=True)
class Header:
    """Describes one rank's tensor; ``dtypes`` and ``algorithm`` are numbers, ``token`` is unique to the rank."""

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

    def agreed(self) -> tuple[int, tuple[float, float], tuple[int, int], int, int, tuple[int, ...]]:
        """The fields that must be the same on every rank."""
        return self.op, self.factors, self.dtypes, self.algorithm, self.sparse_dim, self.shape

    def message(self, layout: Layout) -> torch.Tensor:
        """This header and what follows it."""
        rest = _bytes(layout.sent(self.keys))
        if self.inline is not None:
            rest = torch.cat([rest, _bytes(self.inline.values)])
        fixed = _HEAD.size + 8 * len(self.shape)
        head = _HEAD.pack(
            _aligned(fixed) + len(rest),
            self.rank,
            self.token,
            self.rows,
            len(self.keys) if self.inline is None else -1,
            self.op,
            *self.factors,
            *self.dtypes,
            self.algorithm,
            self.sparse_dim,
            len(self.shape),
        ) + struct.pack(f"={len(self.shape)}q", *self.shape)
        padded = bytearray(head.ljust(_aligned(fixed), b"\0"))
        return torch.cat([torch.frombuffer(padded, dtype=torch.uint8), rest])


def headers_in(memory: torch.Tensor, mine: Header, layout: Layout) -> list[Header]:
    """All ranks' headers, in rank order. Keys and rows are left out if a rank's tensor does not match this rank's."""
    found = []
    raw = memory.numpy().data
    place = 0
    while place < len(memory):
        total, rank, token, rows, keys, op, pre, post, dtype, wire, algorithm, sparse_dim, dims = (
            _HEAD.unpack_from(raw, place)
        )
        shape = struct.unpack_from(f"={dims}q", raw, place + _HEAD.size)
        begin = place + _aligned(_HEAD.size + 8 * dims)
        place += total
        header = Header(
            rank,
            token,
            rows,
            op,
            (pre, post),
            (dtype, wire),
            algorithm,
            sparse_dim,
            shape,
            torch.empty(0, dtype=torch.int64, device="cpu"),
        )
        if header.agreed() == mine.agreed():
            header = _with_keys(header, memory[begin:place], keys, layout)
        found.append(header)
    return found


def _with_keys(header: Header, rest: torch.Tensor, count: int, layout: Layout) -> Header:
    is_inline = count < 0
    key_type = key_dtype(layout.extent)
    size = (header.rows if is_inline else count) * key_type.itemsize
    keys = rest[:size].view(key_type)
    inline = None
    if is_inline:
        values = rest[_aligned(size) :][: header.rows * layout.row_bytes].view(layout.dtype)
        inline = Rows(keys, values.reshape(header.rows, layout.width))
    return replace(header, keys=keys.to(torch.int64), inline=inline)
