"""The wire formats of gradients, under Horovod's names.

A custom compressor is a class with two static methods, passed as ``compression=``; no instance is needed.
"""

from __future__ import annotations

from typing import Any

import torch

from rueda.torch.compression import Compression, require_compressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor", "compressed"]


def compressed(tensor: Any, compression: Any) -> tuple[Any, Any]:
    """Returns the tensor to send and the context for decompress(); a non-tensor passes through, to be refused later.

    Raises :class:`rueda.InvalidArgumentError` for what is not a compressor, such as the name of a codec.

    Example::

        >>> compressed(torch.ones(2), Compression.fp16)
        (tensor([1., 1.], dtype=torch.float16), torch.float32)
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor, None
    try:
        return compression.compress(tensor)  # type: ignore[no-any-return]
    except AttributeError:
        require_compressor(compression)
        raise


class Compressor:
    """Base class of compressors.

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
        """Returns the tensor to reduce and the context for decompress()."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Converts the reduced tensor back to the format before compress()."""
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
        """Returns the tensor, as float16 if it is floating-point, and its dtype."""
        return Compression.fp16.compress(tensor)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the tensor in its original dtype."""
        return Compression.fp16.decompress(tensor, ctx)
