"""Ray actors as ranks, with the methods of Horovod's executor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rueda.engines.forming import Forming, plainly
from rueda.engines.given import (
    count_of,
    function_of,
    keywords_of,
    positionals_of,
    seconds_of,
    variables_of,
)
from rueda.engines.pickling import pickled
from rueda.engines.ranks import failed_by_itself, in_order_of_hosts, noted
from rueda.errors import InvalidArgumentError, PeerLostError, RuedaError, TimeoutError
from rueda.ray.reservation import Reservation, connection
from rueda.ray.resources import share_of
from rueda.ray.worker import Worker

__all__ = ["RayExecutor"]

_TO_TELL = 15.0  # extra seconds in which workers may report that they could not form a world

# References to what a call returns on each rank, and to whether its worker still is in the world of all then.
_Calls = list[tuple[Any, Any]]


class RayExecutor:
    """Runs functions on ``num_workers`` actors, which are a world from :meth:`start` to :meth:`shutdown`.

    In the functions the world exists already; ``rueda.init()`` does nothing. Ranks on one node have consecutive
    numbers. ``num_workers``: one or more; Ray places them on as few nodes as it can, or ``num_workers_per_host`` on
    each node, or in ``placement_group``, an existing one, which :meth:`shutdown` does not remove. ``cpus_per_worker``:
    1 by default. ``use_gpu``: one GPU per worker, or ``gpus_per_worker``; with one each, a worker sees the GPUs of all
    workers on its node, so that ``torch.cuda.set_device(rueda.local_rank())`` selects its own. ``timeout``: how many
    seconds :meth:`start` waits for resources that others use and for the world to form, and how long ranks may take to
    notice that another has failed; 60 by default.

    Raises :class:`rueda.InvalidArgumentError` for numbers that make no sense.

    Example::

        >>> executor = rueda.ray.RayExecutor(num_workers=4)  # doctest: +SKIP
        >>> executor.start()  # doctest: +SKIP
        >>> losses = executor.run(train, args=[10])  # by rank  # doctest: +SKIP
        >>> executor.shutdown()  # doctest: +SKIP
    """

    def __init__(
        self,
        num_workers: int,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        *,
        num_workers_per_host: int | None = None,
        placement_group: PlacementGroup | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._size = count_of("num_workers", num_workers, "workers")
        self._per_host = None
        if num_workers_per_host is not None:
            self._per_host = count_of("num_workers_per_host", num_workers_per_host, "workers")
            if placement_group is not None:
                raise InvalidArgumentError(
                    "num_workers_per_host and placement_group are given: pass one of them"
                )
            if self._size % self._per_host:
                raise InvalidArgumentError(
                    f"num_workers={self._size} cannot be divided into hosts with num_workers_per_host={self._per_host}"
                )
        if gpus_per_worker is not None and not use_gpu:
            raise InvalidArgumentError("gpus_per_worker is given without use_gpu=True")
        self._each = {"CPU": share_of("cpus_per_worker", cpus_per_worker)}
        if use_gpu:
            given = 1.0 if gpus_per_worker is None else gpus_per_worker
            self._each["GPU"] = share_of("gpus_per_worker", given)
        self._timeout = seconds_of("timeout", timeout)
        self._room_timeout = self._timeout  # how long to wait for resources that others use
        self._forming: Forming = plainly  # the context within which each worker forms its world
        self._given_group = placement_group
        self._reservation: Reservation | None = None
        self._connection: tuple[str, str] | None = None  # in which the workers were started
        self._workers: list[Any] = []
        self._hosts: list[str] = []  # their nodes' addresses, by rank
        self._is_whole = False  # whether all workers are in one world
        # Of calls that nobody has waited for: references to whether a worker still was in it then.
        self._unseen: list[Any] = []

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = (),
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the workers and forms their world; then creates ``executable_cls(...)`` on each, for :meth:`execute`.

        ``extra_env_vars``: environment variables of all workers. Raises :class:`rueda.InvalidArgumentError`, before
        anything is started, if the executor already runs or the cluster is too small; :class:`rueda.TimeoutError` if
        resources do not become free or workers do not form a world in time; and exceptions of the class.
        """
        if self._workers:
            raise InvalidArgumentError(
                "RayExecutor.start(): it runs already; call shutdown() first"
            )
        made = None
        if executable_cls is not None:
            made = (
                function_of("executable_cls", executable_cls),
                positionals_of("executable_args", executable_args),
                keywords_of("executable_kwargs", executable_kwargs),
            )
        variables = variables_of("extra_env_vars", extra_env_vars)
        if not ray.is_initialized():
            ray.init()
        try:
            self._connection = connection()
            room = Reservation(self._size, self._each, self._per_host, self._given_group)
            self._reservation = room
            room.wait(self._room_timeout)
            started = [self._start_worker(room, i, variables) for i in range(self._size)]
            nodes = self._nodes_of(room, started)
            order = in_order_of_hosts([identity for identity, _ in nodes])
            self._workers = [started[index] for index in order]
            self._hosts = [nodes[index][1] for index in order]
            if self._each.get("GPU") == 1:
                self._share_gpus([nodes[index][0] for index in order])
            self._form()
            if made is not None:
                given = _put(*made)
                making = [each.make.options(num_returns=2) for each in self._workers]
                self._outcome([tuple(make.remote(given)) for make in making])
        except BaseException:
            self.shutdown()
            raise

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` on all ranks; returns the results by rank.

        An exception of ``fn`` is raised here, with the rank as a note (Python 3.11). After it, and after a ``fn`` that
        has called ``rueda.shutdown()``, the next call forms a new world; ``rueda.init()`` in the same ``fn`` cannot,
        and raises :class:`rueda.InvalidArgumentError`.

        Raises :class:`rueda.PeerLostError` if workers were lost, :class:`rueda.TimeoutError` if ranks do not notice
        within ``timeout`` that another has failed, and :class:`rueda.InvalidArgumentError` before :meth:`start` and if
        ``fn`` or its arguments cannot be pickled.
        """
        return self._outcome(self._begin(fn, args, kwargs, False, range(self._size)))

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Starts :meth:`run` without waiting; returns Ray's references to the results by rank.

        If one of them is an error, or the function has ended the world, the next call after that forms a new world.
        Calls that were begun before, which Ray has queued, raise :class:`rueda.RuedaError` with the cause.
        """
        return [value for value, _ in self._begin(fn, args, kwargs, False, range(self._size))]

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Calls ``fn`` with each rank's executable; otherwise like :meth:`run`."""
        return self._outcome(self._begin(fn, (), {}, True, range(self._size)))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls ``fn`` with rank 0's executable, on rank 0 only; otherwise like :meth:`run`."""
        return self._outcome(self._begin(fn, (), {}, True, range(1)))[0]

    def shutdown(self) -> None:
        """Ends the world and the workers, and releases their resources. :meth:`start` may be called again."""
        workers, self._workers = self._workers, []
        room, self._reservation = self._reservation, None
        self._unseen, self._is_whole = [], False
        if connection() != self._connection:
            workers = []  # they ended with the Ray in which they were started
        try:
            leaving = [worker.leave.remote() for worker in workers]
            if leaving:
                ray.wait(leaving, num_returns=len(leaving), timeout=min(self._timeout, 10.0))
        finally:
            for worker in workers:
                ray.kill(worker)
            if room is not None:
                room.release()

    def _nodes_of(self, room: Reservation, started: list[Any]) -> list[tuple[str, str]]:
        """The workers' nodes. In a given placement group, others may use the resources: waits only for the timeout."""
        limit = self._room_timeout if room.is_given else None
        try:
            return list(ray.get([worker.node.remote() for worker in started], timeout=limit))
        except ray.exceptions.GetTimeoutError as error:
            for worker in started:
                ray.kill(worker)
            raise room.no_room(self._room_timeout) from error

    def _start_worker(self, room: Reservation, index: int, variables: Mapping[str, str]) -> Any:
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=room.group, placement_group_bundle_index=room.bundle_of(index)
        )
        made = ray.remote(Worker).options(
            num_cpus=self._each["CPU"],
            num_gpus=self._each.get("GPU", 0),
            scheduling_strategy=strategy,
        )
        return made.remote(dict(variables), self._forming)

    def _share_gpus(self, nodes: Sequence[str]) -> None:
        """Lets each worker see all its node's workers' GPUs in rank order, so that its own has index `local_rank()`."""
        seen: dict[str, list[str]] = {node: [] for node in nodes}
        found = ray.get([worker.gpus.remote() for worker in self._workers])
        for node, own in zip(nodes, found, strict=True):
            seen[node] += [gpu for gpu in own if gpu not in seen[node]]
        told = zip(self._workers, nodes, strict=True)
        ray.get([worker.see.remote(seen[node]) for worker, node in told])

    def _form(self) -> None:
        """Forms a new world of all workers, after each has left the previous one."""
        self._is_whole = False
        trouble = "they still run a function; wait for it, or call shutdown() and start()"
        limit = self._timeout
        try:
            ray.get([worker.leave.remote() for worker in self._workers], timeout=self._timeout)
            address = ray.get(self._workers[0].open.remote(self._size), timeout=self._timeout)
            entering = [
                worker.enter.remote(rank, self._size, address, self._timeout)
                for rank, worker in enumerate(self._workers)
            ]
            # Gives the workers time to report themselves which rank is missing, and why.
            trouble = "they do not form a world; call shutdown() and start(), or raise timeout="
            limit = self._timeout + _TO_TELL
            ray.get(entering, timeout=limit)
        except ray.exceptions.RayActorError as error:
            raise RuedaError(
                "a worker of this RayExecutor is lost, so there is no world of all: call shutdown() and start()"
            ) from error
        except ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(
                f"workers of this RayExecutor do not answer within {limit:g} s: {trouble}"
            ) from error
        self._is_whole = True
        self._unseen = []  # of the world before

    def _begin(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        on_it: bool,
        ranks: Sequence[int],
    ) -> _Calls:
        if not self._workers:
            raise InvalidArgumentError("RayExecutor: call start() first")
        if connection() != self._connection:
            raise RuedaError(
                "the workers of this RayExecutor have ended with the Ray that it was started in: call shutdown() and "
                "start()"
            )
        called = function_of("fn", fn), positionals_of("args", args), keywords_of("kwargs", kwargs)
        given = _put(*called)
        self._look_after_others()
        if not self._is_whole:
            self._form()
        calling = [self._workers[rank].call.options(num_returns=2) for rank in ranks]
        calls: _Calls = [tuple(call.remote(given, on_it)) for call in calling]
        # Kept until seen: nobody may wait for these calls here, as after run_remote() or Ctrl-C.
        self._unseen += [is_there for _, is_there in calls]
        return calls

    def _look_after_others(self) -> None:
        """Checks whether calls that nobody has waited for, but that have ended, have ended the world."""
        if not self._unseen:
            return
        count = len(self._unseen)
        done, self._unseen = ray.wait(self._unseen, num_returns=count, timeout=0, fetch_local=False)
        for reference in done:
            try:
                self._is_whole &= ray.get(reference)
            except Exception:
                self._is_whole = False

    def _outcome(self, calls: _Calls) -> list[Any]:
        """Waits; returns the results, or raises the error of the rank whose failure caused the others."""
        results: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        waiting = {is_there: rank for rank, (_, is_there) in enumerate(calls)}
        deadline = None
        while waiting:
            limit = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, _ = ray.wait(list(waiting), timeout=limit)
            if not done:
                self._is_whole = False
                raise _unnoticed(errors, sorted(waiting.values()), self._timeout)
            for reference in done:
                rank = waiting.pop(reference)
                try:
                    results[rank], is_there = ray.get([calls[rank][0], reference])
                    self._is_whole &= is_there
                except Exception as error:
                    errors[rank] = error
                    deadline = deadline or time.monotonic() + self._timeout
                with suppress(ValueError):
                    self._unseen.remove(reference)
        if errors:
            self._is_whole = False
            _raise_cause(errors, self._hosts)
        return [results[rank] for rank in range(len(calls))]


def _put(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ray's reference to the call for all ranks, which is pickled once."""
    try:
        return ray.put((fn, args, kwargs))
    except Exception:
        # Not earlier: Ray never frees objects whose references are pickled outside its own calls.
        pickled(ray.cloudpickle.dumps, "what RayExecutor is to run", (fn, args, kwargs))
        raise


def _unnoticed(
    errors: Mapping[int, BaseException], others: list[int], timeout: float
) -> TimeoutError:
    """What to raise if the other ranks have not ended in time after these errors."""
    lost = _lost(errors)
    rank, what = (min(lost), "was lost") if lost else (min(errors), "has failed")
    error = TimeoutError(
        f"rank {rank} {what}, and ranks {others} have not noticed within {timeout:g} s: they have begun no collective "
        "since"
    )
    error.__cause__ = errors[rank]
    return error


def _lost(errors: Mapping[int, BaseException]) -> list[int]:
    """The ranks whose workers have ended."""
    return [rank for rank, e in errors.items() if isinstance(e, ray.exceptions.RayActorError)]


def _raise_cause(errors: Mapping[int, BaseException], hosts: Sequence[str]) -> None:
    lost = _lost(errors)
    if lost:
        gone = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in sorted(lost))
        raise PeerLostError(
            f"workers were lost: {gone}; call shutdown() and start() to go on",
            lost[0],
        ) from errors[lost[0]]
    own = failed_by_itself(errors)
    rank = min(errors) if own is None else own
    raise noted(errors[rank], f"rank {rank}, node {hosts[rank]}")
