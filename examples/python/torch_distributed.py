"""Trains a small model in one process, and in five ways with torch.distributed over Rueda, and compares.

torchrun --nproc-per-node 3 torch_distributed.py                 # all five
rueda run -np 4 python torch_distributed.py fsdp2 pipeline
"""

import argparse
import copy

import rueda.torch.c10d  # registers the backend
import rueda.torch.parallel
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
TOLERANCE = 1e-5


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(dist.get_world_size())]
    return nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 16), *blocks)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8 * dist.get_world_size(), 16, generator=generator)
    return x, x.sin()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(
    model: nn.Module,
    rows: slice = slice(None),
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    optimizer = optimizer or make_optimizer(model)
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()


def my_rows() -> slice:
    return slice(8 * dist.get_rank(), 8 * dist.get_rank() + 8)


def ddp(model: nn.Sequential) -> nn.Module:
    """Each rank has the whole model and part of the data."""
    train(DistributedDataParallel(model, gradient_as_bucket_view=True), my_rows())
    return model


def fsdp2(model: nn.Sequential) -> nn.Module:
    """Like ddp, but each rank stores only part of every parameter."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, my_rows())
    return model


def grid(model: nn.Sequential) -> nn.Module:
    """Neighbouring ranks share one copy of the model. A strategy of Rueda trains these copies together."""
    size = dist.get_world_size()
    ranks = rueda.torch.parallel.Grid(replicate=2 if size % 2 == 0 else 1, shard=-1)
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=ranks.mesh["shard"])
    fully_shard(model, mesh=ranks.mesh["shard"])
    # "sync" is comparable with one process. "diloco:16" communicates a sixteenth as often.
    optimizer = rueda.torch.wrap(
        model, make_optimizer(model), "sync", process_set=ranks.process_set("replicate")
    )
    train(model, my_rows(), optimizer)
    return model


def tensor_parallel(model: nn.Sequential) -> nn.Module:
    """Each rank has part of two layers, and all the data."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model)
    return model


def pipeline(model: nn.Sequential) -> nn.Module:
    """Each rank has some of the layers. Batches pass through in two parts."""
    rank, size = dist.get_rank(), dist.get_world_size()
    own = model[:4] if rank == 0 else model[3 + rank : 4 + rank]
    stage = PipelineStage(own, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=mse_loss)
    optimizer = make_optimizer(own)
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        schedule.step(*([x] if rank == 0 else []), **({"target": y} if rank == size - 1 else {}))
        optimizer.step()
    for number, layer in enumerate(model):  # for the comparison, every rank gets all layers
        for parameter in layer.parameters():
            dist.broadcast(parameter.detach(), max(0, number - 3))
    return model


def main() -> None:
    ways = {f.__name__: f for f in (ddp, fsdp2, grid, tensor_parallel, pipeline)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(ways)}")
    wanted = parser.parse_args().ways or list(ways)

    torch.set_num_threads(1)
    dist.init_process_group("rueda")
    single = make_model()
    start = copy.deepcopy(single)
    train(single)
    for name in wanted:
        if name == "pipeline" and dist.get_world_size() == 1:
            continue
        trained = ways[name](copy.deepcopy(start))
        difference = 0.0
        for mine, alone in zip(trained.parameters(), single.parameters(), strict=True):
            whole = mine.full_tensor() if isinstance(mine, DTensor) else mine
            difference = max(difference, (whole - alone).abs().max().item())
        if dist.get_rank() == 0:
            print(f"{name}: parameters differ from one process's by {difference:.1e}", flush=True)
        assert difference <= TOLERANCE
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
