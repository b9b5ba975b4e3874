"""Searches for Open MPI's best settings: tries each allreduce algorithm with a few calls at each size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .contenders import PRIVATE, Contender, open_mpi
from .group import Group, GroupFailed
from .mpi_libraries import OpenMpi
from .plan import Plan
from .turns import Tell, Turn

_ALGORITHMS = {
    1: "basic linear", 2: "nonoverlapping", 3: "recursive doubling", 4: "ring",
    5: "segmented ring", 6: "Rabenseifner", 7: "allgather-reduce",
}  # fmt: skip
_SEGMENTS = (16 << 10, 64 << 10, 256 << 10, 1 << 20)  # bytes; of the segmented ring only
_ROUNDS = 2
_SECONDS = 0.03


@dataclass(frozen=True)
class Setting:
    """MCA parameters, and a name for them."""

    name: str
    parameters: dict[str, str]


def settings(major: int) -> list[Setting]:
    """All settings to try with this major version."""
    found = []
    for number, name in _ALGORITHMS.items():
        if number == 7 and major < 5:
            continue
        for segment in _SEGMENTS if number == 5 else (0,):
            parameters = {
                "coll_tuned_use_dynamic_rules": "1",
                "coll_tuned_allreduce_algorithm": str(number),
                "coll_tuned_allreduce_algorithm_segmentsize": str(segment),
            }
            suffix = f" {segment >> 10} KiB" if segment else ""
            found.append(Setting(name + suffix, parameters))
    found.append(Setting("coll sm", {"coll_sm_priority": "100"}))
    return found


@dataclass(frozen=True)
class Tuned:
    """A setting that is the best at some sizes, and its group."""

    contender: Contender
    group: Group
    sizes: frozenset[int]


Start = Callable[[Contender], Group]


def sweep(
    plan: Plan, mpis: Sequence[OpenMpi], start: Start, tell: Tell
) -> tuple[list[Tuned], dict[int, tuple[str, float]], list[str]]:
    """Returns the settings that are the fastest at some size, the fastest with its seconds by size, and notes."""
    best: dict[int, tuple[str, float]] = {}
    running: dict[str, tuple[Contender, Group]] = {}
    notes = []
    short = replace(plan, rounds=_ROUNDS, seconds=_SECONDS, calls=0)
    for mpi in mpis:
        for setting in settings(mpi.major):
            name = f"{mpi.name} {setting.name}"
            tell(f"looking for Open MPI's best: {name}", 0)
            contender = open_mpi(mpi, setting.parameters, name)
            try:
                group = start(contender)
                found = _medians(short, group)
            except GroupFailed as error:
                notes.append(f"{name} was left out: {error.message.splitlines()[0]}")
                continue
            finally:
                tell(f"looking for Open MPI's best: {name}", 1)
            better = {s: t for s, t in found.items() if s not in best or t < best[s][1]}
            best |= {size: (name, seconds) for size, seconds in better.items()}
            if better:
                running[name] = contender, group
            else:
                group.end()
    return _winners(best, running), best, notes


def _medians(plan: Plan, group: Group) -> dict[int, float]:
    """The median in seconds at each size with correct results."""
    medians = {}
    for size in plan.sizes:
        turn = Turn(plan, group, size).as_collective(PRIVATE)
        for _ in range(plan.rounds):
            turn.take()
        if turn.samples.known and not turn.samples.wrong:
            medians[size] = turn.samples.median
    return medians


def _winners(
    best: dict[int, tuple[str, float]], running: dict[str, tuple[Contender, Group]]
) -> list[Tuned]:
    tuned = []
    for name, (contender, group) in running.items():
        sizes = frozenset(size for size, (winner, _) in best.items() if winner == name)
        if sizes:
            tuned.append(Tuned(contender, group, sizes))
        else:
            group.end()
    return tuned
