"""Two ranks on one GPU with NCCL required: both get an error that names the choice, then go on."""

from __future__ import annotations

import device  # finds what the checks on CPUs share
import parallel
import rueda
import rueda.torch as rt
import torch


@device.needs_gpu
def check_refusal() -> None:
    for _ in range(2):
        with parallel.raises(
            rueda.UnsupportedError,
            "ranks 0 and 1 share the GPU",
            "RUEDA_GPU_BACKEND=nccl",
            "RUEDA_GPU_BACKEND=staged",
        ):
            rt.allreduce(torch.ones(8, device=device.DEVICE), name="refused")
        parallel.still_works()


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
