"""What gradients look like on the wire."""

from __future__ import annotations

from typing import Protocol

import torch

from rueda.submission import NO_WIRE
from rueda.torch.tensors import code_of

__all__ = ["Compression", "Compressor", "may_lie_in_buckets", "wire_of"]


class Compressor(Protocol):
    """Turns a tensor into what is reduced in its place, and back.

    Example::

        >>> class Halved:
        ...     def compress(self, tensor):
        ...         return tensor / 2, tensor.dtype
        ...     def decompress(self, tensor, dtype):
        ...         return (tensor * 2).to(dtype)
        >>> Halved().compress(torch.ones(2))
        (tensor([0.5000, 0.5000]), torch.float32)
    """

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor to reduce, ``tensor`` itself or a new one, and what decompress() has to know."""

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The reduced tensor as ``dtype``, ``tensor`` itself or a new one."""


class _Plain:
    """Sends the tensor as it is."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return tensor, tensor.dtype

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor


class _Narrow:
    """Sends floating-point numbers with 16 bits each; other tensors as they are."""

    def __init__(self, wire: torch.dtype) -> None:
        self.wire = wire

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.to(self.wire) if tensor.is_floating_point() else tensor), tensor.dtype

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


def wire_of(compressor: Compressor) -> int:
    """As which element type float32 and float64 travel, where no more than that has to be done to them."""
    if not isinstance(compressor, _Narrow):
        return NO_WIRE
    code = code_of(compressor.wire)
    assert code is not None
    return code


def may_lie_in_buckets(compressor: Compressor) -> bool:
    """Whether gradients side by side can be sent as one tensor."""
    return isinstance(compressor, _Plain | _Narrow)


class Compression:
    """The compressors to choose from.

    ``none`` sends gradients as they are; ``fp16`` and ``bf16`` halve the bytes of float32. fp16 keeps 11 significant
    bits and overflows above 65504; bf16 keeps 8 and the range of float32. Sums are formed in float32 and rounded once
    per hop.

    Example::

        >>> wire, dtype = rueda.torch.Compression.bf16.compress(torch.ones(2))
        >>> wire.dtype, dtype
        (torch.bfloat16, torch.float32)
    """

    none: Compressor = _Plain()
    fp16: Compressor = _Narrow(torch.float16)
    bf16: Compressor = _Narrow(torch.bfloat16)
