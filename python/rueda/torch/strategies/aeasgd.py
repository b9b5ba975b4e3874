"""Asynchronous elastic averaging: springs tie the ranks to a centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rueda.errors import InvalidArgumentError
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.served import Served
from rueda.torch.strategies.strategy import at_least, within

__all__ = ["AEASGD", "EAMSGD"]


@dataclass
class AEASGD(Served):
    """``"aeasgd:4"``: asynchronous elastic averaging: pulls a rank and the centre together every ``period`` steps.

    With z the centre and e = a (x_i - z): x_i ← x_i - e and z ← z + e, a = β/P; in the steps between, and after it,
    x_i ← x_i - η ∇f_i(x_i). Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", NIPS 2015,
    section 3.1, algorithm 1; β = 0.9 as in their experiments. Each rank explores on its own, and training is stable at
    long periods at which :class:`Downpour` diverges. consolidate() sets all ranks' parameters to the centre.

    Example::

        >>> from rueda.torch.strategies import AEASGD
        >>> AEASGD(4).describe()
        'AEASGD(period=4, beta=0.9)'
    """

    period: int = 4
    beta: float = 0.9

    name: ClassVar[str] = "aeasgd"

    def validate(self, replica: Replica) -> None:
        super().validate(replica)
        at_least(self, 1, "period")
        within(self, 0, 1, "beta")

    def position(self) -> torch.Tensor:
        """This rank's position, to which the spring is tied."""
        return self.parameters()

    def rebase(self) -> None:
        """Keeps this rank's parameters; only ``pulled`` is read anew."""
        self.pull()

    def before_step(self) -> bool:
        if (self.replica.steps + 1) % self.period == 0:
            self.attempt(self._exchange)
        return True

    @torch.no_grad()
    def _exchange(self) -> None:
        elasticity = self.beta / self.replica.process_set.size()
        spring = self.position().sub_(self.pull()).mul_(elasticity)
        pushed = self.push(spring)
        self.set_parameters(self.parameters().sub_(spring))
        pushed.result()


@dataclass
class EAMSGD(AEASGD):
    """``"eamsgd:4"``: :class:`AEASGD` with Nesterov momentum: gradients are taken at the look-ahead point.

    v ← δ v - η ∇f_i(x_i + δ v); x_i ← x_i + v; every ``period`` steps e = a (x_i - z), x_i ← x_i - e, z ← z + e. Zhang,
    Choromanska and LeCun, NIPS 2015, section 3.2, algorithm 2. Needs ``torch.optim.SGD(..., momentum=δ,
    nesterov=True)``, whose parameters are x_i + δ v, with v = -η times its momentum buffer: look-ahead and step have
    the same sign. The spring is tied to x_i.

    Example::

        >>> from rueda.torch.strategies import EAMSGD
        >>> EAMSGD(4).describe()
        'EAMSGD(period=4, beta=0.9)'
    """

    name: ClassVar[str] = "eamsgd"

    def validate(self, replica: Replica) -> None:
        super().validate(replica)
        groups = replica.optimizer.param_groups
        right = isinstance(replica.optimizer, torch.optim.SGD) and all(
            group["nesterov"] and not group["maximize"] for group in groups
        )
        if not right:
            raise InvalidArgumentError(
                "EAMSGD needs torch.optim.SGD with momentum= and nesterov=True, and without maximize="
            )

    def position(self) -> torch.Tensor:
        vector = self.parameters()
        optimizer = self.replica.optimizer
        group_of = {id(each): group for group in optimizer.param_groups for each in group["params"]}
        for name, part in self.in_parts(vector):
            kept = self.replica.optimizer_state(name).get("momentum_buffer")
            if kept is not None:
                group = group_of[id(self.replica.originals[name])]
                part.add_(kept.cpu(), alpha=group["momentum"] * group["lr"])
        return vector
