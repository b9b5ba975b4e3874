"""Ranks that join and leave between steps."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rueda import _native
from rueda.attendance import Attendance, attendance, leave, tell_formed
from rueda.door import meeting_place
from rueda.elastic.joining import enter
from rueda.errors import InitializationError, InvalidArgumentError, RuedaError, ShutdownError
from rueda.lifecycle import follow_world, tell_failure
from rueda.objects import allgather_object, broadcast_object
from rueda.operations import Max
from rueda.recovery import on_recovery
from rueda.reductions import allreduce

__all__ = ["Change", "Door", "change", "have_gone", "open_door", "part_with", "update", "wanted"]

_log = logging.getLogger("rueda")

# Within which the launcher says that a process has ended; seconds.
_NEWS = 0.5


@dataclass(frozen=True)
class Change:
    """How :func:`update` has changed the world.

    ``epoch``: the number of the new world. ``previous_ranks``: of each of its ranks, the rank in the world before, and
    -1 for one that has joined. ``left``: the ranks of the world before that have left.

    Example::

        >>> rueda.elastic.Change(3, [0, 2, -1], [1]).joined
        [2]
    """

    epoch: int
    previous_ranks: list[int]
    left: list[int]

    @property
    def joined(self) -> list[int]:
        """The ranks that are new."""
        return [rank for rank, before in enumerate(self.previous_ranks) if before < 0]


@dataclass(frozen=True)
class Door:
    """Where members and those who wait to join meet before these are let in.

    ``joiners``: their numbers. ``address`` and ``listener``: a socket that listens there, on the rank that has opened
    it, where that is needed.
    """

    joiners: list[int]
    address: str
    listener: socket.socket | None


def wanted() -> tuple[bool, bool]:
    """Whether the launcher has said that processes wait to join, and that members are to leave; does not wait."""
    here = attendance()
    here.listen()
    # Of those who wait whoever is heard knows by itself; what others have heard once may be over.
    joins = bool(here.joiners) and here.is_heard
    if not here.leaving:
        return joins, False
    members = here.members or list(range(_native.size()))
    return joins, any(number in here.leaving for number in members)


def have_gone(joiners: Iterable[int]) -> bool:
    """Whether the launcher has said that one of these has ended before it could join; does not wait."""
    return bool(attendance().gone_of(joiners))


def update() -> Change | None:
    """Takes in the processes that wait to join, and leaves out those that are to leave; collective over the world.

    To be called between steps, when no operation is under way. Nothing happens, at the price of one small allreduce,
    while the launcher (``rueda run --max-np``, ``--host-discovery-script``) has not said that the job changes, and
    outside of such jobs. A process that is to leave ends with ``SystemExit(0)``. Where those who wait do not come after
    all the world stays as it is, with a warning. Returns the change, or nothing.

    After a change ranks are numbered anew: those that stay keep their order, newcomers come last. Process sets go on
    with those of their members that stay; persistent operations and buckets are of the old world. Newcomers enter the
    world by their :func:`rueda.init`, so what follows there must be collective with what follows here: :func:`steps`
    sees to that.

    Raises what :func:`rueda.allreduce` raises, among others :class:`rueda.PeerLostError`, after which
    :func:`rueda.recover` helps.

    Example::

        >>> rueda.elastic.update() is None
        True
    """
    told = np.array(wanted(), np.int32)
    return change() if allreduce(told, "elastic.wanted", Max).any() else None


def open_door(is_time: bool, is_hopeless: bool) -> Door | None:
    """Tells those who wait to join where to meet the members, who go on meanwhile.

    Collective over the world. The members have their ranks there, and those who join follow. ``is_time``,
    ``is_hopeless``: what counts is what rank 0 says. Returns nothing where it is hopeless, and a door without joiners
    where it is not the time or nobody waits.
    """
    here = attendance()
    _know_members()
    own, size = _native.rank(), _native.size()
    told = allgather_object((here.joiners, is_time, is_hopeless, here.is_heard), "elastic.wait")
    _, is_time, is_hopeless, _ = told[0]
    if is_hopeless:
        return None
    speaker = _first_heard([is_heard for *_, is_heard in told], range(size))
    waiting = told[speaker][0] if is_time and speaker is not None else []
    joiners = [number for number in waiting if number not in here.members]
    if not joiners:
        return Door([], "", None)
    listener, address = None, ""
    if own == 0:
        listener, address = meeting_place(here.rendezvous.startswith("tcp:"))
    address = broadcast_object(address, 0, "elastic.follow")
    if own == speaker and here.session is not None:
        ranks = {str(number): size + i for i, number in enumerate(joiners)}
        total = size + len(joiners)
        here.session.send(
            follow={"address": address, "joiners": ranks, "size": total, "members": size}
        )
    return Door(joiners, address, listener)


def _first_heard(is_heard: Sequence[bool], ranks: Iterable[int]) -> int | None:
    """Who of these ranks tells those who wait to join what they are to know; nobody where none is heard."""
    return next((rank for rank in ranks if is_heard[rank]), None)


def _know_members() -> None:
    here = attendance()
    if not here.members:
        here.members = list(allgather_object(here.number, "elastic.members"))


def change(only: list[int] | None = None) -> Change | None:
    """What update() does once something is wanted. ``only``: of those who wait to join, these; by default all."""
    here = attendance()
    _know_members()
    joiners, leaving, is_heard = _known_to_any(here)
    if only is not None:
        joiners = [number for number in joiners if number in only]
    staying = [rank for rank, number in enumerate(here.members) if number not in leaving]
    speaker = _first_heard(is_heard, staying)
    if speaker is None:
        joiners = []  # would not hear where to come
    if not staying or (not joiners and len(staying) == len(here.members)):
        return None
    if _native.rank() in staying:
        return _enter_another(here, staying, joiners, speaker)
    if _are_left_by(staying):
        _native.shutdown()
        sys.exit(0)
    return None


def part_with(misfits: Mapping[int, str]) -> None:
    """The others enter a world without these ranks, which cannot have their state; collective over the world.

    ``misfits``: of each of them why, which it raises as :class:`rueda.InvalidArgumentError`. At least one rank stays.
    """
    here = attendance()
    _know_members()
    own = _native.rank()
    staying = [rank for rank in range(_native.size()) if rank not in misfits]
    if own not in staying:
        error = InvalidArgumentError(f"{misfits[own]}; the others go on without this process")
        if _are_left_by(staying):
            _native.shutdown()
        else:
            tell_failure(error)  # where they have not come into a world without it, they lose it
        leave(done=False)
        raise error
    if own == staying[0]:
        _log.warning("going on without newcomers that do not fit: %s", "; ".join(misfits.values()))
    _enter_another(here, staying, [], None)


def _enter_another(
    here: Attendance, staying: list[int], joiners: list[int], speaker: int | None
) -> Change | None:
    """Of these ranks, of which this is one, and of these who wait to join, whom the rank ``speaker`` tells."""
    first = staying[0]
    numbers = [here.members[rank] for rank in staying] + joiners
    own = _native.rank()
    listener, address = (
        meeting_place(here.rendezvous.startswith("tcp:")) if own == first else (None, "")
    )
    address = broadcast_object(address, first, "elastic.door")
    if own == speaker and here.session is not None:
        ranks = {str(number): len(staying) + i for i, number in enumerate(joiners)}
        here.session.send(door={"address": address, "joiners": ranks, "numbers": numbers})
    left = [rank for rank in range(len(here.members)) if rank not in staying]
    try:
        epoch, previous = enter(
            staying.index(own),
            numbers,
            address,
            -1 if listener is None else listener.fileno(),
            {},
            lambda: _look_after(joiners),
        )
    except RuedaError as error:  # also where one of those who enter is lost at this moment
        _settle_failure(error, joiners, own == speaker)
        return None
    finally:
        if listener is not None:
            listener.close()
    follow_world(previous)
    if own == speaker and _native.rank() != 0:
        here.tell_formed()  # which rank 0 has done, and is not heard
    return Change(epoch, previous, left)


def _known_to_any(here: Attendance) -> tuple[list[int], set[int], list[bool]]:
    """Who waits to join, who is to leave, and which ranks are heard by who has told of them.

    What one rank has been told others may be told a moment later.
    """
    here.listen()
    told = allgather_object((here.joiners, here.leaving, here.gone, here.is_heard), "elastic.plan")
    gone = {number for _, _, its_gone, _ in told for number in its_gone}
    out = gone.union(here.members)
    joiners = dict.fromkeys(number for its_joiners, *_ in told for number in its_joiners)
    leaving = {number for _, its_leaving, *_ in told for number in its_leaving}
    is_heard = [each for *_, each in told]
    return [number for number in joiners if number not in out], leaving, is_heard


def _are_left_by(staying: Sequence[int]) -> bool:
    """Waits until those that stay are in a world without this rank; false where they have not come into one."""
    broadcast_object("", staying[0], "elastic.door")
    try:
        allreduce(np.zeros(1, np.int32), "elastic.outcome", Max)
    except ShutdownError:
        return True
    return False


def _look_after(joiners: list[int]) -> None:
    """While they are let in: raises :class:`rueda.InitializationError` where one of them has ended."""
    gone = attendance().gone_of(joiners)
    if gone:
        raise InitializationError(f"process {gone[0]}, which was to join, has ended")


def _settle_failure(error: RuedaError, joiners: list[int], speaks: bool) -> None:
    """The world stays, where all ranks have failed to enter another one.

    Where it is because one of those who wait has ended, the others wait on; otherwise they do not fit, and are refused.
    ``speaks``: whether it is this rank that says so.
    """
    here = attendance()
    told = np.array([bool(here.gone_of(joiners))], np.int32)
    is_gone = bool(allreduce(told, "elastic.outcome", Max)[0])
    if speaks and here.session is not None and not is_gone:
        # The sockets of one that has ended may be noticed before the launcher has said so.
        deadline = time.monotonic() + _NEWS
        while not (is_gone := bool(here.gone_of(joiners))) and time.monotonic() < deadline:
            here.session.wait(_NEWS / 10)
    _log.warning("no world was formed with the processes that wait to join: %s", error)
    if is_gone:
        joiners = here.gone_of(joiners)
    here.joiners = [number for number in here.joiners if number not in joiners]
    if speaks and here.session is not None and not is_gone:
        here.session.send(refused={"joiners": joiners, "why": str(error)})


def _take_survivors(previous_ranks: list[int]) -> None:
    """After recovery whoever tells of newcomers hears who is left."""
    here = attendance()
    if here.number < 0:  # of no job whose ranks come and go
        return
    before = here.members or list(range(max(previous_ranks) + 1))
    here.members = [before[rank] for rank in previous_ranks]
    tell_formed()


on_recovery(_take_survivors)
