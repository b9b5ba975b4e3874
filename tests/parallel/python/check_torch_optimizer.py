"""Every rank: DistributedOptimizer against training in one process on the whole batch."""

from __future__ import annotations

import copy

import parallel
import rueda
import rueda.torch as rt
import torch
from torch import nn
from torch.nn import functional as F
from training import (
    BATCH,
    CLOSE,
    Optimizer,
    adam,
    batch,
    close,
    pair,
    same_bits,
    sgd,
    share,
    train,
)


def check_equals_training_on_the_whole_batch() -> None:
    for make in (sgd, adam):
        shared, distributed, alone, single = pair(make)
        train(shared, distributed, alone, single)
        close(shared, alone)
        same_bits(*shared.parameters())


def check_reduction_starts_during_backward() -> None:
    shared, distributed, _, _ = pair(sgd)
    x, y = batch(0)
    F.cross_entropy(shared(share(x)), share(y)).backward()
    assert len(distributed._rueda.in_flight()) == 4
    distributed.step()
    assert distributed._rueda.in_flight() == []


def check_accumulation() -> None:
    shared, distributed, alone, single = pair(sgd, backward_passes_per_step=2)
    for step in range(3):
        x, y = batch(step)
        distributed.zero_grad()
        for half_x, half_y in zip(share(x).chunk(2), share(y).chunk(2), strict=True):
            assert distributed._rueda.in_flight() == []
            (F.cross_entropy(shared(half_x), half_y) / 2).backward()
        distributed.step()
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()
    close(shared, alone)
    # Without the division, gradients are summed over passes.
    distributed.zero_grad()
    x, y = batch(9)
    for _ in range(2):
        F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.synchronize()
    single.zero_grad()
    F.cross_entropy(alone(x), y).backward()
    for a, b in zip(shared.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, 2 * b.grad, **CLOSE)


def check_step_before_all_passes() -> None:
    shared, distributed, alone, single = pair(sgd, backward_passes_per_step=3)
    train(shared, distributed, alone, single, steps=2)
    distributed.set_backward_passes_per_step(1)
    train(shared, distributed, alone, single, steps=2)
    close(shared, alone)


def check_every_step_reduces() -> None:
    """A synchronize() covers one step only, and none after zero_grad()."""
    ranks, me = rueda.size(), rueda.rank()
    for after in ("step", "zero_grad"):
        shared, distributed, _, _ = pair(sgd)
        for _ in range(2):  # with buckets from the second round on
            F.cross_entropy(shared(share(batch(0)[0])), share(batch(0)[1])).backward()
            distributed.synchronize()
            getattr(distributed, after)()
            for parameter in shared.parameters():
                parameter.grad = torch.full_like(parameter, me)
            distributed.step()
            for parameter in shared.parameters():
                assert torch.all(parameter.grad == (ranks - 1) / 2), after
            distributed.zero_grad()
        same_bits(*shared.parameters())


def check_zero_grad_in_the_middle_of_a_step() -> None:
    """Backward passes are counted from the start."""
    shared, distributed, alone, single = pair(sgd, backward_passes_per_step=2)
    for step in range(3):
        x, y = batch(step)
        F.cross_entropy(shared(share(x)), share(y)).backward()
        distributed.zero_grad()
        single.zero_grad()
        for _ in range(2):
            assert distributed._rueda.in_flight() == []
            F.cross_entropy(shared(share(x)), share(y)).backward()
            F.cross_entropy(alone(x), y).backward()
        distributed.step()
        single.step()
        close(shared, alone)


def check_clipping() -> None:
    def clip(module: nn.Module, optimizer: Optimizer | None) -> None:
        if optimizer is not None:
            optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.05)
        assert norm > 0.05, "nothing was clipped"

    shared, distributed, alone, single = pair(sgd)
    before = rueda.metrics()
    train(shared, distributed, alone, single, clip=clip)
    submitted = {k: v - before.get(k, 0) for k, v in rueda.metrics().items()}
    # No second reduction in step(). With buckets the first step reduces four tensors, and each
    # later one a single bucket.
    expected = 4 + 3 if distributed.gradient_buckets().names else 4 * 4
    assert submitted["allreduce_tensors"] == expected, submitted
    close(shared, alone)
    shared, distributed, alone, single = pair(sgd)
    x, y = batch(0)
    F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.synchronize()
    with distributed.skip_synchronize():
        distributed.step()
    F.cross_entropy(alone(x), y).backward()
    single.step()
    close(shared, alone)


def check_compression() -> None:
    for compression, epsilon in ((rt.Compression.fp16, 2.0**-10), (rt.Compression.bf16, 2.0**-7)):
        shared, distributed, alone, _ = pair(sgd, compression=compression)
        x, y = batch(0)
        F.cross_entropy(shared(share(x)), share(y)).backward()
        distributed.synchronize()
        F.cross_entropy(alone(x), y).backward()
        for a, b in zip(shared.parameters(), alone.parameters(), strict=True):
            assert a.grad.dtype == torch.float64
            assert not torch.equal(a.grad, b.grad), "nothing was compressed"
            bound = (rueda.size() + 2) * epsilon
            torch.testing.assert_close(a.grad, b.grad, rtol=bound, atol=bound * 0.5)
        same_bits(*[p.grad for p in shared.parameters()])
        distributed.step()


def check_sum_and_predivide() -> None:
    for options, factor in (
        ({"op": rt.Sum}, rueda.size()),
        ({"gradient_predivide_factor": 4.0}, 1),
    ):
        shared, distributed, alone, _ = pair(sgd, **options)
        x, y = batch(0)
        F.cross_entropy(shared(share(x)), share(y)).backward()
        distributed.synchronize()
        F.cross_entropy(alone(x), y).backward()
        for a, b in zip(shared.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a.grad, factor * b.grad, **CLOSE)
        distributed.step()


def check_predivided_sums_do_not_overflow() -> None:
    """The factor divides before the sum, which otherwise exceeds float32."""
    for compression in (rt.Compression.none, rt.Compression.bf16):
        layer = nn.Linear(3, 1, bias=False)
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=0.1),
            layer.named_parameters(),
            gradient_predivide_factor=float(4 * rueda.size()),
            compression=compression,
        )
        for _ in range(2):
            optimizer.zero_grad()
            (layer.weight * 2.0**127).sum().backward()
            optimizer.synchronize()
            expected = torch.full_like(layer.weight, 2.0**127)
            torch.testing.assert_close(layer.weight.grad, expected, rtol=0.02, atol=0.0)
            optimizer.step()


def check_memory_formats() -> None:
    torch.manual_seed(3)
    layer = nn.Conv2d(3, 4, 2).double().to(memory_format=torch.channels_last)
    alone = copy.deepcopy(layer)
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=0.1), layer.named_parameters()
    )
    x = torch.randn(BATCH, 3, 4, 4, dtype=torch.float64)
    layer(share(x)).pow(2).mean().backward()
    optimizer.step()
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    alone(x).pow(2).mean().backward()
    single.step()
    close(layer, alone)


def check_closures() -> None:
    def lbfgs(parameters: list[nn.Parameter]) -> Optimizer:
        return torch.optim.LBFGS(parameters, max_iter=5, line_search_fn="strong_wolfe")

    x, y = batch(0)
    for make in (sgd, lbfgs):
        shared, distributed, alone, single = pair(make)

        def closure(optimizer, module, x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(x), y)
            loss.backward()
            return loss

        for _ in range(2):
            mine = distributed.step(lambda: closure(distributed, shared, share(x), share(y)))  # noqa: B023
            whole = single.step(lambda: closure(single, alone, x, y))  # noqa: B023
            torch.testing.assert_close(mine, whole.detach(), **CLOSE)
        close(shared, alone, rtol=1e-7, atol=1e-9)
        same_bits(*shared.parameters())
    # As a number, with all its digits.
    told = distributed.step(
        lambda: closure(distributed, shared, share(x), share(y)).item() * 0 + 1 / 3
    )
    assert told == 1 / 3


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
