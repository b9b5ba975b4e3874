"""What gradients look like on the wire, under the names that Horovod has for it.

An own compressor is a class with two static methods, given as ``compression=``; no instance is needed.
"""

from __future__ import annotations

from typing import Any

import torch

from rueda.torch.compression import Compression

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor", "compressed"]


def compressed(tensor: Any, compression: Any) -> tuple[Any, Any]:
    """What ``compression`` sends, and what it has to know afterwards. What is no tensor is left to be refused.

    Example::

        >>> compressed(torch.ones(2), Compression.fp16)
        (tensor([1., 1.], dtype=torch.float16), torch.float32)
    """
    return compression.compress(tensor) if isinstance(tensor, torch.Tensor) else (tensor, None)


class Compressor:
    """Base of compressors.

    Example::

        class Half(hvd.compression.Compressor):
            @staticmethod
            def compress(tensor):
                return tensor.bfloat16(), tensor.dtype

            @staticmethod
            def decompress(tensor, ctx):
                return tensor.to(ctx)

        optimizer = hvd.DistributedOptimizer(optimizer, compression=Half)
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to reduce, and what decompress() has to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The reduced tensor as it was before compress()."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """``tensor`` itself."""
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """``tensor`` itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point numbers as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor as float16."""
        return Compression.fp16.compress(tensor)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor as what it was."""
        return Compression.fp16.decompress(tensor, ctx)
