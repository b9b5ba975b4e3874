"""Every rank: what has completed once a barrier of the backend "rueda" has."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from datetime import timedelta

import rueda
import torch
import torch.distributed as dist
from c10d import DEVICE, raises, run, still_works
from rueda.torch.c10d.monitored_barrier import limit_of
from torch.futures import Future

# Tensors, and what they contain once the collectives that write them have completed.
Results = list[tuple[torch.Tensor, torch.Tensor]]
Group = dist.ProcessGroup | None


def pass_by_polling(group: Group) -> None:
    work = dist.barrier(group, async_op=True)
    until = time.monotonic() + 60
    while not work.is_completed():
        assert time.monotonic() < until, "the barrier does not complete"
    error = work.exception()
    if error is not None:
        raise error


def pass_by_the_second_of_two(group: Group) -> None:
    first = dist.barrier(group, async_op=True)
    dist.barrier(group, async_op=True).wait()
    assert first.is_completed()


# The ways to wait for a barrier.
WAYS: dict[str, Callable[[Group], object]] = {
    "sync": dist.barrier,
    "work": lambda group: dist.barrier(group, async_op=True).wait(),
    "result": lambda group: dist.barrier(group, async_op=True).result(),
    "future": lambda group: dist.barrier(group, async_op=True).get_future().wait(),
    "polling": pass_by_polling,
    "second": pass_by_the_second_of_two,
}


def of(rank: int, offset: int = 0) -> torch.Tensor:
    return torch.full((200, 250), float(rank + 1 + offset))


def columns_of(rank: int, offset: int = 0) -> torch.Tensor:
    """Not contiguous: results are copied to it."""
    return of(rank, offset).t()


def begun(group: Group) -> Results:
    """Begins collectives that nobody waits for."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results: Results = []
    for arrange in (of, columns_of):
        total = sum(arrange(each) for each in range(size))
        tensors = [arrange(rank) for _ in range(4)]
        for tensor in tensors:
            dist.all_reduce(tensor, group=group, async_op=True)
            results.append((tensor, total))
        sent = arrange(rank)
        dist.broadcast(sent, size - 1, group=group, async_op=True)
        results.append((sent, arrange(size - 1)))
        outputs = [torch.zeros_like(sent) for _ in range(size)]
        dist.all_gather(outputs, arrange(rank), group=group, async_op=True)
        results += [(output, arrange(each)) for each, output in enumerate(outputs)]
        part = torch.zeros_like(sent)
        inputs = [arrange(rank, each) for each in range(size)]
        dist.reduce_scatter(part, inputs, group=group, async_op=True)
        results.append((part, sum(arrange(each, rank) for each in range(size))))
    if DEVICE.type == "cpu":
        sparse = torch.eye(3).to_sparse()
        dist.all_reduce(sparse, group=group, async_op=True)
        results.append((sparse, torch.eye(3).to_sparse() * size))
    return results


def check_what_has_begun_before() -> None:
    for group in (None, dist.new_group()):
        for name, pass_barrier in WAYS.items():
            for _ in range(3):
                results = begun(group)
                pass_barrier(group)
                wrong = [
                    number
                    for number, (tensor, expected) in enumerate(results)
                    if not torch.equal(tensor.to_dense(), expected.to_dense())
                ]
                assert not wrong, (name, wrong)


def check_callbacks_that_wait_for_the_barrier() -> None:
    """Whichever thread settles the collective, its future's callback can wait for a barrier begun after it."""
    size = dist.get_world_size()
    for _ in range(20):
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        tensor = columns_of(0)
        dist.all_reduce(tensor, async_op=True)
        barrier = dist.barrier(async_op=True)

        def after(done: Future[list[torch.Tensor]], barrier: dist.Work = barrier) -> torch.Tensor:
            barrier.wait()
            return done.value()[0]

        chained = future.then(after)
        barrier.wait()
        assert torch.equal(tensor, columns_of(0) * size)
        assert chained.wait().tolist() == [size] * 3


def check_that_a_barrier_keeps_no_tensors() -> None:
    tensor = columns_of(0)
    is_there = weakref.ref(tensor)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    dist.barrier()
    gc.collect()
    assert is_there() is None
    assert barrier.is_success()


def check_errors_of_what_has_begun_before() -> None:
    """They stay with what has failed: all ranks pass, and go on with the same names, however quick each was."""
    if dist.get_world_size() == 1:
        return
    for name, pass_barrier in WAYS.items():
        count = 5 if dist.get_rank() == 1 else 4
        work = dist.all_reduce(torch.ones(count), async_op=True)
        later = columns_of(0)
        dist.all_reduce(later, async_op=True)
        if dist.get_rank() == 0:  # here it is settled before
            while not work.is_completed():
                pass
        pass_barrier(None)
        still_works()
        assert torch.equal(later, columns_of(0) * dist.get_world_size()), name
        assert isinstance(work.exception(), rueda.MismatchError)
        for _ in range(2):  # neither future nor polling lets the ranks restart
            with raises(rueda.MismatchError, "shape", "rank 1"):
                work.wait()
        still_works()
        dist.barrier()


def check_an_error_of_one_rank_alone() -> None:
    """All pass the barrier."""
    tensor = of(0)
    dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 0:
        tensor.resize_(2)
    dist.barrier()
    still_works()


def check_monitored_barrier_without_a_timeout() -> None:
    """Zero is a timeout as any other."""
    for unset in (None, timedelta(milliseconds=-1)):
        assert limit_of(unset, 7.0) == 7.0
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(timeout=timedelta(seconds=2))
    if rank == 0 and size > 1:
        with raises(rueda.TimeoutError, "rank 1 has not come", "within 0 s", "waiting 0ms"):
            group.monitored_barrier(timedelta(0))


def check_timeouts() -> None:
    """The last check: the group is unusable afterwards. The error says which collective is late."""
    group = dist.new_group()
    if dist.get_rank() != 0 or dist.get_world_size() == 1:
        return
    dist.all_reduce(torch.ones(4), group=group, async_op=True)
    barrier = dist.barrier(group, async_op=True)
    late = ("barrier '", "which waits for allreduce '", "has not completed within 0.1 s")
    with raises(rueda.TimeoutError, *late, "Timed out waiting 100ms"):
        barrier.wait(timedelta(seconds=0.1))


if __name__ == "__main__":
    run(globals())
