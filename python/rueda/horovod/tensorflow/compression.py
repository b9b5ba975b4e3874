"""How tensors of TensorFlow are made smaller before they are sent."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """What compresses a tensor and undoes it. ``allreduce`` takes any class with these two methods."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what ``decompress`` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was."""
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
        """The tensor as float16, if it has floating-point numbers, and its type."""
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in the type it had."""
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class Compression:
    """The choices for ``compression=``."""

    none = NoneCompressor
    """Nothing is converted: the default."""

    fp16 = FP16Compressor
    """Floating-point numbers travel as float16."""
