"""Workers of Dask that one job has for itself.

Tasks of two jobs on the same workers could begin in another order on each, and their ranks wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import distributed

from rueda.engines.ranks import in_order_of_hosts
from rueda.errors import InvalidArgumentError, TimeoutError

__all__ = ["LOOK", "reserved", "workers_of"]

LOOK = 0.5
"""Seconds after which is looked again at which workers are there, and free."""

# A connection to the scheduler may break for a moment.
_TRIES = 5


def workers_of(client: distributed.Client) -> dict[str, Any]:
    """What the scheduler knows of each worker that is there, by address."""
    if client.scheduler is None:
        raise InvalidArgumentError(
            "this client is closed, or its scheduler is gone: connect another one"
        )

    async def asked() -> dict[str, Any]:
        # Of this answer: a timer of the client's may replace what scheduler_info() returns by one without workers.
        return dict((await client.scheduler.identity(n_workers=-1))["workers"])

    for _ in range(_TRIES - 1):
        with suppress(OSError):
            return client.sync(asked)  # type: ignore[no-any-return]
        time.sleep(LOOK)
    found: dict[str, Any] = client.sync(asked)
    return found


@contextmanager
def reserved(client: distributed.Client, size: int, timeout: float) -> Iterator[list[str]]:
    """The addresses of ``size`` workers, by rank, which no other job gets while the block runs, whoever its client is.

    Waits as long as other jobs have them, but ``timeout`` seconds at most for workers to come.
    """
    while True:
        there = _in_order(client, size, timeout)
        with ExitStack() as held:
            taken = _take(client, there, size, held)
            if len(taken) == size:
                yield taken
                return
        time.sleep(LOOK)


def _in_order(client: distributed.Client, size: int, timeout: float) -> list[str]:
    """All workers, at least ``size``, ordered by host, so that the ranks of a host follow each other."""
    deadline = time.monotonic() + timeout
    while len(workers := workers_of(client)) < size:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rueda.dask.run() waits for {size} workers, but there were only {len(workers)} after {timeout:g} s: "
                "start more, choose a smaller num_proc, or raise timeout= where lost workers take longer to start again"
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
    """The first ``size`` of them that are free, or fewer."""
    taken: list[str] = []
    with ExitStack() as choosing:
        # One job chooses at a time: else each of two might get half of what it needs, again and again.
        _lock(client, "choice", choosing, blocking=True)
        for worker in workers:
            if len(taken) < size and _lock(client, worker, held, blocking=False):
                taken.append(worker)
    return taken


def _lock(client: distributed.Client, name: str, held: ExitStack, *, blocking: bool) -> bool:
    """Whether it is got, for as long as ``held`` lasts. Dask takes it back from a client that is gone."""
    lock = distributed.Lock(f"rueda.dask {name}", client.scheduler, client.loop)
    # Its timer, by which it tells the scheduler that it is still held, would keep it for ever.
    timer = getattr(lock, "refresh_callback", None)
    if timer is not None:
        held.callback(client.loop.add_callback, timer.stop)
    if not lock.acquire(blocking=blocking):
        return False
    held.callback(lock.release)
    return True
