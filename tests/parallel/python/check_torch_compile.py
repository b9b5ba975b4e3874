"""Every rank: training steps with torch.compile(model), against one process without compilation."""

from __future__ import annotations

import copy
from typing import Any

import parallel
import rueda
import rueda.torch as rt
import torch
from torch.nn import functional as F
from training import batch, close, model, same_bits, sgd, share

STEPS = 4


def train(gradient_as_bucket_view: bool) -> int:
    """Trains the same model in both ways; returns the bytes that the ranks have reduced."""
    torch.compiler.reset()  # forgets earlier compilations of such a model
    alone = model()
    shared = copy.deepcopy(alone)
    optimizer = rt.DistributedOptimizer(
        sgd(list(shared.parameters())),
        shared.named_parameters(),
        gradient_as_bucket_view=gradient_as_bucket_view,
    )
    single = sgd(list(alone.parameters()))
    compiled = torch.compile(shared, backend="inductor", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    before = rueda.metrics()["allreduce_tensor_bytes"]
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(compiled(share(x)), share(y)).backward()
        optimizer.step()
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()
    compilations = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert compilations == 1, compilations
    close(shared, alone)
    same_bits(*shared.parameters())
    return rueda.metrics()["allreduce_tensor_bytes"] - before


def check_both_paths() -> None:
    gradients = sum(p.numel() * p.element_size() for p in model().parameters())
    for in_buckets in (True, False):
        assert train(in_buckets) >= STEPS * gradients


def check_compiled_steps() -> None:
    """Whole steps, or step() alone: waits for other ranks are not part of a graph."""
    for whole in (True, False):
        for how in ("distributed", "wrapped"):
            torch.compiler.reset()
            alone = model()
            shared = copy.deepcopy(alone)
            inner = sgd(list(shared.parameters()))
            if how == "wrapped":
                optimizer = rt.wrap(shared, inner)
            else:
                optimizer = rt.DistributedOptimizer(inner, shared.named_parameters())
            single = sgd(list(alone.parameters()))

            def take_step(
                x: torch.Tensor, y: torch.Tensor, of: Any = optimizer, network: Any = shared
            ) -> None:
                of.zero_grad()
                F.cross_entropy(network(x), y).backward()
                of.step()

            compiled = torch.compile(take_step, backend="eager")
            step_alone = torch.compile(lambda of=optimizer: of.step(), backend="eager")
            for step in range(STEPS):
                x, y = batch(step)
                if whole:
                    compiled(share(x), share(y))
                else:
                    optimizer.zero_grad()
                    F.cross_entropy(shared(share(x)), share(y)).backward()
                    step_alone()
                take_step(x, y, single, alone)
            close(shared, alone)
            same_bits(*shared.parameters())


def check_a_compiled_backward_pass() -> None:
    """With compiled autograd, which calls parameters' hooks within its graph."""
    torch.compiler.reset()
    alone = model()
    shared = copy.deepcopy(alone)
    optimizer = rt.DistributedOptimizer(sgd(list(shared.parameters())), shared.named_parameters())
    single = sgd(list(alone.parameters()))
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(shared(share(x)), share(y))
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
        optimizer.step()
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()
    close(shared, alone)
    same_bits(*shared.parameters())


def check_functions_called_by_compiled_ones() -> None:
    rank, size = rueda.rank(), rueda.size()

    def several(x: torch.Tensor) -> list[torch.Tensor]:
        handle = rt.allreduce_async(x * 2, name="sum", op=rueda.Sum)
        return [
            rt.broadcast(x + 1, 0, name="first"),
            rt.allgather(x, name="all"),
            rt.allreduce(x, name="mean") + 1,
            handle.result() + 1,
        ]

    torch.compiler.reset()
    compiled = torch.compile(several, backend="eager")
    for step in range(3):
        found = compiled(torch.full((2,), float(rank + step)))
        total = sum(range(size)) + size * step
        expected = [
            [step + 1.0] * 2,
            [float(r + step) for r in range(size) for _ in range(2)],
            [total / size + 1] * 2,
            [2.0 * total + 1] * 2,
        ]
        assert [each.tolist() for each in found] == expected, found


if __name__ == "__main__":
    parallel.run(globals())
