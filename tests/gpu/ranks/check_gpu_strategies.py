"""Every rank: the CPU's checks of strategies, on models of the GPU."""

from __future__ import annotations

import os

import device  # finds what the checks on CPUs share
from device import DEVICE, needs_gpu

os.environ["CHECKED_DEVICE"] = str(DEVICE)

import check_torch_strategies
import check_torch_strategies_served
import check_torch_strategies_sparse_and_pairs
import check_torch_strategies_state
import parallel
import rueda.torch as rt
import torch
from simulated import fresh, train
from training import adam, same_bits

# int8 and leaves only work on CPU tensors.
FOR_CPU = {"check_diloco_with_int8", "check_a_scheduler_of_before_with_leaves"}
LEFT_OUT = FOR_CPU if DEVICE.type == "cuda" else set()


@needs_gpu
def check_int8_is_refused() -> None:
    trained, optimizer = fresh(adam)
    for strategy in ("diloco:2,codec=int8", "sync:int8"):
        with parallel.raises(rt.UnsupportedError, "only tensors on the CPU", str(DEVICE)):
            rt.wrap(trained, optimizer, strategy=strategy)
    parallel.still_works()


def check_road() -> None:
    """Means are not silently computed on the CPU."""
    trained, optimizer = fresh(adam)
    wrapped = rt.wrap(trained, optimizer, strategy="local:2")
    with device.counted() as grown:
        train(trained, wrapped, 0, 4)
    device.must_have_taken_its_road(grown)
    same_bits(*trained.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    modules = (
        check_torch_strategies,
        check_torch_strategies_sparse_and_pairs,
        check_torch_strategies_served,
        check_torch_strategies_state,
    )
    shared = {
        f"{name} of {module.__name__}": check
        for module in modules
        for name, check in vars(module).items()
        if name.startswith("check_") and name not in LEFT_OUT
    }
    parallel.run(
        {**shared, "check_int8_is_refused": check_int8_is_refused, "check_road": check_road}
    )
