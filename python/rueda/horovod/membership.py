"""Worlds of a subset of the launched processes, for ``init(comm=...)``."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rueda.horovod.meeting import Meeting, meeting_of, random_meeting
from rueda.variables import set_variables

__all__ = ["world_of"]

_OWN = ("RUEDA_RANK", "RUEDA_SIZE", "RUEDA_RENDEZVOUS", "RUEDA_SECRET")


@contextmanager
def world_of(comm: Any) -> Iterator[dict[str, str]]:
    """Context in which ``rueda.init()`` with the yielded options forms the world that ``comm`` describes.

    ``comm``: ``None``, an empty list or all ranks in order for all processes; a list of launched ranks that includes
    this process; or an mpi4py communicator. The members of a subset must be on one host.

    Raises ``ValueError`` for anything else.
    """
    if comm is None:
        yield {}
        return
    if hasattr(comm, "Get_rank"):
        if comm.Get_size() == _launched()[1]:
            yield {}
            return
        rank, size, meeting = _of_communicator(comm)
    elif isinstance(comm, Iterable) and not isinstance(comm, str):
        ranks = list(comm)
        size = _launched()[1]
        if not ranks or (size > 1 and ranks == list(range(size))):
            yield {}
            return
        rank, size, meeting = _of_ranks(ranks)
    else:
        raise ValueError(f"comm is a list of ranks or a communicator of mpi4py, not {comm!r}")
    told = dict(zip(_OWN, (str(rank), str(size), *meeting), strict=True))
    with set_variables(told):
        yield {"bootstrap": "rendezvous"}


def _launched() -> tuple[int, int]:
    """Returns the launcher's rank and number of processes."""
    pairs = [
        ("RUEDA_RANK", "RUEDA_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ]
    for rank, size in pairs:
        if os.environ.get(rank) and os.environ.get(size):
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def _of_ranks(ranks: Sequence[Any]) -> tuple[int, int, Meeting]:
    rank, size = _launched()
    if not all(isinstance(each, int) and 0 <= each < size for each in ranks):
        raise ValueError(f"comm={ranks} must be ranks from 0 to {size - 1}")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"comm={ranks} has a rank twice")
    if rank not in ranks:
        raise ValueError(
            f"comm={ranks} lacks this process's rank, {rank}: only the ranks in comm may call init()"
        )
    return ranks.index(rank), len(ranks), meeting_of(",".join(map(str, ranks)))


def _of_communicator(comm: Any) -> tuple[int, int, Meeting]:
    hosts = set(comm.allgather(socket.gethostname()))
    if len(hosts) > 1:
        raise ValueError(
            f"a communicator of only some processes must be on one host, not on {sorted(hosts)}"
        )
    return comm.Get_rank(), comm.Get_size(), comm.bcast(random_meeting(), root=0)
