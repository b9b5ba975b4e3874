"""Pickles Python objects so that torch's tensors of all dtypes can be unpickled.

torch 2.13 pickles tensors of float8, unsigned integers of more than 8 bits and the like without their dtype, and fails
where they are unpickled. torch.save() has no such gap. Everything is unpickled with pickle.loads().
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections import ChainMap
from typing import Any, ClassVar

__all__ = ["dumps", "dumps_by_cloudpickle", "tensor_of"]

# The dtypes that pickle gets right.
_SOUND = frozenset(
    (
        "torch.bool",
        "torch.uint8",
        "torch.int8",
        "torch.int16",
        "torch.int32",
        "torch.int64",
        "torch.float16",
        "torch.bfloat16",
        "torch.float32",
        "torch.float64",
        "torch.complex64",
        "torch.complex128",
        "torch.quint8",
        "torch.qint8",
        "torch.qint32",
        "torch.quint4x2",
        "torch.quint2x4",
    )
)


def dumps(obj: object) -> bytes:
    """``pickle.dumps(obj)``, with all tensors."""
    table = _table()
    if not table:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table | table
    pickler.dump(obj)
    return stream.getvalue()


def dumps_by_cloudpickle(obj: object) -> bytes:
    """The same with cloudpickle. Raises ImportError if it is not installed."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(_table(), cloudpickle.Pickler.dispatch_table)

    stream = io.BytesIO()
    Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(obj)
    return stream.getvalue()


def tensor_of(content: bytes) -> Any:
    """The tensor that torch.save() has written. Pickled objects and checkpoints name this function."""
    import torch

    return torch.load(io.BytesIO(content), weights_only=True)


def _table() -> dict[type, Any]:
    """How to pickle tensors; empty if nobody has imported torch, so that there are none."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return {} if kind is None else {kind: _reduced}


def _reduced(tensor: Any) -> Any:
    if str(tensor.dtype) in _SOUND:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    import torch

    stream = io.BytesIO()
    torch.save(tensor, stream)
    return tensor_of, (stream.getvalue(),)
