"""Compression of TensorFlow tensors before they are sent."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """Compresses and decompresses a tensor. ``allreduce`` accepts any class with these two methods."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send and the context for ``decompress``."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Restores the tensor."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point numbers as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor, as float16 if it is floating-point, and its dtype."""
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor in its original dtype."""
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class Compression:
    """The choices for ``compression=``."""

    none = NoneCompressor
    """No conversion: the default."""

    fp16 = FP16Compressor
    """Floating-point numbers are sent as float16."""
