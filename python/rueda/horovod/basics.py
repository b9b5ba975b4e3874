"""Horovod's calls to enter and leave the world, to query ranks and sizes, and to query build features."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rueda.lifecycle
from rueda import _native
from rueda.horovod.exceptions import translated
from rueda.horovod.forks import answering_in_children, is_child
from rueda.horovod.membership import world_of
from rueda.horovod.process_sets import ProcessSet
from rueda.horovod.settings import defaults, understood, warn_of_unused
from rueda.lifecycle import world_number
from rueda.objects import allgather_object
from rueda.process_sets import add_process_set, end_process_sets, stand_for

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
]

cross_rank = translated(answering_in_children(rueda.lifecycle.cross_rank))
cross_size = translated(answering_in_children(rueda.lifecycle.cross_size))
is_homogeneous = translated(answering_in_children(rueda.lifecycle.is_homogeneous))
local_rank = translated(answering_in_children(rueda.lifecycle.local_rank))
local_size = translated(answering_in_children(rueda.lifecycle.local_size))
rank = translated(answering_in_children(rueda.lifecycle.rank))
size = translated(answering_in_children(rueda.lifecycle.size))
shutdown = translated(rueda.lifecycle.shutdown)


def is_initialized() -> bool:
    """Whether this process is in a world, or was forked from one that is; then ``rank()`` etc. are its parent's.

    Example::

        >>> hvd.is_initialized()
        True
    """
    return is_child() or rueda.lifecycle.is_initialized()


@translated
def init(comm: Any = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Forms the world unless it exists, then adds ``process_sets``; does nothing in a process forked from a rank.

    A set that exists already, as in a second call, is not added again: the object then stands for it.

    ``comm``: ``None`` for all processes that the launcher has started; a list of some of their ranks, or an mpi4py
    communicator, for a world of those, numbered in that order. ``process_sets``: sets to add, the same on every rank,
    or ``"dynamic"``; sets can be added later in either case. A process that joins a running job adds none: by then
    ``hvd.elastic.run`` has removed the other ranks' sets.

    Raises ``ValueError`` for an invalid ``comm`` and for a set that is listed twice or has all ranks, and
    :class:`HorovodInternalError` if the world cannot be formed.

    Example::

        >>> hvd.init()  # hvd.init(process_sets=[hvd.ProcessSet([0, 2])]), say
        >>> hvd.is_initialized()
        True
    """
    wanted = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f"process_sets={process_sets!r} is neither a list nor 'dynamic'")
    if is_child():
        return
    if not is_initialized():
        # Like the other ranks: a re-formed world has no sets, and the others are not in init().
        if os.environ.get("RUEDA_JOINER") and world_number() == 0:
            wanted = []
        warn_of_unused()
        with understood() as settings, world_of(comm) as bootstrap:
            options: dict[str, Any] = {**defaults(), **settings, **bootstrap}
            rueda.lifecycle.init((), **options)
            end_process_sets()  # if this process has joined a job: the others end theirs, too
    for process_set in wanted:
        if process_set.ranks is None:
            _learn_ranks(process_set)
    there = {tuple(_native.ranks_of(each)): each for each in reversed(_native.process_set_ids())}
    seen = [_native.ranks_of(0)]
    for number, process_set in enumerate(wanted):
        ranks = process_set.ranks
        assert ranks is not None
        if ranks in seen:
            raise ValueError(f"process_sets entry number {number} is a duplicate: {process_set}")
        seen.append(ranks)
        if tuple(ranks) in there:
            stand_for(process_set, there[tuple(ranks)])
        else:
            add_process_set(process_set)


def _learn_ranks(process_set: ProcessSet) -> None:
    """Sets the set's world ranks from its communicator; every rank of the world must call this."""
    comm = process_set.mpi_comm
    members = (
        comm.allgather(rueda.lifecycle.rank()) if comm.Get_size() > 1 else [rueda.lifecycle.rank()]
    )
    told: list[list[int]] = allgather_object(sorted(members), "communicator of a process set")
    # MPI gives each process the communicator that it belongs to; after a split of the world, rank 0's counts.
    process_set.learn_ranks(told[0])


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads: true with the plug-in, as Rueda calls MPI serially.

    Raises ``ValueError`` before ``init()``.

    Example::

        >>> hvd.mpi_threads_supported() in (True, False)
        True
    """
    rank()
    return mpi_built()


def mpi_built() -> bool:
    """Whether the MPI plug-in is installed.

    Example::

        >>> isinstance(hvd.mpi_built(), bool)
        True
    """
    package = Path(rueda.__file__).resolve().parent
    places = [Path(rueda.__file__).parent / "lib", package / "lib"]
    return any((place / "librueda_mpi.so").exists() for place in places)


def mpi_enabled() -> bool:
    """Whether the ranks met through MPI. False before ``init()``.

    Example::

        >>> hvd.mpi_enabled() != hvd.gloo_enabled()
        True
    """
    return rueda.lifecycle.is_initialized() and _launched_by_mpi()


def _launched_by_mpi() -> bool:
    options = _native.options()
    if options["bootstrap"] != "auto" or options["transport"] == "mpi":
        return "mpi" in (options["bootstrap"], options["transport"])
    marks = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
    return "RUEDA_RENDEZVOUS" not in os.environ and any(mark in os.environ for mark in marks)


def gloo_built() -> bool:
    """Whether ranks can run without MPI: always, through Rueda's own rendezvous and transports.

    Example::

        >>> hvd.gloo_built()
        True
    """
    return True


def gloo_enabled() -> bool:
    """Whether the ranks met without MPI. False before ``init()``.

    Example::

        >>> hvd.mpi_enabled() != hvd.gloo_enabled()
        True
    """
    return rueda.lifecycle.is_initialized() and not _launched_by_mpi()


def nccl_built() -> int:
    """The NCCL version, such as 22703 for 2.27.3; 0 if NCCL is not found or this build lacks GPU support.

    Example::

        >>> hvd.nccl_built() > 0 and not hvd.cuda_built()
        False
    """
    built, _, nccl = _native.gpu_support()
    if not built or not nccl:
        return 0
    major, minor, patch = map(int, nccl.split("."))
    return major * 10000 + minor * 100 + patch


def ddl_built() -> bool:
    """Whether IBM's DDL is used: never.

    Example::

        >>> hvd.ddl_built()
        False
    """
    return False


def ccl_built() -> bool:
    """Whether Intel's oneCCL is used: never.

    Example::

        >>> hvd.ccl_built()
        False
    """
    return False


def cuda_built() -> bool:
    """Whether this build of Rueda supports NVIDIA GPU tensors.

    Example::

        >>> hvd.cuda_built() in (True, False)
        True
    """
    built, _, _ = _native.gpu_support()
    return built


def rocm_built() -> bool:
    """Whether AMD GPU tensors are supported: never.

    Example::

        >>> hvd.rocm_built()
        False
    """
    return False
