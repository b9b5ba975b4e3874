"""Loops over the sizes. At each the contenders take turns, so that noise affects all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from . import values
from .collectives import REDUCTION
from .group import Group, GroupFailed
from .limits import LIMITS, SHARED_SUMS
from .plan import Entry, Plan
from .samples import Block, Samples, block_of

_FEWEST_CALLS, _MOST_CALLS = 3, 1000
_TRIAL_CALLS = 3
# Libraries prepare for buffers they see again: Rueda moves them to huge pages in the third run.
_TRIAL_WARMUP = 4

# Reports progress: a text, and how many of the run's steps are now done in addition.
Tell = Callable[[str, int], None]


class Unsupported(Exception):
    """The contender does not support this call; the text says why."""


def _measure(
    group: Group, requests: Sequence[dict[str, object]], payloads: Sequence[bytes]
) -> Block:
    answers = group.ask(requests, payloads)
    clocks = []
    for answer in answers:
        if "unsupported" in answer.values:
            raise Unsupported(answer.values["unsupported"])
        if answer.values["took_part"] == "1":
            times = np.frombuffer(answer.payload, np.int64)
            clocks.append((times[: len(times) // 2], times[len(times) // 2 :]))
    wrong = sum(answer.number("wrong") for answer in answers if "wrong" in answer.values)
    return block_of(clocks, answers[0].number("steps"), wrong)


class Turn:
    """One contender at one size: the requests for its ranks, and the number of calls per block."""

    def __init__(self, plan: Plan, group: Group, size: int, calls: int | None = None) -> None:
        self._plan = plan
        self._group = group
        self._size = size
        self._calls = plan.calls if calls is None else calls
        self._requests: list[dict[str, object]] = []
        self._payloads: list[bytes] = []
        self.samples = Samples()

    def _add_rank(self, what: dict[str, object], payload: bytes, dtype: str) -> None:
        shared: dict[str, object] = {"dtype": dtype, "period": values.period(dtype)}
        self._requests.append({**shared, **what})
        self._payloads.append(payload)

    def as_collective(self, memory: str) -> Turn:
        """Makes the requests for the plan's collective. Returns self."""
        plan, collective = self._plan, self._plan.collective
        count = plan.count(self._size)
        for rank in range(plan.ranks):
            blocks, tables = values.expectation(
                collective, rank, plan.ranks, count, plan.root, plan.op, plan.dtype
            )
            what = {
                "collective": collective.name, "memory": memory, "op": plan.op, "root": plan.root,
                "input_count": count // plan.ranks if collective.input_is_part else count,
                "output_count": count // plan.ranks if collective.output_is_part else count,
                "in_place": int(collective.in_place), "expected": blocks, "late": round(plan.late * 1e9),
            }  # fmt: skip
            self._add_rank(what, tables, plan.dtype)
        return self

    def as_limit(self, name: str, checked: bool) -> Turn:
        """Makes the requests for a limit's loop, on float32. `checked`: its result is a sum. Returns self."""
        ranks, count = self._plan.ranks, -(-self._size // 4)
        for rank in range(ranks):
            tables = [values.table(rank, ranks, "sum", "float32")]
            if checked:
                tables.append(values.table(REDUCTION, ranks, "sum", "float32"))
            what = {
                "collective": name, "memory": "shared", "op": "sum", "root": 0,
                "input_count": count, "output_count": count, "in_place": 1,
                "expected": f"1,0,{count}" if checked else "", "late": 0,
            }  # fmt: skip
            self._add_rank(what, b"".join(tables), "float32")
        return self

    def _block(self, warmup: int, calls: int) -> Block:
        requests = [{**what, "warmup": warmup, "iterations": calls} for what in self._requests]
        return _measure(self._group, requests, self._payloads)

    def take(self) -> None:
        """Runs a block. Unless the plan sets the calls, the first turn begins with a short trial that sets them."""
        if self.samples.unsupported:
            return
        try:
            if not self._calls:
                trial = self._block(_TRIAL_WARMUP, _TRIAL_CALLS)
                fitting = int(self._plan.seconds / max(trial.interval, 1e-7))
                self._calls = min(max(fitting, _FEWEST_CALLS), _MOST_CALLS)
            self.samples.add(self._block(min(5, 1 + self._calls // 10), self._calls))
        except Unsupported as error:
            self.samples.unsupported = str(error)
        except GroupFailed as error:
            raise GroupFailed(f"at {self._size} bytes, {error.message}") from error


def _rounds(plan: Plan, turns: Sequence[tuple[str, Turn]], tell: Tell, what: str) -> None:
    """In each round every contender takes a turn; each round starts with a different one."""
    for round_ in range(plan.rounds):
        shift = round_ % max(1, len(turns))
        for label, turn in [*turns[shift:], *turns[:shift]]:
            tell(f"{what}: {label}", 0)
            turn.take()
            tell(f"{what}: {label}", 1)


def measure_limits(plan: Plan, group: Group, tell: Tell) -> dict[str, Samples]:
    """Measures the limits that do not depend on the size."""
    turns = [
        (limit.name, Turn(plan, group, limit.size, limit.calls).as_limit(limit.name, False))
        for limit in LIMITS
    ]
    _rounds(plan, turns, tell, "limits")
    return {name: turn.samples for name, turn in turns}


def measure_size(
    plan: Plan, entries: Sequence[Entry], limits: Group | None, size: int, tell: Tell
) -> dict[str, Samples]:
    """Measures all contenders at one size, and with `limits` an allreduce's limit at this size. Results by label."""
    turns = [
        (entry.label, Turn(plan, entry.group, size).as_collective(entry.memory))
        for entry in entries
        if entry.takes_part(plan.collective, size)
    ]
    if limits is not None and plan.collective.name == "allreduce":
        turns += [(name, Turn(plan, limits, size).as_limit(name, True)) for name in SHARED_SUMS]
    _rounds(plan, turns, tell, f"{size} bytes")
    return {label: turn.samples for label, turn in turns}
