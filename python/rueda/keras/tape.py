"""A plain TensorFlow gradient tape that reduces its gradients over the ranks."""

from __future__ import annotations

from typing import Any

import rueda
from rueda.keras.reduction import Reduction
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedGradientTape"]


class DistributedGradientTape:
    """A ``tf.GradientTape`` whose ``gradient()`` returns gradients reduced over ranks, eagerly and in ``tf.function``.

    ``tape``: a tape that has stopped recording. ``name``: the operations' name, the same on every rank. ``op``: the
    average by default. A gradient must be ``None`` on every rank or on none, otherwise every rank raises
    :class:`rueda.MismatchError` (in ``tf.function``, TensorFlow's error with its text).

    Example::

        >>> with tf.GradientTape() as tape:  # doctest: +SKIP
        ...     loss = model(x)
        >>> tape = rueda.keras.DistributedGradientTape(tape)  # doctest: +SKIP
        >>> gradients = tape.gradient(loss, model.trainable_variables)  # doctest: +SKIP
    """

    def __init__(
        self,
        tape: Any,
        name: str = "tape",
        op: ReduceOp = Average,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        rueda.rank()  # raises if there is no world
        self._tape = tape
        self._reduction = Reduction(f"tensorflow.{name}", op, process_set, agree=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Like ``tf.GradientTape.gradient()``, for one source or any structure of sources."""
        import tensorflow as tf

        found = self._tape.gradient(target, sources, *args, **kwargs)
        flat = tf.nest.flatten(sources)
        gradients = tf.nest.flatten(found)
        reduced = self._reduction("tensorflow", gradients, flat)
        return tf.nest.pack_sequence_as(sources, reduced)
