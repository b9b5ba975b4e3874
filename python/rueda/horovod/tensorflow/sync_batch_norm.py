"""Batch normalisation with the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from rueda.horovod.basics import size
from rueda.horovod.tensorflow.reductions import allreduce

__all__ = ["SyncBatchNormalization"]


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Keras' layer, for the TensorFlow backend, with the moments of all ranks' batches during training.

    Batches are weighted equally, so they should have equal sizes. Every rank must call the layer equally often.
    ``fused`` must be False: ``True`` and ``None`` raise ``ValueError``, and so do other backends.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"SyncBatchNormalization supports Keras' backend tensorflow, not {keras.backend.backend()}"
            )
        kwargs.setdefault("name", "sync_batch_normalization")
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, mask)
        if size() == 1:
            return mean, variance
        both = allreduce(tf.stack([mean, variance + tf.square(mean)]))
        mean, square = tf.unstack(both)
        return mean, square - tf.square(mean)
