"""Horovod's API for TensorFlow 2 and Keras 3, on Rueda, eagerly and in ``tf.function``.

Example::

    import rueda.horovod.tensorflow as hvd

    hvd.init()
    with tf.GradientTape() as tape:
        loss = loss_of(model(images), labels)
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

``rueda run --horovod`` makes ``import horovod.tensorflow`` import this. ``docs/horovod.md`` compares it with Horovod.
"""

from __future__ import annotations

from typing import Any

from rueda.engines.versions import Needs as _Needs

_needs = _Needs(
    "rueda.horovod.tensorflow",
    "TensorFlow",
    "tensorflow",
    (2, 16),  # the first version whose tf.keras is Keras 3
    "pip install 'tensorflow>=2.16,<3'",
    below=3,
)
_needs.require()

# After the check, whose message is clearer than an ImportError.
from rueda.horovod.basics import (  # noqa: E402
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from rueda.horovod.exceptions import (  # noqa: E402
    HorovodInternalError,
    HostsUpdatedInterrupt,
)
from rueda.horovod.process_sets import (  # noqa: E402
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from rueda.horovod.tensorflow import compression, elastic  # noqa: E402
from rueda.horovod.tensorflow.compression import Compression  # noqa: E402
from rueda.horovod.tensorflow.exchanges import (  # noqa: E402
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from rueda.horovod.tensorflow.functions import (  # noqa: E402
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from rueda.horovod.tensorflow.optimizer import of_keras as _of_keras  # noqa: E402
from rueda.horovod.tensorflow.reduce_ops import (  # noqa: E402
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from rueda.horovod.tensorflow.reductions import (  # noqa: E402
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from rueda.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization  # noqa: E402
from rueda.horovod.tensorflow.tape import (  # noqa: E402
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from rueda.horovod.timeline import start_timeline, stop_timeline  # noqa: E402

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "compression",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(  # noqa: N802 - Horovod's name, used like a class
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a Keras 3 optimizer reduce its gradients over the ranks first, and returns it.

    ``use_locking``, ``device_dense``, ``device_sparse`` and ``groups`` have no effect; embedding gradients become
    dense tensors, whatever ``sparse_as_dense`` says. TensorFlow 1 optimizers are refused.

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
