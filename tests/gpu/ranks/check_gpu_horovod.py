"""Every rank: Horovod's API on tensors of a GPU, with SyncBatchNorm."""

from __future__ import annotations

import copy

import device  # finds what the checks on CPUs share
import parallel
import rueda.horovod.torch as hvd
import torch
from device import DEVICE, ON_GPU, counted
from torch import nn

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def check_sync_batch_norm() -> None:
    """Ranks with parts of different size get the results of BatchNorm over the whole batch."""
    parts = [2 * rank + 3 for rank in range(hvd.size())]
    torch.manual_seed(4)
    whole = torch.randn(sum(parts), 5, 4, 3, dtype=torch.float64).to(DEVICE)
    weights = torch.randn_like(whole)
    alone = nn.BatchNorm2d(5).to(DEVICE, torch.float64)
    together = hvd.SyncBatchNorm(5).to(DEVICE, torch.float64)
    together.load_state_dict(copy.deepcopy(alone.state_dict()))
    for _ in range(3):
        x = whole.clone().requires_grad_()
        mine = whole.split(parts)[hvd.rank()].clone().requires_grad_()
        with counted() as grown:
            result = together(mine)
            (result * weights.split(parts)[hvd.rank()]).sum().backward()
        expected = alone(x)
        (expected * weights).sum().backward()
        assert x.grad is not None
        assert mine.grad is not None
        torch.testing.assert_close(result, expected.split(parts)[hvd.rank()], **CLOSE)
        torch.testing.assert_close(mine.grad, x.grad.split(parts)[hvd.rank()], **CLOSE)
        if hvd.size() > 1:
            device.must_have_taken_its_road(grown)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(together, name), getattr(alone, name), **CLOSE)


def check_operations() -> None:
    tensor = torch.arange(17.0, device=DEVICE) + hvd.rank()
    average = hvd.allreduce(tensor, name="average")
    offset = (hvd.size() - 1) / 2
    torch.testing.assert_close(average, torch.arange(17.0, device=DEVICE) + offset)
    rows = torch.full((hvd.rank() + 1, 2), hvd.rank(), device=DEVICE)
    gathered = hvd.allgather(rows, name="rows")
    assert gathered[:, 0].tolist() == [r for r in range(hvd.size()) for _ in range(r + 1)]
    device.equal(hvd.broadcast(tensor, 0, name="b"), torch.arange(17.0))
    compressed = hvd.allreduce(tensor, name="c", compression=hvd.Compression.fp16)
    torch.testing.assert_close(compressed, average, rtol=1e-3, atol=1e-3)
    splits = torch.ones(hvd.size(), dtype=torch.int64, device=DEVICE)
    received, counts = hvd.alltoall(tensor[: hvd.size()].clone(), splits, name="splits")
    assert received.tolist() == [float(hvd.rank() + r) for r in range(hvd.size())]
    assert (counts.device, counts.dtype) == (splits.device, splits.dtype)


def check_optimizer() -> None:
    torch.manual_seed(2)
    layer = nn.Linear(4, 3).to(DEVICE, torch.float64)
    alone = copy.deepcopy(layer)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=0.1), named_parameters=layer.named_parameters()
    )
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    x = torch.randn(4 * hvd.size(), 4, dtype=torch.float64).to(DEVICE)
    for _ in range(3):
        optimizer.zero_grad()
        layer(x.chunk(hvd.size())[hvd.rank()]).square().mean().backward()
        optimizer.step()
        single.zero_grad()
        alone(x).square().mean().backward()
        single.step()
    torch.testing.assert_close(layer.weight, alone.weight, **CLOSE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    parallel.run(globals())
