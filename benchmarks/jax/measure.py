"""An allreduce of ResNet-50's 161 gradients (102 MB, float32) from JAX and from torch: docs/benchmarks.md.

    make engines ENGINES=keras
    rueda run -np 2 .engines/keras/bin/python benchmarks/jax/measure.py

The contenders take turns. "computed" is a compiled function that computes the gradients and reduces them, as a training
step does, beside torch that computes the same and reduces in place. "given" reduces what the function has been given:
arrays that must stay, which XLA copies, beside torch's reduction into new tensors.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import rueda
import rueda.jax
import rueda.torch
import torch
from rueda.bench.train.models import resnet50_shapes


def timed(act: Callable[[], Any]) -> float:
    """Milliseconds, of the slowest rank."""
    rueda.barrier()
    began = time.perf_counter()
    act()
    return float(rueda.allreduce((time.perf_counter() - began) * 1e3, op=rueda.Max))


def main() -> None:
    """Measures, and prints a line for each contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    rueda.init()
    shapes = resnet50_shapes()
    tensors = [torch.ones(shape) for shape in shapes]
    held = {str(index): jnp.ones(shape) for index, shape in enumerate(shapes)}
    buffers = [torch.empty(shape) for shape in shapes]
    reduce_given = jax.jit(partial(rueda.jax.allreduce, name="jax given"))

    @jax.jit
    def reduce_computed(tree: Any) -> Any:
        return rueda.jax.allreduce(jax.tree.map(lambda x: x * 0.5, tree), name="jax computed")

    def torch_computed() -> None:
        for source, target in zip(tensors, buffers, strict=True):
            torch.mul(source, 0.5, out=target)
        rueda.torch.grouped_allreduce_(buffers, name="torch computed")

    contenders: dict[str, Callable[[], Any]] = {
        "rueda.torch, computed": torch_computed,
        "rueda.jax, computed": lambda: jax.block_until_ready(reduce_computed(held)),
        "rueda.torch, given": partial(rueda.torch.grouped_allreduce, tensors, name="torch given"),
        "rueda.jax, given": lambda: jax.block_until_ready(reduce_given(held)),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 3):
        for name, act in contenders.items():
            taken = timed(act)
            if turn >= 3:
                times[name].append(taken)
    if rueda.rank() == 0:
        size = sum(tensor.nbytes for tensor in tensors)
        print(f"{rueda.size()} ranks, {len(tensors)} tensors, {size / 1e6:.1f} MB, {rounds} rounds")
        print("| | median ms | least ms |\n| --- | --- | --- |")
        for name, found in times.items():
            print(f"| {name} | {statistics.median(found):.1f} | {min(found):.1f} |")
    rueda.shutdown()


if __name__ == "__main__":
    main()
