"""Loads checkpoints into a world of any size: all ranks get everything, or none anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rueda import lifecycle
from rueda.arguments import whole_number
from rueda.checkpoint.agreement import agree
from rueda.checkpoint.content import kind_of, require_loadable, state_of
from rueda.checkpoint.files import is_checkpoint, read_manifest
from rueda.checkpoint.folder import Checkpoint, absolute, available, itself
from rueda.checkpoint.problems import Problem, problem_of, raise_first
from rueda.checkpoint.reading import Reading
from rueda.checkpoint.saving import wait_for_save
from rueda.errors import InvalidArgumentError
from rueda.objects import allgather_object, broadcast_object

__all__ = ["Loaded", "load"]

# How often the latest checkpoint may vanish while it is read.
_ATTEMPTS = 10


class Loaded:
    """The result of :func:`load`.

    ``step``, ``extra``: as given to :func:`save`. ``each_rank``: what each rank of the world that saved had given, in
    rank order, so its length is the size of that world. ``path``: of the checkpoint.

    ``extra`` and ``each_rank`` are unpickled on first use, so that programs without their classes can load the rest.
    They raise :class:`CheckpointError` if that fails.

    Example::

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> pending = rueda.checkpoint.save(folder, 5, each_rank=rueda.rank())
        >>> pending.result().step
        5
        >>> rueda.checkpoint.load(folder).each_rank
        [0]
    """

    def __init__(
        self, step: int, path: Path, extra: Callable[[], Any], each_rank: Callable[[], list[Any]]
    ) -> None:
        self.step = step
        self.path = path
        self._extra = extra
        self._each_rank = each_rank

    def __repr__(self) -> str:
        return f"Loaded(step={self.step}, path={str(self.path)!r})"

    @cached_property
    def extra(self) -> Any:
        """As given to :func:`save` on rank 0."""
        return self._extra()

    @cached_property
    def each_rank(self) -> list[Any]:
        """As given to :func:`save` on each rank."""
        return self._each_rank()


def load(folder: str | os.PathLike[str], *, step: int | None = None, **state: Any) -> Loaded | None:
    """Loads the parts of ``state`` from a checkpoint; collective over the world, of any size.

    ``folder``, ``state``: as for :func:`save`, or the folder of one checkpoint; parts that only the checkpoint has are
    not read. ``step``: of the checkpoint; by default the one completed last. If several have that step, the newest.
    Returns ``None`` if there is none. If a save is in progress, waits for it first. If another job removes the latest
    while it is read, as ``keep=`` does, reads the next one. What compression had lost of gradients is restored if the
    world has as many ranks as the one that saved; otherwise it starts empty. What the strategy ``accumulate`` had added
    up is each rank's own again, or on another number of ranks the mean.

    Files are unpickled: only load what you trust, as with torch.

    Raises on every rank, before anything has been changed, :class:`CheckpointError` if there is no checkpoint of
    ``step``, or a file (which it names) is missing or damaged; :class:`rueda.InvalidArgumentError` for another model or
    optimizer, naming the difference; :class:`rueda.UnsupportedError` for tensors on the device ``meta``, which have no
    memory to load into; and :class:`rueda.MismatchError` if ranks load different things. An exception from a part's
    ``load_state_dict()`` is raised as :class:`rueda.InvalidArgumentError` on every rank; other parts may have been
    loaded by then.

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
    lifecycle.rank()  # raises outside a world, such as in a forked child
    problem: Exception | None = None
    details: dict[str, object] = {"call": "load", "step": step}
    try:
        path = absolute(folder)
        details |= {"folder": str(path), "states": sorted(state)}
        if step is not None:
            step = whole_number("step", step, 0)
        for name, part in state.items():
            require_loadable(name, part, state_of(name, part))
            details[f"the state '{name}'"] = kind_of(name, part)
    except Exception as error:  # every rank is told
        problem = error
    wait_for_save()  # it may remove the checkpoint that would be chosen
    agree(details, problem)
    found = _read(path, step, state)
    if found is None:
        return None
    chosen, reading = found
    what = _not_loaded(chosen)
    _raise_refusals(reading.differences, what)
    from rueda.torch.optimizer_state import load_as_given  # imports torch

    refusals: list[str] = []
    for name, part in state.items():
        try:
            load_as_given(part, reading.states[name])
        except Exception as error:  # every rank is told
            refusals.append(f"{name}: {type(error).__name__}: {error}")
            break
    _raise_refusals(refusals, what)
    return Loaded(chosen.step, chosen.path, reading.extra, reading.each_rank)


def _read(
    folder: Path, step: int | None, parts: Mapping[str, Any]
) -> tuple[Checkpoint, Reading] | None:
    """The same checkpoint on every rank, read and verified; the next one if another job has removed it meanwhile."""
    for attempt in range(_ATTEMPTS):
        chosen = _chosen(folder, step)
        if chosen is None:
            return None
        reading = Reading(chosen.path, lifecycle.rank(), lifecycle.size())
        problems = _told(reading.verify)
        if not any(problems):
            problems = _told(partial(reading.read, parts))
        if not any(problems):
            return chosen, reading
        what = _not_loaded(chosen)
        if _is_gone(chosen):
            if step is None and attempt + 1 < _ATTEMPTS:
                continue
            what = f"{what}: it was removed while it was read"
        raise_first(problems, what)
    raise AssertionError("the last attempt has neither succeeded nor failed")


def _not_loaded(chosen: Checkpoint) -> str:
    return f"the checkpoint of step {chosen.step} was not loaded"


def _is_gone(chosen: Checkpoint) -> bool:
    """The same on every rank: rank 0 decides."""
    gone = lifecycle.rank() == 0 and not os.path.lexists(chosen.path)
    return bool(broadcast_object(gone, 0, "checkpoint.gone"))


def _chosen(folder: Path, step: int | None) -> Checkpoint | None:
    """The same on every rank: rank 0 decides."""
    found: Checkpoint | Problem | None = None
    if lifecycle.rank() == 0:
        try:
            complete = _complete_in(folder)
            matching = [each for each in complete if step is None or each.step == step]
            if matching:
                found = matching[-1]
            elif step is not None:
                there = ", ".join(str(each.step) for each in complete) or "none"
                text = (
                    f"{folder} has no checkpoint of step {step}; of these steps there are: {there}"
                )
                found = Problem(0, text, str(folder))
        except Exception as error:  # every rank is told
            found = problem_of(error, 0, folder)
    found = broadcast_object(found, 0, "checkpoint.chosen")
    if isinstance(found, Problem):
        raise_first([found], "no checkpoint was loaded")
    return found if isinstance(found, Checkpoint) else None


def _complete_in(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints of a folder, which may be one itself."""
    if is_checkpoint(folder):
        return [itself(folder, read_manifest(folder).step)]
    return available(folder)


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
