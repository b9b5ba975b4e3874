"""Lets ranks join and leave between steps."""

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
from rueda.lifecycle import follow_world, sets_of_init, tell_failure
from rueda.objects import allgather_object, broadcast_object
from rueda.operations import Max
from rueda.recovery import on_recovery
from rueda.reductions import allreduce

__all__ = [
    "Change",
    "Door",
    "are_absent",
    "change",
    "open_door",
    "part_with",
    "put_first",
    "update",
    "wanted",
]

_log = logging.getLogger("rueda")

# How long the launcher may take to report that a process has ended; seconds.
_NEWS = 0.5


@dataclass(frozen=True)
class Change:
    """How :func:`update` has changed the world.

    ``epoch``: the number of the new world. ``previous_ranks``: for each of its ranks, the rank in the previous world,
    and -1 for one that has joined. ``left``: the ranks of the previous world that have left.

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
    """Where members meet processes that wait to join, before these are admitted.

    ``joiners``: their process numbers. ``address`` and ``listener``: a socket that listens there, on the rank that has
    opened it, if one is needed.
    """

    joiners: list[int]
    address: str
    listener: socket.socket | None


def wanted() -> tuple[bool, bool]:
    """Whether the launcher has reported that processes wait to join, and that members must leave.

    Does not wait, or for a hundredth of the mean time between two calls: see Attendance.await_probe().
    """
    here = attendance()
    here.listen()
    here.looks += 1
    if here.probe_listener.has_answered:
        here.await_probe()
    # A rank with an open session knows who waits; news from a closed one may be outdated.
    joins = bool(here.joiners) and here.is_heard
    if not here.leaving:
        return joins, False
    members = here.members or list(range(_native.size()))
    return joins, any(number in here.leaving for number in members)


def are_absent(joiners: Iterable[int]) -> bool:
    """Whether the launcher has reported that one of these has ended or does not answer; does not wait."""
    return bool(attendance().absent_of(joiners))


def update() -> Change | None:
    """Admits processes that wait to join, and releases members that must leave; collective over the world.

    Call it between steps, when no operation is pending. As long as the launcher (``rueda run --max-np``,
    ``--host-discovery-script``) has not announced a change of the job, and outside of elastic jobs, nothing happens,
    at the cost of one small allreduce. A process that must leave ends with ``SystemExit(0)``. If waiting processes do
    not come after all, the world stays as it is, with a warning. Returns the change, or ``None``.

    After a change, ranks are renumbered: those that stay keep their order, newcomers come last. Process sets continue
    with their members that stay; persistent operations and buckets belong to the old world. Newcomers enter the world
    in their :func:`rueda.init`, so the collectives that follow there must match those that follow here: :func:`steps`
    ensures that.

    Raises what :func:`rueda.allreduce` raises, including :class:`rueda.PeerLostError`, after which
    :func:`rueda.recover` helps.

    Example::

        >>> rueda.elastic.update() is None
        True
    """
    told = np.array(wanted(), np.int32)
    return change() if allreduce(told, "elastic.wanted", Max).any() else None


def open_door(is_time: bool, is_hopeless: bool) -> Door | None:
    """Tells processes that wait to join where to meet the members, who continue meanwhile.

    Collective over the world. At the door, members have their ranks, followed by those who join. ``is_time``,
    ``is_hopeless``: rank 0's values count. Returns ``None`` if it is hopeless, and a door without joiners if it is not
    time or nobody waits.
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
    """The first of these ranks with an open session, which informs those who wait to join; ``None`` without one."""
    return next((rank for rank in ranks if is_heard[rank]), None)


def _know_members() -> None:
    here = attendance()
    if not here.members:
        here.members = list(allgather_object(here.number, "elastic.members"))


def change(only: list[int] | None = None, place: str = "") -> Change | None:
    """The rest of update(), once a change is wanted. ``only``: admit only these joiners; by default all.

    ``place``: the loop in which all wait for newcomers next, if nothing else can follow; these are told.
    """
    here = attendance()
    _know_members()
    joiners, leaving, is_heard = _known_to_any(here)
    if only is not None:
        joiners = [number for number in joiners if number in only]
    staying = [rank for rank, number in enumerate(here.members) if number not in leaving]
    speaker = _first_heard(is_heard, staying)
    if speaker is None:
        joiners = []  # nobody can tell them where to come
    if not staying or (not joiners and len(staying) == len(here.members)):
        return None
    if _native.rank() in staying:
        return _enter_another(here, staying, joiners, speaker, place)
    if _are_left_by(staying):
        _native.shutdown()
        sys.exit(0)
    return None


def part_with(misfits: Mapping[int, str]) -> None:
    """Enters a world without these ranks, which cannot have the others' state; collective over the world.

    ``misfits``: for each of them the reason, which it raises as :class:`rueda.InvalidArgumentError`. At least one rank
    must stay.
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
            tell_failure(error)  # if the others could not form a world without it, they lose it
        leave(done=False)
        raise error
    if own == staying[0]:
        _log.warning("going on without ranks that do not fit: %s", "; ".join(misfits.values()))
    _enter_another(here, staying, [], None)


def put_first(rank: int) -> bool:
    """Enters a world of the same ranks, in which ``rank`` comes before the others; collective over the world.

    False if that has failed: then the world stays as it is, with a warning.
    """
    here = attendance()
    _know_members()
    others = [other for other in range(_native.size()) if other != rank]
    return _enter_another(here, [rank, *others], [], None) is not None


def _enter_another(
    here: Attendance,
    staying: list[int],
    joiners: list[int],
    speaker: int | None,
    place: str = "",
) -> Change | None:
    """Forms a world of the ranks ``staying``, including this one, and of ``joiners``, whom rank ``speaker`` informs."""
    began = time.monotonic()
    first = staying[0]
    numbers = [here.members[rank] for rank in staying] + joiners
    own = _native.rank()
    listener, address = (
        meeting_place(here.rendezvous.startswith("tcp:")) if own == first else (None, "")
    )
    address = broadcast_object(address, first, "elastic.door")
    if own == speaker and here.session is not None:
        ranks = {str(number): len(staying) + i for i, number in enumerate(joiners)}
        door = {
            "address": address,
            "joiners": ranks,
            "numbers": numbers,
            "place": place,
            "sets": sets_of_init(),
        }
        here.session.send(door=door)
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
    except RuedaError as error:  # also if one of those who enter is lost at this moment
        _settle_failure(error, joiners, own == speaker, began)
        return None
    finally:
        if listener is not None:
            listener.close()
    follow_world(previous)
    if own == speaker and _native.rank() != 0:
        here.tell_formed()  # rank 0 did too, but has no open session
    return Change(epoch, previous, left)


def _known_to_any(here: Attendance) -> tuple[list[int], set[int], list[bool]]:
    """Who waits to join, who must leave, and which ranks have an open session; combined over all ranks.

    Ranks may receive such news at different times.
    """
    here.listen()
    absent = here.gone + here.silent
    told = allgather_object((here.joiners, here.leaving, absent, here.is_heard), "elastic.plan")
    out = {number for _, _, its_absent, _ in told for number in its_absent}.union(here.members)
    joiners = dict.fromkeys(number for its_joiners, *_ in told for number in its_joiners)
    leaving = {number for _, its_leaving, *_ in told for number in its_leaving}
    is_heard = [each for *_, each in told]
    return [number for number in joiners if number not in out], leaving, is_heard


def _are_left_by(staying: Sequence[int]) -> bool:
    """Waits until the ranks that stay are in a world without this rank; false if they could not form one."""
    broadcast_object("", staying[0], "elastic.door")
    try:
        allreduce(np.zeros(1, np.int32), "elastic.outcome", Max)
    except ShutdownError:
        return True
    return False


def _look_after(joiners: list[int]) -> None:
    """Called while processes are admitted.

    Raises :class:`rueda.InitializationError` if one of them has ended or does not answer.
    """
    here = attendance()
    for number in here.absent_of(joiners):
        if number in here.gone:
            raise InitializationError(f"process {number} ended before it could join")
        raise InitializationError(
            f"process {number} does not answer any more, as if it were stopped"
        )


def _settle_failure(error: RuedaError, joiners: list[int], speaks: bool, began: float) -> None:
    """Keeps the world after all ranks failed to enter another.

    If a waiting process has ended or does not answer, the others keep waiting; otherwise the joiners do not fit and are
    refused.
    ``speaks``: whether this rank reports that, and for how long all have waited since ``began``.
    """
    here = attendance()
    told = np.array([bool(here.absent_of(joiners))], np.int32)
    is_absent = bool(allreduce(told, "elastic.outcome", Max)[0])
    if speaks and here.session is not None and not is_absent:
        # The closed sockets of an ended process may be noticed before the launcher reports its end.
        deadline = time.monotonic() + _NEWS
        while not (is_absent := bool(here.absent_of(joiners))) and time.monotonic() < deadline:
            here.session.wait(_NEWS / 10)
    _log.warning("no world was formed with the processes that wait to join: %s", error)
    if is_absent:
        absent = here.absent_of(joiners)
        here.joiners = [number for number in here.joiners if number not in absent]
        return
    here.joiners = []  # until the launcher says which of the others to try now
    if speaks and here.session is not None:
        waited = time.monotonic() - began
        here.session.send(refused={"joiners": joiners, "why": str(error), "waited": waited})


def _take_survivors(previous_ranks: list[int]) -> None:
    """After a recovery, reports the remaining ranks to the launcher or reception."""
    here = attendance()
    if here.number < 0:  # not in an elastic job
        return
    before = here.members or list(range(max(previous_ranks) + 1))
    here.members = [before[rank] for rank in previous_ranks]
    tell_formed()


on_recovery(_take_survivors)
