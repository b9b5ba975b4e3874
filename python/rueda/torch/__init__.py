"""Rueda for torch: collectives on tensors of the CPU and of GPUs, with gradients, and the distributed optimizer.

Example::

    import rueda.torch as rt

    rt.init()
    optimizer = rt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    rt.broadcast_parameters(model.state_dict(), root_rank=0)

Everything in ``rueda`` that does not take arrays is here as well, including the modules ``rueda.checkpoint``,
``elastic``, ``rendezvous`` and ``server``, so that programs may begin with ``import rueda.torch as rueda``. Not here:
``rueda.empty()`` and ``rueda.allreduce_leaves()``; for tensors, use :meth:`DistributedOptimizer.leaves`.
"""

import typing as _typing

from rueda import report
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
from rueda.leaves import LeafBatch, LeafSampler, LeafSums, Leaves, leaf_seed
from rueda.lifecycle import (
    abort,
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
from rueda.observation import (
    AlgorithmChoice,
    HostLink,
    choose_algorithm,
    host_links,
    metrics,
    options,
    start_timeline,
    stop_timeline,
    write_flight_record,
)
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
from rueda.recovery import Lost, Recovery, recover
from rueda.report.torch_hooks import begin_if_asked as _record_torch
from rueda.torch import equiv
from rueda.torch.agreement import Divergence, DivergenceError, check_agreement
from rueda.torch.compiling import leave_alone as _leave_alone
from rueda.torch.compiling import never_compiled as _never_compiled
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

if _typing.TYPE_CHECKING:
    from rueda import checkpoint as checkpoint
    from rueda import elastic as elastic
    from rueda import rendezvous as rendezvous
    from rueda import server as server
    from rueda.torch import c10d as c10d
    from rueda.torch import parallel as parallel

_record_torch()
_never_compiled(Handle)

__all__ = [
    "AlgorithmChoice",
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
    "HostLink",
    "InitializationError",
    "InternalError",
    "InvalidArgumentError",
    "LeafBatch",
    "LeafSampler",
    "LeafSums",
    "Leaves",
    "Lost",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "PersistentAllreduce",
    "PrefetchLoader",
    "ProcessSet",
    "Product",
    "Recovery",
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
    "abort",
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
    "choose_algorithm",
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
    "host_links",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "leaf_seed",
    "local_rank",
    "local_size",
    "metrics",
    "options",
    "poll",
    "rank",
    "recover",
    "recv",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "report",
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
    "write_flight_record",
]

_leave_alone(globals()[name] for name in __all__)

# Modules of `rueda`, imported on first use.
_MODULES = ("checkpoint", "elastic", "rendezvous", "server")
# Its own modules that need torch.distributed.
_OF_TORCH = ("c10d", "parallel")

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports modules that ``import rueda`` has too, for programs that call this module ``rueda``."""
        if name in _MODULES or name in _OF_TORCH:
            from importlib import import_module

            found = import_module(f"rueda.torch.{name}" if name in _OF_TORCH else f"rueda.{name}")
            globals()[name] = found
            return found
        raise AttributeError(f"module 'rueda.torch' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})
