"""Synchronous training: every step uses the gradients of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rueda.compression import Codec
from rueda.torch.compression import policy_of, require_no_momentum
from rueda.torch.compression_state import CompressionState
from rueda.torch.optimizer import DistributedOptimizer, is_skipped
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy, without_gpu

__all__ = ["Synchronous"]


@dataclass
class Synchronous(Strategy):
    """``"sync"``: synchronous stochastic gradient descent: each step uses the mean gradient of all P ranks.

    x_{t+1} = x_t - η/P Σ_i ∇f_i(x_t), with any optimizer in place of "- η". Goyal et al., "Accurate, large minibatch
    SGD: training ImageNet in 1 hour", 2017, section 2, equation 2, with the sum over a batch split into P parts. All
    ranks stay bitwise equal. Results equal :func:`rueda.torch.DistributedOptimizer` bitwise, and gradients are
    reduced while backward() runs; use that function directly for its other options.

    ``codec``: compresses gradients, as ``compression`` does there.

    Example::

        >>> from rueda.torch.strategies import Synchronous
        >>> Synchronous(codec="int8").describe()
        "Synchronous(codec='int8')"
    """

    codec: Codec | str | None = None

    name: ClassVar[str] = "sync"
    ranks_stay_equal: ClassVar[bool] = True
    reduces_gradients: ClassVar[bool] = True

    def validate(self, replica: Replica) -> None:
        _, policy = policy_of(self.codec)
        if policy is not None:
            without_gpu(self, replica)
            require_no_momentum(policy, replica.optimizer.param_groups)

    def start(self, replica: Replica) -> None:
        super().start(replica)
        started = getattr(self, "_gradients", None)
        if started is not None:
            started._rueda.give_up()
            return
        # An optimizer that reduces gradients but never takes a step: the application's does.
        self._gradients: Any = DistributedOptimizer(
            torch.optim.SGD(replica.originals.values(), lr=0.0),
            replica.originals.items(),
            compression=self.codec,
            process_set=replica.process_set,
        )

    def before_zero_grad(self) -> None:
        # Checks that gradients may be cleared and resets its counts; the application's optimizer clears them.
        with self._gradients._only([]):
            self._gradients.zero_grad()

    def before_step(self) -> bool:
        self._gradients.synchronize()
        return True

    def before_scaler(self) -> None:
        self._gradients._rueda.scaler_decides = True

    def before_update(self) -> None:
        if not is_skipped(self.replica.optimizer):
            self._gradients._rueda.require_finite()
            self._gradients._rueda.scaler_decides = False

    def has_new_gradients(self) -> bool:
        return not self._gradients._rueda.synchronized

    def compression_state(self) -> CompressionState | None:
        state: CompressionState | None = self._gradients._rueda.compression_state()
        return state

    def load_compression_state(self, state: CompressionState | None) -> None:
        self._gradients._rueda.load_compression_state(state)

    def consolidate(self) -> None:
        """All ranks have the same parameters already."""

    def stop(self) -> None:
        self._gradients._rueda.close()
