"""A function on several workers of Dask at once, which are a world while it runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import distributed

from rueda import lifecycle, rendezvous
from rueda.arguments import shown
from rueda.dask.reservation import LOOK, reserved, workers_of
from rueda.engines.exits import without_exit
from rueda.engines.given import (
    count_of,
    function_of,
    keywords_of,
    positionals_of,
    seconds_of,
)
from rueda.engines.network import options_at
from rueda.engines.pickling import pickled
from rueda.engines.ranks import failed_by_itself, noted
from rueda.errors import (
    InvalidArgumentError,
    PeerLostError,
    RuedaError,
    TimeoutError,
)

__all__ = ["run"]


class _StartedAgain(PeerLostError):
    """Dask has called a rank's function a second time, in another process at the address of the one that is lost."""


# What tells that a worker is lost. Dask's own, where it gives up, as distributed.scheduler.allowed-failures says.
_LOSSES = (_StartedAgain, distributed.KilledWorker)


def run(
    client: distributed.Client,
    fn: Callable[..., Any],
    args: Sequence[Any] | None = (),
    num_proc: int | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    retries: int = 2,
    timeout: float = 60.0,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on ``num_proc`` workers at once, which form a world; returns the results by rank.

    In ``fn`` the world exists already: ``rueda.rank()`` and the collectives work, ``rueda.init()`` does nothing.
    Workers are processes of their own, and each runs one rank; ranks of one host follow each other. ``num_proc``: by
    default as many as there are workers.

    Where a worker is lost, all ranks end, and ``fn`` begins anew on all, up to ``retries`` times: it goes on from its
    own checkpoint, if it has one. What ``fn`` raises on a rank is raised here, with the rank as a note, and is not
    tried again. ``timeout``: for how many seconds workers may be missing at the beginning, and how long ranks may
    take to notice that another has failed. Of calls at once, also of several clients, each gets workers of its own, or
    waits until there are enough that no other has.

    Raises :class:`rueda.InvalidArgumentError` for arguments that cannot work or cannot be pickled, before anything
    begins; :class:`rueda.TimeoutError` where workers or ranks do not come or end within ``timeout``, and
    :class:`rueda.PeerLostError` where workers were lost too often.
    """
    if not isinstance(client, distributed.Client):
        raise InvalidArgumentError(f"client={shown(client)} is no distributed.Client")
    if client.asynchronous:
        raise InvalidArgumentError(
            "rueda.dask.run() waits for its ranks, which the thread of an asynchronous client's event loop cannot: "
            "pass a client without asynchronous=True"
        )
    given = (function_of("fn", fn), positionals_of("args", args), keywords_of("kwargs", kwargs))
    retries = count_of("retries", retries, "times", 0)
    timeout = seconds_of("timeout", timeout)
    size = len(workers_of(client)) if num_proc is None else count_of("num_proc", num_proc, "ranks")
    if size == 0:
        raise InvalidArgumentError("rueda.dask.run() finds no worker: start workers first")
    pickled(distributed.protocol.pickle.dumps, "the function with its arguments", given)
    attempt = 0
    while True:
        try:
            with reserved(client, size, timeout) as workers:
                return _run_once(client, workers, given, timeout)
        except PeerLostError:
            if attempt == retries:
                raise
        attempt += 1


def _run_once(
    client: distributed.Client,
    workers: list[str],
    given: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
    timeout: float,
) -> list[Any]:
    def on(worker: str, call: Callable[..., Any], *args: Any) -> distributed.Future:
        return client.submit(call, *args, workers=[worker], allow_other_workers=False, pure=False)

    size = len(workers)
    processes = _answers(client, [on(w, _process) for w in workers], workers)
    opened = on(workers[0], _open, size, processes[0])
    address: str = _answers(client, [opened], workers[:1])[0]
    ranks = [on(w, _rank, r, processes[r], size, address, *given) for r, w in enumerate(workers)]
    try:
        first, lost = _wait(client, ranks, workers, timeout, address)
        failed = [r for r, future in enumerate(ranks) if future.status == "error"]
        errors = {r: ranks[r].exception() for r in (*first, *failed) if r in failed}
        own = failed_by_itself(errors)
        if own is not None and not lost:
            raise noted(errors[own], f"rank {own}, worker {workers[own]}")
        if lost or failed:
            gone = ", ".join(f"rank {r} ({workers[r]})" for r in lost or failed)
            raise PeerLostError(
                f"workers were lost while they ran ranks: {gone}", (lost or failed)[0]
            )
        try:
            return client.gather(ranks)  # type: ignore[no-any-return]
        except TypeError as error:  # Dask's, with a traceback of several pages in its text
            what = f"{error}".partition("\n")[0]
            raise InvalidArgumentError(f"what a rank returns cannot be pickled: {what}") from error
    finally:
        # Else Dask would run the task of a worker that is lost again, alone.
        client.cancel(ranks, force=True)


def _answers(client: distributed.Client, futures: list[Any], workers: list[str]) -> list[Any]:
    """What they return, who wait for nobody. Raises :class:`rueda.PeerLostError` where one of the workers is lost."""
    try:
        while True:
            if lost := _lost(client, futures, workers, workers_of(client)):
                gone = f"worker {workers[lost[0]]} was lost before rank {lost[0]} began"
                raise PeerLostError(gone, lost[0])
            if all(future.done() for future in futures):
                break
            with contextlib.suppress(distributed.TimeoutError):
                distributed.wait(futures, timeout=LOOK)
        return client.gather(futures)  # type: ignore[no-any-return]
    finally:
        # Else Dask would call the function again where a worker is lost.
        client.cancel(futures, force=True)


def _lost(
    client: distributed.Client, futures: list[Any], workers: list[str], there: Collection[str]
) -> list[int]:
    """The ranks whose workers have gone, or were another process when Dask called the function again."""
    return [
        rank
        for rank, (future, worker) in enumerate(zip(futures, workers, strict=True))
        if _is_lost(client, future, is_there=worker in there)
    ]


def _is_lost(client: distributed.Client, future: Any, *, is_there: bool) -> bool:
    if future.status == "error":
        return isinstance(future.exception(), _LOSSES)
    if is_there:
        return False
    # A worker that retires hands its result to another.
    return future.status != "finished" or not client.who_has([future]).get(future.key)


def _wait(
    client: distributed.Client,
    futures: list[Any],
    workers: list[str],
    timeout: float,
    address: str,
) -> tuple[list[int], list[int]]:
    """Waits until all have ended whose workers have not gone; returns who failed first, and whose workers have gone.

    From the first ``timeout`` counts. ``address``: where they meet, at which nobody is to wait for them.
    """
    deadline = None
    first: list[int] = []
    gone: list[int] = []
    while True:
        left = [r for r in _lost(client, futures, workers, workers_of(client)) if r not in gone]
        # Else Dask runs such a rank again, alone, once a worker has come back at the same address.
        if left:
            client.cancel([futures[r] for r in left], force=True)
        gone += left
        failed = gone or [r for r, future in enumerate(futures) if future.status == "error"]
        if deadline is None and failed:
            first, deadline = [*failed], time.monotonic() + timeout
            how = "was lost" if gone else "has failed"
            cause = f"rank {failed[0]} ({workers[failed[0]]}) {how} before all ranks had met"
            # Those that are given up, too, as a worker that does not seem to be there may be, and wait. Rank 0's worker
            # may have opened the address and not used it.
            waiting = workers_of(client).keys() & {
                w
                for f, w in zip(futures, workers, strict=True)
                if f.status not in ("finished", "error") or w == workers[0]
            }
            _end_meeting(client, address, cause, waiting, timeout / 4)
            continue  # that took a while: who is running now?
        running = [f for r, f in enumerate(futures) if r not in gone and not f.done()]
        if not running:
            return first, sorted(gone)
        if deadline is not None and time.monotonic() > deadline:
            still = [w for f, w in zip(futures, workers, strict=True) if f in running]
            what = "a worker is lost" if gone else "a rank has failed"
            raise TimeoutError(
                f"{what}, and the ranks on {', '.join(still)} have not noticed within {timeout:g} s: they have begun "
                "no collective since; raise timeout=, or restart these workers"
            )
        with contextlib.suppress(distributed.TimeoutError):
            distributed.wait(running, timeout=LOOK, return_when="FIRST_COMPLETED")


def _end_meeting(
    client: distributed.Client, address: str, cause: str, workers: Collection[str], limit: float
) -> None:
    """Has the ranks that still wait at the address raise ``cause``; those that are in the world do not notice.

    A worker that a rank keeps too busy to answer within ``limit`` seconds is not waited for.
    """
    with contextlib.suppress(distributed.TimeoutError):
        # Beside the tasks, which may have all threads of a worker.
        client.run(
            rendezvous.close,
            address,
            cause,
            workers=sorted(workers),
            on_error="ignore",
            callback_timeout=limit,
        )


def _process() -> str:
    """Which one this worker is: another that Dask starts at the same address is not the same."""
    return str(distributed.get_worker().id)


def _require_process(process: str, rank: int) -> None:
    if _process() != process:
        raise _StartedAgain(f"the worker of rank {rank} was lost, and has been started again", rank)


def _open(size: int, process: str) -> str:
    _require_process(process, 0)
    return str(rendezvous.open(size, _network().get("interface", "")))


def _network() -> dict[str, str]:
    """That of the address at which others reach this worker."""
    return options_at(distributed.comm.get_address_host(distributed.get_worker().address))


def _rank(
    rank: int,
    process: str,
    size: int,
    address: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    _require_process(process, rank)
    if lifecycle.is_initialized():
        raise RuedaError("this worker is in a world already: leave it with rueda.shutdown()")
    with lifecycle.world(rank, size, address, **_network()):
        return without_exit(fn, *args, **kwargs)
