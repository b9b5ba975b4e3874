"""Every rank: "rueda" as the backend of GPUs beside another for the CPU, or the other way around."""

from __future__ import annotations

import os

from device import DEVICE, ON_GPU, needs_gpu

os.environ["CHECKED_DEVICE"] = str(DEVICE)

import c10d
import check_c10d_collectives
import check_c10d_devices
import check_c10d_training
import rueda
import torch
import torch.distributed as dist


@needs_gpu
def check_tensors_of_either_device() -> None:
    size = dist.get_world_size()
    for kind in (torch.device("cpu"), DEVICE):
        tensor = torch.ones(1000, device=kind)
        dist.all_reduce(tensor)
        assert tensor.device == kind
        device_is_ours = kind.type == check_c10d_devices.OURS
        before = rueda.metrics()["allreduce_tensors"]
        dist.all_reduce(tensor)
        assert (rueda.metrics()["allreduce_tensors"] > before) == device_is_ours
        assert tensor.tolist() == [float(size * size)] * 1000


@needs_gpu
def check_a_future_of_the_compiled_backend() -> None:
    """Its callbacks, in C++ and Python, come after the GPU."""
    if check_c10d_devices.OURS != "cuda":
        return
    tensor = torch.zeros(1 << 20)
    for step in range(5):
        torch.cuda._sleep(20_000_000)
        tensor.fill_(step + 1.0)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2).wait()
        expected = torch.full_like(tensor, 2.0 * (step + 1) * dist.get_world_size())
        torch.testing.assert_close(doubled, expected)


if __name__ == "__main__":
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    shared = {
        check.__name__: check
        for check in (
            check_c10d_devices.check_who_serves_which_device,
            check_c10d_devices.check_works,
            check_c10d_devices.check_life_of_a_group,
            check_c10d_collectives.check_messages,
            check_c10d_collectives.check_gathers,
            check_c10d_training.check_ddp,
            check_c10d_training.check_fsdp2,
        )
    }
    own = (check_tensors_of_either_device, check_a_future_of_the_compiled_backend)
    c10d.run({**shared, **{check.__name__: check for check in own}})
