"""Every rank: tensors that are received have the memory layout that fused optimizers require."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import parallel
import rueda
import rueda.checkpoint as ck
import rueda.elastic
import rueda.horovod.torch as hvd
import rueda.torch as rt
import torch
from parallel import folder
from rueda.checkpoint import content
from rueda.torch.state_exchange import exchange_state
from torch import nn

Optimizer = torch.optim.Optimizer
# These pass through memory without a look at strides, so that state in another layout goes to other elements.
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "Adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True, fused=True),
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "not fused": partial(torch.optim.AdamW, lr=0.01),
}


def network(seed: int = 0, is_row_major: bool = False) -> nn.Module:
    """With weights in channels_last, one of them with extents of 1, and a transposed one; or all row-major."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(96, 5)
    )
    if not is_row_major:
        module = module.to(memory_format=torch.channels_last)
        module[4].weight = nn.Parameter(module[4].weight.detach().t().contiguous().t())
    return module


def train(module: nn.Module, optimizer: Optimizer, steps: range) -> None:
    """With the same gradients in every layout, laid out like the parameters, as autograd does it."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for each in module.parameters():
            each.grad = torch.empty_like(each).copy_(torch.randn(each.shape, generator=generator))
        optimizer.step()


def trained(make: Callable[..., Optimizer]) -> tuple[nn.Module, Optimizer]:
    """After three steps."""
    module = network()
    optimizer = make(module.parameters())
    train(module, optimizer, range(3))
    return module, optimizer


def as_uninterrupted(make: Callable[..., Optimizer], steps: int) -> list[torch.Tensor]:
    module = network()
    train(module, make(module.parameters()), range(steps))
    return list(module.parameters())


def has_its_layouts(module: nn.Module, optimizer: Optimizer) -> None:
    for parameter in module.parameters():
        for name, each in optimizer.state[parameter].items():
            if each.dim():
                assert each.stride() == parameter.stride(), (name, each.stride())


def goes_on_as_uninterrupted(
    module: nn.Module,
    optimizer: Optimizer,
    make: Callable[..., Optimizer],
    about: object = None,
    to_the_bit: bool = True,
) -> None:
    """What has the state of three steps has its layouts, and takes three more."""
    has_its_layouts(module, optimizer)
    train(module, optimizer, range(3, 6))
    expected = as_uninterrupted(make, 6)
    if to_the_bit:
        assert all(map(torch.equal, module.parameters(), expected)), about
    else:
        torch.testing.assert_close(list(module.parameters()), expected)


def broadcast(module: nn.Module, optimizer: Optimizer) -> None:
    rt.broadcast_parameters(module.state_dict(), root_rank=0)
    rt.broadcast_optimizer_state(optimizer, root_rank=0)


def broadcast_by_horovod(module: nn.Module, optimizer: Optimizer) -> None:
    hvd.broadcast_parameters(module.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def synchronize_by_horovod(module: nn.Module, optimizer: Optimizer) -> None:
    state = hvd.elastic.TorchState(module, optimizer)
    state.sync()
    train(module, optimizer, range(90, 91))
    state.restore()


def synchronize(module: nn.Module, optimizer: Optimizer) -> None:
    state = rueda.elastic.State(module=module, optimizer=optimizer)
    state.sync()
    train(module, optimizer, range(90, 91))
    state.restore()


DOORS = (broadcast, broadcast_by_horovod, synchronize_by_horovod, synchronize)


def check_every_door() -> None:
    for door in DOORS:
        for name, make in OPTIMIZERS.items():
            for steps_of_others in (0, 1):  # without state, or with an older one
                is_root = rueda.rank() == 0
                module = network(rueda.rank())
                optimizer = make(module.parameters())
                train(module, optimizer, range(3 if is_root else steps_of_others))
                door(module, optimizer)
                goes_on_as_uninterrupted(module, optimizer, make, (door, name))


def check_ranks_with_other_layouts() -> None:
    """State is laid out like the parameters of the rank that uses it."""
    for is_root_row_major in (False, True):
        for door in DOORS:
            for make in OPTIMIZERS.values():
                is_root = rueda.rank() == 0
                module = network(rueda.rank(), is_root == is_root_row_major)
                optimizer = make(module.parameters())
                train(module, optimizer, range(3 if is_root else 0))
                door(module, optimizer)
                goes_on_as_uninterrupted(module, optimizer, make, to_the_bit=False)


def check_state_that_differs_from_its_parameter_stays_like_that() -> None:
    """As on the root, which goes on with it."""
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    if rueda.rank() == 0:
        train(module, optimizer, range(1))
        kept = optimizer.state[module[0].weight]
        kept["exp_avg"] = kept["exp_avg"].contiguous()
        kept["own"] = [torch.arange(6).view(2, 3).t(), torch.arange(12).view(3, 4)[:, ::2]]
    rt.broadcast_optimizer_state(optimizer, root_rank=0)
    kept = optimizer.state[module[0].weight]
    assert kept["exp_avg"].stride() == (27, 9, 3, 1)
    assert kept["exp_avg_sq"].stride() == (27, 1, 9, 3)
    assert kept["own"][0].stride() == (1, 3)
    assert torch.equal(kept["own"][0], torch.arange(6).view(2, 3).t().float())
    assert torch.equal(kept["own"][1], torch.arange(12).view(3, 4)[:, ::2].float())


def check_survivors_that_take_the_state_of_others() -> None:
    """Those who have not taken a step that others have, and those who have nothing."""
    size = rueda.size()
    for name, make in OPTIMIZERS.items():
        for behind in (0, 2):
            module = network()
            optimizer = make(module.parameters())
            is_source = rueda.rank() >= size // 2
            train(module, optimizer, range(3 if is_source else behind))
            exchange_state([module], optimizer, range(size // 2, size))
            goes_on_as_uninterrupted(module, optimizer, make, (name, behind))


def check_checkpoints() -> None:
    for name, make in OPTIMIZERS.items():
        for is_row_major in (False, True):  # where it is loaded
            with folder() as path:
                module, optimizer = trained(make)
                ck.save(path, 3, module=module, optimizer=optimizer).result(60)
                again = network(9, is_row_major)
                other = make(again.parameters())
                ck.load(path, module=again, optimizer=other)
                goes_on_as_uninterrupted(again, other, make, name, not is_row_major)


def check_checkpoints_of_earlier_versions() -> None:
    """These have no strides: what has a parameter's shape is laid out like it."""
    make = OPTIMIZERS["Adam"]
    with folder() as path:
        module, optimizer = trained(make)

        def without(kept: Any) -> dict[str, Any]:
            return {name: each for name, each in vars(kept).items() if name != "strides"}

        with (
            mock.patch.object(content.Slot, "__getstate__", without, create=True),
            mock.patch.object(content.Kind, "__getstate__", without, create=True),
        ):
            pending = ck.save(
                path, 3, module=module, optimizer=optimizer, each_rank=module[0].weight.data
            )
        pending.result(60)
        again = network(9)
        other = make(again.parameters())
        loaded = ck.load(path, module=again, optimizer=other)
        assert torch.equal(loaded.each_rank[rueda.rank()], module[0].weight)
        goes_on_as_uninterrupted(again, other, make)


def check_values_of_each_rank_in_checkpoints() -> None:
    """Such as the state of another optimizer."""
    make = OPTIMIZERS["Adam"]
    with folder() as path:
        module, optimizer = trained(make)
        states = [module.state_dict(), optimizer.state_dict()]
        pending = ck.save(path, 3, extra=states, each_rank=states)
        pending.result(60)
        loaded = ck.load(path)
        for model_state, optimizer_state in (loaded.extra, *loaded.each_rank):
            again = network(9)
            other = make(again.parameters())
            again.load_state_dict(model_state)
            other.load_state_dict(optimizer_state)
            goes_on_as_uninterrupted(again, other, make)


def loss_of(module: nn.Module, number: int) -> torch.Tensor:
    inputs = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(number))
    return module(inputs).square().mean()


def check_gradients_of_ranks_with_other_layouts() -> None:
    """Ranks reduce gradients, in buckets and without, each with the strides of its parameters."""
    make = OPTIMIZERS["SGD"]
    for options in ({}, {"gradient_as_bucket_view": False}):
        alone = network()
        single = make(alone.parameters())
        module = network(is_row_major=rueda.rank() > 0)
        optimizer = rt.DistributedOptimizer(
            make(module.parameters()), module.named_parameters(), **options
        )
        for step in range(4):
            for each, its in ((alone, single), (module, optimizer)):
                its.zero_grad()
                loss_of(each, step).backward()
                its.step()
        for parameter in module.parameters():
            assert parameter.grad.stride() == parameter.stride()
        torch.testing.assert_close(list(module.parameters()), list(alone.parameters()))


# Several buckets, only some of which have gradients of another layout.
BUCKETS: dict[str, Any] = {"gradient_as_bucket_view": True, "bucket_bytes": 256}
WAYS_TO_TRAIN: dict[str, Callable[[nn.Module, Optimizer], Any]] = {
    "wrap": rt.wrap,
    "rueda": lambda module, its: rt.DistributedOptimizer(its, module.named_parameters(), **BUCKETS),
    "deferred": lambda module, its: rt.DistributedOptimizer(
        its, module.named_parameters(), overlap_forward=True, **BUCKETS
    ),
    "horovod": lambda module, its: hvd.DistributedOptimizer(its, module.named_parameters()),
}


def convert(module: nn.Module) -> None:
    module.to(memory_format=torch.channels_last)


def convert_parameters_alone(module: nn.Module) -> None:
    """Their gradients stay where they are."""
    for each in module.parameters():
        if each.dim() == 4:
            each.data = each.data.to(memory_format=torch.channels_last)


def follows_its_layout(
    way: str,
    make: Callable[..., Optimizer],
    module: nn.Module,
    change: Callable[[int], None],
    clears: bool,
) -> list[tuple[int, ...]]:
    """Trains a module that ``change`` converts, as well as one that is not converted; returns gradients' strides."""
    alone = network(is_row_major=True)
    single = make(alone.parameters())
    optimizer = WAYS_TO_TRAIN[way](module, make(module.parameters()))
    for step in range(8):
        change(step)
        for each, its in ((alone, single), (module, optimizer)):
            its.zero_grad(set_to_none=clears)
            loss_of(each, step).backward()
            its.step()
    if way == "deferred":
        optimizer.finish_updates()
    torch.testing.assert_close(list(module.parameters()), list(alone.parameters()))
    for parameter in module.parameters():
        assert parameter.grad.stride() == parameter.stride(), way
    return [parameter.grad.stride() for parameter in module.parameters()]


def check_models_that_are_converted_while_they_are_trained() -> None:
    """On all ranks, or on the first alone: gradients have the strides of their parameters from the same step on."""
    make = partial(torch.optim.SGD, lr=0.1, fused=True)  # its state would have the old strides
    for way in WAYS_TO_TRAIN:
        for to_other_layout in (convert, convert_parameters_alone):
            for on_all in (True, False):
                for clears in (True, False):
                    if rueda.size() == 1 and not (clears or to_other_layout is convert):
                        continue  # without buckets, gradients are as torch leaves them
                    module = network(is_row_major=True)

                    def change(
                        step: int,
                        module: nn.Module = module,
                        takes_part: bool = on_all or rueda.rank() == 0,
                        to_other_layout: Callable[[nn.Module], None] = to_other_layout,
                    ) -> None:
                        if step == 4 and takes_part:
                            to_other_layout(module)

                    strides = follows_its_layout(way, make, module, change, clears)
                    is_converted = on_all or rueda.rank() == 0
                    assert (strides[0] == (27, 1, 9, 3)) == is_converted, way


def check_converted_gradients_are_in_buckets_again() -> None:
    module = network(is_row_major=True)
    optimizer = WAYS_TO_TRAIN["rueda"](module, torch.optim.SGD(module.parameters(), lr=0.1))
    for step in range(6):
        if step == 2:
            convert(module)
        optimizer.zero_grad()
        loss_of(module, step).backward()
        optimizer.step()
    buckets = optimizer.gradient_buckets()
    names = {name for bucket in buckets.names for name in bucket}
    assert names == {name for name, _ in module.named_parameters()}, buckets
    assert len(buckets.names) > 1


def check_averages_that_become_gradients() -> None:
    """Of strategies and of reproducible training."""
    make = OPTIMIZERS["SGD"]
    alone = network()
    single = make(alone.parameters())
    accumulating = network()
    by_strategy = rt.wrap(accumulating, make(accumulating.parameters()), strategy="accumulate:2")
    module = network()
    reproducible = rt.DistributedOptimizer(
        make(module.parameters()), module.named_parameters(), reproducible=True, leaves=4
    )
    for step in range(3):
        single.zero_grad()
        loss_of(alone, step).backward()
        single.step()
        for _ in range(2):
            by_strategy.zero_grad()
            loss_of(accumulating, step).backward()
            by_strategy.step()
        reproducible.zero_grad()
        for _ in reproducible.leaves():
            loss_of(module, step).backward()
        reproducible.step()
    for trained in (accumulating, module):
        torch.testing.assert_close(list(trained.parameters()), list(alone.parameters()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
