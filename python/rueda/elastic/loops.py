"""Counts a script's elastic loops, so that a newcomer finds the one in which the others are.

A loop here is one of :func:`rueda.elastic.steps`, or a call of a function with :func:`rueda.elastic.run`.
"""

from __future__ import annotations

import json
import logging
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rueda.attendance import leave
from rueda.elastic.shared_state import uncovered
from rueda.errors import InvalidArgumentError
from rueda.lifecycle import first_world_number, rank, tell_failure
from rueda.objects import allgather_object, broadcast_object
from rueda.pickling import dumps, dumps_by_cloudpickle
from rueda.process_sets import arrival
from rueda.recovery import can_recover

__all__ = [
    "RUN",
    "STEPS",
    "Loop",
    "Position",
    "await_in",
    "begin_loop",
    "current_place",
    "displaced",
    "fall_behind",
    "forget_awaited",
    "has_fallen_behind",
    "inside",
    "note_arrival",
    "note_result",
    "passes_over",
    "position",
    "ranks_behind",
    "result_for",
]

_log = logging.getLogger("rueda")

STEPS = "rueda.elastic.steps()"
RUN = "a function with @rueda.elastic.run"

_ADVICE = "see 'More than one loop' in docs/reliability.md"


@dataclass(frozen=True)
class Loop:
    """A loop that this process has begun.

    ``call``: STEPS or RUN. ``number``: how many it is, from 1; for a loop inside of a call of a function, that call's
    number comes first. ``where``: its place in the source.
    """

    call: str
    number: tuple[int, ...]
    where: str

    def __str__(self) -> str:
        return f"loop {_shown(self.number)} ({self.where})"


@dataclass(frozen=True)
class Position:
    """What ranks tell each other of where they are.

    ``has_passed``: whether it has passed over earlier loops. ``problem``: why it cannot go on with the others.
    """

    loop: Loop
    has_passed: bool = False
    problem: str = ""


@dataclass(frozen=True)
class _Awaited:
    """The loop in which the others wait for a newcomer; ``has_results``: whether an earlier call returned any."""

    call: str
    number: tuple[int, ...]
    has_results: bool

    def __str__(self) -> str:
        if self.number == (1,):
            return self.call
        return (
            f"{self.call}, in loop {_shown(self.number)} of the script (a newcomer passes over the loops before it, "
            f"but not over collectives between them: {_ADVICE})"
        )


class _Record:
    """What this process has done since the world that init() has formed."""

    def __init__(self, world: int) -> None:
        self.world = world
        # Of loops begun: of the script, and inside of each call that is under way.
        self.counts = [0]
        self.last: Loop | None = None
        self.has_results = False
        # Of the last call, until all ranks are known to have begun another loop: pickled, or why it cannot be.
        self.result: bytes | str = ""
        self.has_fallen_behind = False  # and left a call before its end, as others had ended it
        self.passed: list[Callable[[], Any]] = []  # what belonged to loops that were passed over
        self.has_passed = False
        self.problem = ""


_record = _Record(-1)
_awaited: _Awaited | None = None  # valid while arrival.place is set


def _now() -> _Record:
    """The record of this job: a process may serve one after another."""
    global _record
    if _record.world != first_world_number():
        _record = _Record(first_world_number())
    return _record


def begin_loop(call: str, where: str) -> Loop:
    """Counts a loop that begins."""
    record = _now()
    record.counts[-1] += 1
    record.last = Loop(call, tuple(record.counts), where)
    return record.last


@contextmanager
def inside(loop: Loop) -> Iterator[None]:
    """While a function runs: its own loops are counted anew whenever it starts, as on a newcomer."""
    record = _now()
    record.counts.append(0)
    try:
        yield
    finally:
        del record.counts[len(loop.number) :]
        record.last = loop


def note_result(loop: Loop, result: object) -> None:
    """Called with what a call has returned: newcomers that pass over it cannot return the same, unless it is None.

    Ranks that are lost just now may leave others behind in it, which return the same, whatever becomes of it here.
    """
    record = _now()
    record.has_results = record.has_results or result is not None
    if len(loop.number) == 1 and can_recover():
        record.result = _pickled(result)


def _pickled(result: object) -> bytes | str:
    try:
        return dumps(result)
    except Exception as error:  # whatever the object's own __reduce__ raises
        with suppress(Exception):  # cloudpickle takes more, if it is installed
            return dumps_by_cloudpickle(result)
        return f"{type(error).__name__}: {error}"


def current_place(loop: Loop | None = None) -> str:
    """What newcomers are told of where the others wait: in ``loop``, by default in the last, if any has begun."""
    record = _now()
    loop = loop or record.last
    if loop is None:
        return ""
    return json.dumps([loop.call, loop.number, record.has_results])


def await_in(place: str) -> None:
    """Notes where the others wait for this newcomer; ``place``: their current_place(), or empty."""
    global _awaited
    _awaited = None
    if place:
        call, number, has_results = json.loads(place)
        _awaited = _Awaited(str(call), tuple(map(int, number)), bool(has_results))
    arrival.place = str(_awaited or "")


def forget_awaited() -> None:
    """Called when this process meets the others, or has nobody to meet."""
    global _awaited
    _awaited = None
    arrival.place = ""


def passes_over(loop: Loop, parts: Sequence[Any]) -> bool:
    """Whether this process, a newcomer, must leave out the loop, which lies behind the others.

    ``parts``: what the loop's ranks share. Raises :class:`rueda.InvalidArgumentError` where it cannot meet the others.
    """
    awaited = _awaited if arrival.place else None
    if awaited is None:
        return False
    record = _now()
    is_behind = loop.number[0] < awaited.number[0]
    if is_behind and (loop.call == STEPS or not awaited.has_results):
        _log.info("passing over %s: the other ranks are in loop %s", loop, _shown(awaited.number))
        record.passed += map(_reference, parts)
        record.has_passed = True
        return True
    if is_behind:
        record.problem = (
            f"this process has joined a running job in loop {_shown(awaited.number)} of the script, and cannot pass "
            f"over {loop}, since a function with @rueda.elastic.run has returned a value before: keep that in the "
            f"State and return nothing, {_ADVICE}"
        )
    if (loop.call, len(loop.number)) != (awaited.call, len(awaited.number)):
        _refuse(record.problem or _difference_of(loop, awaited))
    return False


def _difference_of(loop: Loop, awaited: _Awaited) -> str:
    return (
        f"this process has joined a running job, whose ranks wait for it in loop {_shown(awaited.number)} of the "
        f"script, {awaited.call}, and has come to {loop}, {loop.call}: every rank must run the same elastic loops in "
        f"the same order, {_ADVICE}"
    )


def _refuse(why: str) -> None:
    """Ends this newcomer, which can never meet the others; they continue without it."""
    forget_awaited()
    error = InvalidArgumentError(f"{why}; the others go on without this process")
    tell_failure(error)
    leave(done=False)
    raise error


def position(loop: Loop | None, parts: Sequence[Any]) -> Position:
    """Where this process is, to be told; ``loop``: by default the last; ``parts``: what its ranks share."""
    record = _now()
    loop = loop or record.last or Loop("", (0,), "no loop")
    problem = record.problem
    lacking = uncovered([each() for each in record.passed], parts)
    if lacking and not problem:
        problem = (
            f"this process has joined a running job in {loop}, and has passed over a loop that shares an object of "
            f"type {type(lacking[0]).__name__}, which this one does not share, so that it cannot get the others': "
            f"share it in every loop, or delete it if it is not needed any more, {_ADVICE}"
        )
    return Position(loop, record.has_passed, problem)


def ranks_behind(positions: Sequence[Position], members: Sequence[int]) -> tuple[set[int], int]:
    """The ranks for which a call has not ended that others have left for the next, and the first of these others.

    One was lost just when the call ended. The ranks behind have committed as often as the others, and nothing that all
    do together was left to do. ``members``: the ranks that are no newcomers, or have the state.
    """
    furthest = max((positions[number].loop.number[0] for number in members), default=0)
    behind = {
        number
        for number, each in enumerate(positions)
        if each.loop.call == RUN and each.loop.number[0] == furthest - 1 and not each.problem
    }
    ahead = [number for number in members if positions[number].loop.number[0] == furthest]
    return behind, min(ahead, default=0)


def result_for(
    positions: Sequence[Position], behind: set[int], ahead: int
) -> tuple[object, dict[int, str]]:
    """What the call that the ranks ``behind`` are still in has returned on rank ``ahead``; collective over the world.

    It is None on other ranks. Also why those of them which cannot have it cannot go on.
    """
    result: object = None
    try:
        pickled = broadcast_object(_now().result, ahead, "elastic.result")
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
            f"nothing, {_ADVICE}"
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
                f"loops in the same order, {_ADVICE}"
            )
    return reasons


def fall_behind() -> None:
    """Notes that this process lacks what the others have done at the end of a call that it has left before."""
    _now().has_fallen_behind = True


def has_fallen_behind() -> bool:
    """Whether that is so, and this process has not met the others since."""
    return _now().has_fallen_behind


def note_arrival() -> None:
    """Called once all ranks have met in a loop, and this one has the others' state.

    What it has passed over does not matter any more, and for no rank has the call before not ended yet.
    """
    record = _now()
    record.passed = []
    record.has_passed = False
    record.result = ""
    record.has_fallen_behind = False


def _reference(part: Any) -> Callable[[], Any]:
    """Gives the object as long as the program can use it."""
    with suppress(TypeError):
        return weakref.ref(part)
    return lambda: part


def _shown(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))
