"""Driver callbacks, called with the values that rank 0 logs."""

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
    """Marks the end of the queue; logged values may be of any other type."""


class _Silent:
    """Discards what ranks other than 0 log."""

    def put(self, info: Any) -> None:
        pass


class Logged:
    """Wraps a function so that ``ray_logger.log()`` on rank 0 feeds the driver's queue while it runs."""

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
    """Calls ``callbacks`` from a thread with each queued value until the block has ended and the queue is empty.

    If a callback raises, or a value cannot be unpickled here, no further callback is called, and the first error is
    raised at the end of the block.
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
            except ray.exceptions.RayActorError:  # the queue and its contents are lost
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
                "callbacks may have missed messages that rank 0 logged: the actor in between was lost",
                stacklevel=4,
            )
        caller.join()
        queue.shutdown()
    if errors:
        raise errors[0]
