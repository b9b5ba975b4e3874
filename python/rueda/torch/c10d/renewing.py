"""Continues with torch.distributed in a new world, after :func:`rueda.recover` or an elastic change."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from rueda import lifecycle
from rueda.errors import NotInitializedError, UnsupportedError
from rueda.torch.c10d.operations import Operations

__all__ = ["renew_process_group", "typed_errors"]


class _Gone(NamedTuple):
    """Properties of a destroyed group that its replacement inherits."""

    timeout: timedelta
    owns_world: bool


# Kept until the group is renewed; a rank lost meanwhile delays that.
_gone: _Gone | None = None


def renew_process_group(timeout: timedelta | None = None) -> None:
    """Creates the default process group for the current world, or recreates it if the world has changed.

    If the world has changed since the group was created, by :func:`rueda.recover`, :func:`rueda.elastic.update` or
    :func:`rueda.elastic.run`, all groups are destroyed; other groups are not recreated. Otherwise the group stays.
    Collective over the world, newcomers included. Recreate objects that hold a group as well:
    ``DistributedDataParallel(model.module)``, optimizers with sharded state, further groups and meshes.

    ``timeout``: by default that of the previous group, or torch's.

    Raises :class:`rueda.NotInitializedError` outside a world, :class:`rueda.UnsupportedError` if the default group is
    reconfigurable or has another backend, and :class:`rueda.PeerLostError` if a rank is lost meanwhile: call it again
    after :func:`rueda.recover`.

    Example::

        >>> rueda.torch.c10d.renew_process_group()
        >>> dist.get_backend(), dist.get_world_size()
        ('rueda', 1)
        >>> dist.destroy_process_group()

        @rueda.elastic.run
        def train(state):
            rueda.torch.c10d.renew_process_group()
            model = DistributedDataParallel(state.model)
            while state.step < steps:
                train_step(model, state.optimizer, state.step)
                state.step += 1
                state.commit()
    """
    if not lifecycle.is_initialized():
        raise NotInitializedError("there is no world to make a process group of: call rueda.init()")
    global _gone
    if dist.is_initialized():
        group = dist.group.WORLD
        if not isinstance(group, Operations) or group.supports_reconfigure:
            raise UnsupportedError(
                "the default process group is not one that init_process_group('rueda') makes of Rueda's world"
            )
        _gone = None
        if group.is_of_this_world:
            return
        _gone = _Gone(group.timeout, group.owns_world)
        lifecycle.before_shutdown(_forget)
        dist.destroy_process_group()
        sys.excepthook = _before_torch(sys.excepthook)
    if timeout is None and _gone is not None:
        timeout = _gone.timeout
    # Explicit, since torch's variables may be set and would describe the first world.
    dist.init_process_group("rueda", init_method="rueda://", timeout=timeout)
    renewed = dist.group.WORLD
    assert isinstance(renewed, Operations)
    renewed.own_world(_gone is not None and _gone.owns_world)
    _gone = None


def _forget() -> None:
    global _gone
    _gone = None


def _before_torch(hook: Callable[..., object]) -> Callable[..., object]:
    """The excepthook below torch's, which prefixes each line with the rank and which torch is about to add again."""
    while getattr(hook, "__name__", "") == "_distributed_excepthook":
        before = inspect.getclosurevars(hook).nonlocals.get("old_hook")
        if before is None:
            break
        hook = before
    return hook


@contextmanager
def typed_errors() -> Iterator[None]:
    """A context that raises Rueda's own errors instead of the ``RuntimeError`` into which torch's C++ converts them.

    DistributedDataParallel and others take errors from futures, which keep only their text. This context raises the
    original error, such as :class:`rueda.PeerLostError`, if it has made the process group unusable; other errors stay
    unchanged.

    Example::

        >>> with rueda.torch.c10d.typed_errors():
        ...     torch.ones(1, requires_grad=True).sum().backward()

        with rueda.torch.c10d.typed_errors():
            loss.backward()
    """
    groups = [
        group for group in dist.distributed_c10d._world.pg_map if isinstance(group, Operations)
    ]
    before = {id(group) for group in groups if group.fatal_error is not None}
    try:
        yield
    except RuntimeError as error:
        news = (group.fatal_error for group in groups if id(group) not in before)
        fatal = next((each for each in news if each is not None), None)
        if fatal is None or isinstance(error, type(fatal)):
            raise
        raise fatal from error
