"""Horovod's API for Keras, on Rueda: ``rueda.horovod.tensorflow.keras`` plus ``PartialDistributedOptimizer``.

Example::

    import rueda.horovod.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), loss="mse")
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

``docs/horovod.md`` compares it with Horovod. TensorFlow must be installed, whatever the Keras backend.
"""

from __future__ import annotations

from typing import Any

from rueda.horovod.tensorflow import Adasum
from rueda.horovod.tensorflow import keras as _keras
from rueda.horovod.tensorflow.keras import *  # noqa: F403
from rueda.horovod.tensorflow.keras import (
    Average,
    Compression,
    ProcessSet,
    callbacks,
    elastic,
    global_process_set,
)
from rueda.horovod.tensorflow.keras.operations import allreduce as _allreduce
from rueda.horovod.tensorflow.optimizer import of_keras as _of_keras
from rueda.horovod.tensorflow.tape import local_variables as _local_variables

__all__ = ["Adasum", "PartialDistributedOptimizer", "callbacks", "elastic"]
__all__ += _keras.__all__


def DistributedOptimizer(  # type: ignore[no-redef]  # noqa: N802 - replaces the one with more arguments
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """Makes a Keras 3 optimizer reduce its gradients over the ranks first, and returns it.

    Like :func:`rueda.horovod.tensorflow.keras.DistributedOptimizer`, with fewer arguments.

    Example::

        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))  # doctest: +SKIP
    """
    return _of_keras(
        optimizer,
        name,
        compression,
        gradient_predivide_factor,
        op,
        num_groups=num_groups,
        groups=groups,
    )


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name, used like a class
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """:func:`DistributedOptimizer` that leaves the gradients of ``local_layers`` on their rank.

    The layers must be built. ``scale_local_gradients``: whether to divide those gradients by the number of ranks, true
    by default. Raises ``ValueError`` if ``local_layers`` contains anything but Keras layers.
    """
    variables = _local_variables(local_layers)
    result = _of_keras(
        optimizer,
        name,
        compression,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        0,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in variables:
        result.register_local_var(variable)
    return result


def allreduce(  # type: ignore[no-redef]  # replaces the one whose average is None by default
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """Returns the value as a TensorFlow tensor, reduced over the ranks; averaged by default."""
    wanted = op if op is not None else (Average if average else _keras.Sum)
    return _allreduce(value, name, None, prescale_factor, postscale_factor, wanted, compression)
