"""Ray actors as ranks, with the methods of Horovod's executor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rueda import lifecycle, rendezvous
from rueda.engines.exits import without_exit
from rueda.engines.forming import Forming, plainly
from rueda.engines.given import (
    count_of,
    function_of,
    keywords_of,
    positionals_of,
    seconds_of,
    variables_of,
)
from rueda.engines.network import options_at
from rueda.engines.pickling import pickled
from rueda.engines.ranks import failed_by_itself, in_order_of_hosts, noted
from rueda.errors import (
    InvalidArgumentError,
    PeerLostError,
    RuedaError,
    ShutdownError,
    TimeoutError,
)
from rueda.ray.resources import check_room, check_room_in_group

__all__ = ["RayExecutor"]

_TO_TELL = 15.0  # extra seconds in which workers may report that they could not form a world

_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # a function and its arguments


class _Worker:
    """One rank, in its own actor."""

    def __init__(self, variables: Mapping[str, str], forming: Forming) -> None:
        os.environ.update(variables)
        self._forming = forming
        self._executable: Any = None

    def node(self) -> tuple[str, str]:
        """The node's id and its address, by which Ray's own messages name it."""
        return str(ray.get_runtime_context().get_node_id()), str(ray.util.get_node_ip_address())

    def gpus(self) -> list[str]:
        """The GPUs that Ray has assigned to this worker."""
        return [str(each) for each in ray.get_runtime_context().get_accelerator_ids()["GPU"]]

    def see(self, gpus: Sequence[str]) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)

    def open(self, size: int) -> str:
        return str(rendezvous.open(size, self._network().get("interface", "")))

    def enter(self, rank: int, size: int, address: str, timeout: float) -> None:
        with self._forming() as options:
            given = {**self._network(), "init_timeout": f"{timeout:g}", **options}
            lifecycle.init((), rank=rank, size=size, rendezvous=address, **given)

    def _network(self) -> dict[str, str]:
        return options_at(ray.util.get_node_ip_address())

    def is_there(self) -> bool:
        """Whether this worker is in a world."""
        return lifecycle.is_initialized()

    def leave(self) -> None:
        lifecycle.shutdown()

    def make(self, given: _Call) -> None:
        cls, args, kwargs = given
        self._executable = cls(*args, **kwargs)

    def call(self, given: _Call, on_it: bool) -> Any:
        """Calls the function. If it raises, tells the other ranks, unless they caused it, and leaves the world."""
        fn, args, kwargs = given
        try:
            given_to = (self._executable,) if on_it else args
            return without_exit(fn, *given_to, **kwargs)
        except BaseException as error:
            if not isinstance(error, PeerLostError | ShutdownError):
                lifecycle.tell_failure(error)
            lifecycle.shutdown()
            raise


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
        self._each = {"CPU": _share_of("cpus_per_worker", cpus_per_worker)}
        if use_gpu:
            given = 1.0 if gpus_per_worker is None else gpus_per_worker
            self._each["GPU"] = _share_of("gpus_per_worker", given)
        self._timeout = seconds_of("timeout", timeout)
        self._room_timeout = self._timeout  # how long to wait for resources that others use
        self._forming: Forming = plainly  # the context within which each worker forms its world
        self._given_group = placement_group
        self._group: Any = None
        self._workers: list[Any] = []
        self._hosts: list[str] = []  # their nodes' addresses, by rank
        self._is_whole = False  # whether all workers are in one world
        self._remote: list[Any] = []  # references of the last run_remote()

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
            self._reserve()
            started = [self._start_worker(i, variables) for i in range(self._size)]
            nodes = self._nodes_of(started)
            order = in_order_of_hosts([identity for identity, _ in nodes])
            self._workers = [started[index] for index in order]
            self._hosts = [nodes[index][1] for index in order]
            if self._each.get("GPU") == 1:
                self._share_gpus([nodes[index][0] for index in order])
            self._form()
            if made is not None:
                given = _put(*made)
                self._outcome([worker.make.remote(given) for worker in self._workers])
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

        An exception of ``fn`` is raised here, with the rank as a note (Python 3.11); the next call forms a new world.
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

        If one of them is an error, the next call after all have ended forms a new world.
        """
        self._remote = self._begin(fn, args, kwargs, False, range(self._size))
        return list(self._remote)

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Calls ``fn`` with each rank's executable; otherwise like :meth:`run`."""
        return self._outcome(self._begin(fn, (), {}, True, range(self._size)))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls ``fn`` with rank 0's executable, on rank 0 only; otherwise like :meth:`run`."""
        return self._outcome(self._begin(fn, (), {}, True, range(1)))[0]

    def shutdown(self) -> None:
        """Ends the world and the workers, and releases their resources. :meth:`start` may be called again."""
        leaving = [worker.leave.remote() for worker in self._workers]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=min(self._timeout, 10.0))
        for worker in self._workers:
            ray.kill(worker)
        if self._group is not None and self._given_group is None:
            remove_placement_group(self._group)
        self._workers, self._remote, self._group, self._is_whole = [], [], None, False

    def _reserve(self) -> None:
        """Reserves resources for all workers, unless a placement group was given."""
        if self._given_group is not None:
            check_room_in_group("RayExecutor", self._size, self._each, self._given_group)
            self._group = self._given_group
            return
        check_room("RayExecutor", self._size, self._each, self._per_host)
        if self._per_host is None:
            self._group = placement_group([self._each] * self._size, strategy="PACK")
        else:
            # Rounded, as 3 * 0.1 is slightly more than 0.3.
            host = {name: round(each * self._per_host, 4) for name, each in self._each.items()}
            count = self._size // self._per_host
            self._group = placement_group([host] * count, strategy="STRICT_SPREAD")
        if not self._group.wait(self._room_timeout):
            raise self._no_room()

    def _no_room(self) -> TimeoutError:
        return TimeoutError(
            f"RayExecutor needs {self._size} times {self._each}, which others still use after "
            f"{self._room_timeout:g} s: end them, or raise timeout="
        )

    def _nodes_of(self, started: list[Any]) -> list[tuple[str, str]]:
        """The workers' nodes. In a given placement group, others may use the resources: waits only for the timeout."""
        limit = None if self._given_group is None else self._room_timeout
        try:
            return list(ray.get([worker.node.remote() for worker in started], timeout=limit))
        except ray.exceptions.GetTimeoutError as error:
            for worker in started:
                ray.kill(worker)
            raise self._no_room() from error

    def _start_worker(self, index: int, variables: Mapping[str, str]) -> Any:
        bundle = -1 if self._given_group is not None else index // (self._per_host or 1)
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=bundle
        )
        made = ray.remote(_Worker).options(
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

    def _begin(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        on_it: bool,
        ranks: Sequence[int],
    ) -> list[Any]:
        if not self._workers:
            raise InvalidArgumentError("RayExecutor: call start() first")
        called = function_of("fn", fn), positionals_of("args", args), keywords_of("kwargs", kwargs)
        given = _put(*called)
        self._look_after_remote()
        if not self._is_whole:
            self._form()
        return [self._workers[rank].call.remote(given, on_it) for rank in ranks]

    def _look_after_remote(self) -> None:
        """Checks whether the last :meth:`run_remote`, whose errors only its caller sees, has ended the world."""
        if not self._remote:
            return
        count = len(self._remote)
        ready, _ = ray.wait(self._remote, num_returns=count, timeout=0, fetch_local=False)
        if len(ready) < count:
            return
        self._remote = []
        try:
            asked = [worker.is_there.remote() for worker in self._workers]
            there = ray.get(asked, timeout=self._timeout)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            there = [False]
        self._is_whole = self._is_whole and all(there)

    def _outcome(self, references: list[Any]) -> list[Any]:
        """Waits; returns the results, or raises the error of the rank whose failure caused the others."""
        errors: dict[int, BaseException] = {}
        waiting = {reference: rank for rank, reference in enumerate(references)}
        deadline = None
        while waiting:
            limit = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, _ = ray.wait(list(waiting), timeout=limit)
            if not done:
                self._is_whole = False
                raise TimeoutError(
                    f"rank {min(errors)} has failed, and ranks {sorted(waiting.values())} have not noticed within "
                    f"{self._timeout:g} s: they have begun no collective since"
                ) from errors[min(errors)]
            for reference in done:
                rank = waiting.pop(reference)
                try:
                    ray.get(reference)
                except Exception as error:
                    errors[rank] = error
                    deadline = deadline or time.monotonic() + self._timeout
        if errors:
            self._is_whole = False
            _raise_cause(errors, self._hosts)
        return list(ray.get(references))


def _share_of(name: str, value: Any) -> float:
    """A number of CPUs or GPUs per worker, possibly fractional."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidArgumentError(f"{name}={value!r}: pass a number of 0 or more, for each worker")
    return float(value)


def _put(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ray's reference to the call for all ranks, which is pickled once."""
    try:
        return ray.put((fn, args, kwargs))
    except Exception:
        # Not earlier: Ray never frees objects whose references are pickled outside its own calls.
        pickled(ray.cloudpickle.dumps, "what RayExecutor is to run", (fn, args, kwargs))
        raise


def _raise_cause(errors: Mapping[int, BaseException], hosts: Sequence[str]) -> None:
    lost = [rank for rank, e in errors.items() if isinstance(e, ray.exceptions.RayActorError)]
    if lost:
        gone = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in sorted(lost))
        raise PeerLostError(
            f"workers were lost: {gone}; call shutdown() and start() to go on",
            lost[0],
        ) from errors[lost[0]]
    own = failed_by_itself(errors)
    rank = min(errors) if own is None else own
    raise noted(errors[rank], f"rank {rank}, node {hosts[rank]}")
