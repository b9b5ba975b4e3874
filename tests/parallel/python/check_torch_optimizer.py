"""Every rank: DistributedOptimizer against training in one process on the whole batch."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable

import numpy as np
import parallel
import rueda
import rueda.torch as rt
import torch
from torch import nn
from torch.nn import functional as F

BATCH = 24  # divides by 1, 2, 3 and 4
# Double precision; the ranks' sums are only ordered differently.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}

Optimizer = torch.optim.Optimizer
Make = Callable[[list[nn.Parameter]], Optimizer]


def model(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch."""
    torch.manual_seed(100 + step)
    return torch.randn(BATCH, 6, dtype=torch.float64), torch.randint(0, 3, (BATCH,))


def share(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch."""
    return tensor.chunk(rueda.size())[rueda.rank()]


def same_bits(*tensors: torch.Tensor) -> None:
    """All ranks hold the same."""
    digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()
    assert len(set(rueda.allgather_object(digest))) == 1, "ranks hold different bits"


def close(left: nn.Module, right: nn.Module, **tolerance: float) -> None:
    for a, b in zip(left.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(a, b, **(tolerance or CLOSE))


def pair(make: Make, **options: object) -> tuple[nn.Module, Optimizer, nn.Module, Optimizer]:
    """A model that is trained by all ranks, and the same that each trains alone."""
    shared = model()
    alone = copy.deepcopy(shared)
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
    # Without the division gradients are summed over passes.
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
    assert submitted["allreduce_tensors"] == 4 * 4, submitted  # not again in step()
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


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.right = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)


def check_parameters_without_gradient() -> None:
    module = Branches()
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0), module.named_parameters()
    )
    for _ in range(2):
        optimizer.zero_grad()
        (module.left if rueda.rank() == 0 else module.right).sum().backward()
        optimizer.synchronize()
        n = rueda.size()
        torch.testing.assert_close(module.left.grad, torch.full((3,), 1 / n).double())
        torch.testing.assert_close(module.right.grad, torch.full((2,), (n - 1) / n).double())
        assert module.frozen.grad is None
        optimizer.step()
    same_bits(*module.parameters())


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


def check_is_still_the_optimizer() -> None:
    shared, distributed, alone, single = pair(sgd)
    assert isinstance(distributed, torch.optim.SGD)
    assert type(distributed).__name__ == "SGD"
    calls = []
    distributed.register_step_post_hook(lambda *_: calls.append("hook"))
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (distributed, single)]
    for step in range(3):
        train(shared, distributed, alone, single, steps=1)
        assert len(calls) == step + 1
        for scheduler in schedulers:
            scheduler.step()
    close(shared, alone)
    state = copy.deepcopy(distributed.state_dict())
    distributed.load_state_dict(state)
    single.load_state_dict(copy.deepcopy(single.state_dict()))
    train(shared, distributed, alone, single, steps=1)
    assert len(calls) == 4
    close(shared, alone)
    assert distributed.param_groups[0]["lr"] == single.param_groups[0]["lr"] == 0.1 * 0.5**3


def check_scheduler_made_before() -> None:
    shared = model()
    optimizer = torch.optim.SGD(shared.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    distributed = rt.DistributedOptimizer(optimizer, shared.named_parameters())
    distributed.zero_grad()
    before = [p.clone() for p in shared.parameters()]
    x, y = batch(0)
    F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.step()
    same_bits(*shared.parameters())
    assert not all(map(torch.equal, before, shared.parameters()))
    with warnings.catch_warnings():  # the scheduler looks for calls of the old optimizer's step()
        warnings.simplefilter("ignore")
        scheduler.step()
    assert distributed.param_groups[0]["lr"] == 0.5


def check_groups_added_later() -> None:
    shared, alone = model(), model()
    optimizers = []
    for module in (shared, alone):
        optimizer = torch.optim.SGD(module[0].parameters(), lr=0.1)
        if module is shared:
            optimizer = rt.DistributedOptimizer(optimizer, module[0].named_parameters())
        optimizer.add_param_group({"params": list(module[2].parameters()), "lr": 0.05})
        optimizers.append(optimizer)
    train(shared, optimizers[0], alone, optimizers[1])
    close(shared, alone)


def check_two_optimizers_at_once() -> None:
    first, first_optimizer, alone, single = pair(sgd)
    second, second_optimizer, _, _ = pair(sgd)
    x, y = batch(0)
    F.cross_entropy(first(share(x)), share(y)).backward()
    F.cross_entropy(second(share(x)), share(y)).backward()
    first_optimizer.step()
    second_optimizer.step()
    F.cross_entropy(alone(x), y).backward()
    single.step()
    close(first, alone)
    close(second, alone)


def check_misuse() -> None:
    shared, distributed, _, _ = pair(sgd)
    x, y = batch(0)
    F.cross_entropy(shared(share(x)), share(y)).backward()
    with parallel.raises(rueda.InvalidArgumentError, "zero_grad", "4 gradients are being reduced"):
        distributed.zero_grad()
    with parallel.raises(rueda.InvalidArgumentError, "backward_passes_per_step=1"):
        F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.step()
    distributed.zero_grad()
    F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.step()
    same_bits(*shared.parameters())

    named = list(shared.named_parameters())
    plain = sgd(list(shared.parameters()))
    with parallel.raises(rueda.InvalidArgumentError, "twice", "0.weight"):
        rt.DistributedOptimizer(plain, [*named, named[0]])
    with parallel.raises(rueda.InvalidArgumentError, "group0.parameter1", "[8]"):
        rt.DistributedOptimizer(plain, [named[0], *named[2:]])
    with parallel.raises(rueda.InvalidArgumentError, "pairs"):
        rt.DistributedOptimizer(plain, shared.parameters())
    with parallel.raises(rueda.InvalidArgumentError, "backward_passes_per_step=0"):
        rt.DistributedOptimizer(plain, named, backward_passes_per_step=0)
    with parallel.raises(rueda.InvalidArgumentError, "averaged or summed"):
        rt.DistributedOptimizer(plain, named, op=rt.Max)
    with parallel.raises(rueda.InvalidArgumentError, "predivide"):
        rt.DistributedOptimizer(plain, named, op=rt.Sum, gradient_predivide_factor=2.0)
    with parallel.raises(rueda.InvalidArgumentError, "already"):
        rt.DistributedOptimizer(distributed, named)


def check_models_that_differ() -> None:
    if rueda.size() == 1:
        return
    me, last = rueda.rank(), rueda.size() - 1
    layer = nn.Linear(3, 2 if me != last else 4, bias=False)
    optimizer = rt.DistributedOptimizer(sgd(list(layer.parameters())), layer.named_parameters())
    layer(torch.ones(1, 3)).sum().backward()
    with parallel.raises(rueda.MismatchError, "weight'", "[2, 3]", "[4, 3]", f"rank {last}"):
        optimizer.step()
    layer = nn.Linear(3, 2)
    optimizer = rt.DistributedOptimizer(sgd(list(layer.parameters())), layer.named_parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def check_sparse_gradients_are_refused() -> None:
    me, last = rueda.rank(), rueda.size() - 1
    table = nn.Embedding(5, 2, sparse=me == last)
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters()
    )
    table(torch.tensor([1, 2])).sum().backward()
    with parallel.raises(rueda.UnsupportedError, "weight'", f"rank {last}", "sparse=False"):
        optimizer.step()
    parallel.still_works()


def check_process_set() -> None:
    n, me = rueda.size(), rueda.rank()
    members = rueda.add_process_set(range(max(1, n - 1)))
    if members.included():
        shared = model()
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(shared.parameters(), lr=0.1), None, process_set=members
        )
        shared[0].bias.grad = None
        (shared(torch.ones(1, 6).double()).sum() * me).backward()
        optimizer.step()
        gathered = rueda.allgather_object(
            [p.detach().numpy() for p in shared.parameters()], process_set=members
        )
        for other in gathered[1:]:
            for a, b in zip(gathered[0], other, strict=True):
                np.testing.assert_array_equal(a, b)
    rueda.barrier()
    rueda.remove_process_set(members)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
