"""Models that all ranks train together and that each rank also trains alone."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable

import rueda
import rueda.torch as rt
import torch
from torch import nn
from torch.nn import functional as F

BATCH = 24  # divides by 1, 2, 3 and 4
# Double precision: only the order of the ranks' sums differs.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}

# The device of models and batches.
DEVICE = torch.device(os.environ.get("CHECKED_DEVICE", "cpu"))

# For everything that pair() makes: 1 and 0 switch buckets on and off. By default they are on for
# two or more ranks, and for one rank on a GPU.
VIEWS = {"1": True, "0": False}.get(os.environ.get("GRADIENT_AS_BUCKET_VIEW", ""))

Optimizer = torch.optim.Optimizer
Make = Callable[[list[nn.Parameter]], Optimizer]


class Wrapper(torch.Tensor):
    """A tensor that only refers to another, as DTensor does."""

    content: torch.Tensor

    @staticmethod
    def __new__(cls, content: torch.Tensor) -> Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, content.shape, dtype=content.dtype)
        made.content = content
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        plain = [a.content if isinstance(a, Wrapper) else a for a in arguments]
        result = function(*plain, **(options or {}))
        return Wrapper(result) if isinstance(result, torch.Tensor) else result


def model(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(DEVICE, torch.float64)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch."""
    torch.manual_seed(100 + step)
    x, y = torch.randn(BATCH, 6, dtype=torch.float64), torch.randint(0, 3, (BATCH,))
    return x.to(DEVICE), y.to(DEVICE)


def share(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch."""
    return tensor.chunk(rueda.size())[rueda.rank()]


def same_bits(*tensors: torch.Tensor) -> None:
    """Requires that all ranks hold the same bits."""
    content = b"".join(t.detach().cpu().numpy().tobytes() for t in tensors)
    digest = hashlib.sha256(content).hexdigest()
    assert len(set(rueda.allgather_object(digest))) == 1, "ranks hold different bits"


def close(left: nn.Module, right: nn.Module, **tolerance: float) -> None:
    for a, b in zip(left.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(a, b, **(tolerance or CLOSE))


def pair(make: Make, **options: object) -> tuple[nn.Module, Optimizer, nn.Module, Optimizer]:
    """A model trained by all ranks, and a copy that each rank trains alone."""
    shared = model()
    alone = copy.deepcopy(shared)
    options = {"gradient_as_bucket_view": VIEWS, **options}
    distributed = rt.DistributedOptimizer(
        make(list(shared.parameters())), shared.named_parameters(), **options
    )
    return shared, distributed, alone, make(list(alone.parameters()))


def sgd(parameters: list[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def adam(parameters: list[nn.Parameter]) -> Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def train(
    shared: nn.Module,
    distributed: Optimizer,
    alone: nn.Module,
    single: Optimizer,
    steps: int = 4,
    clip: Callable[[nn.Module, Optimizer | None], None] = lambda module, optimizer: None,
) -> None:
    for step in range(steps):
        x, y = batch(step)
        distributed.zero_grad()
        F.cross_entropy(shared(share(x)), share(y)).backward()
        clip(shared, distributed)
        distributed.step()
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        clip(alone, None)
        single.step()
