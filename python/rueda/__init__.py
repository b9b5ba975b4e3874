"""Rueda: collectives across processes on NumPy arrays, over a ring.

Example::

    import numpy as np
    import rueda

    rueda.init()
    average = rueda.allreduce(np.ones(3) * rueda.rank(), name="example")
    print(rueda.rank(), average)

Run it with ``mpirun -np 4 python example.py`` or ``rueda run -np 4 python example.py``. ``rueda.torch`` has the same
functions for tensors and the distributed optimizer.

Operations are matched across ranks by ``name``. Unnamed operations are numbered, so all ranks of a ``process_set`` must
submit them in the same order. Only one operation with a given name may be pending at a time.

The modules ``rueda.checkpoint``, ``elastic``, ``server``, ``torch`` and those for other frameworks (``dask``,
``horovod``, ``jax``, ``keras``, ``optuna``, ``ray``, ``spark``) are imported on first use.
"""

# ruff: noqa: F405 - names of rueda.public_names
import typing as _typing  # under its own name type checkers know TYPE_CHECKING
from os import environ as _environ

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
    # `rueda check` and `rueda run` must work without the extension, so that they can report that it is missing.
    # The error is therefore raised at the first use of something that needs it.
    _why_not = str(_error)
else:
    _why_not = ""
    if "RUEDA_REPORT" in _environ:
        from rueda import public_names as _public_names  # noqa: F401 - before functions are replaced
        from rueda.report.native_hooks import begin_if_asked as _begin_if_asked

        _begin_if_asked()

if _typing.TYPE_CHECKING:
    from rueda import checkpoint as checkpoint
    from rueda import compression as compression
    from rueda import dask as dask
    from rueda import elastic as elastic
    from rueda import horovod as horovod
    from rueda import jax as jax
    from rueda import keras as keras
    from rueda import optuna as optuna
    from rueda import ray as ray
    from rueda import rendezvous as rendezvous
    from rueda import server as server
    from rueda import spark as spark
    from rueda import torch as torch
    from rueda.public_names import *  # noqa: F403

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
    "abort",
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

# Also available after `import rueda`; imported on first use.
_MODULES = ("compression", "elastic", "horovod", "rendezvous", "server")
# The same, but each needs a framework that may be missing. dir() omits them, because inspect.getmembers() would get
# each one and fail with its ImportError.
_FRAMEWORKS = ("checkpoint", "dask", "jax", "keras", "optuna", "ray", "spark", "torch")

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports everything but the errors on first use: it needs NumPy, which no launcher needs."""
        if name == "__version__":
            return _find_version()
        if _why_not and name in __all__:
            raise ImportError(
                f"rueda.{name} needs the native extension, which cannot be imported "
                f"({_why_not}); 'rueda check' says more",
                name="rueda._native",
            )
        if name in __all__:
            from importlib import import_module

            found = getattr(import_module("rueda.public_names"), name)
            globals()[name] = found
            return found
        if name in _MODULES or name in _FRAMEWORKS:
            from importlib import import_module

            return import_module(f"rueda.{name}")
        raise AttributeError(f"module 'rueda' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *(() if _why_not else (*__all__, *_MODULES))})

    def _find_version() -> str:
        """Called on demand: the lookup takes a sixth of the time of importing all of Rueda."""
        from importlib import metadata

        try:
            return metadata.version("rueda")
        except metadata.PackageNotFoundError:  # run from a source tree that has not been installed
            return "0.0.0"
