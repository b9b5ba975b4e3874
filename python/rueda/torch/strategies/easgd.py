"""Elastic averaging: springs tie the ranks to a centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rueda.torch.strategies.named import Named, assign, copied, load
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy, at_least, within

__all__ = ["EASGD"]


@dataclass
class EASGD(Strategy):
    """``"easgd:4"``: elastic averaging: pulls ranks and their centre together every ``period`` steps.

    With z the centre: x_i ← x_i - η ∇f_i(x_i) - a (x_i - z) and z ← z + a Σ_i (x_i - z), which is
    (1 - β) z + β/P Σ_i x_i with β = P a; in the steps between, x_i ← x_i - η ∇f_i(x_i). Right-hand sides use the old
    values. Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", NIPS 2015, section 3, equations 3
    to 6, the synchronous form, with the communication period of section 3.1; β = 0.9 as in their experiments. Each rank
    keeps the centre, bitwise equal on all; consolidate() sets every rank's parameters to it.

    Example::

        >>> from rueda.torch.strategies import EASGD
        >>> EASGD(4).describe()
        'EASGD(period=4, beta=0.9)'
    """

    period: int = 4
    beta: float = 0.9

    name: ClassVar[str] = "easgd"
    takes_closure: ClassVar[bool] = False  # ranks may evaluate it a different number of times

    def validate(self, replica: Replica) -> None:
        at_least(self, 1, "period")
        within(self, 0, 1, "beta")

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._centre = copied(replica.parameters)

    def kept_parameters(self) -> Named:
        return self._centre

    @torch.no_grad()
    def before_step(self) -> bool:
        replica = self.replica
        if (replica.steps + 1) % self.period == 0:
            parameters = replica.parameters
            means = replica.average(parameters, "parameters")
            elasticity = self.beta / replica.process_set.size()
            for name, centre in self._centre.items():
                parameter = parameters[name]
                parameter.sub_(elasticity * (parameter - centre))
                centre.lerp_(means[name], self.beta)
        return True

    def consolidate(self) -> None:
        assign(self.replica.parameters, self._centre)

    def state_dict(self) -> dict[str, Any]:
        return {"centre": self._centre}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load(self._centre, state["centre"])
