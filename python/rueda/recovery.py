"""Continuing without ranks that were lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rueda import _native
from rueda.endings import endings
from rueda.errors import PeerLostError, ShutdownError
from rueda.lifecycle import follow_world, is_initialized, size
from rueda.observation import options

__all__ = ["Lost", "Recovery", "can_recover", "is_loss", "on_recovery", "recover"]

# How long to wait, after an operation has failed, for the news that the peer has left cleanly; seconds.
_NEWS = 5.0

_listeners: list[Callable[[list[int]], None]] = []


def on_recovery(listener: Callable[[list[int]], None]) -> None:
    """Registers ``listener(previous_ranks)``, called whenever the remaining ranks have formed a new world."""
    _listeners.append(listener)


@dataclass(frozen=True)
class Lost:
    """A rank that is gone.

    ``rank``: in the world that broke. ``host``, ``process_id``: where it ran. ``cause``: how the others noticed; if it
    raised an exception, the exception's text and its lines. ``reason``: ``"unreachable"`` if this rank got no answer
    from it, so that it may still be alive; ``rueda run`` then ends it. ``"ended"`` if its process has certainly ended.

    Example::

        >>> lost = rueda.Lost(2, "host-a", 4711, "rank 2 (host-a, pid 4711) is gone: its process has ended")
        >>> print(lost.exit_status, lost.ending)
        None None
    """

    rank: int
    host: str
    process_id: int
    cause: str
    reason: str = ""

    @property
    def exit_status(self) -> int | None:
        """Its exit code, or the negated number of the signal that ended it; ``None`` if not known, or not yet.

        Only the parent of the process learns it. ``rueda run`` without MPI reports it, also to other hosts, mostly by
        the time that :func:`recover` returns, otherwise a moment later. Does not wait for it.
        """
        known = endings.of(self.host, self.process_id)
        return known.status if known else None

    @property
    def ending(self) -> str | None:
        """The same in words, such as ``"killed by SIGKILL (Killed)"`` or ``"exit code 3"``."""
        known = endings.of(self.host, self.process_id)
        return known.how if known else None


@dataclass(frozen=True)
class Recovery:
    """What :func:`recover` found.

    ``epoch``: the number of the new world, higher than that of any before; the first has 0. ``previous_ranks``: for
    each of its ranks, the rank in the world that broke. ``lost``: the ranks of that world that are gone, and why;
    ``details``: more about each. ``interrupted``: the operations that were pending on this rank when the world broke,
    such as ``"allreduce of 'gradient'"``; if there were many, only the first of them.

    Example::

        >>> rueda.Recovery(1, [0, 2], {1: "its process has ended"}).lost
        {1: 'its process has ended'}
    """

    epoch: int
    previous_ranks: list[int]
    lost: dict[int, str]
    details: dict[int, Lost] = field(default_factory=dict)
    interrupted: list[str] = field(default_factory=list)


def can_recover() -> bool:
    """Whether this process is in a world that :func:`recover` can follow."""
    return is_initialized() and options()["recovery"] == "on" and size() > 1


def is_loss(error: BaseException) -> bool:
    """Whether the error means that this process's world has ended and :func:`recover` can help.

    That is so if a rank is lost, and if another one has left cleanly, as at the end of its program.
    """
    if not isinstance(error, PeerLostError | ShutdownError) or not can_recover():
        return False
    # The error may also come from a process set that has ended, or from another world, such as an earlier one. If it
    # comes from this world, that is broken by now or about to be, since the error may be faster than the news.
    is_news = isinstance(error, PeerLostError) or error.peer is not None
    return _native.is_world_over(_NEWS if is_news else 0.0)


def recover(timeout: float = 60.0, *, break_whole: bool = False) -> Recovery:
    """Enters the new world of the remaining ranks after a world has broken; no process is restarted.

    The world must have been formed with ``rueda.init(recovery="on")`` (``RUEDA_RECOVERY=on``, which ``rueda run
    --min-np`` sets). Call it after :class:`rueda.PeerLostError` or any other error that has broken the world, including
    the :class:`rueda.ShutdownError` when a rank has left cleanly while others had work to do with it. The remaining
    ranks agree on the survivors and form the new world in the background, whatever the application is doing. This waits
    for that, up to ``timeout`` seconds, but not for the others to call it. Ranks are renumbered in their old order. The
    application must handle results that only some ranks have received: restart from a state that all ranks had.
    ``break_whole``: if the world is intact, break it first, as a failure of this rank would, and form it again with all
    ranks. Process sets continue with their remaining members, see :class:`rueda.ProcessSet`; persistent operations and
    holders of gradients belong to the old world (optimizers handle this themselves).

    Raises :class:`rueda.PeerLostError` if this rank must stop, and says why: it belongs to a minority (so that two
    worlds can never continue side by side), the others have continued without it, or fewer than ``min_np`` are left.
    Raises :class:`rueda.InvalidArgumentError` if the world is intact and is not to be broken,
    :class:`rueda.UnsupportedError` without recovery, and :class:`rueda.TimeoutError` after ``timeout``, after which it
    may be called again.

    Example::

        >>> try:
        ...     lost = rueda.recover().lost  # {2: "rank 2 (host-a, pid 4711) is gone: ..."}
        ... except (rueda.UnsupportedError, rueda.InvalidArgumentError):
        ...     lost = {}  # nothing to recover from

        rueda.init(recovery="on")
        while step < steps:
            try:
                gradient = rueda.allreduce(local_gradient(step), name="gradient")
            except (rueda.PeerLostError, rueda.ShutdownError):
                rueda.recover()
                step = int(rueda.allreduce(np.array([step]), op=rueda.Min, name="step")[0])
    """
    endings.ask()  # answered while the world is being formed
    epoch, previous_ranks, lost, interrupted = _native.recover(float(timeout), bool(break_whole))
    follow_world(previous_ranks)
    for listener in _listeners:
        listener(list(previous_ranks))
    details = {
        rank: Lost(rank, host, process, cause, reason)
        for rank, host, process, cause, reason in sorted(lost)
    }
    causes = {rank: each.cause for rank, each in details.items()}
    return Recovery(epoch, list(previous_ranks), causes, details, list(interrupted))
