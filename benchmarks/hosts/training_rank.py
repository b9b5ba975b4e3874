"""One rank of benchmarks/hosts/training.py: trains with the contenders in turn, and writes what rank 0 has measured."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import rueda
import rueda.torch
import torch
import torch.distributed as dist
from torch import nn

WIDTH = 1024
# A model and its optimizer, and what waits for all that a step has left for later.
Contender = tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]


def model_of(layers: int) -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(1)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*parts)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """What every contender takes steps with."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def with_rueda(model: nn.Module, **options: Any) -> Contender:
    """Its own optimizer."""
    optimizer = rueda.torch.DistributedOptimizer(sgd(model), model.named_parameters(), **options)
    return model, optimizer, optimizer.finish_updates


def without_priorities(model: nn.Module) -> Contender:
    """Gradients go in the order in which they are ready."""
    contender = with_rueda(model, overlap_forward=True)
    reducer = contender[1]._rueda  # type: ignore[attr-defined]
    reducer._separate._has_priorities = reducer._bucketed._has_priorities = False
    return contender


def with_gloo(model: nn.Module) -> Contender:
    """DistributedDataParallel."""
    distributed = nn.parallel.DistributedDataParallel(model)
    return distributed, sgd(model), lambda: None


CONTENDERS: dict[str, Callable[[nn.Module], Contender]] = {
    "alone": lambda model: (model, sgd(model), lambda: None),
    "rueda": with_rueda,
    "rueda-overlap": lambda model: with_rueda(model, overlap_forward=True),
    "rueda-order": without_priorities,
    "gloo": with_gloo,
}


def take_turn(contender: Contender, data: torch.Tensor, steps: int) -> dict[str, list[float]]:
    """Seconds of steps and of their parts, but for the first, which finds the link idle, and the last."""
    model, optimizer, finish = contender
    times: dict[str, list[float]] = defaultdict(list)
    rueda.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        output = model(data)
        loss = output.square().mean()
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        times["step"].append(end - began)
        times["forward"].append(forward - began)
        times["backward"].append(backward - forward)
        began = end
    finish()
    return {part: values[1:-1] for part, values in times.items()}


def main() -> None:
    """All turns, after one of each that warms up."""
    names = json.loads(sys.argv[1])
    batch, layers, steps, turns = map(int, sys.argv[2:6])
    torch.set_num_threads(1)
    rueda.init()
    if "gloo" in names:
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        dist.init_process_group(
            "gloo", init_method=sys.argv[6], rank=rueda.rank(), world_size=rueda.size()
        )
    contenders = {name: CONTENDERS[name](model_of(layers)) for name in names}
    data = torch.randn(batch, WIDTH)
    measured: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in names}
    for turn in range(turns + 1):
        for name, contender in contenders.items():
            for part, values in take_turn(contender, data, steps).items():
                if turn > 0:
                    measured[name][part] += values
    if rueda.rank() == 0:
        print("measured", json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
