"""Rueda: collectives across processes on NumPy arrays, over a ring.

Example::

    import numpy as np
    import rueda

    rueda.init()
    average = rueda.allreduce(np.ones(3) * rueda.rank(), name="example")
    print(rueda.rank(), average)

Run it with ``mpirun -np 4 python example.py`` or ``rueda run -np 4 python example.py``. ``rueda.torch`` has the same
functions for tensors and the distributed optimizer.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

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

try:
    import rueda._native  # noqa: F401
except ImportError as _error:
    # `rueda check` and `rueda run` must work without the extension, to say that it is missing: so
    # the error waits for the first use of what needs it.
    _why_not = str(_error)
else:
    _why_not = ""
    from rueda import report
    from rueda.exchanges import (
        allgather,
        allgather_async,
        alltoall,
        alltoall_async,
        barrier,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        grouped_allgather,
        grouped_allgather_async,
        join,
    )
    from rueda.handles import Handle, poll, synchronize
    from rueda.leaves import (
        LeafBatch,
        LeafSampler,
        LeafSums,
        Leaves,
        allreduce_leaves,
        allreduce_leaves_async,
        leaf_seed,
    )
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
    from rueda.memory import empty
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
    from rueda.point_to_point import recv, recv_async, send, send_async
    from rueda.process_sets import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )
    from rueda.recovery import Lost, Recovery, recover
    from rueda.reductions import (
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
    from rueda.report.native_hooks import begin_if_asked as _begin_if_asked

    _begin_if_asked()

__version__: str

__all__ = [
    "AlgorithmChoice",
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
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
    "ProcessSet",
    "Product",
    "Recovery",
    "ReduceOp",
    "RuedaError",
    "ShutdownError",
    "StalledError",
    "Sum",
    "TimeoutError",
    "TransportError",
    "UnsupportedError",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "allreduce_leaves",
    "allreduce_leaves_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "choose_algorithm",
    "cross_rank",
    "cross_size",
    "empty",
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
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "world",
    "write_flight_record",
]

if not _TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """What is not there from the beginning: the version, and why the extension is missing."""
        if name == "__version__":
            return _find_version()
        if _why_not and name in __all__:
            raise ImportError(
                f"rueda.{name} needs the native extension, which cannot be imported "
                f"({_why_not}); 'rueda check' says more",
                name="rueda._native",
            )
        raise AttributeError(f"module 'rueda' has no attribute '{name}'")

    def _find_version() -> str:
        """When somebody asks: what finds it takes as long as a sixth of what imports all of Rueda."""
        from importlib import metadata

        try:
            return metadata.version("rueda")
        except metadata.PackageNotFoundError:  # run from a source tree that has not been installed
            return "0.0.0"
