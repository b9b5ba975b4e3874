"""One rank of an executor, in an actor of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from rueda import lifecycle, rendezvous
from rueda.engines.exits import without_exit
from rueda.engines.forming import Forming
from rueda.engines.network import options_at
from rueda.error_texts import describe
from rueda.errors import PeerLostError, RuedaError, ShutdownError

__all__ = ["Call", "Worker"]

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function and its arguments."""


class Worker:
    """A rank of the world that :meth:`enter` forms, which may end during a call."""

    def __init__(self, variables: Mapping[str, str], forming: Forming) -> None:
        os.environ.update(variables)
        self._forming = forming
        self._executable: Any = None
        self._world = 0  # the number of the world that enter() has formed
        self._failure = ""  # what a call has raised on this rank, which ended that world here

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
        self._world, self._failure = lifecycle.first_world_number(), ""
        if size > 1:
            lifecycle.refuse_to_be_alone(
                f"this process is rank {rank} of {size} of a RayExecutor and has left their world, and init() would "
                "form another one of this process alone: return from the function, and the executor's next call "
                "begins in a new world of all its workers"
            )

    def _network(self) -> dict[str, str]:
        return options_at(ray.util.get_node_ip_address())

    def leave(self) -> None:
        lifecycle.shutdown()

    def make(self, given: Call) -> tuple[None, bool]:
        """Creates the executable; otherwise like :meth:`call`."""
        cls, args, kwargs = given
        self._executable = self._guarded(cls, *args, **kwargs)
        return None, self._is_there()

    def call(self, given: Call, on_it: bool) -> tuple[Any, bool]:
        """Calls the function; returns its result and whether this worker still is in the world of all.

        If the function raises, tells the other ranks, unless they caused it, and leaves the world. Raises
        :class:`rueda.RuedaError` if an earlier call, behind which this one was queued, has ended the world.
        """
        if not self._is_there():
            raise RuedaError(self._why_absent())
        fn, args, kwargs = given
        result = self._guarded(fn, *((self._executable,) if on_it else args), **kwargs)
        return result, self._is_there()

    def _guarded(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return without_exit(fn, *args, **kwargs)
        except BaseException as error:
            if not isinstance(error, PeerLostError | ShutdownError):
                lifecycle.tell_failure(error)
            self._failure = describe(type(error), error)
            lifecycle.shutdown()
            raise

    def _is_there(self) -> bool:
        # Worlds that survivors of a loss have formed since count as the same: a lost worker is reported by Ray.
        return lifecycle.is_initialized() and lifecycle.first_world_number() == self._world

    def _why_absent(self) -> str:
        cause = (
            f"failed here with {self._failure}"
            if self._failure
            else "ended with rueda.shutdown() or the like"
        )
        return (
            f"this call of RayExecutor was queued behind another, which {cause}, so that the world of all workers no "
            "longer exists: call again, in a new world, and wait for run_remote() first"
        )
