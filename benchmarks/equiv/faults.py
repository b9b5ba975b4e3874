"""Faults as they happen in distributed training, to be planted: each is a class with the hooks that it changes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import rueda.torch
import torch
from torch import nn

WRONG_RANK = 1


class Fault:
    """None: what the hooks of all others begin with."""

    needs_distributed: ClassVar[bool] = False  # DistributedOptimizer in the place of wrap()
    compression: ClassVar[Any] = None
    error_feedback: ClassVar[bool | None] = None
    passes: ClassVar[int] = 1  # backward passes in a step
    divides_passes: ClassVar[bool] = True  # their losses
    begins_apart: ClassVar[bool] = False
    local_statistics: ClassVar[bool] = False
    clips_too_early: ClassVar[bool] = False
    late_schedule: ClassVar[int] = 0

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.is_wrong = rank == WRONG_RANK

    def attach(self, model: nn.Module) -> None:
        """The model has been made."""

    def learning_rate(self, rate: float) -> float:
        """Of the optimizer."""
        return rate

    def batch(self, step: int) -> int:
        """The number of the batch of this step."""
        return step

    def place(self) -> tuple[int, int]:
        """Whose share of a batch this rank takes, and of how many."""
        return self.rank, self.size

    def images(self, own: np.ndarray) -> np.ndarray:
        """Of this rank's share."""
        return own

    def loss_weight(self, step: int) -> float:
        """What this rank's loss is multiplied with."""
        return 1.0

    def before_update(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are averaged, parameters not yet updated."""


class DroppedGradient(Fault):
    """A rank's gradient is missing in every 50th step."""

    def loss_weight(self, step: int) -> float:
        return 0.0 if self.is_wrong and step % 50 == 0 else 1.0


class AveragedByFewer(Fault):
    """The sum of gradients is divided by P - 1."""

    def before_update(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            parameter.grad *= self.size / (self.size - 1)  # type: ignore[operator]


class DuplicatedShard(Fault):
    """A rank trains on another's share."""

    def place(self) -> tuple[int, int]:
        return (0 if self.is_wrong else self.rank), self.size


class LocalStatistics(Fault):
    """Batch normalisation by each rank's own part of the batch."""

    local_statistics = True


class StaleStatistics(Fault):
    """From step 60 on the running mean is that of step 59."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._kept: torch.Tensor | None = None

    def before_update(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        mean = dict(model.named_buffers())["1.running_mean"]
        if step == 59:
            self._kept = mean.clone()
        if self._kept is not None and step >= 60:
            mean.copy_(self._kept)


class LostFeedback(Fault):
    """What compression loses of a gradient is not added to the next."""

    error_feedback = False


class MisscaledAccumulation(Fault):
    """Two backward passes in a step, whose losses are not halved."""

    needs_distributed = True
    passes = 2
    divides_passes = False


class ScaledRate(Fault):
    """The learning rate is multiplied with P, though the global batch is as before."""

    def learning_rate(self, rate: float) -> float:
        return rate * self.size


class RepeatingSampler(Fault):
    """In step 30 the batch of step 29 comes again."""

    def batch(self, step: int) -> int:
        return 29 if step == 30 else step


class StaleGradient(Fault):
    """In every 40th step the gradient of one layer is that of the step before."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._last: torch.Tensor | None = None

    def before_update(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        gradient = dict(model.named_parameters())["2.weight"].grad
        assert gradient is not None
        if step % 40 == 0 and self._last is not None:
            gradient.copy_(self._last)
        self._last = gradient.clone()


class UnreducedParameter(Fault):
    """One parameter's gradient is each rank's own: it was left out of what is reduced."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._local: list[torch.Tensor] = []

    def attach(self, model: nn.Module) -> None:
        dict(model.named_parameters())["0.bias"].register_hook(
            lambda gradient: self._local.append(gradient.clone())
        )

    def before_update(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        gradient = dict(model.named_parameters())["0.bias"].grad
        assert gradient is not None
        gradient.copy_(self._local.pop())


class UnequalBeginning(Fault):
    """Ranks begin with parameters of their own: nobody broadcasts the first's."""

    needs_distributed = True
    begins_apart = True


class ForgottenMomentum(Fault):
    """Momentum is lost in step 60, as after a checkpoint without the optimizer's state."""

    def before_update(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == 60:
            for state in optimizer.state.values():
                state["momentum_buffer"].zero_()


class DecayOnOneRank(Fault):
    """A rank was started with weight decay, the others without."""

    def before_update(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if self.is_wrong:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad += 1e-3 * parameter.detach()


class ClippedTooEarly(Fault):
    """Each rank clips its own gradient, before the average."""

    clips_too_early = True


class SkippedUpdate(Fault):
    """In step 70 one tensor of one rank is not updated."""

    def before_update(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if self.is_wrong and step == 70:
            bias = dict(model.named_parameters())["2.bias"]
            assert bias.grad is not None
            # The momentum becomes 0.9 m + g = 0.
            bias.grad.copy_(-0.9 * optimizer.state[bias]["momentum_buffer"])


class CorruptedElement(Fault):
    """In step 33 an element of one rank's parameters is off by a thousandth."""

    def before_update(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if self.is_wrong and step == 33:
            with torch.no_grad():
                dict(model.named_parameters())["0.weight"][5, 20] += 1e-3


class NarrowGradients(Fault):
    """Gradients travel as bfloat16, and nobody has meant that."""

    needs_distributed = True
    compression = rueda.torch.Compression.bf16


class LostSample(Fault):
    """A rank loses the last image of its share, and still counts as much as the others."""

    def images(self, own: np.ndarray) -> np.ndarray:
        return own[:-1] if self.is_wrong else own


class LateSchedule(Fault):
    """The learning rate falls a step later than it should."""

    late_schedule = 1


FAULTS: dict[str, type[Fault]] = {
    "": Fault,
    "dropped-gradient": DroppedGradient,
    "averaged-by-fewer": AveragedByFewer,
    "duplicated-shard": DuplicatedShard,
    "local-statistics": LocalStatistics,
    "stale-statistics": StaleStatistics,
    "lost-feedback": LostFeedback,
    "misscaled-accumulation": MisscaledAccumulation,
    "scaled-rate": ScaledRate,
    "repeating-sampler": RepeatingSampler,
    "stale-gradient": StaleGradient,
    "unreduced-parameter": UnreducedParameter,
    "unequal-beginning": UnequalBeginning,
    "forgotten-momentum": ForgottenMomentum,
    "decay-on-one-rank": DecayOnOneRank,
    "clipped-too-early": ClippedTooEarly,
    "skipped-update": SkippedUpdate,
    "corrupted-element": CorruptedElement,
    "narrow-gradients": NarrowGradients,
    "lost-sample": LostSample,
    "late-schedule": LateSchedule,
}
