"""Entering the world of a job that is under way, or that begins with this process and others like it."""

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
from rueda.errors import InitializationError, RuedaError
from rueda.launcher_session import Session
from rueda.whereabouts import start_telling

if TYPE_CHECKING:
    from rueda.torch.replay import Shadow
    from rueda.torch.state_follower import Follower

__all__ = ["JobHasEnded", "came_late", "enter", "join", "take_received"]

_log = logging.getLogger("rueda")

# Those who enter a world are all there already; seconds.
_ENTERING = 15
# How long those who are let in may take for what is still under way to them; seconds.
_FINISHING = 5.0
# Within which those that are left let in whom they could not let in when another one was lost; seconds.
_OPENING_AGAIN = 60.0
# Between two tries to form a first world; seconds.
_PAUSE = 0.5
# Within which who waits must be heard again after its connection has broken, and between two looks; seconds.
_COMING_AGAIN = 60.0
_LOOK = 0.05


class JobHasEnded(InitializationError):
    """The others have done their work, so that there is nothing to join."""


def join(options: Mapping[str, str]) -> None:
    """Waits until the ranks of the job take this process in, and enters their world with them.

    Where the job has no world yet, or none any more, enters one with others that wait.
    """
    here = attendance()
    if here.session is None:
        raise InitializationError("the launcher that has started this process cannot be reached")
    if "torch" in sys.modules:
        from rueda.torch.state_follower import warm_up

        warm_up()
    here.session.send(ready=here.number)
    offers = _Offers(here.session)
    first_failure: RuedaError | None = None
    failure: RuedaError | None = None
    deadline = 0.0
    while True:
        entrance = offers.take_entrance()
        if entrance is not None:
            try:
                _pass(entrance, options, offers)
            except RuedaError as error:
                # Where one of the others was lost at this moment, those that are left open another door. Where it
                # is this process that does not fit, they have the launcher end it.
                _log.warning("waiting to join again: %s", error)
                now = time.monotonic()
                if entrance.is_first:
                    # There is nobody yet who refuses those that do not fit.
                    if failure is not None and now > deadline:
                        raise _told_with(first_failure, error) from failure
                    time.sleep(_PAUSE)
                if failure is None or not entrance.is_first:
                    deadline = now + _OPENING_AGAIN
                failure = error
                first_failure = first_failure or error
                here.session.send(ready=here.number, after=offers.last_address)
                continue
            # Meanwhile the others' last step has come, or nearly so.
            follower = offers.follower
            here.received = None if follower is None else follower.finish(_FINISHING)
            here.is_newcomer = not entrance.is_first
            return
        if offers.over:
            kind = JobHasEnded if offers.over.get("done") is True else InitializationError
            raise kind(str(offers.over.get("why"))) from failure
        if not here.session.is_open:
            _come_again(here, offers)
            continue
        if failure is not None and time.monotonic() > deadline:
            raise _told_with(first_failure, failure)
        here.session.wait(1.0)


def _told_with(first: RuedaError | None, last: RuedaError) -> RuedaError:
    """The last failure, with the first where that is another: where others have given up for it, one waits in vain."""
    if first is None or str(first) == str(last):
        return last
    return InitializationError(f"{last}; before: {first}")


def _come_again(here: Attendance, offers: _Offers) -> None:
    """Waits on over another connection, where who lets processes in can be reached again."""
    deadline = time.monotonic() + _COMING_AGAIN
    while here.can_come_again and time.monotonic() < deadline:
        here.come_again()
        if here.session is not None and here.session.is_open:
            offers.session = here.session
            # What was to be told over the one before is told anew.
            tried = {"after": offers.last_address} if offers.last_address else {}
            here.session.send(ready=here.number, **tried)
            return
        time.sleep(_LOOK)
    if here.reconnection is None:
        raise InitializationError("the launcher has ended before this process could join")
    raise InitializationError(
        "the reception could not be reached again, or did not take this process again, before it could join"
    )


@dataclass(frozen=True)
class _Entrance:
    """``address``: nothing where this process is to open it. ``is_first``: into a world that nobody is in yet."""

    address: str
    rank: int
    numbers: list[int]
    is_first: bool


class _Offers:
    """What a process that waits to join is told: whom to follow meanwhile, and where to enter."""

    def __init__(self, session: Session) -> None:
        self.follower: Follower | None = None
        self.last_address = ""  # of what was entered, or tried
        self.over: dict[str, Any] = {}  # why nobody is let in any more
        self.session = session
        self._entrance: _Entrance | None = None
        self._is_recalled = False  # since the newest entrance was told

    def take_entrance(self) -> _Entrance | None:
        """The newest door to the world, once: others have been closed again."""
        self._listen()
        entrance, self._entrance = self._entrance, None
        return entrance

    def look(self) -> None:
        """While a world is entered: raises :class:`rueda.InitializationError` where nobody enters it any more."""
        self._listen()
        if self._entrance is not None:
            raise InitializationError("the others have gone on, and have opened another door")
        if self._is_recalled:
            raise InitializationError(
                "others that were to form the world are lost, or could not enter it"
            )

    def _listen(self) -> None:
        for message in self.session.receive():
            door = message.get("follow")
            if isinstance(door, dict):
                self.follower = _follow(door, self.follower)
            door = message.get("enter")
            if isinstance(door, dict):
                numbers = [int(each) for each in door["numbers"]]
                is_first = door.get("members") == 0
                self._entrance = _Entrance(
                    str(door["address"]), int(door["rank"]), numbers, is_first
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
    """Begins to take the members' state and their steps."""
    from rueda.torch.state_follower import Follower  # only members with torch offer it

    if before is not None:
        before.abort()
    return Follower(
        int(door["rank"]), int(door["size"]), int(door["members"]), str(door["address"])
    )


def _pass(entrance: _Entrance, options: Mapping[str, str], offers: _Offers) -> None:
    """Enters there; the first rank of a first world opens it and has the others told."""
    if entrance.address:
        offers.last_address = entrance.address
        enter(entrance.rank, entrance.numbers, entrance.address, -1, options, offers.look)
        return
    offers.last_address = ""  # of this one, until it is open
    try:
        listener, address = listen(options.get("interface", ""))
    except OSError as error:
        raise InitializationError(f"nothing can be listened at: {error}") from error
    offers.last_address = address
    with listener:
        session = attendance().session
        assert session is not None
        others = {str(number): rank for rank, number in enumerate(entrance.numbers) if rank > 0}
        door = {"address": address, "joiners": others, "numbers": entrance.numbers, "members": 0}
        session.send(door=door)
        enter(0, entrance.numbers, address, listener.fileno(), options, offers.look)


def take_received() -> Shadow | None:
    """What has come in the background while this process waited to join; once."""
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
    """Enters the world that meets there; what ``look`` raises now and then meanwhile ends that.

    ``numbers``: of each rank of that world. Once it is entered nothing is raised any more: where a rank is lost then,
    the first collective tells.

    Raises among others :class:`rueda.PeerLostError` where a rank of the present world is lost meanwhile.
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
    """Whether this process has joined a job under way; told once, to who gives it the others' state."""
    here = attendance()
    is_newcomer, here.is_newcomer = here.is_newcomer, False
    return is_newcomer
