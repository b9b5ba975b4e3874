"""Parameter updates that are deferred from step() to the next use of the parameters.

A step's gradients arrive during the next forward pass, and each layer waits only for its own (Peng et al., "A generic
communication scheduler for distributed DNN training acceleration", SOSP 2019).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

__all__ = ["DeferredUpdates", "Update", "cannot_defer", "updates_each_alone"]

# These update a parameter from its own gradient and state only, element by element.
_EACH_ALONE = frozenset(
    {
        torch.optim.ASGD,
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    }
)


def updates_each_alone(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether optimizers of exactly this class may update parameters at different times."""
    return kind in _EACH_ALONE


def _active_modes() -> list[TorchFunctionMode]:
    """This thread's modes, the innermost last."""
    return _get_current_function_mode_stack()  # type: ignore[no-any-return,no-untyped-call]


def cannot_defer() -> str:
    """Why updates cannot be deferred at present; empty if they can."""
    if any(not isinstance(mode, _Uses) for mode in _active_modes()):
        return (
            "a torch function mode, such as torch.device() or torch.set_default_device(), is active"
        )
    if torch._C._current_graph_task_id() >= 0:
        return "backward() is running, and the modes that its hooks enter end with the hook"
    if torch._dynamo.utils.counters["frames"]:
        return "torch.compile() is in use, and compiled code reads parameters unnoticed"
    return ""


@dataclass
class Update:
    """An update of parameters whose gradients arrive together. ``make`` waits for these and updates; called once."""

    parameters: Sequence[torch.Tensor]
    make: Callable[[], None]


class _Uses(TorchFunctionMode):
    """Reports the uses of parameters in one thread to all optimizers that have pending updates.

    One for all, since a mode cannot be left while it reports a use, such as the one that makes the last update.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: list[DeferredUpdates] = []
        self._is_leaving = False

    def tell(self, updates: DeferredUpdates) -> None:
        """Reports uses to these, too, until none of their updates is pending."""
        self._told = [each for each in self._told if each.are_left() and each is not updates]
        self._told.append(updates)
        if not self._is_active():
            self.__enter__()  # type: ignore[no-untyped-call]

    def leave_if_idle(self) -> None:
        """Leaves the mode, also from below others, unless an update is pending."""
        if self._is_leaving or any(each.are_left() for each in self._told):
            return
        self._told = []
        if not self._is_active():  # which it is not while it reports a use, either
            return
        self._is_leaving = True  # a garbage collection may release another optimizer meanwhile
        modes = _active_modes()
        try:
            for _ in modes:
                _pop_mode()  # type: ignore[no-untyped-call]
        finally:  # a signal's handler may raise
            for mode in modes[len(_active_modes()) :]:
                if mode is not self:
                    _push_mode(mode)  # type: ignore[no-untyped-call]
            self._is_leaving = False

    def _is_active(self) -> bool:
        return any(mode is self for mode in _active_modes())

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch instead of ``func``."""
        for each in self._told:
            each.make_for(args)
            if kwargs:
                each.make_for(kwargs.values())
        return func(*args, **(kwargs or {}))


class _OfThread(threading.local):
    """What each thread has of its own, as torch's modes are a thread's."""

    def __init__(self) -> None:
        self.uses = _Uses()


_here = _OfThread()


class DeferredUpdates:
    """Makes each update before anything else happens to its parameters.

    While updates are pending, torch reports every function, method and attribute access that gets a parameter in this
    thread. Anything that reads a parameter's memory in another way sees the old values until finish(): a view or NumPy
    array made earlier, another thread, TorchScript, the transformations of torch.func.
    """

    def __init__(self) -> None:
        self._left: dict[int, Update] = {}  # by the id of each parameter
        self._finished: Callable[[], None] | None = None
        self._may_be_active = False

    def begin(self, updates: Sequence[Update], finished: Callable[[], None]) -> None:
        """Defers ``updates``; none may be pending. ``finished`` is called after the last one."""
        assert not self._left
        self._left = {id(p): update for update in updates for p in update.parameters}
        self._finished = finished
        _here.uses.tell(self)
        self._may_be_active = True

    def are_left(self) -> bool:
        """Whether any update is pending."""
        return bool(self._left)

    def awaits(self, parameter: torch.Tensor) -> bool:
        """Whether the parameter's update is pending."""
        return id(parameter) in self._left

    def finish(self) -> None:
        """Makes all pending updates, then raises the first error."""
        if not self._may_be_active:
            return
        with torch._C.DisableTorchFunction():
            while self._left:
                self._make(next(iter(self._left.values())))
        _here.uses.leave_if_idle()
        self._may_be_active = False

    def release(self) -> None:
        """Called when the optimizer is gone, in any thread and at any time."""
        _here.uses.leave_if_idle()

    def make_for(self, arguments: Any) -> None:
        """Makes the updates of the parameters among these, which are about to be used."""
        if not self._left:
            return
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                update = self._left.get(id(argument))
                if update is not None:
                    self._make(update)
            elif isinstance(argument, list | tuple):
                self.make_for(argument)
            elif isinstance(argument, dict):
                self.make_for(argument.values())

    def _make(self, update: Update) -> None:
        for parameter in update.parameters:
            del self._left[id(parameter)]
        try:
            update.make()
        except BaseException:
            self._finished = None
            self._make_rest()
            raise
        if not self._left and self._finished is not None:
            finished, self._finished = self._finished, None
            finished()

    def _make_rest(self) -> None:
        """Called after an error, which will be raised: no update may change a gradient later."""
        while self._left:
            update = next(iter(self._left.values()))
            for parameter in update.parameters:
                del self._left[id(parameter)]
            with suppress(Exception):
                update.make()
