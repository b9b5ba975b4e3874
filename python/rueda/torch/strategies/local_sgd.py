"""Local steps on each rank, with the parameters averaged from time to time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rueda.torch.strategies.averaged import Averaged
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy, at_least
from rueda.torch.strategies.synchronous import Synchronous

__all__ = ["EpochAveraging", "LocalSGD", "PostLocalSGD"]


@dataclass
class LocalSGD(Averaged):
    """``"local:8"``: each rank takes ``period`` steps with its own gradients, then all average their parameters.

    x_i ← x_i - η ∇f_i(x_i); after every H-th step x_i ← 1/P Σ_j x_j, H being ``period``. Stich, "Local SGD converges
    fast and communicates little", ICLR 2019, algorithm 1; Lin et al., "Don't use large mini-batches, use local SGD",
    ICLR 2020, section 2, algorithm 1. It sends 1/H of the bytes of synchronous training. Each rank keeps its own
    optimizer state. The parameters are bitwise equal on all ranks after every H-th step.

    Example::

        >>> from rueda.torch.strategies import LocalSGD
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = rueda.torch.wrap(model, optimizer, strategy=LocalSGD(8))  # or "local:8"
    """

    period: int = 8

    name: ClassVar[str] = "local"

    def validate(self, replica: Replica) -> None:
        at_least(self, 1, "period")

    def after_step(self) -> None:
        if self.replica.steps % self.period == 0:
            self.average_parameters()


@dataclass
class PostLocalSGD(Averaged):
    """``"postlocal:8,after=500"``: synchronous for ``after`` steps, then :class:`LocalSGD`.

    H(t) = 1 for t ≤ t', H for t > t', with t' being ``after`` and H ``period``; the first phase averages gradients.
    Lin et al., "Don't use large mini-batches, use local SGD", ICLR 2020, section 3, equation 3: divergence between
    ranks costs accuracy while the learning rate is high, and gains some afterwards. t' is usually the step of the first
    learning rate decay.

    Example::

        >>> from rueda.torch.strategies import PostLocalSGD
        >>> PostLocalSGD(8, after=500).describe()
        'PostLocalSGD(period=8, after=500)'
    """

    period: int = 8
    after: int = 0

    name: ClassVar[str] = "postlocal"
    takes_closure: ClassVar[bool] = False  # ranks may evaluate it a different number of times

    def validate(self, replica: Replica) -> None:
        at_least(self, 1, "period")
        at_least(self, 0, "after")

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._first: Synchronous | None = getattr(self, "_first", None)
        self._begin_phase()

    def _begin_phase(self) -> None:
        """Starts the reduction of gradients in the first phase, and stops it in the second."""
        if self.replica.steps < self.after:
            self._first = self._first or Synchronous()
            self._first.start(self.replica)
        elif self._first is not None:
            self._first.stop()
            self._first = None
            self._averaged_at = self.replica.steps  # the gradients' averages keep parameters equal

    def before_zero_grad(self) -> None:
        if self._first is not None:
            self._first.before_zero_grad()

    def before_step(self) -> bool:
        return self._first is None or self._first.before_step()

    def reduces_gradients_now(self) -> bool:
        return self._first is not None

    def has_new_gradients(self) -> bool:
        return self._first is not None and self._first.has_new_gradients()

    def after_step(self) -> None:
        if self.replica.steps == self.after:
            self._begin_phase()
        elif self._first is None and (self.replica.steps - self.after) % self.period == 0:
            self.average_parameters()

    def consolidate(self) -> None:
        if self._first is None:
            super().consolidate()

    def stop(self) -> None:
        if self._first is not None:
            self._first.stop()


@dataclass
class EpochAveraging(Strategy):
    """``"oneshot"``: each rank trains alone for an epoch, then all average their parameters.

    x_i ← x_i - η ∇f_i(x_i); at the end of each epoch x_i ← 1/P Σ_j x_j. Zinkevich et al., "Parallelized stochastic
    gradient descent", NIPS 2010, algorithm 3, average once, at the end of the training; McDonald et al.,
    "Distributed training strategies for the structured perceptron", NAACL 2010, section 4.2, once per epoch. Useful as
    a baseline: it sends the fewest bytes and loses the most accuracy. An epoch ends after ``steps_per_epoch`` calls of
    step(), see wrap(), or with ``end_epoch()``; ranks may take different numbers of steps in it.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = rueda.torch.wrap(model, optimizer, strategy="oneshot", steps_per_epoch=100)
    """

    name: ClassVar[str] = "oneshot"

    def needs_equal_steps(self) -> bool:
        return False

    def after_epoch(self) -> None:
        self.replica.average_parameters()
