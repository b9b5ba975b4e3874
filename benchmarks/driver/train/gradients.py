"""Communication alone: 161 gradients (100 MB in total) through the optimizer's hooks, and one tensor of that size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rueda.torch as rueda
import torch
import torch.distributed as dist
from torch import nn

from .measure import summary, take_turns
from .models import resnet50_shapes

GRADIENT_CONTENDERS = {
    "buckets": "rueda, 161 gradients in buckets, hooks included",
    "copies": "rueda, 161 gradients anywhere, hooks included",
    "mpi": "MPI_Allreduce of one tensor in place",
    "gloo": "gloo all_reduce of one tensor in place",
}


class Gradients:
    """A model whose backward pass consists only of the optimizer's hooks."""

    def __init__(self, views: bool, bucket_bytes: int) -> None:
        self._parameters = [nn.Parameter(torch.zeros(shape)) for shape in resnet50_shapes()]
        self._optimizer = rueda.DistributedOptimizer(
            torch.optim.SGD(self._parameters, lr=0.0),
            gradient_as_bucket_view=views,
            bucket_bytes=bucket_bytes,
        )
        self.wrong = 0
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        # The hooks that autograd calls before and after accumulating a gradient; both ignore their argument.
        self._hooks = [(p, _hooks_of(p)) for p in reversed(self._parameters)]
        self.step()

    def step(self) -> float:
        """Writes all gradients, then times the hooks and synchronize(). Returns seconds."""
        rank, size = rueda.rank(), rueda.size()
        for number, parameter in enumerate(self._parameters):
            assert parameter.grad is not None
            parameter.grad.fill_(float(number + rank))
        rueda.barrier()
        begin = time.perf_counter()
        for parameter, hooks in self._hooks:
            for hook in hooks:
                hook(parameter.grad)
        self._optimizer.synchronize()
        seconds = time.perf_counter() - begin
        for number, parameter in enumerate(self._parameters):
            assert parameter.grad is not None
            self.wrong += int((parameter.grad != number + (size - 1) / 2).sum())
        return seconds


def _hooks_of(parameter: nn.Parameter) -> list[Callable[[Any], Any]]:
    before: dict[int, Any] = getattr(parameter, "_backward_hooks", None) or {}
    after: dict[int, Any] = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    assert before
    assert after
    return [*before.values(), *after.values()]


class OneTensor:
    """One tensor with as many elements as all gradients together."""

    def __init__(self, reduce: Callable[[np.ndarray[Any, Any]], None]) -> None:
        self._reduce = reduce
        self._array = np.zeros(sum(int(np.prod(s)) for s in resnet50_shapes()), np.float32)
        self.wrong = 0

    def step(self) -> float:
        """Writes the tensor, then times its reduction. Returns seconds."""
        rank, size = rueda.rank(), rueda.size()
        self._array.fill(1 + rank)
        rueda.barrier()
        begin = time.perf_counter()
        self._reduce(self._array)
        seconds = time.perf_counter() - begin
        self.wrong += int((self._array != size * (size + 1) / 2).sum())
        return seconds


def _mpi() -> Callable[[np.ndarray[Any, Any]], None]:
    """MPI_Allreduce in place. Raises ImportError if the ranks cannot use MPI from Python."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        raise ImportError("the ranks were not started by mpirun")
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def reduce(array: np.ndarray[Any, Any]) -> None:
        world.Allreduce(MPI.IN_PLACE, array)

    return reduce


def _gloo(array: np.ndarray[Any, Any]) -> None:
    dist.all_reduce(torch.from_numpy(array))


def measure_gradients(
    rounds: int, steps: int, bucket_bytes: int, has_gloo: bool
) -> tuple[dict[str, Any], list[str]]:
    """A collective call. Returns the results, and notes on contenders that could not take part."""
    contenders: dict[str, Gradients | OneTensor] = {
        "buckets": Gradients(True, bucket_bytes),
        "copies": Gradients(False, bucket_bytes),
    }
    notes = []
    try:
        contenders["mpi"] = OneTensor(_mpi())
    except ImportError as error:
        notes.append(f"no MPI_Allreduce: {error}")
    if has_gloo:
        contenders["gloo"] = OneTensor(_gloo)
    times = take_turns({name: c.step for name, c in contenders.items()}, rounds, steps)
    wrong = rueda.allgather_object({name: c.wrong for name, c in contenders.items()})
    shapes = resnet50_shapes()
    return {
        "tensors": len(shapes),
        "bytes": 4 * sum(int(np.prod(shape)) for shape in shapes),
        "results": {name: summary(seconds) for name, seconds in times.items()},
        "wrong": [
            f"{name}: {counts[name]} elements on rank {rank}"
            for rank, counts in enumerate(wrong)
            for name in counts
            if counts[name]
        ],
    }, notes
