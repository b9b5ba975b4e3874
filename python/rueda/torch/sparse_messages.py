"""The messages for exchanging sparse tensors, as bytes.

A block has rows: their number, the values, the keys, each aligned so that it can be read in place. A header describes a
rank's tensor and its number of rows, followed by all rows if they are few, otherwise by a sample of their keys
(``sparse_sample.py``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch

from rueda.torch.sparse_rows import Rows, key_dtype

__all__ = ["Header", "Layout", "block_of", "blocks_in", "headers_in"]

ALIGNMENT = 16
INLINE_BYTES = 1024  # limit for a block that is sent with its header


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


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    elements = tensor.reshape(-1)
    if elements.stride(0) != 1:  # even for a single element, which torch calls contiguous
        elements = elements.clone(memory_format=torch.contiguous_format)
    flat = elements.view(torch.uint8)
    rest = -len(flat) % ALIGNMENT
    return torch.nn.functional.pad(flat, (0, rest)) if rest else flat


def block_of(rows: Rows, layout: Layout) -> torch.Tensor:
    """Rows as bytes; the values must already have the type in which they are sent."""
    head = torch.tensor([len(rows.keys), 0], device="cpu").view(torch.uint8)
    keys = rows.keys.to(key_dtype(layout.extent))
    return torch.cat([head, _bytes(rows.values), _bytes(keys)])


def blocks_in(memory: torch.Tensor, layout: Layout) -> list[Rows]:
    """The consecutive blocks in ``memory``; the values are views of it."""
    found = []
    key_type = key_dtype(layout.extent)
    place = 0
    while place < len(memory):
        count = int(memory[place : place + 8].view(torch.int64))
        place += ALIGNMENT
        size = count * layout.row_bytes
        values = memory[place : place + size].view(layout.dtype).reshape(count, layout.width)
        place += _aligned(size)
        size = count * key_type.itemsize
        keys = memory[place : place + size].view(key_type).to(torch.int64)
        place += _aligned(size)
        found.append(Rows(keys, values))
    return found


# total bytes, rank, token, rows, keys in the sample or -1; then the fields that must be the same everywhere: op,
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
    inline: Rows | None = None

    def agreed(self) -> tuple[int, tuple[float, float], tuple[int, int], int, int, tuple[int, ...]]:
        """The fields that must be the same on every rank."""
        return self.op, self.factors, self.dtypes, self.algorithm, self.sparse_dim, self.shape

    def message(self, layout: Layout, rows: Rows, may_inline: bool) -> torch.Tensor:
        """This header, followed by either the rows or the sample."""
        size = len(rows.keys) * (layout.row_bytes + 8) + 3 * ALIGNMENT
        is_inline = may_inline and size <= INLINE_BYTES
        rest = (
            block_of(rows, layout) if is_inline else _bytes(self.keys.to(key_dtype(layout.extent)))
        )
        fixed = _HEAD.size + 8 * len(self.shape)
        head = _HEAD.pack(
            _aligned(fixed) + len(rest),
            self.rank,
            self.token,
            self.rows,
            -1 if is_inline else len(self.keys),
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
    inline = blocks_in(rest, layout)[0] if count < 0 else None
    key_type = key_dtype(layout.extent)
    sample = (
        rest[: count * key_type.itemsize].view(key_type).to(torch.int64) if count >= 0 else None
    )
    assert inline is not None or sample is not None
    return Header(
        header.rank,
        header.token,
        header.rows,
        *header.agreed(),
        inline.keys if inline is not None else sample,  # type: ignore[arg-type]
        inline,
    )
