"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from rueda.horovod.basics import size
from rueda.horovod.exceptions import translated
from rueda.operations import Sum
from rueda.process_sets import global_process_set
from rueda.submission import Collectives
from rueda.torch.tensors import TorchAdapter

__all__ = ["SyncBatchNorm"]

_collectives = Collectives(TorchAdapter(gpus=True))
Gradient = torch.Tensor | None


class SyncBatchNorm(_BatchNorm):
    """Like ``torch.nn.BatchNorm1d`` to ``3d``, with the mean and variance of all ranks' batches during training.

    The arguments are those of ``torch.nn.BatchNorm2d``. Input: ``[batch, num_features, ...]`` on the CPU or a
    GPU (Horovod's needs one); batch sizes may differ between ranks, and some may be 0. Every rank must run the
    module's forward and backward passes in the same order.

    Raises ``ValueError`` for input of less than two dimensions or if all batches are empty, and
    :class:`HorovodInternalError`.

    Example::

        >>> layers = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), hvd.SyncBatchNorm(8))
        >>> layers(torch.ones(2, 1, 4, 4)).shape
        torch.Size([2, 8, 2, 2])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected input of at least 2 dimensions, not {input.dim()}")

    @translated
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises ``input``."""
        self._check_input_dim(input)
        if (not self.training and self.track_running_stats) or size() == 1:
            return super().forward(input)
        mean, variance, count = _statistics(input.detach())
        if self.training and self.track_running_stats:
            self._update(mean, variance, count)
        result: torch.Tensor = _Normalise.apply(input, mean, variance, count, self.eps)  # type: ignore[no-untyped-call]
        if self.weight is not None:
            shape = (1, -1) + (1,) * (input.dim() - 2)
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)  # even if the weights are wider

    def _update(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:  # the average of all batches
            factor = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


def _channels(tensor: torch.Tensor) -> torch.Tensor:
    """Returns ``[features, everything else]`` in at least single precision."""
    flat = tensor.transpose(0, 1).reshape(tensor.shape[1], tensor[:, 0].numel())
    return flat if flat.dtype == torch.float64 else flat.float()


def _statistics(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Returns each feature's mean and variance over all ranks, and the number of values per feature.

    Each rank sends its mean and sum of squared deviations; raw sums of squares would suffer from cancellation.
    """
    values = _channels(input)
    count = values.shape[1]
    mean = values.mean(1) if count else values.new_zeros(len(values))
    deviations = (values - mean[:, None]).square().sum(1)
    mine = torch.cat([values.new_tensor([count]), mean, deviations]).double()
    every = _collectives.allgather(mine[None], None, global_process_set).result()
    counts, means, squares = every[:, :1], *every[:, 1:].chunk(2, dim=1)
    total = float(counts.sum())
    if total == 0:
        raise ValueError("the batch is empty on every rank")
    overall = (counts * means).sum(0) / total
    variance = (squares + counts * (means - overall).square()).sum(0) / total
    return overall, variance, total


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps), where mean and variance depend on the x of every rank."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        count: float,
        eps: float,
    ) -> torch.Tensor:
        """Normalises."""
        shape = (1, -1) + (1,) * (input.dim() - 2)
        wide = input.double() if input.dtype == torch.float64 else input.float()
        scale = (variance + eps).rsqrt().to(wide.dtype).view(shape)
        normal = (wide - mean.to(wide.dtype).view(shape)) * scale
        ctx.save_for_backward(normal, scale)
        ctx.count = count
        return normal.to(input.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Gradient, ...]:
        """Returns the gradient of all ranks' losses, since each x affects the mean and variance on every rank."""
        normal, scale = ctx.saved_tensors
        gradient = gradients[0].to(normal.dtype)
        sums = torch.stack([_channels(gradient).sum(1), _channels(gradient * normal).sum(1)])
        totals = _collectives.allreduce(
            sums.double(), None, Sum, 1.0, 1.0, global_process_set
        ).result()
        mean, slope = (totals / ctx.count).to(normal.dtype).view(2, *scale.shape)
        result = (gradient - mean - normal * slope) * scale
        return result.to(gradients[0].dtype), None, None, None, None
