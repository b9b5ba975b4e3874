"""Enters the world of a running job, or of one that begins with this process and others like it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rueda import _native
from rueda.attendance import Attendance, attendance, secret, tell_formed
from rueda.door import listen
from rueda.elastic.loops import await_in, forget_awaited
from rueda.elastic.probing import Place, unreached
from rueda.elastic.still_waiting import still_waiting
from rueda.errors import InitializationError, RuedaError
from rueda.launcher_session import Session
from rueda.whereabouts import start_telling

if TYPE_CHECKING:
    from rueda.torch.replay import Shadow
    from rueda.torch.state_follower import Follower

__all__ = ["JobHasEnded", "came_late", "enter", "join", "take_received"]

_log = logging.getLogger("rueda")

# All who enter a world are already there; seconds.
_ENTERING = 15
# How long admitted processes may take for data still in flight to them; seconds.
_FINISHING = 5.0
# How long ranks may take to admit a process again after a loss has interrupted that; seconds.
_OPENING_AGAIN = 60.0
# Pause between two attempts to form a first world; seconds.
_PAUSE = 0.5
# How long a waiting process may take to reconnect, and pause between checks; seconds.
_COMING_AGAIN = 60.0
_LOOK = 0.05


class JobHasEnded(InitializationError):
    """The job's ranks have finished their work, so that there is nothing to join."""


def join(options: Mapping[str, str]) -> None:
    """Waits until the ranks of the job admit this process, and enters their world with them.

    If the job has no world (yet, or any more), enters one with other waiting processes.
    """
    here = attendance()
    if here.session is None:
        raise InitializationError("the launcher that has started this process cannot be reached")
    if "torch" in sys.modules:
        from rueda.torch.state_follower import warm_up

        warm_up()
    with still_waiting(here):
        here.session.send(ready=here.number)
        _wait(here, options, _Offers(here.session))


def _wait(here: Attendance, options: Mapping[str, str], offers: _Offers) -> None:
    """The rest of join(): returns once this process is in a world."""
    first_failure: RuedaError | None = None
    failure: RuedaError | None = None
    deadline = 0.0
    while True:
        entrance = offers.take_entrance()
        if entrance is not None:
            try:
                _pass(entrance, options, offers)
            except RuedaError as error:
                # If one of the others was lost at this moment, the remaining ones open another door. If this process
                # does not fit, they have the launcher end it.
                _log.warning("waiting to join again: %s", error)
                now = time.monotonic()
                if entrance.is_first:
                    # There is no rank yet that could refuse processes that do not fit.
                    if failure is not None and now > deadline:
                        raise _told_with(first_failure, error) from failure
                    time.sleep(_PAUSE)
                if failure is None or not entrance.is_first:
                    deadline = now + _OPENING_AGAIN
                failure = error
                first_failure = first_failure or error
                offers.session.send(ready=here.number, after=offers.last_address)
                continue
            # By now the others' last step has arrived, or nearly so.
            follower = offers.follower
            here.received = None if follower is None else follower.finish(_FINISHING)
            here.is_newcomer = not entrance.is_first
            here.sets_of_init = entrance.sets_of_init
            await_in(entrance.place)
            return
        offers.probe()
        if offers.over:
            kind = JobHasEnded if offers.over.get("done") is True else InitializationError
            raise kind(str(offers.over.get("why"))) from failure
        if not offers.session.is_open:
            _come_again(here, offers)
            continue
        if failure is not None and time.monotonic() > deadline:
            raise _told_with(first_failure, failure)
        offers.session.wait(1.0)


def _told_with(first: RuedaError | None, last: RuedaError) -> RuedaError:
    """The last failure, plus the first if it differs, which may be why the others gave up."""
    if first is None or str(first) == str(last):
        return last
    return InitializationError(f"{last}; before: {first}")


def _come_again(here: Attendance, offers: _Offers) -> None:
    """Keeps waiting over another connection, if the other side can be reached again."""
    deadline = time.monotonic() + _COMING_AGAIN
    while here.can_come_again and time.monotonic() < deadline:
        here.come_again()
        if here.session is not None and here.session.is_open:
            offers.session = here.session
            # Repeat what was sent over the previous connection.
            tried = {"after": offers.last_address} if offers.last_address else {}
            here.session.send(ready=here.number, **tried)
            return
        time.sleep(_LOOK)
    if here.reconnection is None:
        raise InitializationError(
            "the launcher has ended, or has closed its connection to this process, before it could join"
        )
    raise InitializationError(
        "the reception could not be reached again, or refused this process, before it could join"
    )


@dataclass(frozen=True)
class _Entrance:
    """Where a process enters a world.

    ``address``: empty if this process must open it. ``is_first``: whether nobody is in that world yet. Otherwise
    ``place``: the loop in which its ranks then wait, if nothing else can follow; ``sets_of_init``: how many process
    sets they passed to init().
    """

    address: str
    rank: int
    numbers: list[int]
    is_first: bool
    place: str = ""
    sets_of_init: int | None = None


class _Offers:
    """What a waiting process is told: whom to follow meanwhile, and where to enter."""

    def __init__(self, session: Session) -> None:
        self.follower: Follower | None = None
        self.last_address = ""  # of the last attempt to enter
        self.over: dict[str, Any] = {}  # why nobody is admitted any more
        self.session = session
        self._places: list[Place] = []  # the ranks to which it must prove to have a way
        self._entrance: _Entrance | None = None
        self._is_recalled = False  # since the newest entrance was announced

    def take_entrance(self) -> _Entrance | None:
        """The newest door to the world, once: earlier ones are closed by now."""
        self._listen()
        entrance, self._entrance = self._entrance, None
        if entrance is not None:
            self._places = []  # asked for again if it still waits later
        return entrance

    def probe(self) -> None:
        """Tells whether this process can open connections to all ranks, if that was asked."""
        places, self._places = self._places, []
        if not places:
            return
        why = unreached(places)
        if why:
            self.session.send(unreached=why)
        else:
            self.session.send(probed=True)

    def look(self) -> None:
        """Called while a world is entered: raises :class:`rueda.InitializationError` if that has become pointless."""
        self._listen()
        if self._entrance is not None:
            raise InitializationError(
                "the other ranks have started another attempt to form the world"
            )
        if self._is_recalled:
            raise InitializationError(
                "other processes that were to join the world were lost, or could not join it"
            )

    def _listen(self) -> None:
        for message in self.session.receive():
            attendance().hear_of_probes(message)
            places = message.get("probe")
            if isinstance(places, list):
                self._places = [Place(int(n), str(host), str(where)) for n, host, where in places]
            door = message.get("follow")
            if isinstance(door, dict):
                self.follower = _follow(door, self.follower)
            door = message.get("enter")
            if isinstance(door, dict):
                numbers = [int(each) for each in door["numbers"]]
                sets = door.get("sets")
                self._entrance = _Entrance(
                    str(door["address"]),
                    int(door["rank"]),
                    numbers,
                    door.get("members") == 0,
                    str(door.get("place", "")),
                    None if sets is None else int(sets),
                )
                self._is_recalled = False
            door = message.get("begin")
            if isinstance(door, dict):
                numbers = [int(each) for each in door["numbers"]]
                self._entrance = _Entrance("", 0, numbers, True)
                self._is_recalled = False
            if message.get("recall") is True:
                self._is_recalled = True
            door = message.get("over")
            if isinstance(door, dict):
                self.over = door


def _follow(door: dict[str, Any], before: Follower | None) -> Follower:
    """Starts receiving the members' state and their steps."""
    from rueda.torch.state_follower import Follower  # only members with torch offer it

    if before is not None:
        before.abort()
    return Follower(
        int(door["rank"]), int(door["size"]), int(door["members"]), str(door["address"])
    )


def _pass(entrance: _Entrance, options: Mapping[str, str], offers: _Offers) -> None:
    """Enters there; the first rank of a first world opens it and has the others informed."""
    if entrance.address:
        offers.last_address = entrance.address
        enter(entrance.rank, entrance.numbers, entrance.address, -1, options, offers.look)
        return
    offers.last_address = ""  # until this process's own door is open
    try:
        listener, address = listen(options.get("interface", ""))
    except OSError as error:
        raise InitializationError(f"cannot listen for connections: {error}") from error
    offers.last_address = address
    with listener:
        session = attendance().session
        assert session is not None
        others = {str(number): rank for rank, number in enumerate(entrance.numbers) if rank > 0}
        door = {"address": address, "joiners": others, "numbers": entrance.numbers, "members": 0}
        session.send(door=door)
        enter(0, entrance.numbers, address, listener.fileno(), options, offers.look)


def take_received() -> Shadow | None:
    """The state received in the background while this process waited to join; once."""
    here = attendance()
    received, here.received = here.received, None
    return received


def enter(
    rank: int,
    numbers: list[int],
    address: str,
    listener: int,
    options: Mapping[str, str],
    look: Callable[[], None] | None = None,
) -> tuple[int, list[int]]:
    """Enters the world that forms at the address; an exception from ``look``, which is called repeatedly, aborts that.

    ``numbers``: the process number of each rank of that world. Once the world is entered, this raises nothing more: if
    a rank is lost then, the first collective fails.

    Raises, among others, :class:`rueda.PeerLostError` if a rank of the current world is lost meanwhile.
    """
    epoch, previous = _native.enter_world(
        rank,
        len(numbers),
        address,
        secret(),
        listener,
        {**options, "init_timeout": str(_ENTERING)},
        look,
    )
    start_telling()
    here = attendance()
    here.rendezvous = address
    here.members = numbers
    here.joiners = [number for number in here.joiners if number not in numbers]
    tell_formed()
    return epoch, list(previous)


def came_late() -> bool:
    """Whether this process has joined a running job; true once, for the caller that gives it the others' state."""
    here = attendance()
    forget_awaited()
    is_newcomer, here.is_newcomer = here.is_newcomer, False
    return is_newcomer
