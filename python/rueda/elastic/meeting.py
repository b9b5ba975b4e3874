"""Where ranks meet when an elastic loop begins, and after a loss: in one place, whichever loop each of them is in.

A rank may be lost when a loop has ended on some of the others only. If each kind of loop had a meeting of its own,
those ranks would then wait for each other.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rueda.elastic.changes import part_with
from rueda.elastic.loops import ADVICE, RUN, STEPS, Loop, Position, last_result
from rueda.errors import InitializationError, InvalidArgumentError
from rueda.lifecycle import rank
from rueda.objects import allgather_object, broadcast_object

__all__ = [
    "CallIsOver",
    "Meeting",
    "StateIsLost",
    "displaced",
    "meet",
    "state_is_lost",
]


class CallIsOver(BaseException):
    """The others have left the call that this rank is in: raised where they meet, for :func:`rueda.elastic.run`.

    ``result``: what the call has returned there.
    """

    def __init__(self, result: object) -> None:
        super().__init__(result)
        self.result = result


class StateIsLost(InitializationError):
    """No rank with the training's state is left, and no other world can bring it back."""

    recurs = True


def state_is_lost() -> StateIsLost:
    """The error if only newcomers without the state are left."""
    return StateIsLost(
        "all ranks that had the training's state were lost before the remaining ranks received it: start the job "
        "again, from its last checkpoint if it writes any"
    )


@dataclass(frozen=True)
class Meeting:
    """What all ranks have told: ``told`` of themselves, and their ``positions``; ``own``: the loop of this one."""

    own: Loop
    told: list[Any]
    positions: list[Position]

    def settle(self, take_world: Callable[[], object]) -> bool:
        """Ends a call that has ended on some of the ranks only; collective over the world.

        True if others come here from where they are, so that all must meet again. ``take_world``: called if that has
        changed the world. Raises CallIsOver on the ranks for which the call has not ended yet, and
        :class:`rueda.InvalidArgumentError` on all if they are in loops that do not follow each other.
        """
        behind, ahead = _ranks_behind(self.positions)
        if behind:
            result, unfit = _result_for(self.positions, behind, ahead)
            is_behind = rank() in behind
            if unfit:
                part_with(unfit)
                take_world()
            if is_behind:
                raise CallIsOver(result)
            return True
        stray = _first_stray(self.positions)
        if stray:
            raise InvalidArgumentError(stray)
        return any(_leads_to(each, self.own) for each in self.positions)

    @property
    def is_begun_anew(self) -> bool:
        """Whether others begin a call anew of which this rank's loop is a part, so that it must do so as well."""
        return any(_is_part_of(self.own, each.loop) for each in self.positions)

    @property
    def first_members(self) -> list[int]:
        """The first of the ranks from which the others can get the state if none has received it.

        Raises StateIsLost if there is none.
        """
        first = [number for number, each in enumerate(self.positions) if each.is_member][:1]
        if not first:
            raise state_is_lost()
        return first


def meet(own: object, where: Position) -> Meeting:
    """Tells the others ``own`` and where this rank is, and hears the same of them; collective over the world."""
    told = allgather_object((own, where), "elastic.position")
    return Meeting(where.loop, [each for each, _ in told], [place for _, place in told])


def _is_part_of(loop: Loop, other: Loop) -> bool:
    """Whether ``loop`` is one of steps within the call ``other``. It gives up if that begins anew."""
    depth = len(other.number)
    return loop.call == STEPS and len(loop.number) > depth and loop.number[:depth] == other.number


def _leads_to(where: Position, other: Loop) -> bool:
    """Whether a rank that is there comes to ``other`` by itself, once it has heard of ranks that are there."""
    loop = where.loop
    is_before = (
        loop.call == STEPS and loop.number[:-1] == other.number[:-1] and loop.number < other.number
    )
    return where.is_interrupted and (is_before or _is_part_of(loop, other))


def _first_stray(positions: Iterable[Position]) -> str:
    """Two kinds of loops in which ranks are, neither of which leads to the other, or empty."""
    kinds = {(each.loop, each.is_interrupted): each for each in positions}
    for one, other in combinations(kinds.values(), 2):
        a, b = sorted((one.loop, other.loop), key=lambda loop: loop.number)
        if a.call != b.call and not _leads_to(one, other.loop) and not _leads_to(other, one.loop):
            return (
                f"ranks are in {a}, {a.call}, and in {b}, {b.call}: every rank must run the same elastic loops in the "
                f"same order, {ADVICE}"
            )
    return ""


def _ranks_behind(positions: Sequence[Position]) -> tuple[set[int], int]:
    """The ranks for which a call has not ended that others have left for the next loop, and the first of these others.

    One was lost just when the call ended. The ranks behind have committed as often as the others, and nothing that all
    do together was left to do.
    """
    furthest = max((each.loop.number[0] for each in positions if each.is_member), default=0)
    behind = {
        number
        for number, each in enumerate(positions)
        if (each.loop.call == RUN or (each.loop.is_in_call and each.is_interrupted))
        and each.loop.number[0] == furthest - 1
        and not each.problem
    }
    ahead = [
        number
        for number, each in enumerate(positions)
        if each.is_member and each.loop.number[0] == furthest
    ]
    return behind, min(ahead, default=0)


def _result_for(
    positions: Sequence[Position], behind: set[int], ahead: int
) -> tuple[object, dict[int, str]]:
    """What the call that the ranks ``behind`` are still in has returned on rank ``ahead``; collective over the world.

    It is None on other ranks. Also why those of them which cannot have it cannot go on.
    """
    result: object = None
    try:
        pickled = broadcast_object(last_result(), ahead, "elastic.result")
    except InvalidArgumentError as error:  # on all ranks: one has no memory for it
        pickled = str(error)
    problem = pickled if isinstance(pickled, str) else ""
    if rank() in behind and not problem:
        try:
            result = pickle.loads(pickled)
        except Exception as error:  # the object's own code
            problem = f"{type(error).__name__}: {error}"
    problems = allgather_object(problem, "elastic.result.problem")
    return result, {
        number: (
            f"rank {number} is in {positions[number].loop}, which has ended on the others when a rank was lost, and "
            f"what it has returned there cannot be sent: {problems[number]}; keep results in the State and return "
            f"nothing, {ADVICE}"
        )
        for number in behind
        if problems[number]
    }


def displaced(positions: Sequence[Position], source: int) -> dict[int, str]:
    """The ranks that are not where rank ``source`` is, and why they cannot go on with it."""
    right = positions[source].loop
    reasons = {}
    for other, its in enumerate(positions):
        if its.problem:
            reasons[other] = f"rank {other}: {its.problem}"
        elif its.loop.number != right.number or (its.has_passed and its.loop.where != right.where):
            reasons[other] = (
                f"rank {other} is in {its.loop}, and rank {source} in {right}: every rank must run the same elastic "
                f"loops in the same order, {ADVICE}"
            )
    return reasons
