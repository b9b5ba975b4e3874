"""One rank: training steps with the plain optimizer, with DistributedOptimizer and with DistributedDataParallel.

Each trains its own copy of a transformer; rounds of the three take turns.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import rueda
import rueda.torch as rt
import torch
import torch.distributed as dist
from rank_timing import report, synchronize
from torch import nn

ROUNDS = 15
WARM_UP = 3
STEPS = 10


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


def round_seconds(step: Callable[[], None], device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    synchronize(device)
    return (time.perf_counter() - began) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    device = torch.device(options.device)
    rueda.init()
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    torch.manual_seed(1)
    plain = transformer(options.layers, options.width).to(device)
    ours, theirs = copy.deepcopy(plain), copy.deepcopy(plain)
    x = torch.randn(options.batch, 256, options.width, device=device)

    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    wrapped = nn.parallel.DistributedDataParallel(
        theirs, device_ids=[device.index] if device.type == "cuda" else None
    )
    steps = {
        "plain": stepper(plain, adam(plain), x),
        "rueda": stepper(ours, rt.DistributedOptimizer(adam(ours), ours.named_parameters()), x),
        "ddp": stepper(wrapped, adam(wrapped), x),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    before = rueda.metrics()
    for number in range(ROUNDS + WARM_UP):
        for name, step in steps.items():
            taken = round_seconds(step, device)
            if number >= WARM_UP:
                seconds[name].append(taken)
    calls = rueda.metrics()["nccl_calls"] - before["nccl_calls"]
    if device.type == "cuda" and calls == 0:
        raise RuntimeError("the engine did not call NCCL: nothing was compared")
    report(
        section="training",
        parameters=sum(p.numel() for p in plain.parameters()),
        tensors=len(list(plain.parameters())),
        nccl_calls_per_step=calls / ((ROUNDS + WARM_UP) * STEPS),
        **{name: statistics.median(values) for name, values in seconds.items()},
    )
    dist.destroy_process_group()
    rueda.shutdown()


if __name__ == "__main__":
    main()
