"""Gossip: ranks exchange in pairs, without an allreduce."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from rueda.lifecycle import rank
from rueda.torch.strategies.meetings import Meetings
from rueda.torch.strategies.named import Named, assign, copied, difference, load
from rueda.torch.strategies.pairs import partner_in
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy, at_least, within

__all__ = ["ADPSGD", "NoLoCo"]


@dataclass
class ADPSGD(Strategy):
    """``"adpsgd:1"``: every ``period`` steps each rank averages its parameters with those of another rank.

    With j the partner of i: x_i ← (x_i + x_j)/2, then x_i ← x_i - η ∇f_i, with the gradient at x_i before the mean.
    Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018, algorithm 1. There,
    ranks pair up as they arrive; here, the pairs of each round are drawn in advance, the same on all ranks (``seed``),
    so that runs are reproducible and a rank waits only for its partner. A rank sends its parameters once per exchange,
    whatever the number of ranks. Both partners get the same bits from the mean.

    Example::

        >>> from rueda.torch.strategies import ADPSGD
        >>> ADPSGD(4).describe()
        'ADPSGD(period=4, seed=0)'
    """

    period: int = 1
    seed: int = 0

    name: ClassVar[str] = "adpsgd"
    loads_together: ClassVar[bool] = True
    takes_closure: ClassVar[bool] = False  # ranks may evaluate it a different number of times

    def validate(self, replica: Replica) -> None:
        at_least(self, 1, "period")
        at_least(self, 0, "seed")

    def start(self, replica: Replica) -> None:
        super().start(replica)
        replica.agree_on_beginning()

    @torch.no_grad()
    def before_step(self) -> bool:
        replica = self.replica
        replica.require_same_world()
        number, rest = divmod(replica.steps + 1, self.period)
        partner = partner_in(number, replica.process_set.ranks, rank(), self.seed)
        if rest == 0 and partner is not None:
            theirs = replica.exchange(replica.parameters, partner, number)
            for name, parameter in replica.parameters.items():
                parameter.add_(theirs[name]).mul_(0.5)
        return True


@dataclass
class NoLoCo(Strategy):
    """``"noloco:16"``: like DiLoCo, but each rank has its own outer parameters and exchanges with one other rank.

    Every ``period`` steps, with x_i the parameters, y_i the outer ones, j the partner of i, Δ = x - y and ȳ the mean of
    y_i and y_j: δ_i ← a δ_i + b (Δ_i + Δ_j)/2 - c (y_i - ȳ); y_i ← y_i + δ_i; x_i ← y_i. Kolehmainen et al.,
    "NoLoCo: no-all-reduce low communication training method for large models", 2025, section 3, with groups of two.
    a is ``outer_momentum``, b ``outer_lr``, c ``pull``, which draws the ranks' models together in place of an
    allreduce. The unpaired rank of an odd number steps alone. Pairs are drawn as for :class:`ADPSGD`. A rank sends Δ
    and y once per period and keeps two more copies of the parameters.

    ``timeout``: a partner that does not arrive within this many seconds is left out of the round, with a warning, and
    of later rounds without a wait, until it arrives. Its pending messages use at most four times the memory of the
    parameters. A rank that was away, for example stopped, continues with the others' round, though it has taken fewer
    steps. Until it has met a rank that waits for it, it may be a round or two behind and its messages are ignored:
    choose a timeout of at least the duration of a round. With 0, a rank waits for its partner without this limit, and
    runs are bitwise reproducible. With more than 0, the remaining ranks can continue after a loss and
    :func:`rueda.recover`, even from different rounds.

    Example::

        >>> from rueda.torch.strategies import NoLoCo
        >>> NoLoCo(16).describe()
        'NoLoCo(period=16, outer_lr=0.7, outer_momentum=0.5, pull=1.0, seed=0)'
    """

    period: int = 16
    outer_lr: float = 0.7
    outer_momentum: float = 0.5
    pull: float = 1.0
    seed: int = 0
    timeout: float = field(default=0.0, kw_only=True)

    name: ClassVar[str] = "noloco"
    loads_together: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._meetings = Meetings()

    def validate(self, replica: Replica) -> None:
        at_least(self, 1, "period")
        at_least(self, 0, "outer_lr", "pull", "seed", "timeout")
        within(self, 0, 1, "outer_momentum")

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._outer = copied(replica.parameters)
        self._step = {name: torch.zeros_like(each) for name, each in self._outer.items()}
        if not self.timeout:
            replica.agree_on_beginning()
        self._settle()  # when a state is loaded, earlier messages may still be in flight

    def kept_parameters(self) -> Named:
        return self._outer

    def before_step(self) -> bool:
        if not self.timeout:
            self.replica.require_same_world()
        return True

    def _settle(self) -> None:
        if self.timeout:
            gone = difference(self.replica.parameters, self._outer)
            self._meetings.settle(self.replica, self._message(gone))

    @torch.no_grad()
    def after_step(self) -> None:
        replica = self.replica
        number, rest = divmod(replica.steps, self.period)
        if rest:
            return
        number += self._meetings.ahead
        gone = difference(replica.parameters, self._outer)
        theirs_gone, theirs_outer = gone, self._outer
        partner = partner_in(number, replica.process_set.ranks, rank(), self.seed)
        theirs = None if partner is None else self._swap(self._message(gone), partner, number)
        if theirs is not None:
            theirs_gone = {name: theirs[f"gone {name}"] for name in gone}
            theirs_outer = {name: theirs[f"outer {name}"] for name in gone}
        for name, outer in self._outer.items():
            apart = (outer - theirs_outer[name]) / 2
            mean = (gone[name] + theirs_gone[name]) / 2
            step = self._step[name].mul_(self.outer_momentum)
            step.add_(mean, alpha=self.outer_lr).sub_(apart, alpha=self.pull)
        for name, outer in self._outer.items():
            outer.add_(self._step[name])
        assign(replica.parameters, self._outer)

    def _message(self, gone: Named) -> dict[str, torch.Tensor]:
        message = {f"gone {name}": each for name, each in gone.items()}
        return message | {f"outer {name}": each for name, each in self._outer.items()}

    def _swap(self, message: Named, partner: int, number: int) -> dict[str, torch.Tensor] | None:
        if self.timeout:
            return self._meetings.swap(self.replica, message, partner, number, self.timeout)
        return self.replica.exchange(message, partner, number)

    def needs_equal_steps(self) -> bool:
        return not self.timeout

    def consolidate(self) -> None:
        self._settle()
        super().consolidate()
        assign(self._outer, self.replica.parameters)

    def state_dict(self) -> dict[str, Any]:
        return {"outer": self._outer, "step": self._step, "ahead": self._meetings.ahead}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load(self._outer, state["outer"])
        load(self._step, state["step"])
        self._meetings.ahead = int(state.get("ahead", 0))
