"""Keras 3 optimizers that reduce gradients over the ranks, with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from rueda.errors import InvalidArgumentError
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.tensorflow.compression import Compression
from rueda.horovod.tensorflow.gradients import Gradients, check_groups
from rueda.horovod.tensorflow.host import translated
from rueda.horovod.tensorflow.reduce_ops import Average, Sum
from rueda.keras.naming import default_name
from rueda.keras.optimizer import distribute, require_plain

__all__ = ["of_keras"]


@translated
def of_keras(
    optimizer: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a Keras optimizer reduce its gradients first and returns it, like rueda.keras.DistributedOptimizer.

    ``backward_passes_per_step``: Keras accumulates that many reduced gradients (``gradient_accumulation_steps``) and
    takes one step with their sum, or with their average if ``average_aggregated_gradients``.

    Raises ``ValueError`` if ``op`` is neither Average nor Sum or Keras cannot accumulate, and
    :class:`HorovodInternalError`, here also a ``ValueError``, if ``optimizer`` is not a Keras 3 optimizer.
    """
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    check_groups(num_groups, groups)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise InvalidArgumentError(
            "optimizers of TensorFlow 1 are not distributed: use one of tf.keras.optimizers"
        )
    passes = backward_passes_per_step
    if passes > 1:
        if getattr(optimizer, "built", True) or isinstance(
            optimizer, keras.optimizers.LossScaleOptimizer
        ):
            raise ValueError(
                f"backward_passes_per_step={passes} needs an optimizer that has not been used, without loss scaling: "
                f"give gradient_accumulation_steps={passes} to the optimizer itself"
            )
        optimizer.gradient_accumulation_steps = passes
    require_plain(optimizer)  # before it uses up a name
    gradients = Gradients(
        name or default_name(optimizer, process_set),
        op,
        process_set,
        compression,
        gradient_predivide_factor,
        # Keras averages the accumulated gradients.
        factor=1.0 if average_aggregated_gradients or passes == 1 else float(passes),
        scale_local=scale_local_gradients,
    )
    result = distribute(optimizer, gradients)
    vars(result)["register_local_var"] = gradients.register
    return result
