"""Every rank: works and futures of torch.distributed order streams and block no other stream.

As in check_gpu_streams.py, kernels that only take time stand where a missing wait would show.
"""

from __future__ import annotations

import os

import device  # finds what the checks on CPUs share
from device import DEVICE, ON_GPU, ROAD, needs_gpu

os.environ["CHECKED_DEVICE"] = str(DEVICE)

import c10d
import rueda
import torch
import torch.distributed as dist

COUNT = 1 << 20
# About 20 ms at 2 GHz.
DELAY = 40_000_000


def total() -> float:
    """The sum over ranks of rank + 1."""
    return float(sum(rank + 1 for rank in range(dist.get_world_size())))


def delayed(value: float, tensor: torch.Tensor | None = None) -> torch.Tensor:
    """Returns a tensor filled on the current stream after a delay."""
    tensor = torch.zeros(COUNT) if tensor is None else tensor
    torch.cuda._sleep(DELAY)
    return tensor.fill_(value)


def holds(tensor: torch.Tensor, value: float) -> None:
    torch.testing.assert_close(tensor.cpu(), torch.full_like(tensor, value, device="cpu"))


def check_all_reduce() -> None:
    """Not about streams, so that a rehearsal runs something."""
    tensor = torch.full((COUNT,), dist.get_rank() + 1.0)
    with device.counted() as grown:
        dist.all_reduce(tensor)
    device.must_have_taken_its_road(grown)
    holds(tensor, total())


def check_outputs_that_are_written_at_once() -> None:
    """GPU outputs without a copy: separate from the input, in place, and overlapping it."""
    size, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    for step in range(3):  # the later steps are replayed
        gathered = torch.zeros(size, 1000)
        gathered[rank] = rank + 1.0 + step
        group.all_gather_single(gathered, gathered[rank]).wait()
        for other in range(size):
            holds(gathered[other], other + 1.0 + step)
        wide = torch.full((size, 1000), rank + 1.0)
        group.reduce_scatter_single(wide[rank], wide).wait()
        holds(wide[rank], total())
        arrived = torch.zeros(size)
        group.all_to_all_single(arrived, torch.full((size,), rank + 1.0)).wait()
        assert arrived.tolist() == [other + 1.0 for other in range(size)]
        shifted = torch.full((size * 1000 + 1,), rank + 1.0)
        group.all_gather_single(shifted[1:], shifted[rank * 1000 : (rank + 1) * 1000]).wait()
        for other in range(size):
            holds(shifted[1 + 1000 * other : 1001 + 1000 * other], other + 1.0)


@needs_gpu
def check_wait_does_not_block_the_host() -> None:
    warm = torch.zeros(COUNT)
    dist.all_reduce(warm)
    torch.cuda.synchronize()
    for _ in range(20):  # 400 ms of the GPU's time
        torch.cuda._sleep(DELAY)
    warm.fill_(dist.get_rank() + 1.0)
    work = dist.all_reduce(warm, async_op=True)
    if ROAD == "nccl":
        work.wait()
        assert not torch.cuda.current_stream().query(), "the delay was too short to show anything"
        assert not work.is_completed()
    work.wait()
    holds(warm, total())
    assert work.is_completed()


@needs_gpu
def check_waiting_on_another_stream() -> None:
    side, third = torch.cuda.Stream(), torch.cuda.Stream()
    for step in range(6):
        tensor = delayed(dist.get_rank() + 1.0 + step)
        work = dist.all_reduce(tensor, async_op=True)
        copies = []
        for stream in (side, third):
            with torch.cuda.stream(stream):
                work.wait()
                copies.append(tensor * 1.0)
        torch.cuda.synchronize()
        for copy in copies:
            holds(copy, total() + dist.get_world_size() * step)


@needs_gpu
def check_results_that_are_copied_to_their_places() -> None:
    """Copies to outputs of the engine and to tensors with gaps are ordered too."""
    size, rank = dist.get_world_size(), dist.get_rank()
    side = torch.cuda.Stream()
    for _ in range(4):
        gathered = torch.zeros(size, 3, 1000).transpose(1, 2)
        source = delayed(rank + 1.0, torch.zeros(1, 3, 1000)).transpose(1, 2)
        works = [dist.group.WORLD.all_gather_single(gathered, source)]
        apart = torch.zeros(COUNT, 2)[:, 0]
        delayed(rank + 1.0, apart)
        works.append(dist.all_reduce(apart, async_op=True))
        part = torch.zeros(1000)
        works.append(
            dist.group.WORLD.reduce_scatter_single(part, delayed(1.0, torch.zeros(1000 * size)))
        )
        with torch.cuda.stream(side):
            for work in works:
                work.wait()
            copies = [tensor * 1.0 for tensor in (gathered, apart, part)]
        for work in works:
            work.wait()
        torch.cuda.synchronize()
        for other in range(size):
            holds(copies[0][other], other + 1.0)
        holds(copies[1], total())
        holds(copies[2], float(size))


@needs_gpu
def check_futures() -> None:
    size, side = dist.get_world_size(), torch.cuda.Stream()
    for step in range(6):
        tensor = delayed(dist.get_rank() + 1.0)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        # In a callback on its own stream; then on a stream that waits for the callback's future.
        chained = future.then(lambda done: done.value()[0] * 2)
        with torch.cuda.stream(side):
            after = chained.wait() + 1
            direct = future.value()[0] if step % 2 else future.wait()[0]
            copy = direct * 1.0
        torch.cuda.synchronize()
        holds(after, 2 * total() + 1)
        holds(copy, total())
    work = dist.all_reduce(torch.ones(COUNT), async_op=True)
    work.wait()
    holds(work.get_future().wait()[0], float(size))  # of a finished work


@needs_gpu
def check_memory_is_not_reused_early() -> None:
    """Memory freed after a wait on another stream, or without a wait, is reused at once."""
    side = torch.cuda.Stream()
    sums = []
    for step in range(100):
        tensor = torch.full((COUNT // 4,), dist.get_rank() + 1.0)
        if step % 4 == 0:
            torch.cuda._sleep(DELAY // 10)
        work = dist.all_reduce(tensor, async_op=True)
        if step % 2:
            with torch.cuda.stream(side):
                work.wait()
                sums.append(tensor.double().mean())
        else:
            future = work.get_future().then(lambda done: done.value()[0].double().mean())
            sums.append(future.wait())
        del tensor, work
        spoiled = torch.full((COUNT // 4,), float("nan"))
        del spoiled
    torch.cuda.synchronize()
    assert [float(value) for value in sums] == [total()] * len(sums)


@needs_gpu
def check_messages_through_the_host() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    side = torch.cuda.Stream()
    into = torch.full((COUNT,), -1.0)
    torch.cuda.synchronize()
    for step in range(4):
        sending = dist.isend(delayed(100.0 * rank + step), right)
        before = -1.0 if step == 0 else 100.0 * left + step - 1
        torch.cuda._sleep(DELAY)
        seen = into * 1.0  # reads after a delay, before the receive writes it
        receiving = dist.irecv(into, left)
        with torch.cuda.stream(side):
            receiving.wait()
            copy = into * 1.0
        sending.wait()
        receiving.wait()
        torch.cuda.synchronize()
        holds(seen, before)
        holds(copy, 100.0 * left + step)


@needs_gpu
def check_tensors_on_different_devices_are_refused() -> None:
    group, size = dist.group.WORLD, dist.get_world_size()
    on_host = torch.ones(4, device="cpu")
    with c10d.raises(rueda.InvalidArgumentError, "different devices", "cpu", "cuda:0"):
        group.all_gather_single(torch.zeros(4 * size, device="cpu"), torch.ones(4)).wait()
    with c10d.raises(rueda.InvalidArgumentError, "different devices"):
        group.allreduce_coalesced([torch.ones(4), on_host]).wait()
    if size > 1:
        with c10d.raises(rueda.MismatchError):
            group.allreduce([on_host if dist.get_rank() == 0 else torch.ones(4)]).wait()
    c10d.still_works()


@needs_gpu
def check_tensors_of_either_device() -> None:
    for kind in (torch.device("cpu"), DEVICE):
        tensor = torch.ones(1000, device=kind)
        with device.counted() as grown:
            dist.all_reduce(tensor)
        assert tensor.device == kind
        assert tensor.tolist() == [float(dist.get_world_size())] * 1000
        assert grown["allreduce_tensors"] > 0


@needs_gpu
def check_what_torch_asks_about_devices() -> None:
    c10d_module = dist.distributed_c10d
    assert c10d_module._get_object_coll_device() == "cpu"
    assert set(dist.get_backend_config().split(",")) == {"cpu:rueda", "cuda:rueda"}
    assert torch.device("cuda") in dist.group.WORLD._device_types


# Last: a spoiled capture leaves the process unusable.
@needs_gpu
def check_capture_is_refused() -> None:
    tensor = torch.ones(64)
    dist.all_reduce(tensor)
    tensor.fill_(1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.mul_(2)
        with c10d.raises(rueda.UnsupportedError, "captured into a CUDA graph"):
            dist.all_reduce(tensor)
    graph.replay()
    holds(tensor, 2.0)
    c10d.still_works()


if __name__ == "__main__":
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    c10d.run(globals())
