"""Where the ranks of a new world find each other: they agree on it through torch's store."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from rueda import _native
from rueda.door import listen
from rueda.errors import InitializationError, RuedaError
from rueda.torch.c10d.watched_store import WatchedStore

__all__ = ["Meeting", "arranged", "is_limited", "stall_options", "wait_for_the_others"]

# How long an error waits for the others to read it, in seconds.
GRACE = 10.0
# Where nobody chooses another, in seconds; see docs/options.md.
DEFAULT_STALL_ERROR = 600.0


class Meeting(NamedTuple):
    """A rendezvous of Rueda's, which rank 0 serves. ``options``: of the world, the same on all ranks."""

    address: str
    secret: str
    listener: int  # a descriptor that listens there already, on rank 0; -1 on others
    options: dict[str, Any]


@contextmanager
def arranged(store: Store, rank: int, size: int, options: Mapping[str, float]) -> Iterator[Meeting]:
    """What rank 0 offers to the ranks of a store that has not been used for it before, with its ``options``.

    Raises :class:`rueda.InitializationError` on all of them where it can offer nothing.
    """
    # Of processes that can reach each other's abstract sockets.
    host = _native.host_identity()
    store.set(f"host/{rank}", host)
    listener = -1
    with ExitStack() as stack:
        if rank == 0:
            one_host = all(store.get(f"host/{peer}").decode() == host for peer in range(1, size))
            answer, listener = _listen_on_one_host(stack) if one_host else _listen_to_hosts(stack)
            # Whoever can reach the store can read the secret; on one host the user is checked as well.
            answer |= {"secret": secrets.token_hex(32), "options": dict(options)}
            store.set("world", json.dumps(answer))
        said = json.loads(store.get("world"))
        if "error" in said:
            wait_for_the_others(store, rank, size)
            raise InitializationError(
                f"rank 0 cannot serve the ranks of other hosts: {said['error']}"
            )
        yield Meeting(said["address"], said["secret"], listener, said["options"])


def stall_options(timeout: timedelta) -> dict[str, Any]:
    """What a group's timeout means for the world: then an operation fails, and names the ranks that are missing."""
    return {} if _is_set() else {"stall_error": timeout.total_seconds()}


def _is_set() -> bool:
    variables = ("RUEDA_STALL_ERROR", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    return any(variable in os.environ for variable in variables)


def is_limited(timeout: timedelta) -> bool:
    """Whether the present world has a ``stall_error`` by somebody's choice.

    Otherwise it is the default, or that of :func:`stall_options`. ``timeout``: of the default group.
    """
    limit = float(_native.options()["stall_error"])
    return _is_set() or limit not in (DEFAULT_STALL_ERROR, timeout.total_seconds())


def wait_for_the_others(store: Store | WatchedStore, rank: int, size: int) -> None:
    """Before all ranks raise what they have read: rank 0 most often serves the store, which ends with it."""
    store.set(f"read/{rank}", "")
    if rank == 0:
        with suppress(
            RuntimeError, dist.DistError
        ):  # one that does not come must not hide the error
            store.wait([f"read/{peer}" for peer in range(size)], timedelta(seconds=GRACE))


# Both listen before any rank is told of it: nobody else can take the address, and nobody comes too early.


def _listen_on_one_host(stack: ExitStack) -> tuple[dict[str, object], int]:
    name = f"rueda-{secrets.token_hex(16)}"
    listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    listener.bind(f"\0{name}")
    listener.listen(socket.SOMAXCONN)
    return {"address": f"unix:@{name}"}, listener.fileno()


def _listen_to_hosts(stack: ExitStack) -> tuple[dict[str, object], int]:
    try:
        listener, address = listen()
    except (RuedaError, OSError) as error:
        return {"error": str(error)}, -1
    return {"address": address}, stack.enter_context(listener).fileno()
