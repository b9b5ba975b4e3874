"""All-gathers in which ranks contribute different numbers of elements.

The engine delivers one contribution after another, and only their total would tell whether they fit the outputs. So
each begins with its own size.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import torch

from rueda import _native, dtypes
from rueda.errors import MismatchError
from rueda.torch.c10d.arguments import Target
from rueda.torch.tensors import TorchAdapter

__all__ = ["hand_out_sized", "with_size"]

_adapter = TorchAdapter(gpus=True)
_SIZE_BYTES = 8


def with_size(tensor: torch.Tensor) -> torch.Tensor:
    """All elements as one flat tensor, preceded by their number."""
    head, count = _head_of(tensor.dtype), tensor.numel()
    sized = torch.empty(head + count, dtype=tensor.dtype, device=tensor.device)
    start = sized[:head].view(torch.uint8)
    start.zero_()
    size = torch.tensor([count], dtype=torch.int64, device="cpu")
    start[:_SIZE_BYTES].copy_(size.view(torch.uint8))
    sized[head:].copy_(tensor.reshape(-1))
    return sized


def hand_out_sized(native: _native.Handle, targets: Sequence[Target], what: str) -> None:
    """Copies the contributions made by :func:`with_size` to their targets, which must have their sizes."""
    expected = [math.prod(target.view.shape) for target in targets]
    memory, shape = native.output(dtypes.item_size(targets[0].view.dtype))
    with _adapter.lent(memory, shape, targets[0].tensor) as result:
        parts = _parts_of(result.reshape(-1), len(targets))
        received = [part.numel() for part in parts]
        if received != expected:
            raise MismatchError(
                f"{what}: the outputs have {expected} elements, but the ranks of the group have sent {received}"
            )
        for target, part in zip(targets, parts, strict=True):
            target.fill(part)


def _parts_of(flat: torch.Tensor, number: int) -> list[torch.Tensor]:
    """The contributions without their sizes. On a GPU this waits for them."""
    head, at = _head_of(flat.dtype), 0
    parts = []
    for _ in range(number):
        # Not viewed as an integer, since it lies at any multiple of an element.
        start = flat[at : at + head].view(torch.uint8)[:_SIZE_BYTES]
        count = int.from_bytes(bytes(start.tolist()), sys.byteorder)
        parts.append(flat[at + head : at + head + count])
        at += head + count
    return parts


def _head_of(dtype: torch.dtype) -> int:
    """How many elements the size takes."""
    return max(1, _SIZE_BYTES // torch.empty(0, dtype=dtype, device="cpu").element_size())
