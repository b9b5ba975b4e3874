"""Every rank: gradients too large for buckets, and the memory autograd allocates for them."""

from __future__ import annotations

import ctypes
import os
import resource

import parallel
import rueda
import rueda.torch as rt
import torch
from rueda import _native
from rueda.heap import is_user_tuned
from rueda.torch import gradients
from torch import nn
from training import Optimizer, same_bits

# Lower than the default for large gradients, so that the checks are fast.
gradients.LARGE_GRADIENT_BYTES = LARGE_GRADIENT_BYTES = 1 << 20
INPUTS, OUTPUTS = 1024, LARGE_GRADIENT_BYTES // 4 // 1024
LARGE, SMALL = "0.weight", {"0.bias", "1.weight", "1.bias"}


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.Linear(OUTPUTS, 2))


def distributed(module: nn.Module, **options: object) -> Optimizer:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    return rt.DistributedOptimizer(optimizer, module.named_parameters(), **options)


def backward(module: nn.Module) -> None:
    """The large gradient equals the rank's factor everywhere, so that averages are exact."""
    x = torch.full((1, INPUTS), float(rueda.rank() + 1))
    hidden = nn.functional.linear(x, module[0].weight, module[0].bias)
    (hidden.sum() + module[1].weight.sum() + module[1].bias.sum()).backward()


def mean_factor() -> float:
    return (rueda.size() + 1) / 2


def stays_out() -> bool:
    return rueda.size() > 1 and _native.has_direct_access()


def moved_by(action: object) -> dict[str, int]:
    before = rueda.metrics()
    action()  # type: ignore[operator]
    return {k: v - before.get(k, 0) for k, v in rueda.metrics().items()}


def check_a_large_gradient_is_reduced_where_autograd_put_it() -> None:
    module = model()
    optimizer = distributed(module)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            backward(module)
            mine = module[0].weight.grad
            assert mine is not None
            if stays_out():
                assert mine._version > 0  # autograd knows of the write
            optimizer.synchronize()
            assert module[0].weight.grad is mine or not stays_out()
            torch.testing.assert_close(
                module[0].weight.grad, torch.full((OUTPUTS, INPUTS), mean_factor()), rtol=0, atol=0
            )
            optimizer.step()

    steps(1)
    found = optimizer.gradient_buckets()
    if stays_out():
        assert set(found.left_out) == {LARGE}, found
        assert "are reduced where autograd puts them" in found.left_out[LARGE]
        assert set(sum(found.names, ())) == SMALL, found
        moved = moved_by(lambda: steps(3))
        assert moved["bytes_packed"] == 0, moved
        assert moved["allreduce_tensors"] == 3 * 2, moved  # the large gradient and the bucket
        # Others read or write half of each rank's gradient: nothing is copied twice. If init()'s
        # trial has found the kernel slow, the slots are used instead.
        least, most = 3 * LARGE_GRADIENT_BYTES // 2, 6 * LARGE_GRADIENT_BYTES * rueda.size()
        through_kernel = parallel_sum(moved["allreduce_bytes_through_kernel"])
        assert through_kernel == 0 or least <= through_kernel <= most, moved
    same_bits(*module.parameters())


def parallel_sum(count: int) -> int:
    return int(sum(rueda.allgather_object(count)))


def check_the_ways_to_clear_and_to_accumulate() -> None:
    for to_none in (True, False):
        module = model()
        optimizer = distributed(module, backward_passes_per_step=2)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=to_none)
            backward(module)
            backward(module)
            optimizer.synchronize()
            assert module[0].weight.grad is not None
            assert bool((module[0].weight.grad == 2 * mean_factor()).all())
            norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            assert torch.isfinite(norm)
            optimizer.step()
        same_bits(*module.parameters())


def check_what_was_asked_for_counts() -> None:
    for options in ({"gradient_as_bucket_view": True}, {"groups": 1}):
        module = model()
        optimizer = distributed(module, **options)
        for _ in range(2):
            optimizer.zero_grad()
            backward(module)
            optimizer.step()
        found = optimizer.gradient_buckets()
        if rueda.size() > 1 or "groups" not in options:
            assert LARGE in sum(found.names, ()), found
        same_bits(*module.parameters())


def check_a_large_gradient_that_is_exchanged_or_frozen() -> None:
    module = model()
    optimizer = distributed(module)
    weight = module[0].weight
    for number in range(6):
        optimizer.zero_grad()
        weight.requires_grad_(number != 3)
        backward(module)
        optimizer.synchronize()
        if number != 3:
            assert bool((weight.grad == mean_factor()).all())
            weight.grad = weight.grad.clone()  # the application's own
        optimizer.step()
    same_bits(*module.parameters())


def faults_of_step(module: nn.Module, optimizer: Optimizer) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    optimizer.zero_grad()
    backward(module)
    optimizer.step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def check_most_steps_fault_no_pages_of_gradients() -> None:
    """Larger than glibc keeps by default: each step would fault every page in again.

    Occasionally a small allocation takes the gradient's place while that is free, and the heap
    grows.
    """
    if is_user_tuned(os.environ) or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return
    torch.manual_seed(3)
    columns = (33 << 20) // 4 // INPUTS
    module = nn.Sequential(nn.Linear(INPUTS, columns), nn.Linear(columns, 2))
    optimizer = distributed(module)
    faults = [faults_of_step(module, optimizer) for _ in range(24)][8:]
    pages = (33 << 20) // resource.getpagesize()
    assert sum(faults) < 3 * len(faults) * pages // 4, faults
    same_bits(*module.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
