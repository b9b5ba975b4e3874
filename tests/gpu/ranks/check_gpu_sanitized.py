"""One rank: a little of everything, for a checker that makes it many times slower."""

from __future__ import annotations

import check_gpu_collectives as collectives
import parallel
import torch
from device import DEVICE
from torch import nn

import rueda.torch as rt  # isort: skip - after what finds it

check_one_tensor = collectives.check_one_tensor_is_reduced_where_it_lies
check_many_tensors = collectives.check_many_tensors_are_packed_in_one_launch
check_parts = collectives.check_parts_of_different_lengths


def check_compressed_training() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 3)).to(DEVICE)
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        compression=rt.Compression.bf16,
    )
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(5, 13, device=DEVICE)).square().mean().backward()
        optimizer.step()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
