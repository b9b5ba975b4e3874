"""Rueda for torch: collectives on tensors of the CPU and of GPUs, with gradients, and the distributed optimizer.

Example::

    import rueda.torch as rt

    rt.init()
    optimizer = rt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    rt.broadcast_parameters(model.state_dict(), root_rank=0)

Everything of ``rueda`` that is not about arrays is here as well.
"""

from rueda.errors import (
    DuplicateNameError,
    InitializationError,
    InternalError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    RuedaError,
    ShutdownError,
    StalledError,
    TimeoutError,
    TransportError,
    UnsupportedError,
)
from rueda.exchanges import barrier, join
from rueda.handles import Handle, poll, synchronize
from rueda.lifecycle import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    world,
)
from rueda.objects import allgather_object, broadcast_object
from rueda.observation import metrics, options, start_timeline, stop_timeline
from rueda.operations import (
    Average,
    BitAnd,
    BitOr,
    BitXor,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)
from rueda.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from rueda.report.torch_hooks import begin_if_asked as _record_torch
from rueda.torch import equiv
from rueda.torch.agreement import Divergence, DivergenceError, check_agreement
from rueda.torch.compression import Compression, CompressionPolicy, Compressor
from rueda.torch.exchanges import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from rueda.torch.optimizer import DistributedOptimizer
from rueda.torch.persistent import PersistentAllreduce
from rueda.torch.point_to_point import recv, recv_async, send, send_async
from rueda.torch.prefetch import PrefetchLoader
from rueda.torch.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    reducescatter,
    reducescatter_async,
)
from rueda.torch.sparse import SparseHandle, sparse_allreduce, sparse_allreduce_async
from rueda.torch.sparse_choice import SparseChoice, choose_sparse_algorithm
from rueda.torch.state import broadcast_optimizer_state, broadcast_parameters
from rueda.torch.strategies.wrapped import wrap

_record_torch()

__all__ = [
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Compression",
    "CompressionPolicy",
    "Compressor",
    "DistributedOptimizer",
    "Divergence",
    "DivergenceError",
    "DuplicateNameError",
    "Handle",
    "InitializationError",
    "InternalError",
    "InvalidArgumentError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "PersistentAllreduce",
    "PrefetchLoader",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "RuedaError",
    "ShutdownError",
    "SparseChoice",
    "SparseHandle",
    "StalledError",
    "Sum",
    "TimeoutError",
    "TransportError",
    "UnsupportedError",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_agreement",
    "choose_sparse_algorithm",
    "cross_rank",
    "cross_size",
    "equiv",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "metrics",
    "options",
    "poll",
    "rank",
    "recv",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "send",
    "send_async",
    "shutdown",
    "size",
    "sparse_allreduce",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "world",
    "wrap",
]
