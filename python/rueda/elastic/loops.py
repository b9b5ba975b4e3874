"""Counts a script's elastic loops, so that a newcomer finds the one in which the others are.

A loop here is one of :func:`rueda.elastic.steps`, or a call of a function with :func:`rueda.elastic.run`.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rueda.attendance import leave
from rueda.elastic.shared_state import uncovered
from rueda.errors import InvalidArgumentError
from rueda.lifecycle import first_world_number, tell_failure
from rueda.pickling import dumps, dumps_by_cloudpickle
from rueda.process_sets import arrival
from rueda.recovery import can_recover

__all__ = [
    "ADVICE",
    "RUN",
    "STEPS",
    "Loop",
    "Position",
    "await_in",
    "begin_loop",
    "current_place",
    "fall_behind",
    "forget_awaited",
    "inside",
    "last_result",
    "note_arrival",
    "note_result",
    "passes_over",
    "position",
]

_log = logging.getLogger("rueda")

STEPS = "rueda.elastic.steps()"
RUN = "a function with @rueda.elastic.run"

ADVICE = "see 'More than one loop' in docs/reliability.md"


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

    @property
    def is_in_call(self) -> bool:
        """Whether it is a call of a function, or a part of one."""
        return self.call == RUN or len(self.number) > 1


@dataclass(frozen=True)
class Position:
    """What ranks tell each other of where they are.

    ``is_member``: whether the rank has the state, or is neither a newcomer nor one that has fallen behind.
    ``is_interrupted``: whether a loss has brought it here from within steps().
    ``has_passed``: whether it has passed over earlier loops. ``problem``: why it cannot go on with the others.
    """

    loop: Loop
    is_member: bool
    is_interrupted: bool = False
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
            f"but not over collectives between them: {ADVICE})"
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


def last_result() -> bytes | str:
    """What the last call has returned: pickled, or why it cannot be. Empty if all ranks have begun another loop."""
    return _now().result


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
            f"State and return nothing, {ADVICE}"
        )
    if (loop.call, len(loop.number)) != (awaited.call, len(awaited.number)):
        _refuse(record.problem or _difference_of(loop, awaited))
    return False


def _difference_of(loop: Loop, awaited: _Awaited) -> str:
    return (
        f"this process has joined a running job, whose ranks wait for it in loop {_shown(awaited.number)} of the "
        f"script, {awaited.call}, and has come to {loop}, {loop.call}: every rank must run the same elastic loops in "
        f"the same order, {ADVICE}"
    )


def _refuse(why: str) -> None:
    """Ends this newcomer, which can never meet the others; they continue without it."""
    forget_awaited()
    error = InvalidArgumentError(f"{why}; the others go on without this process")
    tell_failure(error)
    leave(done=False)
    raise error


def position(
    loop: Loop | None,
    parts: Sequence[Any],
    *,
    has_state: bool,
    is_newcomer: bool,
    is_interrupted: bool = False,
) -> Position:
    """Where this process is, to be told; ``loop``: by default the last; ``parts``: what its ranks share."""
    record = _now()
    loop = loop or record.last or Loop("", (0,), "no loop")
    problem = record.problem
    lacking = uncovered([each() for each in record.passed], parts)
    if lacking and not problem:
        problem = (
            f"this process has joined a running job in {loop}, and has passed over a loop that shares an object of "
            f"type {type(lacking[0]).__name__}, which this one does not share, so that it cannot get the others': "
            f"share it in every loop, or delete it if it is not needed any more, {ADVICE}"
        )
    is_member = has_state or not (is_newcomer or record.has_fallen_behind)
    return Position(loop, is_member, is_interrupted, record.has_passed, problem)


def fall_behind() -> None:
    """Notes that this process lacks what the others have done at the end of a call that it has left before."""
    _now().has_fallen_behind = True


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
