"""Synchronous training: every step uses the gradients of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rueda.compression import Codec
from rueda.torch.compression import policy_of, require_no_momentum
from rueda.torch.compression_state import CompressionState
from rueda.torch.gradients import ANY_NUMBER, expect_sparse, most_passes
from rueda.torch.optimizer import DistributedOptimizer, is_skipped
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy, without_gpu

__all__ = ["Synchronous"]

# So many steps show how a training computes the gradients of a step: with one backward() or with several, or with some
# that are cleared, as those of a GAN's discriminator when its generator is trained.
_WATCHED_STEPS = 2

_TOO_OFTEN = (
    "the gradient of '{name}' was computed more than once before step() or synchronize(), unlike in the first steps, "
    'and is being reduced: use strategy="accumulate:k" or DistributedOptimizer(backward_passes_per_step=k) for k '
    "calls of backward() per step; if the model was wrapped before, close() the earlier wrapped optimizer first"
)


@dataclass
class Synchronous(Strategy):
    """``"sync"``: synchronous stochastic gradient descent: each step uses the mean gradient of all P ranks.

    x_{t+1} = x_t - η/P Σ_i ∇f_i(x_t), with any optimizer in place of "- η". Goyal et al., "Accurate, large minibatch
    SGD: training ImageNet in 1 hour", 2017, section 2, equation 2, with the sum over a batch split into P parts. All
    ranks stay bitwise equal. Results equal :func:`rueda.torch.DistributedOptimizer` bitwise; use that function directly
    for its other options.

    Gradients are reduced while backward() runs, from the third step on. If one of the first two steps takes several
    calls of backward(), as with gradients that are accumulated by hand, or clears gradients without a step, as GANs do,
    every step() reduces the sums instead: the training may then call backward() as often as it likes. Otherwise a later
    step with a second backward() raises :class:`rueda.InvalidArgumentError`.

    A parameter without a gradient on some rank contributes zeros there, or no rows if an ``Embedding(sparse=True)`` has
    it or its last gradient was sparse. One that is sparse on some ranks and dense on others raises
    :class:`rueda.MismatchError` on all; ``"accumulate:1"`` averages those, too.

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
            backward_passes_per_step=ANY_NUMBER,
            process_set=replica.process_set,
        )
        self._gradients._rueda.too_often = _TOO_OFTEN
        expect_sparse(self._gradients._rueda, replica.sparse)
        self._left_to_watch = _WATCHED_STEPS

    def _watch(self, usual: int, steps: int) -> None:
        """Called where gradients have had ``usual`` backward passes in a training with one per step.

        After ``steps`` more of these, and enough in all, they are reduced while backward() runs.
        """
        if self._left_to_watch == 0:
            return
        reducer = self._gradients._rueda
        if most_passes(reducer) > usual:
            self._left_to_watch = 0
            return
        self._left_to_watch -= steps
        if self._left_to_watch == 0:
            reducer.passes = 1  # from the next step on

    def before_zero_grad(self) -> None:
        self._watch(usual=0, steps=0)
        # Checks that gradients may be cleared and resets its counts; the application's optimizer clears them.
        with self._gradients._only([]):
            self._gradients.zero_grad()

    def before_step(self) -> bool:
        self._watch(usual=1, steps=1)
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
