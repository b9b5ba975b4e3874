"""Ranks that join and leave between steps."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rueda import _native
from rueda.door import meeting_place
from rueda.errors import InitializationError, RuedaError, ShutdownError
from rueda.launcher_session import Session, process_number
from rueda.lifecycle import follow_world
from rueda.objects import allgather_object, broadcast_object
from rueda.operations import Max
from rueda.recovery import on_recovery
from rueda.reductions import allreduce
from rueda.whereabouts import start_telling

if TYPE_CHECKING:
    from rueda.torch.replay import Shadow
    from rueda.torch.state_follower import Follower

__all__ = [
    "Change",
    "Door",
    "came_late",
    "change",
    "have_gone",
    "join",
    "open_door",
    "take_received",
    "update",
    "wanted",
]

_log = logging.getLogger("rueda")

# Those who enter a world are all there already; seconds.
_ENTERING = 15
# How long those who are let in may take for what is still under way to them; seconds.
_FINISHING = 5.0
# Within which those that are left let in whom they could not let in when another one was lost; seconds.
_OPENING_AGAIN = 60.0
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


@dataclass
class _Elastic:
    """What this process knows of its job."""

    number: int = -1
    session: Session | None = None
    # By the launcher: who waits to join, who has ended before it could, and who is to leave.
    joiners: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    leaving: list[int] = field(default_factory=list)
    # Of each rank the number; nothing before it is known.
    members: list[int] = field(default_factory=list)
    # How the ranks of the present world have met.
    rendezvous: str = ""
    # What has come in the background while this process waited to join.
    received: Shadow | None = None
    # Whether this process has joined a job under way, and has not been given the others' state yet.
    is_newcomer: bool = False

    def listen(self) -> None:
        """Takes what the launcher has said."""
        if self.session is None:
            return
        for message in self.session.receive():
            self.joiners = _numbers(message.get("joiners"), self.joiners)
            self.gone = _numbers(message.get("gone"), self.gone)
            self.leaving = _numbers(message.get("leaving"), self.leaving)

    def gone_of(self, joiners: Iterable[int]) -> list[int]:
        """Which of these have ended, as far as the launcher has said."""
        self.listen()
        return [number for number in joiners if number in self.gone]


def _numbers(told: Any, before: list[int]) -> list[int]:
    if isinstance(told, list) and all(isinstance(each, int) for each in told):
        return sorted(told)
    return before


_here: _Elastic | None = None


def _elastic() -> _Elastic:
    """Of this process; begun with the first use."""
    global _here
    if _here is None:
        _here = _Elastic(rendezvous=os.environ.get("RUEDA_RENDEZVOUS", ""))
        number = process_number()
        address = os.environ.get("RUEDA_LAUNCHER", "")
        if os.environ.get("RUEDA_ELASTIC") == "1" and address and number is not None:
            _here.number = number
            on_recovery(_take_survivors)
            try:
                _here.session = Session(address, hello=number)
            except OSError as error:
                _log.warning("the launcher cannot be reached, so that no ranks join: %s", error)
    return _here


# --- Joining


def join(options: Mapping[str, str]) -> None:
    """Waits until the ranks of the job take this process in, and enters their world with them."""
    here = _elastic()
    if here.session is None:
        raise InitializationError("the launcher that has started this process cannot be reached")
    if "torch" in sys.modules:
        from rueda.torch.state_follower import warm_up

        warm_up()
    here.session.send(ready=here.number)
    offers = _Offers(here.session)
    failure: RuedaError | None = None
    deadline = 0.0
    while True:
        entrance = offers.take_entrance()
        if entrance is not None:
            rank, numbers = int(entrance["rank"]), [int(each) for each in entrance["numbers"]]
            try:
                _enter(rank, numbers, str(entrance["address"]), -1, options, offers.look)
            except RuedaError as error:
                # Where one of the others was lost at this moment, those that are left open another door. Where it
                # is this process that does not fit, they have the launcher end it.
                _log.warning("waiting to join again: %s", error)
                failure, deadline = error, time.monotonic() + _OPENING_AGAIN
                here.session.send(ready=here.number)
                continue
            # Meanwhile the others' last step has come, or nearly so.
            follower = offers.follower
            here.received = None if follower is None else follower.finish(_FINISHING)
            here.is_newcomer = True
            return
        if not here.session.is_open:
            raise InitializationError("the launcher has ended before this process could join")
        if failure is not None and time.monotonic() > deadline:
            raise failure
        here.session.wait(1.0)


class _Offers:
    """What the launcher tells a process that waits to join: whom to follow meanwhile, and where to enter."""

    def __init__(self, session: Session) -> None:
        self.follower: Follower | None = None
        self._session = session
        self._entrance: dict[str, Any] | None = None

    def take_entrance(self) -> dict[str, Any] | None:
        """The newest door to the world, once: others have been closed again."""
        self._listen()
        entrance, self._entrance = self._entrance, None
        return entrance

    def look(self) -> None:
        """While a world is entered: raises :class:`rueda.InitializationError` where another door has been opened."""
        self._listen()
        if self._entrance is not None:
            raise InitializationError("the others have gone on, and have opened another door")

    def _listen(self) -> None:
        for message in self._session.receive():
            door = message.get("follow")
            if isinstance(door, dict):
                self.follower = _follow(door, self.follower)
            door = message.get("enter")
            if isinstance(door, dict):
                self._entrance = door


def _follow(door: dict[str, Any], before: Follower | None) -> Follower:
    """Begins to take the members' state and their steps."""
    from rueda.torch.state_follower import Follower  # only members with torch offer it

    if before is not None:
        before.abort()
    return Follower(
        int(door["rank"]), int(door["size"]), int(door["members"]), str(door["address"])
    )


def take_received() -> Shadow | None:
    """What has come in the background while this process waited to join; once."""
    here = _elastic()
    received, here.received = here.received, None
    return received


def _enter(
    rank: int,
    numbers: list[int],
    address: str,
    listener: int,
    options: Mapping[str, str],
    look: Callable[[], None] | None = None,
) -> tuple[int, list[int]]:
    """Enters the world that meets there; what ``look`` raises now and then meanwhile ends that.

    ``numbers``: of each rank of that world. Once it is entered nothing is raised any more: where a rank is lost then,
    the first collective tells.

    Raises among others :class:`rueda.PeerLostError` where a rank of the present world is lost meanwhile.
    """
    epoch, previous = _native.enter_world(
        rank,
        len(numbers),
        address,
        os.environ.get("RUEDA_SECRET", ""),
        listener,
        {**options, "init_timeout": str(_ENTERING)},
        look,
    )
    start_telling()
    here = _elastic()
    here.rendezvous = address
    here.members = numbers
    here.joiners = [number for number in here.joiners if number not in numbers]
    _tell_launcher()
    return epoch, list(previous)


def came_late() -> bool:
    """Whether this process has joined a job under way; told once, to who gives it the others' state."""
    here = _elastic()
    is_newcomer, here.is_newcomer = here.is_newcomer, False
    return is_newcomer


# --- Members


def wanted() -> tuple[bool, bool]:
    """Whether the launcher has said that processes wait to join, and that members are to leave; does not wait."""
    here = _elastic()
    here.listen()
    if not here.leaving:
        return bool(here.joiners), False
    members = here.members or list(range(_native.size()))
    return bool(here.joiners), any(number in here.leaving for number in members)


def have_gone(joiners: Iterable[int]) -> bool:
    """Whether the launcher has said that one of these has ended before it could join; does not wait."""
    return bool(_elastic().gone_of(joiners))


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
    here = _elastic()
    _know_members()
    own, size = _native.rank(), _native.size()
    listener, address = None, ""
    joiners = [number for number in here.joiners if is_time and number not in here.members]
    if own == 0 and joiners and not is_hopeless:
        listener, address = meeting_place(here.rendezvous.startswith("tcp:"))
    joiners, address, is_hopeless = broadcast_object(
        (joiners, address, is_hopeless), 0, "elastic.follow"
    )
    if is_hopeless:
        return None
    if joiners and own == 0 and here.session is not None:
        ranks = {str(number): size + i for i, number in enumerate(joiners)}
        total = size + len(joiners)
        here.session.send(
            follow={"address": address, "joiners": ranks, "size": total, "members": size}
        )
    return Door(joiners, address, listener)


def _know_members() -> None:
    here = _elastic()
    if not here.members:
        here.members = list(allgather_object(here.number, "elastic.members"))


def change(only: list[int] | None = None) -> Change | None:
    """What update() does once something is wanted. ``only``: of those who wait to join, these; by default all."""
    here = _elastic()
    _know_members()
    joiners, leaving = _known_to_any(here)
    if only is not None:
        joiners = [number for number in joiners if number in only]
    staying = [rank for rank, number in enumerate(here.members) if number not in leaving]
    if not staying or (not joiners and len(staying) == len(here.members)):
        return None
    first = staying[0]
    numbers = [here.members[rank] for rank in staying] + joiners
    own = _native.rank()
    listener, address = (
        meeting_place(here.rendezvous.startswith("tcp:")) if own == first else (None, "")
    )
    address = broadcast_object(address, first, "elastic.door")
    if own not in staying:
        _leave()
        return None
    if own == first and here.session is not None:
        ranks = {str(number): len(staying) + i for i, number in enumerate(joiners)}
        here.session.send(door={"address": address, "joiners": ranks, "numbers": numbers})
    left = [rank for rank in range(len(here.members)) if rank not in staying]
    try:
        epoch, previous = _enter(
            staying.index(own),
            numbers,
            address,
            -1 if listener is None else listener.fileno(),
            {},
            lambda: _look_after(joiners),
        )
    except RuedaError as error:  # also where one of those who enter is lost at this moment
        _settle_failure(error, joiners)
        return None
    finally:
        if listener is not None:
            listener.close()
    follow_world(previous)
    return Change(epoch, previous, left)


def _known_to_any(here: _Elastic) -> tuple[list[int], set[int]]:
    """Who waits to join and who is to leave: what one rank has been told others may be told a moment later."""
    told = allgather_object((here.joiners, here.leaving, here.gone), "elastic.plan")
    gone = {number for _, _, its_gone in told for number in its_gone}
    out = gone.union(here.members)
    joiners = dict.fromkeys(number for its_joiners, _, _ in told for number in its_joiners)
    leaving = {number for _, its_leaving, _ in told for number in its_leaving}
    return [number for number in joiners if number not in out], leaving


def _leave() -> None:
    """Waits until the others have gone on without this rank; returns where they have not."""
    try:
        allreduce(np.zeros(1, np.int32), "elastic.outcome", Max)
    except ShutdownError:
        _native.shutdown()
        sys.exit(0)


def _look_after(joiners: list[int]) -> None:
    """While they are let in: raises :class:`rueda.InitializationError` where one of them has ended."""
    gone = _elastic().gone_of(joiners)
    if gone:
        raise InitializationError(f"process {gone[0]}, which was to join, has ended")


def _settle_failure(error: RuedaError, joiners: list[int]) -> None:
    """The world stays, where all ranks have failed to enter another one.

    Where it is because one of those who wait has ended, the others wait on; otherwise they do not fit, and are refused.
    """
    here = _elastic()
    told = np.array([bool(here.gone_of(joiners))], np.int32)
    is_gone = bool(allreduce(told, "elastic.outcome", Max)[0])
    if _native.rank() == 0 and here.session is not None and not is_gone:
        # The sockets of one that has ended may be noticed before the launcher has said so.
        deadline = time.monotonic() + _NEWS
        while not (is_gone := bool(here.gone_of(joiners))) and time.monotonic() < deadline:
            here.session.wait(_NEWS / 10)
    _log.warning("no world was formed with the processes that wait to join: %s", error)
    if is_gone:
        joiners = here.gone_of(joiners)
    here.joiners = [number for number in here.joiners if number not in joiners]
    if _native.rank() == 0 and here.session is not None and not is_gone:
        here.session.send(refused={"joiners": joiners, "why": str(error)})


# --- The launcher


def _take_survivors(previous_ranks: list[int]) -> None:
    """After recovery the launcher hears who is left."""
    here = _elastic()
    before = here.members or list(range(max(previous_ranks) + 1))
    here.members = [before[rank] for rank in previous_ranks]
    _tell_launcher()


def _tell_launcher() -> None:
    here = _elastic()
    if here.session is not None and _native.rank() == 0:
        here.session.send(formed={"members": here.members})
