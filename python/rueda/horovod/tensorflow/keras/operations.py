"""Collectives on values converted to tensors, and load_model(), with Horovod's signatures for Keras."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from rueda.horovod.tensorflow import exchanges, reductions
from rueda.horovod.tensorflow.compression import Compression
from rueda.horovod.tensorflow.optimizer import of_keras
from rueda.horovod.tensorflow.reduce_ops import Average
from rueda.keras.optimizer import is_distributed

__all__ = ["allgather", "allreduce", "broadcast", "load_model", "reducescatter"]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """Returns the value as a TensorFlow tensor, reduced over the ranks; averaged by default."""
    return reductions.allreduce(
        tf.convert_to_tensor(value),
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenates the ranks' values along the first dimension."""
    return exchanges.allgather(tf.convert_to_tensor(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the value of rank ``root_rank``."""
    return exchanges.broadcast(tf.convert_to_tensor(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: Any = Average) -> Any:
    """Returns this rank's rows of the reduced value."""
    return reductions.reducescatter(tf.convert_to_tensor(value), op=op, name=name)


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[Any] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a Keras model and distributes its optimizer, which keeps its state.

    ``custom_optimizers``: classes to add to ``custom_objects`` under their names. ``legacy_opts`` has no effect: Keras
    3 has no legacy optimizers.
    """
    known = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if model.optimizer is not None and not is_distributed(model.optimizer):
        of_keras(model.optimizer, compression=compression)
    return model
