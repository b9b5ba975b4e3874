"""Horovod's API for PyTorch, on Rueda.

Example::

    import rueda.horovod.torch as hvd

    hvd.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

``rueda run --horovod`` makes ``import horovod.torch`` import this. ``docs/horovod.md`` compares it with Horovod.
"""

from rueda.horovod.exceptions import HostsUpdatedInterrupt
from rueda.horovod.torch import compression, elastic, mpi_ops
from rueda.horovod.torch.compression import Compression
from rueda.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from rueda.horovod.torch.mpi_ops import *  # noqa: F403
from rueda.horovod.torch.optimizer import DistributedOptimizer
from rueda.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HostsUpdatedInterrupt",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compression",
    "elastic",
]
__all__ += mpi_ops.__all__
