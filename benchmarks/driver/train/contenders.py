"""The ways to train that are compared. Each has a model, an optimizer and a step."""

from __future__ import annotations

import time
from collections.abc import Callable

import rueda.torch as rueda
import torch
import torch.distributed as dist
from rueda.torch import c10d  # noqa: F401 - registers its backend
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .models import Loss, Training

CONTENDERS = {
    "none": "no communication",
    "buckets": "rueda, gradients in buckets",
    "copies": "rueda, gradients anywhere",
    "ddp": "DistributedDataParallel over gloo",
    "ddp-rueda": "DistributedDataParallel over rueda",
}
# Contenders that need torch.distributed.
OF_TORCH = ("ddp", "ddp-rueda")


class Contender:
    """One model, trained in one way."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
        self.module = module
        self._optimizer = optimizer
        self._loss = loss
        self._step = 0

    def step(self) -> float:
        """Runs one training step. Returns its time on this rank in seconds."""
        begin = time.perf_counter()
        self._optimizer.zero_grad()
        self._loss(self.module, self._step).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._step += 1
        return time.perf_counter() - begin


def make_contender(name: str, training: Training, bucket_bytes: int) -> Contender:
    """A collective call. All contenders start with the same parameters."""
    torch.manual_seed(7)
    module = training.make()

    def sgd() -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=training.learning_rate, momentum=0.9)

    def ddp(backend: str, bucket_cap_mb: float | None = None) -> Contender:
        wrapped = DistributedDataParallel(
            module,
            gradient_as_bucket_view=True,
            process_group=dist.new_group(backend=backend),
            bucket_cap_mb=bucket_cap_mb,
        )
        return Contender(wrapped, sgd(), training.loss)

    def distributed(views: bool) -> Contender:
        optimizer = rueda.DistributedOptimizer(
            sgd(),
            module.named_parameters(),
            gradient_as_bucket_view=views,
            bucket_bytes=bucket_bytes,
        )
        return Contender(module, optimizer, training.loss)

    makers: dict[str, Callable[[], Contender]] = {
        "none": lambda: Contender(module, sgd(), training.loss),
        "buckets": lambda: distributed(True),
        "copies": lambda: distributed(False),
        "ddp": lambda: ddp("gloo"),
        "ddp-rueda": lambda: ddp("rueda", bucket_cap_mb=bucket_bytes / 2**20),
    }
    return makers[name]()


def open_gloo(store: str) -> str:
    """Initializes torch.distributed with gloo through a file. Returns why that is impossible, or ''."""
    if not dist.is_available() or not dist.is_gloo_available():
        return "this torch has no gloo"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rueda.rank(), world_size=rueda.size()
    )
    return ""
