"""What reproducible=True costs: the same training step with and without, in turns.

    rueda run -np 3 python benchmarks/reproducible/measure.py [--rounds N] [--model small|large]

Each step is of the same 8 leaves of 16 samples. Contenders, which take turns of some steps each:

    whole         DistributedOptimizer, one backward pass over this rank's part of the batch
    leaves        DistributedOptimizer, a backward pass for each leaf of this rank, summed up in .grad
    reproducible  DistributedOptimizer(reproducible=True, leaves=8)
    exchange      an allreduce of tensors as large as the gradients, and nothing else
    tree          the same of partial sums of leaves

The table has the median over all turns, of the slowest rank each, the quotient to `leaves` (of `tree` to `exchange`) as
the median over rounds with its quartiles, and the bytes that a rank sends in a step, where they go through a transport
(RUEDA_TRANSPORT=tcp, RUEDA_ALGORITHM=ring).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import rueda
import rueda.torch
import torch
from torch import nn

LEAVES = 8
LEAF_SIZE = 16
# Width and number of layers: 0.26 MB and 101 MB of gradients.
MODELS = {"small": (128, 4), "large": (2048, 6)}
Step = Callable[[], None]


def model_of(name: str) -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(1)
    width, layers = MODELS[name]
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts)


def data_of(name: str) -> list[torch.Tensor]:
    """Of each leaf."""
    torch.manual_seed(2)
    return list(torch.randn(LEAVES, LEAF_SIZE, MODELS[name][0]))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """What every contender takes steps with."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def whole(name: str, own: list[int]) -> Step:
    """One pass."""
    model, data = model_of(name), data_of(name)
    optimizer = rueda.torch.DistributedOptimizer(sgd(model), model.named_parameters())
    batch = torch.cat([data[leaf] for leaf in own])

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def leaf_by_leaf(name: str, own: list[int]) -> Step:
    """A pass for each leaf."""
    model, data = model_of(name), data_of(name)
    optimizer = rueda.torch.DistributedOptimizer(
        sgd(model), model.named_parameters(), backward_passes_per_step=len(own)
    )

    def step() -> None:
        for leaf in own:
            (model(data[leaf]).square().mean() / len(own)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def reproducible(name: str, own: list[int]) -> Step:
    """The same along the tree."""
    model, data = model_of(name), data_of(name)
    optimizer = rueda.torch.DistributedOptimizer(
        sgd(model), model.named_parameters(), reproducible=True, leaves=LEAVES
    )

    def step() -> None:
        for leaf in optimizer.leaves():
            model(data[leaf.number]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def sizes_of(name: str) -> list[int]:
    """Elements of each layer's gradients."""
    width, layers = MODELS[name]
    return [width * (width + 1)] * layers


def exchange(name: str, own: list[int]) -> Step:
    """Of one array of each layer."""
    arrays = [rueda.empty(size, np.float32) for size in sizes_of(name)]

    def step() -> None:
        handles = [
            rueda.allreduce_async_(array, name=f"exchange.{i}") for i, array in enumerate(arrays)
        ]
        for handle in handles:
            handle.result()

    return step


def tree(name: str, own: list[int]) -> Step:
    """Of partial sums of each layer."""
    leaves = rueda.Leaves(LEAVES)
    arrays = [rueda.empty((len(leaves.partials), size), np.float32) for size in sizes_of(name)]
    results = [array[0] for array in arrays]

    def step() -> None:
        handles = [
            rueda.allreduce_leaves_async(array, leaves, name=f"tree.{i}", output=result)
            for i, (array, result) in enumerate(zip(arrays, results, strict=True))
        ]
        for handle in handles:
            handle.result()

    return step


CONTENDERS: dict[str, Callable[[str, list[int]], Step]] = {
    "whole": whole,
    "leaves": leaf_by_leaf,
    "reproducible": reproducible,
    "exchange": exchange,
    "tree": tree,
}
BESIDE = {"whole": "leaves", "reproducible": "leaves", "tree": "exchange"}


def sent() -> int:
    """Bytes, so far."""
    return rueda.metrics()["allreduce_payload_bytes_sent"]


def take_turn(step: Step, steps: int) -> float:
    """Seconds per step, of the slowest rank."""
    rueda.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return max(rueda.allgather_object((time.perf_counter() - began) / steps))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="large")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="of a turn")
    options = parser.parse_args()
    rueda.init()
    torch.set_num_threads(1)
    own = list(rueda.Leaves(LEAVES).own)
    steps = {name: make(options.model, own) for name, make in CONTENDERS.items()}
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    payload = {}
    for number in range(options.rounds):
        order = list(steps)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            before = sent()
            times[name].append(take_turn(steps[name], options.steps))
            most = max(rueda.allgather_object(sent() - before))
            payload[name] = most / options.steps
    if rueda.rank() == 0:
        print(f"{options.model}, {rueda.size()} ranks, {options.rounds} rounds")
        print("| contender | ms | beside | quotient | quartiles | bytes sent |")
        print("| --- | ---: | --- | ---: | --- | ---: |")
        for name, each in times.items():
            row = f"| {name} | {1e3 * np.median(each):.2f} |"
            beside = BESIDE.get(name)
            if beside:
                quotients = np.array(each) / np.array(times[beside])
                low, middle, high = np.percentile(quotients, [25, 50, 75])
                row += f" {beside} | {middle:.3f} | {low:.3f} to {high:.3f} |"
            else:
                row += " | | |"
            print(f"{row} {payload[name]:,.0f} |", flush=True)
    rueda.shutdown()


if __name__ == "__main__":
    main()
