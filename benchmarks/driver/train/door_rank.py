"""A rank of one door: trains a model in one way, a few steps at a time, when the driver requests them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import rueda.torch as rueda
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..wire import Message, connect_to_driver, receive, send
from .contenders import Contender
from .models import Training, trainings


def make_door(name: str, training: Training, store: str) -> Contender:
    """A collective call. All doors start with the same parameters."""
    torch.manual_seed(7)
    module = training.make()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        module.parameters(), lr=training.learning_rate, momentum=0.9
    )

    def ddp(backend: str) -> Contender:
        from rueda.torch import c10d  # noqa: F401 - registers its backend

        dist.init_process_group(
            backend, init_method=f"file://{store}", rank=rueda.rank(), world_size=rueda.size()
        )
        wrapped = DistributedDataParallel(module, gradient_as_bucket_view=True)
        return Contender(wrapped, optimizer, training.loss)

    def horovod() -> Contender:
        import rueda.horovod.torch as hvd

        distributed = hvd.DistributedOptimizer(optimizer, module.named_parameters())
        return Contender(module, distributed, training.loss)

    def rueda_optimizer() -> Contender:
        distributed = rueda.DistributedOptimizer(optimizer, module.named_parameters())
        return Contender(module, distributed, training.loss)

    makers: dict[str, Callable[[], Contender]] = {
        "alone": lambda: Contender(module, optimizer, training.loss),
        "ddp-gloo": lambda: ddp("gloo"),
        "ddp-rueda": lambda: ddp("rueda"),
        "horovod": horovod,
        "optimizer": rueda_optimizer,
    }
    return makers[name]()


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _steps(door: Contender, count: int) -> tuple[dict[str, object], bytes]:
    """Runs and times `count` steps, which all ranks start together."""
    seconds = np.zeros(count)
    faults = 0
    for number in range(count):
        rueda.barrier()
        before = _page_faults()
        seconds[number] = door.step()
        faults += _page_faults() - before
    return {"faults": faults}, seconds.tobytes()


def _learnt(module: nn.Module) -> tuple[dict[str, object], bytes]:
    """A digest of the parameters' bits, and each parameter's norm, by which doors are compared."""
    parameters = [parameter.detach() for parameter in module.parameters()]
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.numpy().tobytes())
    answer: dict[str, object] = {
        "digest": digest.hexdigest(),
        "tensors": len(parameters),
        "bytes": sum(parameter.nbytes for parameter in parameters),
    }
    norms = np.array([float(parameter.double().norm()) for parameter in parameters])
    return answer, norms.tobytes()


def _serve(driver: socket.socket, door: Contender) -> None:
    while True:
        message: Message = receive(driver)
        if message.values["what"] == "steps":
            answer, payload = _steps(door, message.number("count"))
        else:
            answer, payload = _learnt(door.module)
        send(driver, answer, payload)


def main() -> None:
    """Joins the group and answers requests until the driver closes the connection."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    rueda.init()
    door = make_door(order["door"], trainings(rueda.rank())[order["model"]], order["store"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as driver:
        connect_to_driver(driver, order["address"])
        facts = {
            "fact.threads": torch.get_num_threads(),
            "fact.torch": torch.__version__,
            "fact.transport": rueda.options()["transport"],
        }
        hello = {"group": order["token"], "rank": rueda.rank(), "pid": os.getpid()}
        send(driver, {**facts, **hello})
        _, descriptors, _, _ = socket.recv_fds(driver, 1, 1)
        os.close(descriptors[0])  # shared memory, which training does not need
        receive(driver)  # the processors, ignored: ranks are not bound
        with contextlib.suppress(EOFError):
            _serve(driver, door)
    sys.stdout.flush()
    os._exit(0)  # the libraries' exit handlers may wait for ranks that are already gone


if __name__ == "__main__":
    main()
