"""Callbacks of the driver, called with what rank 0 logs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.queue import Queue

from rueda import lifecycle
from rueda.engines.given import function_of
from rueda.horovod.ray import ray_logger

__all__ = ["Logged", "calling"]


class _End:
    """Comes after all that is logged, which may be anything else."""


class _Silent:
    """Takes what other ranks log."""

    def put(self, info: Any) -> None:
        pass


class Logged:
    """A function, on whose ranks ``ray_logger.log()`` puts into the queue of the driver's while it runs."""

    def __init__(self, fn: Callable[..., Any], queue: Queue) -> None:
        self._fn = fn
        self._queue = queue

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ray_logger.configure(self._queue if lifecycle.rank() == 0 else _Silent())
        try:
            return self._fn(*args, **kwargs)
        finally:
            ray_logger.configure(None)


@contextmanager
def calling(callbacks: Sequence[Callable[[Any], Any]]) -> Iterator[Queue]:
    """Calls them with all that comes into the queue, in a thread, until the block has ended and the queue is empty.

    What a callback raises is raised at the end of the block, also where a value cannot be unpickled here; no other is
    called then.
    """
    functions = [function_of("callbacks", each) for each in callbacks]
    queue = Queue(actor_options={"num_cpus": 0})
    errors: list[BaseException] = []

    def call_all() -> None:
        while True:
            try:
                info = queue.get()
                if isinstance(info, _End):
                    return
                for function in [] if errors else functions:
                    function(info)
            except ray.exceptions.RayActorError:  # the queue is lost, and with it what was in it
                return
            except BaseException as error:  # such as sys.exit()
                errors.append(error)
                if not ray.is_initialized():
                    return

    caller = threading.Thread(target=call_all, daemon=True)
    caller.start()
    try:
        yield queue
    finally:
        try:
            queue.put(_End())
        except ray.exceptions.RayActorError:
            warnings.warn(
                "callbacks may not have heard all that rank 0 has logged: the actor between them is lost",
                stacklevel=4,
            )
        caller.join()
        queue.shutdown()
    if errors:
        raise errors[0]
