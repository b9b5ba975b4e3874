"""Horovod's API for ``tf.keras``, which is Keras 3, on Rueda.

Example::

    import rueda.horovod.tensorflow.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01 * hvd.size())), loss="mse")
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

``docs/horovod.md`` compares it with Horovod. Optimizer and callbacks also work on the torch and JAX backends of Keras.
"""

from __future__ import annotations

from typing import Any

from rueda.horovod.tensorflow import (
    Average,
    Compression,
    ProcessSet,
    Sum,
    add_process_set,
    broadcast_global_variables,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from rueda.horovod.tensorflow.keras import callbacks, elastic
from rueda.horovod.tensorflow.keras.operations import (
    allgather,
    allreduce,
    broadcast,
    load_model,
    reducescatter,
)
from rueda.horovod.tensorflow.optimizer import of_keras as _of_keras

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(  # noqa: N802 - Horovod's name, used like a class
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
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a Keras 3 optimizer reduce its gradients over the ranks first, and returns it.

    ``device_dense``, ``device_sparse`` and ``groups`` have no effect; embedding gradients become dense tensors,
    whatever ``sparse_as_dense`` says. Raises ``ValueError`` if ``op`` is neither Average nor Sum.

    Example::

        >>> optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))  # doctest: +SKIP
    """
    return _of_keras(
        optimizer,
        name,
        compression,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
