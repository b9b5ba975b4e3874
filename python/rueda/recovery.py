"""Going on without ranks that were lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rueda import _native
from rueda.lifecycle import count_world, is_initialized, size
from rueda.observation import options

__all__ = ["Recovery", "can_recover", "on_recovery", "recover"]

_listeners: list[Callable[[list[int]], None]] = []


def on_recovery(listener: Callable[[list[int]], None]) -> None:
    """``listener(previous_ranks)`` is called whenever the world has been formed anew of those that are left."""
    _listeners.append(listener)


@dataclass(frozen=True)
class Recovery:
    """What :func:`recover` has found.

    ``epoch``: the number of the new world, higher than that of any before; the first has 0. ``previous_ranks``: of
    each of its ranks, the rank in the world that broke. ``lost``: the ranks of that world that are gone, and why.

    Example::

        >>> rueda.Recovery(1, [0, 2], {1: "connection closed without good-bye"}).lost
        {1: 'connection closed without good-bye'}
    """

    epoch: int
    previous_ranks: list[int]
    lost: dict[int, str]


def can_recover() -> bool:
    """Whether this process is in a world that :func:`recover` can follow."""
    return is_initialized() and options()["recovery"] == "on" and size() > 1


def recover(timeout: float = 60.0, *, break_whole: bool = False) -> Recovery:
    """Enters the world of the ranks that are left of one that has broken; no process is started anew.

    The world must have been formed with ``rueda.init(recovery="on")`` (``RUEDA_RECOVERY=on``, which ``rueda run
    --min-np`` sets). Call it after :class:`rueda.PeerLostError`, or any error that has broken the world. The ranks that
    are left agree on who that is, and form the new world in the background, whatever the application is doing: this
    waits for it, up to ``timeout`` seconds, but not for the others to call it. Ranks are numbered anew, in their order.
    Results that some ranks have got and others have not are the application's to settle: begin again from a state that
    all had. ``break_whole``: where the world is whole it is broken first, as by a failure of this rank, and formed anew
    of all. Process sets, persistent operations and what holds gradients (optimizers see to it themselves) are of the
    old world.

    Raises :class:`rueda.PeerLostError` where this rank must stop: it is one of a minority, so that two worlds can never
    go on side by side, the others have gone on without it, or fewer than ``min_np`` are left; the text says which.
    :class:`rueda.InvalidArgumentError` where the world is whole and is not to be broken,
    :class:`rueda.UnsupportedError` without recovery, :class:`rueda.TimeoutError` after ``timeout``, after which it may
    be called again.

    Example::

        >>> try:
        ...     lost = rueda.recover().lost  # {2: "rank 2 (host-a, pid 4711) is gone: ..."}
        ... except (rueda.UnsupportedError, rueda.InvalidArgumentError):
        ...     lost = {}  # nothing to recover from

        rueda.init(recovery="on")
        while step < steps:
            try:
                gradient = rueda.allreduce(local_gradient(step), name="gradient")
            except rueda.PeerLostError:
                rueda.recover()
                step = int(rueda.allreduce(np.array([step]), op=rueda.Min, name="step")[0])
    """
    epoch, previous_ranks, lost = _native.recover(float(timeout), bool(break_whole))
    count_world()
    for listener in _listeners:
        listener(list(previous_ranks))
    return Recovery(epoch, list(previous_ranks), dict(sorted(lost.items())))
