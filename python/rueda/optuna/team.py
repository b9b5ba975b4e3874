"""The ranks that train one trial at a time together, and how they talk to each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rueda import _native
from rueda.errors import InvalidArgumentError, RuedaError, UnsupportedError
from rueda.failures import Failure
from rueda.groups import number_in, taken_slots
from rueda.lifecycle import rank, size
from rueda.objects import allgather_object, broadcast_object
from rueda.point_to_point import recv, send
from rueda.process_sets import ProcessSet

__all__ = ["Team", "leave", "open_teams"]

_NO_ROOM = f"there are {_native.process_set_limit} such sets already"


@contextmanager
def open_teams(per_team: int) -> Iterator[tuple[ProcessSet, ProcessSet]]:
    """The sets of this rank's team and of all teams' leaders, for as long as the block runs; all ranks begin it.

    Only their members know them, so that each rank ends them by itself, also where the world has broken: nothing is
    left of them in the world that may follow.

    Raises :class:`rueda.UnsupportedError` on every rank where there is no room for them.
    """
    taken = {
        slot for slots in allgather_object(taken_slots(), "rueda.optuna.slots") for slot in slots
    }
    free = [slot for slot in range(_native.process_set_limit) if slot not in taken][:2]
    leads = rank() % per_team == 0
    mine = [_number(slot) for slot in free] if leads and len(free) == 2 else []
    told = allgather_object(mine, "rueda.optuna.numbers")
    first = rank() - rank() % per_team
    wanted = [(told[first][:1], range(first, first + per_team))]
    wanted.append((told[0][1:], range(0, size(), per_team)))
    problems = [why for numbers in told for _, why in numbers if why]
    if problems or len(free) < 2:
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
        yield sets[0], sets[1]
    finally:
        for each in sets:
            leave(each)


def leave(group: ProcessSet) -> None:
    """Ends a set that only its members know on this rank; what others still wait for in it fails."""
    if group.process_set_id is not None:
        _native.destroy_group(group.process_set_id)


class Team:
    """Ranks with a process set of their own, the first of which, the leader, talks to the study.

    What trials reduce goes over another set, :meth:`form_group`, which can be given up: a rank that fails ends it, so
    that the others do not wait in it.
    """

    def __init__(self, members: ProcessSet) -> None:
        self._members = members
        self.ranks = members.ranks
        self.leader = self.ranks[0]
        self.rank = rank()
        self.is_leader = self.rank == self.leader
        self.broken: BaseException | None = None  # why the members cannot talk any more
        self.failure: Failure | None = None  # of the last trial that one of them has failed

    def signal(self, word: int) -> None:
        """Sends a number to all others; the leader does. They may wait for it as long as the leader lives."""
        with self._talking():
            for other in self.ranks[1:]:
                send(np.array([word], np.int64), other, process_set=self._members)

    def wait_for_signal(self) -> int:
        """The number that the leader sends next."""
        word = np.zeros(1, np.int64)
        with self._talking():
            recv(word, self.leader, process_set=self._members)
        return int(word[0])

    def gather(self, mine: Any) -> list[Any]:
        """What all members say, in the order of their ranks."""
        with self._talking():
            return allgather_object(mine, "rueda.optuna.gather", self._members)

    def tell(self, told: Any) -> Any:
        """What the leader says; the others' ``told`` is ignored."""
        with self._talking():
            return broadcast_object(told, self.leader, "rueda.optuna.tell", self._members)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.broken = error
            raise

    def form_group(self) -> ProcessSet:
        """A process set of the members for one trial.

        Raises :class:`rueda.UnsupportedError` on every rank where one has no room for it, in words of that rank.
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
    """A number for a set in this slot, or why there is none."""
    if slot is None:
        return None, _NO_ROOM
    try:
        return number_in(slot), ""
    except InvalidArgumentError as error:
        return None, f"{error}"
