"""The ranks that train one trial at a time together, and their communication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rueda import _native
from rueda.errors import InvalidArgumentError, RuedaError, UnsupportedError
from rueda.failures import Failure
from rueda.groups import number_in, taken_slots
from rueda.lifecycle import rank, size
from rueda.objects import allgather_object, broadcast_object
from rueda.optuna.words import receive_word, send_word
from rueda.process_sets import ProcessSet

__all__ = ["Team", "leave", "open_teams"]

_NO_ROOM = f"there are {_native.process_set_limit} such sets already"


@contextmanager
def open_teams(per_team: int) -> Iterator[tuple[ProcessSet, ProcessSet, ProcessSet]]:
    """The process sets of this rank's team, of all leaders and of all ranks, which last as long as the block.

    Collective to enter. Each rank ends the sets on its own, even in a broken world: the next world has no trace of
    them. What others do in a set of a rank that has left the block fails instead of waiting.

    Raises :class:`rueda.UnsupportedError` on every rank if there is no room for them.
    """
    taken = {
        slot for slots in allgather_object(taken_slots(), "rueda.optuna.slots") for slot in slots
    }
    free = [slot for slot in range(_native.process_set_limit) if slot not in taken][:3]
    leads = rank() % per_team == 0
    mine = [_number(slot) for slot in free] if leads and len(free) == 3 else []
    told = allgather_object(mine, "rueda.optuna.numbers")
    first = rank() - rank() % per_team
    wanted = [(told[first][:1], range(first, first + per_team))]
    wanted.append((told[0][1:2], range(0, size(), per_team)))
    wanted.append((told[0][2:], range(size())))
    problems = [why for numbers in told for _, why in numbers if why]
    if problems or len(free) < 3:
        raise UnsupportedError(
            f"no process sets could be formed for teams: {problems[0] if problems else _NO_ROOM}"
        )
    sets = []
    failed = ""
    try:
        for ((number, _),), ranks in wanted:
            sets.append(ProcessSet(ranks))
            if rank() in ranks:
                assert number is not None
                try:
                    _native.create_group(number, list(ranks))
                    sets[-1].process_set_id = number
                except RuedaError as error:
                    failed = failed or str(error)
        problems = [why for why in allgather_object(failed, "rueda.optuna.formed") if why]
        if problems:
            raise UnsupportedError(f"no process sets could be formed for teams: {problems[0]}")
        yield sets[0], sets[1], sets[2]
    finally:
        for each in sets:
            leave(each)


def leave(group: ProcessSet) -> None:
    """Ends, on this rank, a set that only its members know; operations in which others still wait fail."""
    if group.process_set_id is not None:
        _native.destroy_group(group.process_set_id)


class Team:
    """Ranks with their own process set; the first, the leader, talks to the study.

    Each trial's collectives use another set, see :meth:`form_group`: a rank that fails ends it, so that the others do
    not wait in it.
    """

    def __init__(self, members: ProcessSet) -> None:
        self._members = members
        self.ranks = members.ranks
        self.leader = self.ranks[0]
        self.rank = rank()
        self.is_leader = self.rank == self.leader
        self.broken: BaseException | None = None  # why the members can no longer communicate
        self.failure: Failure | None = None  # of the last trial in which a member failed
        self.is_training = False  # on the leader: whether the others may be in a trial

    def signal(self, word: int) -> None:
        """Sends a number from the leader to all others, which may wait for it as long as the leader lives."""
        with self._talking():
            for other in self.ranks[1:]:
                send_word(word, other, self._members)

    def wait_for_signal(self) -> int:
        """Receives the leader's next number."""
        with self._talking():
            word, _ = receive_word(self.leader, self._members)
        return word

    def gather(self, mine: Any) -> list[Any]:
        """The values of all members, in rank order."""
        with self._talking():
            return allgather_object(mine, "rueda.optuna.gather", self._members)

    def tell(self, told: Any) -> Any:
        """The leader's value; the others' ``told`` is ignored."""
        with self._talking():
            return broadcast_object(told, self.leader, "rueda.optuna.tell", self._members)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.broken = error
            raise

    def leave(self) -> None:
        """Leaves the team early: the others do not wait for this rank any more."""
        leave(self._members)
        self._members.process_set_id = None

    def form_group(self) -> ProcessSet:
        """Forms a process set of the members for one trial.

        Raises :class:`rueda.UnsupportedError` on every member if one cannot form it, with that rank's reason.
        """
        taken = {slot for slots in self.gather(taken_slots()) for slot in slots}
        free = next((s for s in range(_native.process_set_limit) if s not in taken), None)
        number, failed = self.tell(_number(free) if self.is_leader else None)
        if number is not None:
            try:
                _native.create_group(number, self.ranks)
            except RuedaError as error:
                failed = f"{error}"
        told = [
            f"rank {r}: {why}"
            for r, why in zip(self.ranks, self.gather(failed), strict=True)
            if why
        ]
        if told:
            if not failed:
                _native.destroy_group(number)
            raise UnsupportedError(f"no process set could be formed for a trial: {'; '.join(told)}")
        group = ProcessSet(self.ranks)
        group.process_set_id = number
        return group


def _number(slot: int | None) -> tuple[int | None, str]:
    """A number for a process set in this slot, or why there is none."""
    if slot is None:
        return None, _NO_ROOM
    try:
        return number_in(slot), ""
    except InvalidArgumentError as error:
        return None, f"{error}"
