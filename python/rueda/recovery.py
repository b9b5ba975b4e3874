"""Going on without ranks that were lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rueda import _native
from rueda.endings import endings
from rueda.errors import PeerLostError, ShutdownError
from rueda.lifecycle import follow_world, is_initialized, size
from rueda.observation import options

__all__ = ["Lost", "Recovery", "can_recover", "is_loss", "on_recovery", "recover"]

# Within which a rank knows that another one has left in good order, once an operation has failed for it; seconds.
_NEWS = 5.0

_listeners: list[Callable[[list[int]], None]] = []


def on_recovery(listener: Callable[[list[int]], None]) -> None:
    """``listener(previous_ranks)`` is called whenever the world has been formed anew of those that are left."""
    _listeners.append(listener)


@dataclass(frozen=True)
class Lost:
    """A rank that is gone.

    ``rank``: in the world that broke. ``host``, ``process_id``: where it was. ``cause``: how the others have noticed
    it; where it has raised, the exception's text and its lines.

    Example::

        >>> lost = rueda.Lost(2, "host-a", 4711, "rank 2 (host-a, pid 4711) is gone: its process has ended")
        >>> print(lost.exit_status, lost.ending)
        None None
    """

    rank: int
    host: str
    process_id: int
    cause: str

    @property
    def exit_status(self) -> int | None:
        """Its exit code, or the signal that has ended it, negated; ``None`` where that is not known, or not yet.

        Only the parent of the process gets to know it, and tells it, also to other hosts, where that is ``rueda run``
        without MPI. It mostly has done so by the time that :func:`recover` returns, and otherwise a moment later. Does
        not wait for it.
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

    ``epoch``: the number of the new world, higher than that of any before; the first has 0. ``previous_ranks``: of
    each of its ranks, the rank in the world that broke. ``lost``: the ranks of that world that are gone, and why;
    ``details``: more of each. ``interrupted``: the operations that were open on this rank when the world broke, such
    as ``"allreduce of 'gradient'"``; where there were many, the first of them.

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
    """Whether this process's world is over with that error, and :func:`recover` helps.

    It does where a rank is lost, and where another one has left in good order, as at the end of its program.
    """
    if not isinstance(error, PeerLostError | ShutdownError) or not can_recover():
        return False
    # A process set, too, may have ended with that error, or another world.
    return isinstance(error, PeerLostError) or _native.is_world_over(
        0.0 if error.peer is None else _NEWS
    )


def recover(timeout: float = 60.0, *, break_whole: bool = False) -> Recovery:
    """Enters the new world of the remaining ranks after a world has broken; no process is restarted.

    The world must have been formed with ``rueda.init(recovery="on")`` (``RUEDA_RECOVERY=on``, which ``rueda run
    --min-np`` sets). Call it after :class:`rueda.PeerLostError`, or any error that has broken the world, also after the
    :class:`rueda.ShutdownError` of a rank that has left in good order while others had work to do with it. The ranks
    that are left agree on who that is, and form the new world in the background, whatever the application is doing:
    this waits for it, up to ``timeout`` seconds, but not for the others to call it. Ranks are numbered anew, in their
    order. Results that some ranks have got and others have not are the application's to settle: begin again from a
    state that all had. ``break_whole``: where the world is whole it is broken first, as by a failure of this rank, and
    formed anew of all. Process sets go on with the members that are left, see :class:`rueda.ProcessSet`; persistent
    operations and what holds gradients (optimizers see to it themselves) are of the old world.

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
            except (rueda.PeerLostError, rueda.ShutdownError):
                rueda.recover()
                step = int(rueda.allreduce(np.array([step]), op=rueda.Min, name="step")[0])
    """
    endings.ask()  # answered while the world is formed
    epoch, previous_ranks, lost, interrupted = _native.recover(float(timeout), bool(break_whole))
    follow_world(previous_ranks)
    for listener in _listeners:
        listener(list(previous_ranks))
    details = {
        rank: Lost(rank, host, process, cause) for rank, host, process, cause in sorted(lost)
    }
    causes = {rank: each.cause for rank, each in details.items()}
    return Recovery(epoch, list(previous_ranks), causes, details, list(interrupted))
