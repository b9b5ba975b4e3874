"""The interface of a strategy: what ranks exchange during training, and when."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from rueda.arguments import shown
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.torch.compression_state import CompressionState
from rueda.torch.strategies.named import Named
from rueda.torch.strategies.replica import Replica

__all__ = ["Strategy", "at_least", "within", "without_gpu"]


@dataclass
class Strategy:
    """What the ranks exchange, and when. To write your own strategy, derive a dataclass from this class.

    Its fields are its parameters, on which the ranks must agree. Keep training state in other attributes, created in
    :meth:`start`: wrap() works on a copy, so one object can describe several trainings. Every rank of the set calls
    the methods alike, so they may call collectives, except those that describe, validate, check or save state.

    In a loop of ``zero_grad()``, ``backward()``, ``step()``, the wrapped optimizer's step() calls ``before_step()``,
    ``before_update()``, the optimizer's own step, ``after_step()``. ``self.replica`` holds this rank's model and moves
    tensors between ranks. A strategy defines only the methods that it needs.

    Example::

        >>> from dataclasses import dataclass
        >>> from rueda.torch.strategies import Strategy
        >>> @dataclass
        ... class AverageAtPowers(Strategy):  # after steps 1, 2, 4, 8, ...
        ...     base: int = 2
        ...     def after_step(self):
        ...         if self.replica.steps == self.base ** (self.replica.steps.bit_length() - 1):
        ...             self.replica.average_parameters()
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = rueda.torch.wrap(model, optimizer, strategy=AverageAtPowers())
    """

    name: ClassVar[str] = ""
    """The name before the colon in a text such as ``"local:8"``; empty if only an object can be passed."""

    ranks_stay_equal: ClassVar[bool] = False
    """Whether parameters and optimizer state are bitwise equal on all ranks after every step."""

    reduces_gradients: ClassVar[bool] = False
    """Whether before_step() averages the gradients over ranks. If so, a closure's loss is averaged, too, and
    before_step() is called again for new gradients, such as those after a step that a gradient scaler skipped."""

    takes_closure: ClassVar[bool] = True
    """Whether step() accepts a closure, which optimizers such as LBFGS evaluate as often as its losses require."""

    loads_together: ClassVar[bool] = False
    """Whether start() or load_state_dict() communicate, so that ranks must load their states together: if one of
    them cannot, all ranks raise before the exchange."""

    state_needed: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """The state that the optimizer must keep for each parameter: at least one entry of each tuple."""

    def describe(self) -> str:
        """The class with its parameters, as the ranks compare it; keyword-only ones if they differ from the default."""
        usual, special = [], []
        for field in fields(self):
            value = getattr(self, field.name)
            if not field.kw_only:
                usual.append(f"{field.name}={value!r}")
            elif value != field.default:
                special.append(f"{field.name}={value!r}")
        values = ", ".join(usual + special)
        return f"{type(self).__name__}({values})"

    def validate(self, replica: Replica) -> None:
        """Raises :class:`rueda.InvalidArgumentError` for invalid parameters; all ranks then raise it."""

    def start(self, replica: Replica) -> None:
        """Starts, with equal parameters on all ranks. Called again before a state is loaded."""
        self.replica = replica

    def kept_parameters(self) -> Named | None:
        """The copy, made in :meth:`start`, from which the first steps are measured; ``None`` if there is none.

        If weights are loaded after the start and before the first step, that step raises
        :class:`rueda.InvalidArgumentError`: they would be mixed with the copy.
        """
        return None

    def before_zero_grad(self) -> None:
        """Called before gradients are cleared."""

    def before_step(self) -> bool:
        """Called after backward(), before the optimizer's step; returns ``False`` to skip that step."""
        return True

    def before_update(self) -> None:
        """Called with the gradients before the optimizer's step and its pre-hooks, and after each closure call."""

    def after_step(self) -> None:
        """Called after the optimizer's step, which ``replica.steps`` already includes."""

    def after_epoch(self) -> None:
        """Called after an epoch, as defined by ``steps_per_epoch`` or ``end_epoch()``."""

    def needs_equal_steps(self) -> bool:
        """Whether ranks must have taken the same number of steps, which they compare before consolidate()."""
        return not self.ranks_stay_equal

    def _forget_exchanges(self) -> None:
        """Called before load_state_dict(), which may be one of an application's own that restores nothing of this."""

    def exchanged_at(self) -> tuple[int, ...]:
        """In which steps this rank's exchanges last succeeded, for strategies that decide by it in consolidate().

        Compared before consolidate() if needs_equal_steps(). After a loss some ranks may have the result of an exchange
        that others lack: they go on from the mean of the parameters instead, with a new :meth:`start`.
        """
        return ()

    def consolidate(self) -> None:
        """Gives all ranks the same parameters: the current result of the training."""
        self.replica.average_parameters("consolidated parameters")

    def complete_exchanges(self) -> None:
        """Takes part in exchanges that are in flight on other ranks only. Collective.

        Called instead of consolidate() if ranks have taken different numbers of steps, or their exchanges have not all
        succeeded: a rank that has begun one would wait for it in stop(), or it would meet one of the next strategy.
        """

    def before_switch(self) -> None:
        """Raises :class:`rueda.InvalidArgumentError`, on every rank, if a switch or close() would lose something."""

    def drop_incomplete(self) -> None:
        """Drops what before_switch() does not let go."""

    def stop(self) -> None:
        """Ends, after consolidate(): another strategy takes over, or the optimizer is closed."""

    def reduces_gradients_now(self) -> bool:
        """The current value of ``reduces_gradients``, for strategies that reduce gradients only for a time."""
        return self.reduces_gradients

    def has_new_gradients(self) -> bool | None:
        """Whether gradients are new since before_step(); ``None`` if unknown, so that hooks must watch for them."""
        return None

    def before_scaler(self) -> None:
        """Called before a gradient scaler's step(); raises :class:`rueda.UnsupportedError` if none is supported."""

    def compression_state(self) -> CompressionState | None:
        """What compression of gradients has lost on this rank so far; ``None`` without compression."""
        return None

    def load_compression_state(self, state: CompressionState | None) -> None:
        """The inverse, on a started strategy; without a state, starts with no loss."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's state to save, besides the model, the optimizer and the number of steps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse, on a started strategy. May call collectives only if ``loads_together`` is true."""


def at_least(strategy: Strategy, least: float, *names: str) -> None:
    """Raises InvalidArgumentError if one of these parameters is not a finite number or is less."""
    within(strategy, least, sys.float_info.max, *names)


def within(strategy: Strategy, least: float, most: float, *names: str) -> None:
    """Raises InvalidArgumentError if one of these parameters is not a number or is out of bounds."""
    for name in names:
        value = getattr(strategy, name)
        kind = {field.name: field.type for field in fields(strategy)}[name]
        whole = kind in (int, "int")
        right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not right or not least <= value <= most:
            bounds = f"at least {least:g}"
            if most < sys.float_info.max:
                bounds += f", at most {most:g}"
            sort = "whole " if whole else "finite " if most == sys.float_info.max else ""
            raise InvalidArgumentError(
                f"{name}={shown(value)} of {type(strategy).__name__} is not a {sort}number of {bounds}"
            )


def without_gpu(strategy: Strategy, replica: Replica) -> None:
    """Raises UnsupportedError if a parameter is on a GPU: this strategy's codec compresses CPU tensors only."""
    for name, each in replica.parameters.items():
        if each.is_cuda:
            raise UnsupportedError(
                f"{strategy.describe()}: only tensors on the CPU can be compressed, and '{name}' is on '{each.device}'"
            )
