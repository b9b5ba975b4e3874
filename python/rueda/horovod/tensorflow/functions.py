"""Broadcast of variables and objects, and allgather of objects, with Horovod's signatures for TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import rueda.objects
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.tensorflow.exchanges import broadcast_
from rueda.horovod.tensorflow.host import translated

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Overwrites TensorFlow or Keras variables with those of rank ``root_rank``. ``inplace`` has no effect.

    Example::

        >>> hvd.broadcast_variables(model.variables, root_rank=0)  # doctest: +SKIP
    """
    broadcast_(list(variables), root_rank, process_set=process_set)


def broadcast_global_variables(root_rank: int) -> None:
    """Raises RuntimeError: TensorFlow 2 has no global variables."""
    raise RuntimeError(
        "hvd.broadcast_global_variables() does not support eager execution: "
        "use hvd.broadcast_variables(<model/optimizer variables>) instead"
    )


@translated
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the ``obj`` of rank ``root_rank`` on every rank of the set. ``session`` has no effect."""
    return rueda.objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that calls :func:`broadcast_object` with its argument and these options."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


@translated
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the list of every rank's ``obj``, in rank order. ``session`` has no effect."""
    return rueda.objects.allgather_object(obj, name, process_set)
