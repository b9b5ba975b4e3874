"""The messages between the launcher and the processes of an elastic job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..endings import Endings
from ..failure import Failure
from ..sessions import Talk
from ..sink import say as say_at_once
from .attention import Attention
from .growth import Growth
from .probes import Probes


class Company:
    """Receives the processes' messages about who joins, and informs them. Knows no host and no connection.

    `end`: tells a process to end that need not or could not join.
    """

    def __init__(
        self,
        growth: Growth,
        end: Callable[[int], None],
        endings: Endings | None = None,
        say: Callable[[str], None] = say_at_once,
    ) -> None:
        """`endings`: tells ranks how others have ended, if that is known."""
        self._say = say
        self._growth = growth
        self._end = end
        self._endings = endings
        self._talks: list[Talk] = []
        self._told: dict[str, list[int]] = {}
        self._unwanted: set[int] = set()
        self._refused: set[int] = set()
        self._attention = Attention()
        self._probes = Probes(growth)

    def __len__(self) -> int:
        """The number of open sessions."""
        return len(self._talks)

    # --- Messages from processes

    def hear(self, talk: Talk, message: dict[str, Any]) -> None:
        """Handles a message from a process. An invalid one ends its session."""
        try:
            self._take(talk, message)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            talk.close()
            return
        self.tell()

    def forget(self, talk: Talk) -> None:
        """The session has ended."""
        if talk in self._talks:
            self._talks.remove(talk)

    def close(self) -> None:
        """Ends all sessions."""
        for talk in list(self._talks):
            talk.close()

    def _take(self, talk: Talk, message: dict[str, Any]) -> None:
        growth = self._growth
        if "hello" in message:
            talk.number = int(message["hello"])
            if talk not in self._talks:
                self._talks.append(talk)
            self._probes.has_come_again(talk.number)
            talk.send(**self._news())
        if message.get("endings") is True:
            self._tell_endings(talk)
        if "ready" in message:
            growth.is_ready(int(message["ready"]))
            self._probes.has_come_again(int(message["ready"]))
            self._attention.heard(int(message["ready"]))
        if "waits" in message:
            self._attention.heard(int(message["waits"]))
        if "probe_at" in message:
            told = message["probe_at"]
            pending = [int(number) for number in told["probing"]]
            self._probes.listens_at(talk.number, str(told["address"]), pending)
        if message.get("probed") is True:
            self._probes.succeeded(talk.number)
        if "unreached" in message:
            self._reject(talk, message["unreached"])
        if "follow" in message:
            self._show("follow", message["follow"])
        if "door" in message:
            self._show("enter", message["door"])
        if "formed" in message:
            growth.formed([int(number) for number in message["formed"]["members"]])
        if "refused" in message:
            self._refuse(message["refused"])

    def _reject(self, talk: Talk, unreached: dict[str, Any]) -> None:
        """A process cannot reach some of the ranks. If they are still there, they go on without it."""
        why = {int(rank): str(each) for rank, each in unreached.items()}
        heard = [each.number for each in self._talks]
        if reason := self._probes.unreached(talk.number, why, heard):
            self._growth.refuse([talk.number])
            name = self._name_all([talk.number], self._growth.host_of(talk.number))
            self._say(f"{name} cannot join: {reason}")
            talk.send(over={"done": False, "why": f"this process cannot join: {reason}"})
            talk.close()

    def _refuse(self, told: dict[str, Any]) -> None:
        """Ends processes that the ranks could not let in, and lets their hosts pause."""
        waited = float(told.get("waited", 0.0))
        refused = self._growth.refuse([int(number) for number in told["joiners"]])
        pauses = self._growth.waited_in_vain(refused, waited, time.monotonic())
        for host, pause in pauses.items():
            which = [number for number in refused if self._growth.host_of(number) == host]
            self._say(
                f"the ranks have waited {waited:.1f} s in vain for {self._name_all(which, host)} to join; the next "
                f"attempt there follows after {pause:.0f} s at the earliest"
            )
        self._refused.update(refused)
        for number in refused:
            self._end(number)
        self._told = {}  # the ranks await news of the others that wait

    def _tell_endings(self, talk: Talk) -> None:
        if self._endings is not None:
            self._endings.tell(talk)
        else:
            talk.close()  # so that no process waits for a message that never comes

    def _show(self, what: str, door: dict[str, Any]) -> None:
        """Tells joining processes where they meet the members, and with which ranks."""
        ranks = {int(number): int(rank) for number, rank in door["joiners"].items()}
        rest: dict[str, Any] = {"address": str(door["address"])}
        for number in ("size", "members", "sets"):
            if number in door:
                rest[number] = int(door[number])
        if "place" in door:
            rest["place"] = str(door["place"])
        if "numbers" in door:
            rest["numbers"] = [int(number) for number in door["numbers"]]
        for talk in list(self._talks):
            if talk.number in ranks:
                talk.send(**{what: {**rest, "rank": ranks[talk.number]}})

    # --- Ends of processes

    def ended_well(self, how: Failure) -> bool:
        """Whether a process has completed its work."""
        return how.status == 0 or how.rank in self._unwanted

    def bears(self, is_missed: bool, *gone: Failure, is_certain: bool = True) -> bool:
        """Whether the job goes on without processes that have failed together. If so, prints that.

        `is_missed`: the first world cannot form without one of them. `is_certain`: no event that is not known yet can
        be why they failed.
        """
        growth = self._growth
        numbers = [how.rank for how in gone]
        if is_missed:
            self._say(
                f"the job ends because {self._name(gone[0])} ended before the first world was formed"
            )
            return False
        now = time.monotonic()
        if not growth.bears_loss_of(*numbers, now=now):
            self._say(f"the job ends because {growth.why_not(*numbers, now=now)}")
            return False
        for how in gone:
            what = "is lost" if growth.was_member(how.rank) else "has not joined"
            goes_on = "; the job goes on" if is_certain else ""
            self._say(f"{self._name(how)} {what}, {self._describe(how)}{goes_on}")
        return True

    def _describe(self, how: Failure) -> str:
        if how.rank in self._refused and how.status < 0:
            return "ended because the ranks could not let it in"
        return how.describe_status()

    def _name(self, how: Failure) -> str:
        return self._name_all([how.rank], how.host)

    def _name_all(self, numbers: list[int], host: str) -> str:
        """Processes of one host."""
        which = "process " if len(numbers) == 1 else "processes "
        on = f" on {host}" if self._growth.spans_hosts else ""
        return which + ", ".join(map(str, numbers)) + on

    def ended(self, number: int, well: bool) -> None:
        """A process has ended."""
        self._growth.ended(number, well, time.monotonic())
        self.tell()
        self.end_unwanted()

    def host_lost(self, host: str) -> None:
        """A host is lost, with all its processes."""
        self._growth.host_lost(host, time.monotonic())
        self.tell()
        self.end_unwanted()

    def end_unwanted(self) -> None:
        """Ends processes that need not join any more."""
        for number in self._growth.unwanted:
            self._unwanted.add(number)
            self._growth.let_go(number)
            self._end(number)

    # --- Messages to processes

    def look(self) -> None:
        """Call it periodically: notices which waiting processes do not answer any more."""
        self._attention.look(self._growth.ready)
        self.tell()

    def tell(self) -> None:
        """Sends processes what has changed, and nothing else."""
        self._send_probes()
        now = self._news()
        if now == self._told:
            return
        self._told = now
        for talk in list(self._talks):
            talk.send(**now)

    def _send_probes(self) -> None:
        due = self._probes.due(talk.number for talk in self._talks)
        for talk in list(self._talks):
            if (ranks := due.get(talk.number)) is not None:
                host_of = self._growth.host_of
                talk.send(probe=[[rank, host_of(rank), where] for rank, where in ranks.items()])

    def _news(self) -> dict[str, list[int]]:
        """What ranks need to know about processes that come and go."""
        growth = self._growth
        silent = self._attention.silent
        pending = self._probes.pending
        out = {*silent, *pending}
        return {
            "joiners": [n for n in growth.admissible(time.monotonic()) if n not in out],
            "probing": pending,
            "leaving": growth.leaving,
            "gone": growth.gone,
            "silent": silent,
        }
