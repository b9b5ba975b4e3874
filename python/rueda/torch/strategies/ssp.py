"""Stale synchronous parallel training, with bounded staleness between ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from rueda.errors import InvalidArgumentError
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.served import Served
from rueda.torch.strategies.strategy import within

__all__ = ["SSP"]


@dataclass
class SSP(Served):
    """``"ssp:3"``: stale synchronous parallel: no rank gets more than ``slack`` + 1 steps ahead of another.

    After step c, rank i adds 1/P (x_i - pulled) to the centre z, and continues from x_i = z once z includes all ranks'
    steps up to c - s, s being ``slack``; z also includes any later steps that have arrived. Ho et al., "More effective
    distributed ML via a stale synchronous parallel parameter server", NIPS 2013, section 3. A slack of 0 is
    bulk-synchronous: plain SGD gives the parameters of synchronous training within rounding, unless a rank reads so
    late that others have already pushed their next step. With ``inf`` no rank waits (asynchronous parallel). The slack
    absorbs occasional delays of a rank; a rank that is always slow slows all down to its pace.

    Example::

        >>> from rueda.torch.strategies import SSP
        >>> SSP(3).describe()
        'SSP(slack=3)'
    """

    slack: float = 3

    name: ClassVar[str] = "ssp"

    def validate(self, replica: Replica) -> None:
        super().validate(replica)
        within(self, 0, math.inf, "slack")
        if not (math.isinf(self.slack) or float(self.slack).is_integer()):
            raise InvalidArgumentError(
                f"slack={self.slack!r} of SSP is not a whole number of steps"
            )

    def kept_parameters(self) -> None:
        """None: what was loaded on all ranks is pushed as their mean, and so taken over."""

    def after_step(self) -> None:
        self.attempt(self._exchange)

    @torch.no_grad()
    def _exchange(self) -> None:
        delta = self.parameters() - self.pulled
        pushed = self.push(delta, factor=1.0 / self.replica.process_set.size(), ticks=True)
        least = 0 if math.isinf(self.slack) else max(0, self.table.clock - int(self.slack))
        self.set_parameters(self.pull(least))
        pushed.result()
