"""The rendezvous of a new world, which the ranks agree on through torch's store."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from rueda import _native
from rueda.door import listen
from rueda.errors import InitializationError, RuedaError
from rueda.errors import TimeoutError as RuedaTimeoutError
from rueda.torch.c10d.watched_store import WatchedStore, has_passed, is_there, not_formed

__all__ = [
    "Meeting",
    "absent_from",
    "arranged",
    "given_up",
    "is_limited",
    "missing_at",
    "stall_options",
    "wait_for_the_others",
]

# How long rank 0 delays an error until the others have read it, in seconds.
GRACE = 10.0
# The default of stall_error in seconds; see docs/options.md.
DEFAULT_STALL_ERROR = 600.0


class Meeting(NamedTuple):
    """A Rueda rendezvous served by rank 0. ``options``: those of the world, the same on all ranks."""

    address: str
    secret: str
    listener: int  # on rank 0 a descriptor already listening at the address; -1 on others
    options: dict[str, Any]


@contextmanager
def arranged(
    store: Store, rank: int, size: int, options: Mapping[str, float], timeout: timedelta
) -> Iterator[Meeting]:
    """The rendezvous that rank 0 offers, with its ``options``, through a store that was not used for this before.

    Raises :class:`rueda.InitializationError` on all ranks if rank 0 cannot listen, and :class:`rueda.TimeoutError` on
    those that have come if not all do within ``timeout``.
    """
    # Equal for processes that can reach each other's abstract sockets.
    host = _native.host_identity()
    store.set(f"host/{rank}", host)
    listener = -1
    with ExitStack() as stack:
        if rank == 0:
            answer: dict[str, object]
            keys = [f"host/{peer}" for peer in range(size)]
            if missing := missing_at(store, keys, "host", size, timeout):
                answer = {"missing": missing}
            elif is_there(store, "late"):
                answer = {"missing": [rank]}
            else:
                hosts = [store.get(f"host/{peer}").decode() for peer in range(size)]
                one_host = hosts.count(host) == size
                answer, listener = (_listen_on_one_host if one_host else _listen_to_hosts)(stack)
                # Anyone who can reach the store can read the secret; on one host the user is checked as well.
                answer |= {"secret": secrets.token_hex(32), "options": dict(options)}
            store.set("world", json.dumps(answer))
        missing = missing_at(store, ["world"], "host", size, timeout)
        if missing:
            store.set("late", "")  # lets a rank 0 that still comes know
        said: dict[str, Any] = {"missing": missing} if missing else json.loads(store.get("world"))
        if "missing" in said:
            raise given_up(store, rank, size, said["missing"], timeout)
        if "error" in said:
            wait_for_the_others(store, rank, size)
            raise InitializationError(
                f"rank 0 cannot serve the ranks of other hosts: {said['error']}"
            )
        yield Meeting(said["address"], said["secret"], listener, said["options"])


def stall_options(timeout: timedelta) -> dict[str, Any]:
    """World options that make operations fail after a group's timeout, unless a variable sets ``stall_error``."""
    return {} if _is_set() else {"stall_error": timeout.total_seconds()}


def _is_set() -> bool:
    variables = ("RUEDA_STALL_ERROR", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    return any(variable in os.environ for variable in variables)


def is_limited(timeout: timedelta) -> bool:
    """Whether the user has chosen the current world's ``stall_error``.

    Otherwise it is the default, or that of :func:`stall_options`. ``timeout``: that of the default group.
    """
    limit = float(_native.options()["stall_error"])
    return _is_set() or limit not in (DEFAULT_STALL_ERROR, timeout.total_seconds())


def missing_at(
    store: Store, keys: list[str], name: str, size: int, timeout: timedelta
) -> list[int]:
    """Waits for keys; if they do not all come in time, the ranks that have not set ``name``, or else rank 0."""
    deadline = time.monotonic() + timeout.total_seconds()
    try:
        store.wait(keys, timeout)
    except Exception:
        if not has_passed(deadline):
            raise
        return absent_from(store, name, size)
    return []


def absent_from(store: Store, name: str, size: int) -> list[int]:
    """The ranks that have not set ``name``; if all have, rank 0, which has not answered."""
    return [rank for rank in range(size) if not is_there(store, f"{name}/{rank}")] or [0]


def given_up(
    store: Store, rank: int, size: int, missing: Sequence[int], timeout: timedelta
) -> RuedaTimeoutError:
    """The error about ranks that have not come, once the others have read who these are."""
    wait_for_the_others(store, rank, size, missing)
    return not_formed(missing, timeout)


def wait_for_the_others(
    store: Store | WatchedStore, rank: int, size: int, missing: Sequence[int] = ()
) -> None:
    """Called before all ranks raise what they have read: rank 0 usually serves the store, which ends with it.

    Only for those that are not ``missing``.
    """
    store.set(f"read/{rank}", "")
    if rank == 0:
        keys = [f"read/{peer}" for peer in range(size) if peer not in missing]
        with suppress(
            RuntimeError, dist.DistError
        ):  # a rank that does not come must not hide the error
            store.wait(keys, timedelta(seconds=GRACE))


# Both listen before any rank learns the address: nobody else can take it, and no rank connects too early.


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
