"""Runs a function on several Dask workers at once, which form a world while it runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import distributed
import tblib.pickling_support
from distributed.protocol import pickle

from rueda import _native, lifecycle, rendezvous
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
from rueda.error_texts import describe
from rueda.errors import (
    InvalidArgumentError,
    PeerLostError,
    RuedaError,
    TimeoutError,
    error_in,
)
from rueda.failures import without_constructor

__all__ = ["run"]


# Seconds for which a rank waits for one of an interrupted call, which ends in its next collective.
_TO_END = 5.0

# On a worker: the address and the rank of the world that its thread of Dask's is in, or enters.
_entered: tuple[str, int] | None = None


class _StartedAgain(PeerLostError):
    """Dask has called a rank's function again, in a new process at the lost worker's address."""


# How a task is done whose function has returned or raised; that of a cancelled one may still run.
_ENDED = ("finished", "error")

# Errors that mean a lost worker. Dask raises its own after distributed.scheduler.allowed-failures losses.
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
    Workers must be separate processes, and each runs one rank; ranks on one host have consecutive numbers.
    ``num_proc``: by default the number of workers.

    If a worker is lost, all ranks end, and ``fn`` restarts on all, up to ``retries`` times; it can resume from a
    checkpoint of its own. An exception of ``fn`` is raised here, with the rank as a note, and not retried; so is
    :class:`rueda.ShutdownError` of a rank that is in a collective when another returns. ``timeout``:
    how many seconds to wait for workers at the start of each attempt, and how long ranks may take to notice that
    another has failed. Concurrent calls, even from several clients, get separate workers; a call waits until enough
    are free.

    Raises :class:`rueda.InvalidArgumentError`, before anything starts, for arguments that cannot work or be pickled;
    :class:`rueda.TimeoutError` if workers do not appear, or ranks do not end after a failure, within ``timeout``; and
    :class:`rueda.PeerLostError` if workers are lost more than ``retries`` times.
    """
    if not isinstance(client, distributed.Client):
        raise InvalidArgumentError(f"client={shown(client)} is not a distributed.Client")
    if client.asynchronous:
        raise InvalidArgumentError(
            "rueda.dask.run() waits for its ranks, which would block the event loop of an asynchronous client: "
            "pass a client without asynchronous=True"
        )
    given = (function_of("fn", fn), positionals_of("args", args), keywords_of("kwargs", kwargs))
    retries = count_of("retries", retries, "times", 0)
    timeout = seconds_of("timeout", timeout)
    size = len(workers_of(client)) if num_proc is None else count_of("num_proc", num_proc, "ranks")
    if size == 0:
        raise InvalidArgumentError("rueda.dask.run() finds no worker: start workers first")
    pickled(pickle.dumps, "the function with its arguments", given)
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
        if lost:
            gone = ", ".join(f"rank {r} ({workers[r]})" for r in lost)
            raise PeerLostError(f"workers were lost while they ran ranks: {gone}", lost[0])
        if errors := _errors(ranks, first):
            _raise_cause(errors, workers)
        try:
            return client.gather(ranks)  # type: ignore[no-any-return]
        except TypeError as error:  # Dask's, whose message contains a traceback of several pages
            what = f"{error}".partition("\n")[0]
            raise InvalidArgumentError(f"what a rank returns cannot be pickled: {what}") from error
    except BaseException as error:
        _stop(client, ranks, workers, address, error, timeout / 4)
        raise
    finally:
        # Otherwise Dask would rerun the task of a lost worker, alone.
        client.cancel(ranks, force=True)


def _errors(futures: list[Any], first: list[int]) -> dict[int, BaseException]:
    """The errors of the ranks that have failed: of ``first``, then of the others."""
    failed = [r for r, future in enumerate(futures) if future.status == "error"]
    return {r: futures[r].exception() for r in (*first, *failed) if r in failed}


def _raise_cause(errors: Mapping[int, BaseException], workers: list[str]) -> NoReturn:
    """Raises the error that caused the others; :class:`rueda.PeerLostError` if live workers have lost each other."""
    own = failed_by_itself(errors)
    if own is not None:
        raise noted(errors[own], f"rank {own}, worker {workers[own]}")
    rank, error = next(iter(errors.items()))
    told = error_in(error)
    raise PeerLostError(
        f"rank {rank} ({workers[rank]}) has lost another rank, although no worker is lost: {error}",
        told.peer if told else None,
    ) from error


def _answers(client: distributed.Client, futures: list[Any], workers: list[str]) -> list[Any]:
    """The results of tasks that wait for no other. Raises :class:`rueda.PeerLostError` if a worker is lost."""
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
        # Otherwise Dask would call the function again if a worker is lost.
        client.cancel(futures, force=True)


def _lost(
    client: distributed.Client, futures: list[Any], workers: list[str], there: Collection[str]
) -> list[int]:
    """The ranks whose workers are gone, or whose function Dask has called again in another process."""
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
    """Waits until all ranks on remaining workers have ended; returns the first ranks to fail and those lost.

    ``timeout`` counts from the first failure. ``address``: the rendezvous, which is closed then so that no rank waits
    there any longer.
    """
    deadline = None
    first: list[int] = []
    gone: list[int] = []
    while True:
        left = [r for r in _lost(client, futures, workers, workers_of(client)) if r not in gone]
        # Otherwise Dask would rerun such a rank, alone, once a worker has returned at the same address.
        if left:
            client.cancel([futures[r] for r in left], force=True)
        gone += left
        failed = gone or [r for r, future in enumerate(futures) if future.status == "error"]
        if deadline is None and failed:
            first, deadline = [*failed], time.monotonic() + timeout
            how = "was lost" if gone else "has failed"
            cause = f"rank {failed[0]} ({workers[failed[0]]}) {how} before all ranks had met"
            # Includes cancelled ranks, as a worker that seemed lost may still exist and wait. Rank 0's worker may have
            # opened the address without using it.
            waiting = workers_of(client).keys() & {
                w
                for f, w in zip(futures, workers, strict=True)
                if f.status not in _ENDED or w == workers[0]
            }
            _end_meeting(client, address, cause, waiting, timeout / 4)
            continue  # that took a while: check again which ranks are running
        running = [f for r, f in enumerate(futures) if r not in gone and not f.done()]
        if not running:
            return first, sorted(gone)
        if deadline is not None and time.monotonic() > deadline:
            still = [w for f, w in zip(futures, workers, strict=True) if f in running]
            errors = {} if gone else _errors(futures, first)
            own = failed_by_itself(errors)
            rank = (gone or first)[0] if own is None else own
            what = "was lost" if gone else "has failed"
            raise TimeoutError(
                f"rank {rank} ({workers[rank]}) {what}, and the ranks on {', '.join(still)} have not noticed within "
                f"{timeout:g} s: they have begun no collective since; raise timeout=, or restart these workers"
            ) from errors.get(rank)
        with contextlib.suppress(distributed.TimeoutError):
            distributed.wait(running, timeout=LOOK, return_when="FIRST_COMPLETED")


def _end_meeting(
    client: distributed.Client, address: str, cause: str, workers: Collection[str], limit: float
) -> None:
    """Makes ranks that still wait at the address raise ``cause``; ranks that are in the world do not notice.

    Does not wait for workers that are too busy to answer within ``limit`` seconds.
    """
    with contextlib.suppress(distributed.TimeoutError):
        # Runs outside the task threads, all of which may be busy.
        client.run(
            rendezvous.close,
            address,
            cause,
            workers=sorted(workers),
            on_error="ignore",
            callback_timeout=limit,
        )


def _stop(
    client: distributed.Client,
    futures: list[Any],
    workers: list[str],
    address: str,
    error: BaseException,
    limit: float,
) -> None:
    """Ends the world of ranks that still run because of an error here, such as Ctrl-C: Dask stops no task's thread."""
    left = {w for f, w in zip(futures, workers, strict=True) if f.status not in _ENDED}
    if not left:
        return
    cause = f"rueda.dask.run() has ended in the client: {describe(type(error), error)}"
    with contextlib.suppress(Exception):  # the error that is being raised counts
        # Runs outside the task threads, as in _end_meeting().
        client.run(
            _end_world,
            address,
            cause,
            workers=sorted(left & workers_of(client).keys()),
            on_error="ignore",
            callback_timeout=limit,
        )


def _end_world(address: str, cause: str) -> None:
    rendezvous.close(address, cause)
    if _entered is not None and _entered[0] == address and lifecycle.is_initialized():
        _native.abort(cause)


def _process() -> str:
    """The id of this worker process; a worker that Dask restarts at the same address has another."""
    return str(distributed.get_worker().id)


def _require_process(process: str, rank: int) -> None:
    if _process() != process:
        raise _StartedAgain(f"the worker of rank {rank} was lost, and has been started again", rank)


def _open(size: int, process: str) -> str:
    _require_process(process, 0)
    return str(rendezvous.open(size, _network().get("interface", "")))


def _network() -> dict[str, str]:
    """The network options of the address at which others reach this worker."""
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
    _require_no_world()
    global _entered
    _entered = address, rank
    try:
        with lifecycle.world(rank, size, address, **_network()):
            return without_exit(fn, *args, **kwargs)
    except Exception as error:
        carried = _carried(error)
        if carried is error:
            raise
    finally:
        _entered = None
    raise carried  # not above, or the error that Dask cannot carry would be its context


def _carried(error: Exception) -> Exception:
    """The error, or what Dask can carry of it, who otherwise sends an ``Exception`` with its text."""
    tblib.pickling_support.install(error)  # as Dask does before it pickles an error
    try:
        str(error)
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # whatever its own __str__, __init__ or __reduce__ raises
        carried = without_constructor(error, pickle)
    try:
        str(carried)
    except Exception:
        carried = None
    carried = carried or RuedaError(describe(type(error), error))
    return carried.with_traceback(error.__traceback__)


def _require_no_world() -> None:
    deadline = time.monotonic() + _TO_END
    while _entered is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    if (earlier := _entered) is not None:
        raise RuedaError(
            f"this worker still runs rank {earlier[1]} of an earlier rueda.dask.run(), which ended without it: the "
            "rank ends in its next collective; wait for it, or restart the worker"
        )
    if lifecycle.is_initialized():
        raise RuedaError(
            "this worker is in a world already: leave it with rueda.shutdown(), as by client.run(rueda.shutdown)"
        )
