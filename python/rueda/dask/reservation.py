"""Reserves Dask workers for one job.

Otherwise tasks of two jobs could start in a different order on each worker, and their ranks would deadlock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import distributed

from rueda.engines.ranks import in_order_of_hosts
from rueda.errors import InvalidArgumentError, TimeoutError

__all__ = ["LOOK", "PATIENCE", "reserved", "workers_of"]

LOOK = 0.5
"""Seconds between checks of which workers exist and are free."""

PATIENCE = 10.0
"""Seconds for which a job waits for workers of other jobs before it says so, and after which it says so again."""

_log = logging.getLogger("rueda")

# Attempts to ask the scheduler, as a connection may break temporarily.
_TRIES = 5


def workers_of(client: distributed.Client) -> dict[str, Any]:
    """The scheduler's information on each current worker, by address."""
    if client.scheduler is None:
        raise InvalidArgumentError(
            "this client is closed, or its scheduler is gone: connect another one"
        )

    async def asked() -> dict[str, Any]:
        # Not client.scheduler_info(), whose result a timer of the client may replace by one without workers.
        return dict((await client.scheduler.identity(n_workers=-1))["workers"])

    for _ in range(_TRIES - 1):
        with suppress(OSError):
            return client.sync(asked)  # type: ignore[no-any-return]
        time.sleep(LOOK)
    found: dict[str, Any] = client.sync(asked)
    return found


@contextmanager
def reserved(client: distributed.Client, size: int, timeout: float) -> Iterator[list[str]]:
    """The addresses of ``size`` workers, by rank, reserved against jobs of all clients while the block runs.

    Waits without limit for other jobs to release workers, with a warning every :data:`PATIENCE` seconds, but at most
    ``timeout`` seconds for workers to appear.
    """
    warns_at = time.monotonic() + PATIENCE
    while True:
        there = _in_order(client, size, timeout)
        with ExitStack() as held:
            taken = _take(client, there, size, held)
            if len(taken) == size:
                yield taken
                return
        if time.monotonic() > warns_at:
            _log.warning(
                "rueda.dask.run() waits for %d workers: other jobs of rueda.dask.run() have %d of the %d that exist",
                size,
                len(there) - len(taken),
                len(there),
            )
            warns_at = time.monotonic() + PATIENCE
        time.sleep(LOOK)


def _in_order(client: distributed.Client, size: int, timeout: float) -> list[str]:
    """All workers, at least ``size``, ordered by host, so that ranks on one host have consecutive numbers."""
    deadline = time.monotonic() + timeout
    while len(workers := workers_of(client)) < size:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rueda.dask.run() waits for {size} workers, but there were only {len(workers)} after {timeout:g} s: "
                "start more, choose a smaller num_proc, or raise timeout= if lost workers take longer to start again"
            )
        time.sleep(LOOK)
    if any(address.startswith("inproc:") for address in workers) and size > 1:
        raise InvalidArgumentError(
            "each rank needs a worker that is a process of its own, but these workers are threads of one: start the "
            "cluster with processes=True"
        )
    addresses = sorted(workers)
    order = in_order_of_hosts([workers[address]["host"] for address in addresses])
    return [addresses[index] for index in order]


def _take(client: distributed.Client, workers: list[str], size: int, held: ExitStack) -> list[str]:
    """Locks the first ``size`` workers that are free, or fewer, and returns them."""
    taken: list[str] = []
    with ExitStack() as choosing:
        # One job chooses at a time: otherwise two jobs could each get half of what they need, again and again.
        _lock(client, "choice", choosing, blocking=True)
        for worker in workers:
            if len(taken) < size and _lock(client, worker, held, blocking=False):
                taken.append(worker)
    return taken


def _lock(client: distributed.Client, name: str, held: ExitStack, *, blocking: bool) -> bool:
    """Acquires a lock until ``held`` ends; returns whether it did. Dask releases locks of clients that are gone."""
    lock = distributed.Lock(f"rueda.dask {name}", client.scheduler, client.loop)
    # The timer that refreshes the lock at the scheduler would keep the object alive forever.
    timer = getattr(lock, "refresh_callback", None)
    if timer is not None:
        held.callback(client.loop.add_callback, timer.stop)
    if not lock.acquire(blocking=blocking):
        return False
    held.callback(lock.release)
    return True
