"""Every rank: training steps with torch.compile(model), against one process that compiles nothing."""

from __future__ import annotations

import copy

import parallel
import rueda
import rueda.torch as rt
import torch
from torch.nn import functional as F
from training import batch, close, model, same_bits, sgd, share

STEPS = 4


def train(gradient_as_bucket_view: bool) -> int:
    """Trains one and the same model in both ways; returns how many bytes the ranks have reduced."""
    torch.compiler.reset()  # forgets what it knows of such a model
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


if __name__ == "__main__":
    parallel.run(globals())
