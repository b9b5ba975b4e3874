"""Every rank of three: the last is killed while GPU tensors are in flight; the others go on."""

from __future__ import annotations

import copy
import os
import signal

import device  # finds what the checks on CPUs share
from device import DEVICE, ON_GPU

os.environ["CHECKED_DEVICE"] = str(DEVICE)

import parallel
import rueda
import rueda.elastic
import rueda.torch as rt
import torch
from torch.nn import functional as F
from training import adam, batch, close, model, same_bits, share

STEPS = 9
COUNT = 5_000_011  # elements: an allreduce through the host takes some tens of ms


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def check_the_others_recover_with_tensors_under_way() -> None:
    size = rueda.size()
    assert size == 3, "the world is to have three ranks"
    values = torch.full((COUNT,), rueda.rank() + 1.0, device=DEVICE)
    assert torch.all(rt.allreduce(values, "before", op=rt.Sum) == 6)
    under_way = [rt.allreduce_async(values, f"under way {n}", op=rt.Sum) for n in range(3)]
    if rueda.rank() == 2:
        die()
    causes = []
    for handle in under_way:
        try:
            assert torch.all(handle.result() == 6)  # if it finished before the rank died
        except rueda.PeerLostError as error:
            causes.append(error.peer)
    while not causes:
        try:
            rt.allreduce(values, "until it is noticed", op=rt.Sum)
        except rueda.PeerLostError as error:
            causes.append(error.peer)
    assert set(causes) == {2}, causes
    recovery = rueda.recover()
    assert list(recovery.lost) == [2], recovery
    with device.counted() as grown:
        for _ in range(3):
            assert torch.all(rt.allreduce(values, "after", op=rt.Sum) == 3)
    device.must_have_taken_its_road(grown)


def check_training_goes_on() -> None:
    """Ranks always share the whole batch, so the model equals that of one process."""
    members = rueda.size()
    assert members == 2, "the check before has lost one"
    trained = model()
    alone = copy.deepcopy(trained)
    optimizer = rt.DistributedOptimizer(
        adam(list(trained.parameters())), trained.named_parameters()
    )
    for step in rueda.elastic.steps(STEPS, trained, optimizer):
        with step:
            x, y = batch(step.number)
            optimizer.zero_grad()
            F.cross_entropy(trained(share(x)), share(y)).backward()
            if step.number == STEPS // 2 and rueda.rank() == 1:
                die()
            optimizer.step()
    assert rueda.size() == 1
    single = adam(list(alone.parameters()))
    for step in range(STEPS):
        x, y = batch(step)
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()
    close(trained, alone)
    same_bits(*trained.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    parallel.run(globals())
