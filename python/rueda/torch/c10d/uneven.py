"""All-gathers in which ranks contribute tensors of different shapes.

The engine delivers one contribution after another, and only their total would tell whether they fit the outputs. So
each begins with its own shape.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch

from rueda import _native, dtypes
from rueda.errors import MismatchError
from rueda.torch.c10d.arguments import Target
from rueda.torch.c10d.shapes import compared
from rueda.torch.tensors import TorchAdapter

__all__ = ["hand_out_shaped", "with_shape"]

_adapter = TorchAdapter(gpus=True)
# The number of dimensions, the first ones, and the product of the rest.
_HEAD = struct.Struct("=8q")
_DIMENSIONS = 6


def with_shape(tensor: torch.Tensor) -> torch.Tensor:
    """All elements as one flat tensor, preceded by the shape."""
    head, count = _head_of(tensor.dtype), tensor.numel()
    shaped = torch.empty(head + count, dtype=tensor.dtype, device=tensor.device)
    told = torch.frombuffer(bytearray(_HEAD.pack(*_told(tensor.shape))), dtype=torch.uint8)
    shaped[:head].view(torch.uint8).copy_(told)
    shaped[head:].copy_(tensor.reshape(-1))
    return shaped


def hand_out_shaped(native: _native.Handle, targets: Sequence[Target], what: str) -> None:
    """Copies the contributions made by :func:`with_shape` to their targets, which must have their shapes."""
    expected = [_told(target.view.shape) for target in targets]
    memory, shape = native.output(dtypes.item_size(targets[0].view.dtype))
    with _adapter.lent(memory, shape, targets[0].tensor) as result:
        received, parts = _parts_of(result.reshape(-1), len(targets))
        if received != expected:
            raise MismatchError(f"{what}: {_difference(expected, received)}")
        for target, part in zip(targets, parts, strict=True):
            target.fill(part)


def _told(shape: Sequence[int]) -> tuple[int, ...]:
    shape = (0,) if 0 in shape else compared(shape)  # all shapes without elements are the same
    first = [*shape[:_DIMENSIONS], *[0] * (_DIMENSIONS - len(shape))]
    return len(shape), *first, math.prod(shape[_DIMENSIONS:])


def _shape_in(told: tuple[int, ...]) -> list[int]:
    number, *first, rest = told
    return first[:number] if number <= _DIMENSIONS else [*first, rest]


def _parts_of(flat: torch.Tensor, number: int) -> tuple[list[tuple[int, ...]], list[torch.Tensor]]:
    """What precedes the contributions, and they themselves. On a GPU this waits for them."""
    head, at = _head_of(flat.dtype), 0
    told, parts = [], []
    for _ in range(number):
        # Not viewed as integers, since it lies at any multiple of an element.
        told.append(_HEAD.unpack(bytes(flat[at : at + head].view(torch.uint8).tolist())))
        end = at + head + math.prod(_shape_in(told[-1]))
        parts.append(flat[at + head : end])
        at = end
    return told, parts


def _difference(expected: list[tuple[int, ...]], received: list[tuple[int, ...]]) -> str:
    wanted, sent = ([_shape_in(told) for told in each] for each in (expected, received))
    counts = [math.prod(shape) for shape in wanted], [math.prod(shape) for shape in sent]
    if counts[0] != counts[1]:
        return f"the outputs have {counts[0]} elements, but the ranks of the group have sent {counts[1]}"
    return f"the outputs have the shapes {wanted}, but the ranks of the group have sent {sent}"


def _head_of(dtype: torch.dtype) -> int:
    """How many elements the shape takes."""
    return _HEAD.size // torch.empty(0, dtype=dtype, device="cpu").element_size()
