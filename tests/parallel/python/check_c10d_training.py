"""Every rank: training over torch.distributed, on the backend "rueda", against one process.

Parameters are compared after several steps with momentum, to 1e-5; they are float32, about 0.1 to
1.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import rueda
import torch
import torch.distributed as dist
from c10d import DEVICE, run
from parallel import raises
from rueda.torch import Compression
from rueda.torch.c10d import compression_hook
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

STEPS = 4
PER_RANK = 6
Optimizer = torch.optim.Optimizer


class Sometimes(nn.Module):
    """A model with a layer that takes part in odd steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(8, 8)
        self.sometimes = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, odd: bool = False) -> torch.Tensor:
        x = self.always(x)
        return self.sometimes(x) if odd else x


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 8)
    )


def sgd(parameters: object) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)  # type: ignore[arg-type]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A step's whole batch, of all ranks."""
    generator = torch.Generator("cpu").manual_seed(100 + step)
    rows = PER_RANK * dist.get_world_size()
    return (
        torch.randn(rows, 8, generator=generator, device="cpu").to(DEVICE),
        torch.randn(rows, 8, generator=generator, device="cpu").to(DEVICE),
    )


def share(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch(step)
    mine = slice(PER_RANK * dist.get_rank(), PER_RANK * (dist.get_rank() + 1))
    return x[mine], y[mine]


def train_alone(model: nn.Module, forward: Callable[..., torch.Tensor] | None = None) -> nn.Module:
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        F.mse_loss((forward or model)(x), y).backward()
        optimizer.step()
    return model


def train(model: nn.Module, optimizer: Optimizer) -> None:
    for step in range(STEPS):
        x, y = share(step)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def assert_same(found: nn.Module, expected: nn.Module, tolerance: float = 1e-5) -> None:
    pairs = zip(found.parameters(), expected.parameters(), strict=True)
    for mine, single in pairs:
        whole = mine.full_tensor() if isinstance(mine, DTensor) else mine
        torch.testing.assert_close(whole, single, rtol=tolerance, atol=tolerance)


def check_ddp() -> None:
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.001}):
        model = DistributedDataParallel(make_model(), **options)
        train(model, sgd(model.parameters()))
        assert_same(model.module, train_alone(make_model()))


def check_ddp_static_graph_and_buffers() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    parallel = DistributedDataParallel(model, static_graph=True)
    train(parallel, sgd(parallel.parameters()))
    means = [torch.empty(8) for _ in range(dist.get_world_size())]
    parallel(share(0)[0])  # broadcasts rank 0's buffers
    dist.all_gather(means, model[1].num_batches_tracked.float().expand(8).contiguous())
    assert all(torch.equal(mean, means[0]) for mean in means)


def check_ddp_no_sync() -> None:
    model = DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    optimizer = sgd(model.parameters())
    single = make_model()
    alone = sgd(single.parameters())
    for step in range(0, 2 * STEPS, 2):
        optimizer.zero_grad()
        alone.zero_grad()
        with model.no_sync():
            x, y = share(step)
            F.mse_loss(model(x), y).backward()
        x, y = share(step + 1)
        F.mse_loss(model(x), y).backward()
        for part in (step, step + 1):
            x, y = batch(part)
            F.mse_loss(single(x), y).backward()
        optimizer.step()
        alone.step()
    assert_same(model.module, single)


def check_ddp_unused_parameters() -> None:
    torch.manual_seed(1)
    module = Sometimes()
    single = copy.deepcopy(module)
    model = DistributedDataParallel(module, find_unused_parameters=True)
    optimizer, alone = sgd(model.parameters()), sgd(single.parameters())
    for step in range(STEPS):
        x, y = share(step)
        optimizer.zero_grad()
        F.mse_loss(model(x, step % 2 == 1), y).backward()
        optimizer.step()
        x, y = batch(step)
        alone.zero_grad()
        F.mse_loss(single(x, step % 2 == 1), y).backward()
        alone.step()
    assert_same(module, single)


def check_compression_hooks() -> None:
    # 8 and 11 significant bits per gradient: the parameters differ by about that part of a step.
    for compressor, tolerance in (
        (Compression.bf16, 2e-2),
        (Compression.fp16, 3e-3),
        (Compression.none, 1e-5),
    ):
        model = DistributedDataParallel(make_model())
        model.register_comm_hook(None, compression_hook(compressor))
        train(model, sgd(model.parameters()))
        assert_same(model.module, train_alone(make_model()), tolerance)
    with raises(rueda.InvalidArgumentError, "compression='int8'", "Compression.fp16"):
        compression_hook("int8")  # type: ignore[arg-type]


def check_power_sgd() -> None:
    """Its callbacks wait for further collectives."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(32, 32, device=DEVICE) for _ in range(3)])
    )
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = sgd(model.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 32).to(DEVICE)).pow(2).mean().backward()
        optimizer.step()
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    sums = parameters.clone()
    dist.all_reduce(sums)
    torch.testing.assert_close(sums / dist.get_world_size(), parameters)


def check_ddp_join() -> None:
    """Ranks with different numbers of steps."""
    rank = dist.get_rank()
    for by_initial in (True, False):
        model = DistributedDataParallel(nn.Linear(4, 1, bias=False, device=DEVICE))
        steps = []
        with model.join(divide_by_initial_world_size=by_initial):
            for step in range(2 + rank):
                model.zero_grad()
                model(torch.full((1, 4), 6.0, device=DEVICE)).sum().backward()
                steps.append(model.module.weight.grad[0, 0].item())
                assert len(steps) == step + 1
        size = dist.get_world_size()
        for step, gradient in enumerate(steps):
            there = min(size, size + 1 - step) if step > 1 else size
            expected = 6.0 * there / size if by_initial else 6.0
            assert abs(gradient - expected) < 1e-5, (step, gradient, expected)


def check_zero_redundancy_optimizer() -> None:
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9
    )
    train(model, optimizer)
    assert_same(model.module, train_alone(make_model()))
    optimizer.consolidate_state_dict(to=0)


def check_fsdp2() -> None:
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    model = make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    train(model, sgd(model.parameters()))
    assert_same(model, train_alone(make_model()))


def check_dtensor() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh(DEVICE.type, (size,))
    whole = torch.arange(float(size * 3 * 5)).reshape(size * 3, 5)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert sharded.to_local().shape == (3, 5)
    assert torch.equal(sharded.full_tensor(), whole)
    by_columns = sharded.redistribute(mesh, [Shard(1)])
    assert torch.equal(by_columns.full_tensor(), whole)
    product = (sharded @ distribute_tensor(torch.ones(5, 2), mesh, [Replicate()])).sum()
    assert product.full_tensor().item() == 2 * whole.sum().item()


def check_tensor_parallel() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh(DEVICE.type, (size,))
    model = parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        x, y = batch(step)  # the same on every rank: the layers are sharded, not the data
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    for mine, single in zip(
        model.parameters(), train_alone(make_model()).parameters(), strict=True
    ):
        whole = mine.full_tensor() if isinstance(mine, DTensor) else mine
        torch.testing.assert_close(whole, single, rtol=1e-5, atol=1e-5)


def check_two_dimensional_mesh() -> None:
    size = dist.get_world_size()
    if size % 2:
        return
    mesh = init_device_mesh(DEVICE.type, (size // 2, 2), mesh_dim_names=("data", "model"))
    rank = dist.get_rank()
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mesh.get_group("model"))
    assert tensor.item() == sum(range(rank - rank % 2, rank - rank % 2 + 2))
    dist.all_reduce(tensor, group=mesh.get_group("data"))
    assert tensor.item() == size * (size - 1) / 2


def check_pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return
    torch.manual_seed(3)
    stages = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(size)]
    single = copy.deepcopy(nn.Sequential(*stages))
    module = stages[rank]
    stage = PipelineStage(module, rank, size, DEVICE)
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=F.mse_loss)
    optimizer = sgd(module.parameters())
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=y)
        else:
            schedule.step()
        optimizer.step()
    train_alone(single)
    assert_same(module, single[rank])


def check_functional_collectives() -> None:
    import torch.distributed._functional_collectives as functional

    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    x = torch.arange(size * 2.0) + rank
    total = sum(torch.arange(size * 2.0) + r for r in range(size))
    assert torch.equal(functional.all_reduce(x, "sum", group) + 0, total)
    gathered = functional.all_gather_tensor(x, 0, group)
    assert torch.equal(gathered + 0, torch.cat([torch.arange(size * 2.0) + r for r in range(size)]))
    scattered = functional.reduce_scatter_tensor(x, "sum", 0, group)
    assert torch.equal(scattered + 0, total[2 * rank : 2 * rank + 2])
    even = [2] * size
    exchanged = functional.all_to_all_single(x, even, even, group)
    expected = torch.cat(
        [(torch.arange(size * 2.0) + r)[2 * rank : 2 * rank + 2] for r in range(size)]
    )
    assert torch.equal(exchanged + 0, expected)
    assert torch.equal(functional.broadcast(x, 0, group) + 0, torch.arange(size * 2.0))


def check_sparse_gradients() -> None:
    """E.g. those of Embedding(sparse=True), which DistributedDataParallel reduces one by one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    table = torch.nn.Embedding(10, 3, sparse=True, device="cpu")  # where they are summed
    alone = copy.deepcopy(table)
    model = torch.nn.parallel.DistributedDataParallel(table)
    for step in range(3):
        words = [torch.tensor([r, r + step, 9], device="cpu") for r in range(size)]
        model.zero_grad()
        alone.zero_grad()
        model(words[rank]).sum().backward()
        for theirs in words:
            (alone(theirs).sum() / size).backward()
        assert table.weight.grad.is_sparse
        torch.testing.assert_close(table.weight.grad.to_dense(), alone.weight.grad.to_dense())


def check_a_sharded_tensor_is_gathered() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(size)])
    tensor = sharded_tensor.full(shards, [2 * size, 3], float(7))
    gathered = torch.zeros(2 * size, 3, device="cpu") if rank == 0 else None
    tensor.gather(out=gathered)
    assert gathered is None or torch.equal(gathered, torch.full_like(gathered, 7))


def check_gradients_that_are_reduced_twice() -> None:
    """DistributedOptimizer cannot know who wrote a gradient, so its error names DistributedDataParallel."""
    if DEVICE.type != "cpu":
        return  # there it sees the writes of the host only
    for views in (False, True):
        module = nn.Linear(8, 4)
        model = DistributedDataParallel(module, gradient_as_bucket_view=views)
        optimizer = rueda.torch.DistributedOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.1), module.named_parameters()
        )
        model(torch.ones(2, 8)).sum().backward()
        told = ("while it was being reduced", "If DistributedDataParallel reduces it as well, use")
        with raises(rueda.InvalidArgumentError, *told):
            optimizer.step()
        optimizer.zero_grad()


def check_traces_of_the_profiler_show_collectives() -> None:
    x = torch.ones(3)
    model = DistributedDataParallel(nn.Linear(3, 1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(x)
        dist.broadcast(x, 0, async_op=True).wait()
        model(x).sum().backward()
    shown = Counter(event.name for event in profile.events() if event.name.startswith("rueda:"))
    assert shown["rueda:broadcast"] == 1, shown
    assert shown["rueda:allreduce"] == 2, shown  # one of them DistributedDataParallel's
    assert shown["rueda:wait"] >= 1, shown
    with torch.profiler.profile() as profile:
        pass
    dist.all_reduce(x)
    assert not profile.events()


if __name__ == "__main__":
    run(globals())
