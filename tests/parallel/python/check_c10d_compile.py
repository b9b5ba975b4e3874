"""Every rank: torch.compile over the collectives of the backend "rueda"."""

from __future__ import annotations

import torch
import torch._dynamo.config as dynamo
import torch._inductor.config as inductor
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from c10d import run
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def check_functional_collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    @torch.compile(fullgraph=True)
    def both(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(total + 1, 0, dist.group.WORLD) * 3

    for step in range(3):
        x = torch.arange(4.0) + rank + step
        total = 2 * sum(torch.arange(4.0) + r + step for r in range(size))
        torch.testing.assert_close(both(x), torch.cat([(total + 1) * 3] * size))


def check_ddp() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    def make() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))

    single = make()
    model = torch.compile(DistributedDataParallel(make()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone = torch.optim.SGD(single.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(50 + step)
        x, y = torch.randn(size * 4, 6), torch.randn(size * 4, 6)
        mine = slice(4 * rank, 4 * rank + 4)
        for module, own, rows in ((model, optimizer, mine), (single, alone, slice(None))):
            own.zero_grad()
            F.mse_loss(module(x[rows]), y[rows]).backward()
            own.step()
    for parameter, expected in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-6)


def check_all_gathers_that_the_compiler_joins() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = functional.all_gather_tensor(x, 0, dist.group.WORLD)
        second = functional.all_gather_tensor(y, 0, dist.group.WORLD)
        return first * 2, second * 3

    with inductor.patch(bucket_all_gathers_fx="all"):
        compiled = torch.compile(both, fullgraph=True)
        for step in range(2):
            x, y = torch.arange(8.0) + rank + step, torch.arange(16.0) - rank
            results, code = run_and_get_code(compiled, x, y)
            assert step or "all_gather_into_tensor_out" in code[0], code
            wide = torch.cat([torch.arange(8.0) + r + step for r in range(size)])
            torch.testing.assert_close(results[0], 2 * wide)
            wide = torch.cat([torch.arange(16.0) - r for r in range(size)])
            torch.testing.assert_close(results[1], 3 * wide)


def check_batched_messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size

    def exchanged(sent: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, received, left)]
        )
        for work in works:
            work.wait()
        return received + 1

    with dynamo.patch(enable_p2p_compilation=True):
        compiled = torch.compile(exchanged, fullgraph=True)
        for step in range(2):
            result = compiled(torch.full((5,), float(rank + step)), torch.zeros(5))
            assert result.tolist() == [left + step + 1.0] * 5


if __name__ == "__main__":
    run(globals())
