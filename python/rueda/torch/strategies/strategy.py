"""The interface of a strategy: what ranks exchange in training, and when."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.torch.compression_state import CompressionState
from rueda.torch.strategies.replica import Replica

__all__ = ["Strategy", "at_least", "within", "without_gpu"]


@dataclass
class Strategy:
    """What the ranks exchange, and when. To write your own strategy, derive a dataclass from this class.

    Its fields are its parameters, on which the ranks must agree. What it keeps while it trains belongs into other
    attributes, made in :meth:`start`: wrap() works on a copy, so that one object may describe several trainings.
    All methods are called on every rank of the set alike, so each may call collectives.

    In a loop of ``zero_grad()``, ``backward()``, ``step()``, the wrapped optimizer's step() is: ``before_step()``,
    ``before_update()``, the optimizer's own step, ``after_step()``. ``self.replica`` is this rank's model, with what
    moves tensors between ranks. Of the methods, a strategy defines those that it needs.

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
    """How it begins as a text; empty for one that is given as an object only."""

    ranks_stay_equal: ClassVar[bool] = False
    """Whether parameters and optimizers have the same bits on all ranks after every step."""

    reduces_gradients: ClassVar[bool] = False
    """Whether before_step() makes the gradients those of all ranks; a closure's loss is averaged then, too, and
    before_step() is called anew where gradients have come since, as after a step that a gradient scaler left out."""

    takes_closure: ClassVar[bool] = True
    """Whether step() may be given a closure, which optimizers such as LBFGS evaluate as often as its losses decide."""

    loads_together: ClassVar[bool] = False
    """Whether start() or load_state_dict() exchange something, so that ranks must load their states together: where
    one of them cannot, that is told to all before."""

    state_needed: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """What the optimizer must keep for each parameter: of each tuple, at least one of these entries of its state."""

    def describe(self) -> str:
        """The class with its parameters, as the ranks compare it; those by keyword only where they are not as usual."""
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
        """Raises :class:`rueda.InvalidArgumentError` for parameters that make no sense; told to every rank."""

    def start(self, replica: Replica) -> None:
        """Begins; all ranks have the same parameters. Called again where a state is loaded."""
        self.replica = replica

    def before_zero_grad(self) -> None:
        """Before gradients are cleared."""

    def before_step(self) -> bool:
        """After backward(), before the optimizer's step; ``False`` where that is to be left out."""
        return True

    def before_update(self) -> None:
        """Before the optimizer's step and the hooks that run before it, with the gradients; after each closure."""

    def after_step(self) -> None:
        """After the optimizer's step; ``replica.steps`` counts it already."""

    def after_epoch(self) -> None:
        """After an epoch, as ``steps_per_epoch`` or ``end_epoch()`` tell."""

    def consolidate(self) -> None:
        """Gives all ranks the same parameters, the ones that the training has come to."""
        self.replica.average_parameters()

    def before_switch(self) -> None:
        """Raises :class:`rueda.InvalidArgumentError`, on every rank, where something would be lost."""

    def stop(self) -> None:
        """Ends, after consolidate(): another strategy goes on."""

    def reduces_gradients_now(self) -> bool:
        """``reduces_gradients``, of strategies that do so for a time."""
        return self.reduces_gradients

    def has_new_gradients(self) -> bool | None:
        """Whether gradients have come since before_step(); ``None``: they are to be watched for that."""
        return None

    def before_scaler(self) -> None:
        """Before a gradient scaler's step(); raises :class:`rueda.UnsupportedError` where there can be none."""

    def compression_state(self) -> CompressionState | None:
        """What compressed gradients have lost on this rank so far; ``None`` where nothing is compressed."""
        return None

    def load_compression_state(self, state: CompressionState | None) -> None:
        """The inverse, on a strategy that has started; without a state, nothing has been lost."""

    def state_dict(self) -> dict[str, Any]:
        """What is to be saved of this rank, besides the model, the optimizer and the number of steps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse, on a strategy that has started. It may call collectives where ``loads_together`` says so."""


def at_least(strategy: Strategy, least: float, *names: str) -> None:
    """Raises InvalidArgumentError where one of these parameters is no number or is less."""
    within(strategy, least, float("inf"), *names)


def within(strategy: Strategy, least: float, most: float, *names: str) -> None:
    """Raises InvalidArgumentError where one of these parameters is no number or out of bounds."""
    for name in names:
        value = getattr(strategy, name)
        kind = {field.name: field.type for field in fields(strategy)}[name]
        whole = kind in (int, "int")
        right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not right or not least <= value <= most:
            bounds = f"at least {least:g}" + ("" if most == float("inf") else f", at most {most:g}")
            raise InvalidArgumentError(
                f"{name}={value!r} of {type(strategy).__name__} is not a {'whole ' if whole else ''}number of {bounds}"
            )


def without_gpu(strategy: Strategy, replica: Replica) -> None:
    """Raises UnsupportedError where a parameter is on a GPU: what this strategy's codec compresses is on the CPU."""
    for name, each in replica.parameters.items():
        if each.is_cuda:
            raise UnsupportedError(
                f"{strategy.describe()}: only tensors on the CPU can be compressed, and '{name}' is on '{each.device}'"
            )
