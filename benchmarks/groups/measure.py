"""Many small tensors that are reduced together: through each door, beside gloo.

    rueda run -np 2 python benchmarks/groups/measure.py

Contenders take turns in the same processes; a time is that of a call, the median of rounds, on the slowest rank. The
last two rows are what a program can do that packs by itself, and what the packed tensor alone takes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rueda
import rueda.torch as rt
import rueda.torch.c10d  # the backend "rueda"
import torch
import torch.distributed as dist

ROUNDS, WARM_UP, CALLS = 25, 3, 10
SETS = {
    "161 of 4 B to 3.9 kB": [number * number % 977 + 1 for number in range(161)],
    "161 of 4 to 64 kB": [1000 + number * number % 15000 for number in range(161)],
}


def together(folder: str) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Groups of all ranks over gloo and over Rueda."""
    folder = rueda.broadcast_object(folder, 0)
    store = dist.FileStore(str(Path(folder) / "store"), rueda.size())
    dist.init_process_group("gloo", store=store, rank=rueda.rank(), world_size=rueda.size())
    return dist.group.WORLD, dist.new_group(backend="rueda")


def contenders(
    lengths: list[int], gloo: dist.ProcessGroup, over_rueda: dist.ProcessGroup
) -> dict[str, Callable[[], object]]:
    """A call of each, by what it is."""
    tensors = [torch.ones(length) for length in lengths]
    arrays = [np.ones(length, np.float32) for length in lengths]
    flat = torch.ones(sum(lengths))

    def packed(reduce: Callable[[torch.Tensor], object]) -> None:
        torch.cat(tensors, out=flat)
        reduce(flat)
        torch._foreach_copy_(tensors, list(flat.split(lengths)))

    return {
        "rueda.torch.grouped_allreduce_": lambda: rt.grouped_allreduce_(tensors, name="tensors"),
        "rueda.grouped_allreduce_, NumPy": lambda: rueda.grouped_allreduce_(arrays, name="arrays"),
        "all_reduce_coalesced over Rueda": lambda: dist.all_reduce_coalesced(
            tensors, group=over_rueda
        ),
        "all_reduce_coalesced over gloo": lambda: dist.all_reduce_coalesced(tensors, group=gloo),
        "packed by hand, over gloo": lambda: packed(lambda t: dist.all_reduce(t, group=gloo)),
        "packed by hand, over Rueda": lambda: packed(lambda t: rt.allreduce_(t, name="packed")),
        "the packed tensor alone, over Rueda": lambda: rt.allreduce_(flat, name="alone"),
    }


def measure(run: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of a call of each."""
    seconds: dict[str, list[float]] = {name: [] for name in run}
    for number in range(ROUNDS + WARM_UP):
        for name, call in run.items():
            rueda.barrier()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            taken = (time.perf_counter() - began) / CALLS
            if number >= WARM_UP:
                seconds[name].append(max(rueda.allgather_object(taken)))
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """All sets."""
    warnings.simplefilter("ignore")  # of all_reduce_coalesced, which torch may give up some day
    torch.set_num_threads(1)
    rueda.init()
    with tempfile.TemporaryDirectory() as folder:
        gloo, over_rueda = together(folder)
        for title, lengths in SETS.items():
            found = measure(contenders(lengths, gloo, over_rueda))
            if rueda.rank() == 0:
                kilobytes = sum(lengths) * 4 / 1000
                print(f"{title}, {kilobytes:.0f} kB in all, {rueda.size()} ranks: us")
                for name, taken in found.items():
                    print(f"  {name:38} {taken * 1e6:8.0f}")
        rueda.barrier()
        dist.destroy_process_group()
    rueda.shutdown()


if __name__ == "__main__":
    main()
