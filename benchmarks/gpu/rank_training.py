"""Training steps with the plain optimizer, DistributedOptimizer, and DistributedDataParallel over NCCL and over Rueda.

Each trains its own copy of a transformer; rounds of the four take turns. With several ranks the slowest counts.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import rueda
import rueda.torch as rt
import rueda.torch.c10d  # the backend "rueda"
import torch
import torch.distributed as dist
from rank_timing import report, synchronize
from torch import nn

WARM_UP = 3


def transformer(layers: int, width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def stepper(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    return step


def round_seconds(step: Callable[[], None], device: torch.device, steps: int) -> float:
    synchronize(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    parser.add_argument("--store", required=True, help="a file through which the ranks meet")
    options = parser.parse_args()
    device = torch.device(options.device)
    rueda.init()
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(options.store, rueda.size()),
        rank=rueda.rank(),
        world_size=rueda.size(),
    )
    over_rueda = dist.new_group(backend="rueda")
    torch.manual_seed(1)
    plain = transformer(options.layers, options.width).to(device)
    ours, theirs, through_us = (copy.deepcopy(plain) for _ in range(3))
    x = torch.randn(options.batch, 256, options.width, device=device)

    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def wrapped(model: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        return nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            process_group=group,
        )

    theirs, through_us = wrapped(theirs, None), wrapped(through_us, over_rueda)
    steps = {
        "plain": stepper(plain, adam(plain), x),
        "rueda": stepper(ours, rt.DistributedOptimizer(adam(ours), ours.named_parameters()), x),
        "ddp": stepper(theirs, adam(theirs), x),
        "ddp_over_rueda": stepper(through_us, adam(through_us), x),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    calls = 0.0  # of NCCL's, by the optimizer
    for number in range(options.rounds + WARM_UP):
        for name, step in steps.items():
            rueda.barrier()
            before = rueda.metrics()["nccl_calls"]
            taken = max(rueda.allgather_object(round_seconds(step, device, options.steps)))
            if name == "rueda":
                calls += rueda.metrics()["nccl_calls"] - before
            if number >= WARM_UP:
                seconds[name].append(taken)
    if device.type == "cuda" and calls == 0:
        raise RuntimeError("the engine did not call NCCL: nothing was compared")
    if rueda.rank() == 0:
        report(
            ranks=rueda.size(),
            parameters=sum(p.numel() for p in plain.parameters()),
            tensors=len(list(plain.parameters())),
            nccl_calls_per_step=calls / ((options.rounds + WARM_UP) * options.steps),
            **{name: statistics.median(values) for name, values in seconds.items()},
        )
    dist.destroy_process_group()
    rueda.shutdown()


if __name__ == "__main__":
    main()
