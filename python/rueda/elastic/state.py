"""The state from which a training function restarts: copies in memory, committed, restored and synchronised."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rueda.elastic.changes import part_with, wanted
from rueda.elastic.joining import came_late
from rueda.elastic.loops import fall_behind, note_arrival, position
from rueda.elastic.meeting import displaced, meet
from rueda.elastic.question import Question
from rueda.elastic.shared_state import SharedState, misfits, strays_of
from rueda.errors import InvalidArgumentError, RuedaError
from rueda.lifecycle import rank
from rueda.objects import broadcast_object

__all__ = ["ChangeWanted", "State"]

_WHY = "processes wait to join, or are to leave"


class ChangeWanted(Exception):
    """The world is about to change: raised by :meth:`State.commit`, caught by :func:`rueda.elastic.run`.

    Example::

        >>> issubclass(rueda.elastic.ChangeWanted, rueda.RuedaError)
        False
    """


class State:
    """Values that are the same on every rank and survive a failed step; each is an attribute.

    ``values``: by name. Objects with ``state_dict()`` and ``load_state_dict()``, such as models, optimizers, schedulers
    and samplers, are saved and sent by means of these; other values are copied. Any number of optimizers.

    Raises :class:`rueda.InvalidArgumentError` for names that State itself uses.

    Example::

        >>> state = rueda.elastic.State(epoch=0, losses=[])
        >>> state.losses.append(0.5)
        >>> state.restore()
        >>> state.losses
        []
    """

    def __init__(self, **values: Any) -> None:
        for name in values:
            if name.startswith("_") or hasattr(State, name):
                raise InvalidArgumentError(f"a State cannot have a value of the name '{name}'")
        self._names = sorted(values)
        self._callbacks: list[Callable[[], object]] = []
        self._question = Question(2)
        self._commits = 0
        self._has_state = False  # the others', or rank 0's at the start
        self._is_newcomer: bool | None = None
        self._shared: list[SharedState] = []
        self._shared_parts: list[Any] = []
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    if TYPE_CHECKING:  # the values are attributes of any name and kind

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Registers functions to be called, in this order, whenever a new world has been formed, before sync().

        Example::

            state.register_reset_callbacks([lambda: adjust_learning_rate(rueda.size())])
        """
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when a new world has been formed."""
        for shared in self._of_torch():
            shared.take_world()
        for callback in self._callbacks:
            callback()

    def save(self) -> None:
        """Stores copies in this process's memory; not collective."""
        self._saved = {name: self._copy(name) for name in self._names}
        self._saved_strays = [each.detach().clone() for each in self._strays()]

    def _copy(self, name: str) -> Any:
        try:
            return copy.deepcopy(self._content(name))
        except (RuedaError, MemoryError):
            raise
        except Exception as error:
            raise InvalidArgumentError(
                f"the State's value '{name}' cannot be copied, as commit() must: {type(error).__name__}: {error}"
            ) from error

    def commit(self) -> None:
        """:meth:`save`, then :meth:`check`: restore() brings back what is saved here. Collective."""
        self._count_commit()
        if self._is_change_wanted():
            raise ChangeWanted(_WHY)

    def check(self) -> None:
        """Raises :class:`ChangeWanted` on every rank if processes wait to join or must leave; collective.

        If so, first commits the current values. Also raises what :func:`rueda.allreduce` raises.
        """
        if self._is_change_wanted():
            # If a rank is lost while the world changes, some go back and others may have the current values.
            self._count_commit()
            raise ChangeWanted(_WHY)

    def _count_commit(self) -> None:
        self.save()
        self._commits += 1

    def _is_change_wanted(self) -> bool:
        self._question.ask(*wanted())
        return any(self._question.answer())

    def restore(self) -> None:
        """Brings back what was saved last. Gradients in flight are discarded."""
        for shared in self._of_torch():
            shared.give_up_step()
        for name in self._names:
            content = copy.deepcopy(self._saved[name])
            if _has_state_dict(getattr(self, name)):
                _load(getattr(self, name), content)
            else:
                setattr(self, name, content)
        for parameter, saved in zip(self._strays(), self._saved_strays, strict=False):
            parameter.detach().copy_(saved)

    def _strays(self) -> list[Any]:
        return strays_of(getattr(self, name) for name in self._names)

    def sync(self) -> None:
        """Makes the state the same on every rank, and saves it; collective over the world.

        All get the state of the ranks that have committed most often; a sync counts as a commit. Models and optimizers
        come from all of these ranks at the same time and are verified; nothing is sent that a rank already has. At the
        start of the job, all get rank 0's.

        Raises :class:`rueda.InvalidArgumentError` if the ranks' states do not match: at the start of the job on every
        rank, later only on the newcomer, without which the others continue;
        :class:`rueda.InitializationError` if only newcomers that have not received the state are left; and
        :class:`rueda.PeerLostError`, after which restore() and another sync() help.
        """
        if self._is_newcomer is None:
            self._is_newcomer = came_late()
        own = (self._names, self._has_state, self._commits)
        where = position(
            None, self._parts(), has_state=self._has_state, is_newcomer=self._is_newcomer
        )
        meeting = meet(own, where)
        # Those ahead may share another State in the next call, which none of them has the others' of yet.
        if meeting.settle(self.on_reset):
            self.sync()
            return
        every: list[tuple[list[str], bool, int]] = meeting.told
        sources = _sources_of(every) or meeting.first_members
        unfit = displaced(meeting.positions, sources[0])
        unfit = unfit or self._misfits([names for names, _, _ in every], sources[0])
        if unfit:
            if not any(has for _, has, _ in every):
                raise InvalidArgumentError(next(iter(unfit.values())))
            part_with(unfit)
            self.on_reset()
            self.sync()
            return
        for shared in self._of_torch():
            shared.copy_from(sources)
        plain = [name for name in self._names if not _has_state_dict(getattr(self, name))]
        mine = {name: getattr(self, name) for name in plain}
        values = broadcast_object(mine, sources[0], "elastic.values")
        if rank() != sources[0]:
            for name, value in values.items():
                setattr(self, name, value)
        self.save()
        # Counts as a commit: callbacks may have changed what was committed, and ranks that did not get here lack it.
        self._commits = every[sources[0]][2] + 1
        self._has_state = True
        note_arrival()

    def fall_behind(self) -> None:
        """The others may have changed more since the last commit: theirs is taken in the next call, by any State."""
        self._has_state, self._is_newcomer = False, True
        fall_behind()

    def _misfits(self, names: list[list[str]], source: int) -> dict[int, str]:
        """Like misfits(); ``names``: for each rank, the names of its values."""
        others = {
            other: f"the State of rank {other} has the values {its}, and that of rank {source} {names[source]}"
            for other, its in enumerate(names)
            if its != names[source]
        }
        return others or misfits(self._of_torch(), source)

    def _parts(self) -> list[Any]:
        """What is shared: objects with a state_dict(), and this State if it has other values."""
        values = [getattr(self, name) for name in self._names]
        parts = [value for value in values if _has_state_dict(value)]
        return parts if len(parts) == len(values) else [self, *parts]

    def _content(self, name: str) -> Any:
        value = getattr(self, name)
        return value.state_dict() if _has_state_dict(value) else value

    def _of_torch(self) -> list[SharedState]:
        """The values with a state_dict(), in parts with at most one optimizer each, as copy_from() needs them."""
        parts = [getattr(self, name) for name in self._names]
        parts = [part for part in parts if _has_state_dict(part)]
        if [id(part) for part in parts] != [id(part) for part in self._shared_parts]:
            first = [part for part in parts if not hasattr(part, "param_groups")]
            optimizers = [part for part in parts if hasattr(part, "param_groups")]
            groups = [[*first, *optimizers[:1]], *([part] for part in optimizers[1:])]
            self._shared = [SharedState(group) for group in groups]
            self._shared_parts = parts
        return self._shared


def _sources_of(every: list[tuple[list[str], bool, int]]) -> list[int]:
    """The ranks with the newest state, if any has one; ``every``: what they have told."""
    most = max((commits for _, has, commits in every if has), default=-1)
    return [number for number, (_, has, commits) in enumerate(every) if has and commits == most]


def _load(part: Any, content: Any) -> None:
    if "torch" in sys.modules:  # else it is no optimizer of torch
        from rueda.torch.optimizer_state import load_as_given

        load_as_given(part, content)
    else:
        part.load_state_dict(content)


def _has_state_dict(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
