"""Broadcast of models, optimizers and objects, and allgather of objects, with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import torch

import rueda.objects
from rueda.horovod.exceptions import translated
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.torch import state

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


@translated
def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrites the tensors of every rank with those of rank ``root_rank``.

    ``params``: ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``; any strides. ``None`` in
    a ``dict`` is skipped; for any other value that is not a tensor every rank raises.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    if isinstance(params, dict):
        params = {name: value for name, value in params.items() if value is not None}
    elif not isinstance(params, (list, tuple)) and not hasattr(params, "__iter__"):
        raise ValueError(f"parameters cannot be broadcast from a {type(params).__name__}")
    state.broadcast_parameters(params, root_rank)


@translated
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Gives the optimizers of all ranks the state and hyperparameters of the one on rank ``root_rank``.

    Works for every optimizer, including LBFGS, even before the first step; the root's is only read. ``model`` is
    ignored: Horovod needs it for the steps with which it creates the state.

    Example::

        >>> optimizer = torch.optim.Adam(torch.nn.Linear(3, 1).parameters())
        >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    state.broadcast_optimizer_state(optimizer, root_rank)


@translated
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the ``obj`` of rank ``root_rank`` (a world rank) on every rank of the set. It is sent by pickle.

    Example::

        >>> hvd.broadcast_object({"epoch": 3}, root_rank=0)
        {'epoch': 3}
    """
    return rueda.objects.broadcast_object(obj, root_rank, name, process_set)


@translated
def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns the list of every rank's ``obj``, in rank order. They are sent by pickle.

    Example::

        >>> hvd.allgather_object("rank {}".format(hvd.rank()))
        ['rank 0']
    """
    return rueda.objects.allgather_object(obj, name)
