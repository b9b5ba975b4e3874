"""Elastic training for torch: a state that survives a failed step, and the loop that restarts.

Example::

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, EPOCHS):
            train_one_epoch(state)
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, epoch=0))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rueda.horovod import forming
from rueda.horovod.elastic_state import State
from rueda.horovod.torch.elastic.sampler import ElasticSampler
from rueda.horovod.torch.elastic.state import ObjectState, TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]

P = ParamSpec("P")
T = TypeVar("T")


def run(func: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Decorates a training function, whose first argument is a :class:`State`.

    The function restarts from the last commit if a collective fails on any rank. If the job was started by
    ``rueda run --min-np`` (``RUEDA_RECOVERY=on``), it also continues without lost ranks, and with ``--max-np`` commit()
    admits processes that the launcher has started to join; see ``docs/horovod.md``.

    Example::

        >>> @hvd.elastic.run
        ... def train(state):
        ...     for state.epoch in range(state.epoch, 3):
        ...         state.commit()
        ...     return state.epoch
        >>> train(hvd.elastic.ObjectState(epoch=0))
        2
    """
    return forming.run(func)
