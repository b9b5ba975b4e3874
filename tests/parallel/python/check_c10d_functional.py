"""Every rank: torch's functional operators over the backend "rueda", and its registry of works in flight."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import rueda
import torch
import torch.distributed as dist
from c10d import raises, run, still_works
from torch._C._distributed_c10d import _get_work_registry_size as registered
from torch.distributed._functional_collectives import allow_inflight_collective_as_graph_input_ctx

operators = torch.ops._c10d_functional
wait_tensor = operators.wait_tensor
Begun = tuple[dist.Work, list[torch.Tensor], list[object]]


def mine(count: int) -> torch.Tensor:
    return torch.arange(float(count)) + 10 * dist.get_rank()


def all_of(count: int) -> list[list[float]]:
    return [[number + 10.0 * rank for number in range(count)] for rank in range(size())]


def size() -> int:
    return dist.get_world_size()


def total(count: int) -> list[float]:
    return [sum(column) for column in zip(*all_of(count), strict=True)]


# Each begins a collective; returns its work, outputs, and their expected values.


def all_reduce() -> Begun:
    tensor = mine(3)
    return dist.all_reduce(tensor, async_op=True), [tensor], [total(3)]


def all_reduce_strided() -> Begun:
    tensor = torch.zeros(3, 2)[:, 0]
    tensor.copy_(mine(3))
    return dist.all_reduce(tensor, async_op=True), [tensor], [total(3)]


def all_reduce_coalesced() -> Begun:
    tensors = [mine(3), mine(2)]
    work = dist.group.WORLD.allreduce_coalesced(tensors)
    return work, tensors, [total(3), total(2)]


def reduce() -> Begun:
    tensor = mine(3)
    is_root = dist.get_rank() == 1
    work = dist.reduce(tensor, 1, async_op=True)
    return work, [tensor], [total(3) if is_root else mine(3).tolist()]


def broadcast() -> Begun:
    tensor = mine(3)
    return dist.broadcast(tensor, 1, async_op=True), [tensor], [all_of(3)[1]]


def all_gather() -> Begun:
    outputs = [torch.zeros(3) for _ in range(size())]
    return dist.all_gather(outputs, mine(3), async_op=True), outputs, [*all_of(3)]


def all_gather_into_tensor() -> Begun:
    output = torch.zeros(size(), 3)
    return dist.all_gather_into_tensor(output, mine(3), async_op=True), [output], [all_of(3)]


def gather() -> Begun:
    outputs = [torch.zeros(3) for _ in range(size())] if dist.get_rank() == 1 else []
    work = dist.gather(mine(3), outputs or None, 1, async_op=True)
    return work, outputs, [*all_of(3)] if outputs else []


def scatter() -> Begun:
    rank = dist.get_rank()
    output = torch.zeros(1)
    work = dist.scatter(output, [*mine(size()).split(1)] if rank == 1 else None, 1, async_op=True)
    return work, [output], [[rank + 10.0]]


def reduce_scatter() -> Begun:
    output = torch.zeros(1)
    work = dist.reduce_scatter(output, [*mine(size()).split(1)], async_op=True)
    return work, [output], [[total(size())[dist.get_rank()]]]


def reduce_scatter_tensor() -> Begun:
    output = torch.zeros(1)
    work = dist.reduce_scatter_tensor(output, mine(size()), async_op=True)
    return work, [output], [[total(size())[dist.get_rank()]]]


def all_to_all() -> Begun:
    outputs = [torch.zeros(1) for _ in range(size())]
    work = dist.all_to_all(outputs, [*mine(size()).split(1)], async_op=True)
    return work, outputs, [[row[dist.get_rank()]] for row in all_of(size())]


def all_to_all_single() -> Begun:
    output = torch.zeros(size())
    work = dist.all_to_all_single(output, mine(size()), async_op=True)
    return work, [output], [[row[dist.get_rank()] for row in all_of(size())]]


def receive() -> Begun:
    rank = dist.get_rank()
    output = torch.zeros(3)
    dist.isend(mine(3), (rank + 1) % size()).wait()
    source = (rank - 1) % size()
    work = dist.irecv(output, source)
    assert work is not None
    return work, [output], [all_of(3)[source]]


COLLECTIVES: list[Callable[[], Begun]] = [
    all_reduce,
    all_reduce_strided,
    all_reduce_coalesced,
    reduce,
    broadcast,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_tensor,
    all_to_all,
    all_to_all_single,
    receive,
]


def check_compiled_code_finds_works_in_flight() -> None:
    """In torch's block for it, ``wait_tensor()`` of any output waits."""
    for begin in COLLECTIVES:
        with allow_inflight_collective_as_graph_input_ctx():
            work, outputs, expected = begin()
        assert registered() == len(outputs), begin
        for output, values in zip(outputs, expected, strict=True):
            assert wait_tensor(output).tolist() == values, begin
        assert registered() == 0
        work.wait()


def check_a_work_that_was_waited_for_is_not_kept() -> None:
    for begin in COLLECTIVES:
        with allow_inflight_collective_as_graph_input_ctx():
            work, outputs, expected = begin()
            work.wait()
        assert [output.tolist() for output in outputs] == expected, begin
        assert registered() == 0, begin
        begin()[0].wait()
        assert registered() == 0, begin
    with allow_inflight_collective_as_graph_input_ctx():
        dist.all_reduce(torch.ones(3))
        dist.barrier(async_op=True).wait()
    assert registered() == 0


def check_outside_of_the_block_no_work_is_registered() -> None:
    for begin in COLLECTIVES:
        work = begin()[0]
        assert registered() == 0, begin
        work.wait()


def check_compiled_code_waits_for_a_late_rank() -> None:
    compiled = torch.compile(lambda t: wait_tensor(t) * 2, fullgraph=True, backend="aot_eager")
    compiled(torch.ones(1 << 16))
    for late in range(size()):
        tensor = torch.full((1 << 16,), float(dist.get_rank() + 1))
        if dist.get_rank() == late:
            for other in range(size()):
                if other != late:
                    dist.recv(torch.zeros(1), other)
        with allow_inflight_collective_as_graph_input_ctx():
            dist.all_reduce(tensor, async_op=True)
        assert registered() == 1
        if dist.get_rank() != late:
            dist.send(torch.zeros(1), late)
        assert compiled(tensor).unique().tolist() == [size() * (size() + 1.0)]
        assert registered() == 0


def check_waiting_for_one_of_two_works_on_the_same_memory() -> None:
    """It waits for that one only, and the other one is still found."""
    rank = dist.get_rank()
    first, second = torch.zeros(2, 3)
    right, left = (rank + 1) % size(), (rank - 1) % size()
    with allow_inflight_collective_as_graph_input_ctx():
        works = [dist.irecv(first, left, tag=1), dist.irecv(second, left, tag=2)]
        assert registered() == 2
        dist.isend(mine(3), right, tag=1).wait()
        works[0].wait(timedelta(seconds=60))  # the second message has not been sent yet
        assert registered() == 1
        dist.isend(mine(3) + 1, right, tag=2).wait()
    wait_tensor(second)
    assert registered() == 0
    assert first.tolist() == all_of(3)[left]
    assert (second - 1).tolist() == all_of(3)[left]


def check_errors_reach_compiled_code() -> None:
    """Also those of a rank whose own tensor cannot be used."""
    tensor = torch.ones(3 + dist.get_rank())
    with allow_inflight_collective_as_graph_input_ctx():
        dist.all_reduce(tensor, async_op=True)
    with raises(rueda.MismatchError, "shape"):
        wait_tensor(tensor)
    still_works()
    odd = torch.ones(3, dtype=torch.float8_e4m3fn if dist.get_rank() == 1 else torch.float32)
    with allow_inflight_collective_as_graph_input_ctx():
        dist.broadcast(odd, 0, async_op=True)
    with raises(rueda.UnsupportedError, "float8"):
        wait_tensor(odd)
    assert registered() == 0
    still_works()


def check_all_gather_out() -> None:
    group = dist.group.WORLD
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        for named in (group.group_name, group):
            out = torch.zeros(size() * 3, dtype=dtype)
            given = operators.all_gather_into_tensor_out(mine(3).to(dtype), size(), named, out=out)
            assert given is out
            assert wait_tensor(given).view(size(), 3).tolist() == all_of(3)
    assert registered() == 0


def check_all_gather_out_in_groups_of_others() -> None:
    """A part of the ranks, and another backend's group, for which torch's implementation runs."""
    part = dist.new_group([0, 1])
    other = dist.new_group(backend="gloo")
    if dist.get_rank() < 2:
        out = torch.zeros(2, 3)
        name = part.group_name
        wait_tensor(operators.all_gather_into_tensor_out(mine(3), 2, name, out=out))
        assert out.tolist() == all_of(3)[:2]
    out = torch.zeros(size() * 3)
    name = other.group_name
    wait_tensor(operators.all_gather_into_tensor_out(mine(3), size(), name, out=out))
    assert out.view(size(), 3).tolist() == all_of(3)
    dist.destroy_process_group(other)


def check_all_gather_out_with_an_output_that_does_not_fit() -> None:
    out = torch.zeros(size() * 3 + (dist.get_rank() == 1))
    name = dist.group.WORLD.group_name
    with raises(rueda.InvalidArgumentError, "the output has"):
        wait_tensor(operators.all_gather_into_tensor_out(mine(3), size(), name, out=out))
    still_works()


def check_batched_messages() -> None:
    rank = dist.get_rank()
    right, left = (rank + 1) % size(), (rank - 1) % size()
    received = [torch.zeros(3), torch.zeros(2)]
    tensors = [mine(3), received[0], received[1], mine(2)]
    results = operators.batch_p2p_ops(
        ["isend", "irecv", "irecv", "isend"],
        [right, left, right, left],
        [1, 1, 2, 2],
        tensors,
        dist.group.WORLD.group_name,
    )
    for tensor in (*results, *tensors):
        wait_tensor(tensor)
    assert registered() == 0
    assert [result.numel() for result in results] == [0, 3, 2, 0]
    assert received[0].tolist() == results[1].tolist() == all_of(3)[left]
    assert received[1].tolist() == results[2].tolist() == all_of(2)[right]


def check_batched_messages_in_a_group_of_another_backend() -> None:
    """Runs torch's implementation."""
    rank = dist.get_rank()
    other = dist.new_group(backend="gloo")
    received = torch.zeros(3)
    sent = dist.isend(mine(3), (rank + 1) % size(), group=other, tag=3)
    left = (rank - 1) % size()
    (result,) = operators.batch_p2p_ops(["irecv"], [left], [3], [received], other.group_name)
    assert wait_tensor(result).tolist() == received.tolist() == all_of(3)[left]
    assert sent is not None
    sent.wait()
    assert registered() == 0
    dist.destroy_process_group(other)


if __name__ == "__main__":
    run(globals())
