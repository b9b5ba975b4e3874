"""Every rank: a backend of torch.distributed for each kind of device, one of which is "rueda"."""

from __future__ import annotations

import os
from datetime import timedelta

import rueda
import torch
import torch.distributed as dist
from c10d import DEVICE, raises, run, still_works

BACKEND = os.environ["CHECKED_BACKEND"]
OURS, OTHER = ("cpu", "cuda") if BACKEND.startswith("cpu:rueda") else ("cuda", "cpu")


def reduced() -> int:
    """How many tensors Rueda has reduced in this process."""
    return int(rueda.metrics()["allreduce_tensors"])


def check_who_serves_which_device() -> None:
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    for group in (dist.group.WORLD, dist.new_group(), *alone):
        if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
            continue
        assert group._get_backend(torch.device(OURS)).name() == "rueda"
        assert group._get_backend(torch.device(OTHER)).name() == "gloo"
        before = reduced()
        still_works(group)
        assert (reduced() > before) == (DEVICE.type == OURS)


def check_works() -> None:
    if DEVICE.type != OURS:
        return
    size = dist.get_world_size()
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.get_future().wait()[0].tolist() == [size] * 4
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0].tolist() == [size] * 4
    work = dist.all_reduce(torch.ones(4 + dist.get_rank()), async_op=True)
    future = work.get_future()
    for failing in (work.wait, future.wait):
        with raises(rueda.MismatchError, "shape", "[4] on rank 0"):
            failing()
    assert isinstance(work.exception(), rueda.MismatchError)
    still_works()


def check_life_of_a_group() -> None:
    if DEVICE.type != OURS:
        return
    group = dist.new_group(timeout=timedelta(seconds=60))
    group.set_timeout(timedelta(seconds=0.3))
    if dist.get_rank() == 0:
        with raises(rueda.TimeoutError, "0.3 s"):
            dist.all_reduce(torch.ones(4), group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    with raises(rueda.ShutdownError, "destroyed"):
        group.allreduce([torch.ones(4)]).wait()
    still_works()


if __name__ == "__main__":
    run(globals())
