"""Local steps; ranks exchange the largest elements of their sum, with two bits each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.torch.strategies.named import Named, copied, load
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.sparse_message import decode_all, encode_all
from rueda.torch.strategies.strategy import Strategy, at_least, within

__all__ = ["SparseLoCo"]


@dataclass
class SparseLoCo(Strategy):
    """``"sparseloco:16,0.03"``: every ``period`` local steps sends the largest elements of their sum, in two bits.

    With x̃ the last common parameters and e_i the error feedback of a rank: e_i ← β e_i + (x̃ - x_i);
    s_i = Q(top_k(e_i)); e_i ← e_i - s_i; x̃ ← x̃ - λ/P Σ_j s_j; x_i ← x̃. β is ``decay``, λ ``outer_lr``. Sarfi et al.,
    "Communication efficient LLM pre-training with SparseLoCo", 2025, algorithm 1: error feedback replaces the outer
    momentum. top_k keeps the fraction ``density`` of each 4096 elements of a tensor. Q is specific to this library,
    whose core has no 2-bit codec: ± one of two levels, the means of the magnitudes above and below the tensor's mean
    magnitude; its error stays in e_i. A rank gathers 2.25 bytes per chosen element, and 8 per tensor, from each other
    rank. x̃ is bitwise equal on all ranks, as all sum in rank order. Extra memory: x̃, in the parameters' dtype, and
    e_i, in float32.

    Example::

        >>> from rueda.torch.strategies import SparseLoCo
        >>> SparseLoCo(16).describe()
        'SparseLoCo(period=16, density=0.03, decay=0.95, outer_lr=1.0)'
    """

    period: int = 16
    density: float = 0.03
    decay: float = 0.95
    outer_lr: float = 1.0

    name: ClassVar[str] = "sparseloco"

    def validate(self, replica: Replica) -> None:
        for name, each in replica.parameters.items():
            if each.is_complex():
                raise UnsupportedError(
                    f"SparseLoCo is for parameters of real numbers, and '{name}' is {each.dtype}"
                )
        at_least(self, 1, "period")
        at_least(self, 0, "outer_lr")
        within(self, 0, 1, "density", "decay")
        if self.density == 0:
            raise InvalidArgumentError("density=0 of SparseLoCo sends nothing")

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._agreed = copied(replica.parameters)
        self._left = {
            name: torch.zeros(each.numel(), dtype=torch.float32, device=each.device)
            for name, each in self._agreed.items()
        }
        self._sent_at = replica.steps

    def kept_parameters(self) -> Named:
        return self._agreed

    def after_step(self) -> None:
        if self.replica.steps % self.period == 0:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        replica, parameters = self.replica, self.replica.parameters
        left = {
            name: self.decay * each
            + (self._agreed[name] - parameters[name]).flatten().to(torch.float32)
            for name, each in self._left.items()
        }
        mine = encode_all(left, self.density)
        gathered = replica.gather(mine, "largest elements")
        sums = {name: torch.zeros_like(each) for name, each in left.items()}
        for message in gathered.view(-1, mine.numel()):
            for name, sent in decode_all(message, left, self.density).items():
                sums[name].add_(sent)
        for name, sent in decode_all(mine, left, self.density).items():
            self._left[name].copy_(left[name] - sent)
        for name, agreed in self._agreed.items():
            mean = sums[name] / replica.process_set.size()
            agreed.sub_(mean.view(agreed.shape), alpha=self.outer_lr)
            parameters[name].copy_(agreed)
        self._sent_at = replica.steps

    def exchanged_at(self) -> tuple[int, ...]:
        return (self._sent_at,)

    def consolidate(self) -> None:
        if self._sent_at != self.replica.steps:
            self._exchange()

    def state_dict(self) -> dict[str, Any]:
        return {"agreed": self._agreed, "left": self._left, "sent_at": self._sent_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load(self._agreed, state["agreed"])
        load(self._left, state["left"])
        self._sent_at = int(state["sent_at"])
