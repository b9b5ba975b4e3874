"""Loads checkpoints into a world of any size: all ranks get everything, or none anything."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rueda import lifecycle
from rueda.checkpoint.agreement import agree
from rueda.checkpoint.content import kind_of, state_of
from rueda.checkpoint.folder import Checkpoint, absolute, available
from rueda.checkpoint.problems import Problem, problem_of, raise_first
from rueda.checkpoint.reading import Reading
from rueda.checkpoint.saving import wait_for_save
from rueda.errors import InvalidArgumentError
from rueda.objects import allgather_object, broadcast_object

__all__ = ["Loaded", "load"]


@dataclass(frozen=True)
class Loaded:
    """The result of :func:`load`.

    ``step``, ``extra``: as given to :func:`save`. ``each_rank``: what each rank of the world that saved had given, in
    rank order, so its length is the size of that world. ``path``: of the checkpoint.

    Example::

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> pending = rueda.checkpoint.save(folder, 5, each_rank=rueda.rank())
        >>> pending.result().step
        5
        >>> rueda.checkpoint.load(folder).each_rank
        [0]
    """

    step: int
    path: Path
    extra: Any
    each_rank: list[Any]


def load(folder: str | os.PathLike[str], *, step: int | None = None, **state: Any) -> Loaded | None:
    """Loads the parts of ``state`` from a checkpoint; collective over the world, of any size.

    ``folder``, ``state``: as for :func:`save`; parts that only the checkpoint has are not read.
    ``step``: of the checkpoint; by default the one completed last. If several have that step, the newest.
    Returns ``None`` if there is none. If a save is in progress, waits for it first. What compression had lost of
    gradients is restored if the world has as many ranks as the one that saved; otherwise it starts empty.

    Files are unpickled: only load what you trust, as with torch.

    Raises on every rank, before anything has been changed, :class:`CheckpointError` if there is no checkpoint of
    ``step``, or a file (which it names) is missing or damaged; :class:`rueda.InvalidArgumentError` for another model or
    optimizer, naming the difference; and :class:`rueda.MismatchError` if ranks load different things. An exception from
    a part's ``load_state_dict()`` is raised as :class:`rueda.InvalidArgumentError` on every rank; other parts may have
    been loaded by then.

    Example::

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> rueda.checkpoint.load(folder, model=torch.nn.Linear(3, 1)) is None
        True
        >>> pending = rueda.checkpoint.save(folder, 7, model=torch.nn.Linear(3, 1), extra="good")
        >>> pending.wait()
        True
        >>> loaded = rueda.checkpoint.load(folder, model=torch.nn.Linear(3, 1))
        >>> loaded.step, loaded.extra
        (7, 'good')
    """
    problem: Exception | None = None
    details: dict[str, object] = {"call": "load", "step": step}
    try:
        path = absolute(folder)
        details |= {"folder": str(path), "states": sorted(state)}
        if step is not None:
            operator.index(step)
        for name, part in state.items():
            state_of(name, part)
            details[f"the state '{name}'"] = kind_of(part)
    except Exception as error:  # every rank is told
        problem = error
    wait_for_save()  # it may remove the checkpoint that would be chosen
    agree(details, problem)
    chosen = _chosen(path, step)
    if chosen is None:
        return None
    reading = Reading(chosen.path, lifecycle.rank(), lifecycle.size())
    what = f"the checkpoint of step {chosen.step} was not loaded"
    raise_first(_told(reading.verify), what)
    raise_first(_told(lambda: reading.read(state)), what)
    _raise_refusals(reading.differences, what)
    refusals: list[str] = []
    for name, part in state.items():
        try:
            part.load_state_dict(reading.states[name])
        except Exception as error:  # every rank is told
            refusals.append(f"{name}: {type(error).__name__}: {error}")
            break
    _raise_refusals(refusals, what)
    return Loaded(chosen.step, chosen.path, reading.extra, reading.each_rank)


def _chosen(folder: Path, step: int | None) -> Checkpoint | None:
    """The same on every rank: rank 0 decides."""
    found: Checkpoint | Problem | None = None
    if lifecycle.rank() == 0:
        try:
            complete = available(folder)
            matching = [each for each in complete if step is None or each.step == step]
            if matching:
                found = matching[-1]
            elif step is not None:
                there = ", ".join(str(each.step) for each in complete) or "none"
                text = (
                    f"{folder} has no checkpoint of step {step}; of these steps there are: {there}"
                )
                found = Problem(0, text, str(folder))
        except OSError as error:
            found = problem_of(error, 0, folder)
    found = broadcast_object(found, 0, "checkpoint.chosen")
    if isinstance(found, Problem):
        raise_first([found], "no checkpoint was loaded")
    return found if isinstance(found, Checkpoint) else None


def _told(act: Callable[[], None]) -> list[Problem | None]:
    """Runs ``act``; returns each rank's problem."""
    problem = None
    try:
        act()
    except Exception as error:  # every rank is told
        problem = problem_of(error, lifecycle.rank())
    return list(allgather_object(problem, "checkpoint.read"))


def _raise_refusals(own: list[str], what: str) -> None:
    for rank, refusals in enumerate(allgather_object(own, "checkpoint.fits")):
        if refusals:
            raise InvalidArgumentError(f"{what}: rank {rank}: {'; '.join(refusals)}", rank)
