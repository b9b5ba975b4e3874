"""A barrier over the group's store that names the missing ranks."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from rueda.errors import TimeoutError as RuedaTimeoutError
from rueda.torch.c10d.work import DEADLINE, timed_out

__all__ = ["limit_of", "monitored_barrier"]

# How much longer than rank 0 the others wait, in seconds: for its answer, which names the missing ranks.
GRACE = 10.0
# The shortest timeout passed to a store, in seconds.
SHORTEST = 0.01
# What torch passes for a timeout that has not been given.
_UNSET = timedelta(milliseconds=-1)


def limit_of(timeout: timedelta | None, default: float) -> float:
    """A monitored barrier's timeout in seconds: ``default`` if not given. Unlike in other operations, zero is one."""
    if timeout is None or timeout == _UNSET:
        return default
    return max(0.0, timeout.total_seconds())


def monitored_barrier(
    store: Store, rank: int, ranks: list[int], seconds: float, wait_all_ranks: bool
) -> None:
    """Returns when all ``ranks`` (world ranks) have arrived. ``rank``: this process's index in them.

    The store must be empty before the first rank arrives. Raises :class:`rueda.TimeoutError`.
    """
    if rank != 0:
        store.set(str(rank), "here")
        try:
            store.wait(["answer"], timedelta(seconds=seconds + GRACE))
        except (RuntimeError, dist.DistError):
            raise RuedaTimeoutError(
                f"{_reached(ranks, rank)}: the monitored barrier has not been passed within {seconds:g} s, rank "
                f"{ranks[0]} has not come. {timed_out(seconds)}",
                ranks[0],
                reason=DEADLINE,
            ) from None
        missing = json.loads(store.get("answer"))
    else:
        missing = _missing(store, ranks, seconds, wait_all_ranks)
        store.set("answer", json.dumps(missing))
    if missing:
        # The wording of torch's own barrier, which users and tests search for.
        who = ", ".join(map(str, missing))
        several = len(missing) > 1
        failed = f"{'Ranks' if several else 'Rank'} {who} failed to pass monitoredBarrier"
        raise RuedaTimeoutError(
            f"{failed if rank == 0 else _reached(ranks, rank)} within {seconds:g} s: "
            f"{'ranks' if several else 'rank'} {who} {'have' if several else 'has'} not come. {timed_out(seconds)}",
            missing[0] if len(missing) == 1 else None,
            reason=DEADLINE,
        )


def _reached(ranks: list[int], rank: int) -> str:
    return (
        f"Rank {ranks[rank]} successfully reached monitoredBarrier, but received errors while waiting for "
        f"send/recv from rank {ranks[0]}"
    )


def _missing(store: Store, ranks: list[int], seconds: float, wait_all_ranks: bool) -> list[int]:
    deadline = time.monotonic() + seconds
    missing = []
    for peer in range(1, len(ranks)):
        left = max(SHORTEST, deadline - time.monotonic())
        try:
            store.wait([str(peer)], timedelta(seconds=left))
        except (RuntimeError, dist.DistError):
            missing.append(ranks[peer])
            if not wait_all_ranks:
                break
    return missing
