"""Every rank: unsupported input raises the same error on all ranks, and the world goes on."""

from __future__ import annotations

import device  # finds what the checks on CPUs share
import parallel
import rueda
import rueda.torch as rt
import torch
from device import DEVICE, needs_gpu
from rueda.torch import tensors


def check_world_still_works_on_gpus() -> None:
    total = rt.allreduce(torch.ones(5, device=DEVICE), name="still works", op=rt.Sum)
    device.equal(total, torch.full((5,), float(rueda.size())))


@needs_gpu
def check_index_out_of_range() -> None:
    """Torch cannot make such a tensor, so the check changes the adapter's description of one."""
    as_it_is = tensors._view
    bad = rueda.rank() == rueda.size() - 1
    if bad:
        tensors._view = lambda tensor: as_it_is(tensor)._replace(device=99)
    try:
        with parallel.raises(
            rueda.InvalidArgumentError, "'bad'", f"rank {rueda.size() - 1}", "cuda:99"
        ):
            rt.allreduce(torch.ones(8, device=DEVICE), name="bad")
    finally:
        tensors._view = as_it_is
    check_world_still_works_on_gpus()
    parallel.still_works()


@needs_gpu
def check_second_gpu_of_one_rank() -> None:
    if torch.cuda.device_count() < 2:
        return
    with parallel.raises(rueda.InvalidArgumentError, "'second'", "one rank uses one GPU"):
        rt.allreduce(torch.ones(8, device="cuda:1"), name="second")
    check_world_still_works_on_gpus()


@needs_gpu
def check_cpu_against_gpu_under_one_name() -> None:
    if rueda.size() == 1:
        return
    where = "cpu" if rueda.rank() == rueda.size() - 1 else DEVICE
    for begin in (rt.allreduce, rt.allgather):
        for _ in range(2):
            with parallel.raises(
                rueda.MismatchError, "'mixed'", "device differs", "a GPU", "the CPU"
            ):
                begin(torch.ones(6, device=where), name="mixed")
    with parallel.raises(rueda.MismatchError, "'mixed'", "device differs", "a GPU", "the CPU"):
        rt.broadcast(torch.ones(6, device=where), 0, name="mixed")
    check_world_still_works_on_gpus()
    parallel.still_works()


def check_tensors_that_are_no_good() -> None:
    bad = rueda.rank() == rueda.size() - 1
    good = torch.ones(2, 2, device=DEVICE)
    gaps = torch.ones(2, 4, device=DEVICE)[:, ::2]
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", "not contiguous"):
        rt.allreduce_(gaps if bad else good, name="bad")
    with parallel.raises(rueda.UnsupportedError, "'bad'", "sparse"):
        rt.allreduce(good.to_sparse() if bad else good, name="bad")
    with parallel.raises(rueda.UnsupportedError, "'bad'", "complex32"):
        rt.broadcast(good.to(torch.complex32) if bad else good, 0, name="bad")
    if rueda.size() > 1:
        other = good.double() if bad else good
        with parallel.raises(rueda.MismatchError, "'bad'", "float64", "float32"):
            rt.allreduce(other, name="bad")
        with parallel.raises(rueda.MismatchError, "'bad'", "shape"):
            rt.allreduce(good[:1].clone() if bad else good, name="bad")
    check_world_still_works_on_gpus()


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
