"""Every rank: all of torch.distributed's collectives and messages over the backend "rueda"."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import FrameType

import rueda
import torch
import torch.distributed as dist
from c10d import DEVICE, run, still_works
from parallel import raises
from torch.futures import Future

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (5, 3), (70_001,)]
Wrap = Callable[[torch.Tensor], torch.Tensor]


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements with other strides, for tensors of two dimensions."""
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, with gaps in memory."""
    return torch.stack([tensor, tensor], -1)[..., 0]


def of(
    rank: int, shape: tuple[int, ...] = (5, 3), dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """A rank's contribution."""
    count = int(torch.Size(shape).numel())
    values = (torch.arange(count) * 3 + rank) % 7
    return values.reshape(shape).to(dtype)


def members() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def sparse_of(rank: int, size: int, sparse_dims: int, dense_dims: int) -> torch.Tensor:
    """Rows 0 to `rank`, so that some are everybody's, some only the last rank's; one repeats."""
    rows = [*range(rank + 1), rank]
    indices = torch.zeros(sparse_dims, len(rows), dtype=torch.int64)
    indices[0] = torch.tensor(rows)
    values = torch.ones(len(rows), *[2] * dense_dims) * (rank + 1)
    shape = (size,) * sparse_dims + (2,) * dense_dims
    return torch.sparse_coo_tensor(indices, values, shape)


def check_allreduce_of_sparse_tensors() -> None:
    rank, size = members()
    if DEVICE.type != "cpu":
        return
    for sparse_dims, dense_dims in ((1, 0), (2, 0), (3, 0), (1, 1), (1, 3), (2, 2)):
        expected = sum(sparse_of(r, size, sparse_dims, dense_dims).to_dense() for r in range(size))
        for asynchronous in (False, True):
            for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
                tensor = sparse_of(rank, size, sparse_dims, dense_dims)
                work = dist.all_reduce(tensor, op, async_op=asynchronous)
                if work is not None:
                    work.wait()
                assert tensor.is_coalesced()
                torch.testing.assert_close(tensor.to_dense(), expected / divisor)
    for dtype in (torch.float16, torch.int64):
        tensor = (
            torch.eye(size)[rank].to(dtype).to_sparse()
            if rank
            else torch.zeros(size, dtype=dtype).to_sparse()
        )
        future = dist.group.WORLD.allreduce([tensor]).get_future()
        (result,) = future.wait()
        assert result.to_dense().tolist() == [0.0] + [1.0] * (size - 1)
    # So many rows that several exchanges are needed, even if only the future is awaited.
    for count in (900, 20_000):
        rows = (torch.arange(count) * 7)[None]
        tensor = torch.sparse_coo_tensor(rows, torch.ones(count, 4) * rank, (200_000, 4))
        (result,) = dist.group.WORLD.allreduce([tensor.clone()]).get_future().wait()
        dist.all_reduce(tensor)
        for each in (result, tensor):
            assert torch.equal(each.coalesce().indices(), rows)
            assert bool((each.coalesce().values() == size * (size - 1) / 2).all())
    still_works()


def check_allreduce() -> None:
    rank, size = members()
    for dtype in DTYPES:
        for shape in SHAPES:
            tensor = of(rank, shape, dtype)
            dist.all_reduce(tensor)
            wide = torch.complex128 if dtype.is_complex else torch.float64
            total = torch.stack([of(r, shape, dtype).to(wide) for r in range(size)]).sum(0)
            expected = total.bool() if dtype is torch.bool else total.to(dtype)
            # For unsigned integers, only the CPU can tell whether they are equal.
            assert torch.equal(tensor.cpu(), expected.cpu()), (dtype, shape, tensor, expected)
    for wrap in (transposed, spread):
        for _ in range(3):
            tensor = wrap(of(rank))
            dist.all_reduce(tensor)
            assert torch.equal(tensor, sum(of(r) for r in range(size)))
    conjugate = of(rank, (4,), torch.complex64).mul(1j).conj()
    dist.group.WORLD.allreduce([conjugate]).wait()  # dist.all_reduce() itself rejects it
    assert torch.equal(conjugate, sum(of(r, (4,), torch.complex64) for r in range(size)) * -1j)


def check_tensors_of_one_element() -> None:
    """Their shapes may differ: programs send a scalar where others receive into a tensor of shape [1]."""
    rank, size = members()
    total = size * (size + 1) / 2
    for shapes in ([()], [(1,), ()], [(), (1, 1), (1,)], [(1, 1), (1,)]):
        shape = shapes[rank % len(shapes)]

        def own(shape: tuple[int, ...] = shape) -> torch.Tensor:
            return torch.full(shape, rank + 1.0)

        def each(value: float = 0.0, shapes: list[tuple[int, ...]] = shapes) -> list[torch.Tensor]:
            return [torch.full(shapes[(rank + r) % len(shapes)], value) for r in range(size)]

        for later in (False, True):
            summed, reduced, sent, scattered, piece = (own() for _ in range(5))
            gathered, collected = each(), each()
            several = [own(), own().expand(1, 1).clone(), torch.ones(3)]
            opts = dist.AllreduceCoalescedOptions()
            works = [
                dist.all_reduce(summed, async_op=later),
                dist.reduce(reduced, 0, async_op=later),
                dist.broadcast(sent, size - 1, async_op=later),
                dist.all_gather(gathered, own(), async_op=later),
                dist.gather(own(), collected if rank == 0 else None, 0, async_op=later),
                dist.scatter(scattered, each(7.0) if rank == 0 else None, 0, async_op=later),
                dist.reduce_scatter(piece, each(rank + 1.0), async_op=later),
                dist.group.WORLD.allreduce_coalesced(several, opts),
            ]
            for work in works:
                if work is not None:
                    work.wait()
            assert [summed.item(), sent.item(), scattered.item()] == [total, size, 7.0]
            assert [reduced.item(), piece.item()] == [total if rank == 0 else rank + 1, total]
            assert [one.item() for one in gathered] == [r + 1 for r in range(size)]
            assert rank > 0 or [one.item() for one in collected] == [r + 1 for r in range(size)]
            assert [one.sum().item() for one in several] == [total, total, 3 * size]
            assert summed.shape == sent.shape == reduced.shape == piece.shape == torch.Size(shape)
    # Into lists of different shapes, some with one element.
    outputs = [torch.zeros(r + 1) if r else torch.zeros((1,) * (rank % 2)) for r in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,) if rank else (1, 1), rank + 1.0))
    assert [one.sum().item() for one in outputs] == [(r + 1) ** 2 for r in range(size)]
    still_works()


def check_reduce_ops() -> None:
    rank, size = members()
    op = dist.ReduceOp
    all_of = torch.stack([of(r, (6,)) + 1 for r in range(size)])
    whole = all_of.long()
    expected = {
        op.SUM: all_of.sum(0),
        op.AVG: all_of.mean(0),
        op.PRODUCT: all_of.prod(0),
        op.MIN: all_of.amin(0),
        op.MAX: all_of.amax(0),
    }
    for reduction, result in expected.items():
        tensor = all_of[rank].clone()
        dist.all_reduce(tensor, reduction)
        torch.testing.assert_close(tensor, result)
    bits = {op.BAND: torch.bitwise_and, op.BOR: torch.bitwise_or, op.BXOR: torch.bitwise_xor}
    for reduction, combine in bits.items():
        tensor = whole[rank].clone()
        dist.all_reduce(tensor, reduction)
        result = whole[0].clone()
        for other in whole[1:]:
            result = combine(result, other)
        assert torch.equal(tensor, result), reduction
    tensor = all_of[rank].clone()
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    torch.testing.assert_close(tensor, all_of.sum(0) / 2)


def check_coalesced() -> None:
    rank, size = members()
    tensors = [of(rank, (4,)), of(rank, (2, 3), torch.int32), transposed(of(rank)), of(rank, (0,))]
    # torch.distributed's functions take tensors of one dtype only, the group of any.
    dist.group.WORLD.allreduce_coalesced(tensors).wait()
    assert torch.equal(tensors[1], sum(of(r, (2, 3), torch.int32) for r in range(size)))
    assert torch.equal(tensors[2], sum(of(r) for r in range(size)))
    inputs = [of(rank, (4,)), of(rank, (2, 3), torch.int32)]
    outputs = [[torch.empty_like(tensor) for tensor in inputs] for _ in range(size)]
    dist.group.WORLD.allgather_coalesced(outputs, inputs).wait()
    for r in range(size):
        assert torch.equal(outputs[r][0], of(r, (4,)))
        assert torch.equal(outputs[r][1], of(r, (2, 3), torch.int32))
    group = dist.group.WORLD
    gathered = [torch.empty(size * 4), torch.empty((size * 2, 3), dtype=torch.int32)]
    group.allgather_into_tensor_coalesced(gathered, inputs).wait()
    assert torch.equal(gathered[0], torch.cat([of(r, (4,)) for r in range(size)]))
    assert torch.equal(gathered[1], torch.cat([of(r, (2, 3), torch.int32) for r in range(size)]))
    scattered = [torch.empty(4), torch.empty((2, 3), dtype=torch.int32)]
    group.reduce_scatter_tensor_coalesced(scattered, gathered).wait()
    assert torch.equal(scattered[0], of(rank, (4,)) * size)
    assert torch.equal(scattered[1], of(rank, (2, 3), torch.int32) * size)


def check_coalesced_as_they_lie() -> None:
    """No tensor needs a copy, and the group is a single handle to Python."""
    rank, size = members()
    tensors = [of(rank, (1 + number % 7,)) for number in range(40)]
    version = tensors[3]._version
    work = dist.group.WORLD.allreduce_coalesced(tensors)
    assert [id(each) for each in work.get_future().wait()] == [id(each) for each in tensors]
    for number, tensor in enumerate(tensors):
        assert torch.equal(tensor, sum(of(r, (1 + number % 7,)) for r in range(size)))
    assert tensors[3]._version > version
    # Another rank may have to copy one of its tensors, and a tensor may be empty.
    mixed = [of(rank, (3, 3)), torch.empty(0)]
    if rank == 0:
        mixed[0] = transposed(mixed[0])
    dist.group.WORLD.allreduce_coalesced(mixed).wait()
    torch.testing.assert_close(mixed[0], sum(of(r, (3, 3)) for r in range(size)))
    resized = [torch.ones(2), torch.ones(3)]
    work = dist.group.WORLD.allreduce_coalesced(resized)
    resized[1].resize_(1)
    with raises(rueda.InvalidArgumentError, "the tensor ", "resized"):
        work.wait()


def check_coalesced_with_the_same_tensor_twice() -> None:
    rank, size = members()
    for count in (5, 1 << 20):
        tensor = torch.full((count,), rank + 1.0)
        dist.group.WORLD.allreduce_coalesced([tensor, torch.ones(2), tensor]).wait()
        assert torch.equal(tensor, torch.full((count,), size * (size + 1) / 2))
    whole = torch.ones(9)
    with raises(rueda.InvalidArgumentError, "arrays 0 and 1 ", "overlap"):
        dist.group.WORLD.allreduce_coalesced([whole[:5], whole[4:]]).wait()


def check_what_is_begun_in_a_block() -> None:
    """As torch does with messages on GPUs, and before 2.6 with every batch of messages."""
    rank, size = members()
    for begin in (dist.group.WORLD.allreduce, lambda tensors: dist.all_reduce(tensors[0])):
        tensors = [of(rank + i, (5,)) for i in range(4)]
        with dist.distributed_c10d._coalescing_manager(
            None, tensors[0].device, async_ops=True
        ) as block:
            for tensor in tensors:
                begin([tensor])
        block.wait()
        for i, tensor in enumerate(tensors):
            assert torch.equal(tensor, sum(of(r + i, (5,)) for r in range(size)))
    (work,) = block.works
    assert work.is_completed()
    written = work.get_future().wait()
    assert [each.data_ptr() for each in written] == [each.data_ptr() for each in tensors]


def check_broadcast_and_reduce() -> None:
    rank, size = members()
    for root in range(size):
        for shape in SHAPES:
            tensor = of(rank, shape, torch.int64)
            dist.broadcast(tensor, root)
            assert torch.equal(tensor, of(root, shape, torch.int64))
            tensor = of(rank, shape)
            dist.reduce(tensor, root)
            total = sum(of(r, shape) for r in range(size))
            assert torch.equal(tensor, total if rank == root else of(rank, shape))
        tensor = transposed(of(rank))
        dist.broadcast(tensor, root)
        assert torch.equal(tensor, of(root))
        with torch.inference_mode():
            made = of(rank) * 1
            parts = [of(rank) * 0 for _ in range(size)]
        dist.reduce(made, root)
        assert rank != root or torch.equal(made, sum(of(r) for r in range(size)))
        dist.all_gather(parts, of(rank))
        assert all(torch.equal(part, of(r)) for r, part in enumerate(parts))


def check_what_autograd_has_saved() -> None:
    """It notices that a collective has written there, and a clone leaves it alone."""
    rank, size = members()
    for copies in (False, True):
        weights = torch.full((2,), rank + 1.0, requires_grad=True)
        loss = weights.square().mean().sqrt()
        shown = loss.detach().clone() if copies else loss.detach()
        dist.all_reduce(shown)
        assert shown.item() == size * (size + 1) / 2
        if copies:
            loss.backward()
            torch.testing.assert_close(weights.grad, torch.full((2,), 0.5))
        else:
            with raises(RuntimeError, "modified by an inplace operation"):
                loss.backward()


def check_gathers() -> None:
    rank, size = members()
    for shape in [(), (0,), (3,), (2, 5), (9001,)]:
        outputs = [torch.empty(shape) for _ in range(size)]
        outputs[-1] = transposed(outputs[-1])
        dist.all_gather(outputs, spread(of(rank, shape)))
        assert all(torch.equal(outputs[r], of(r, shape)) for r in range(size))
        for root in range(size):
            into = [torch.empty(shape) for _ in range(size)] if rank == root else None
            dist.gather(of(rank, shape), into, dst=root)
            assert into is None or all(torch.equal(into[r], of(r, shape)) for r in range(size))
            output = torch.empty(shape)
            mine = [of(10 * r, shape) for r in range(size)] if rank == root else None
            dist.scatter(output, mine, src=root)
            assert torch.equal(output, of(10 * rank, shape))
    uneven = [torch.empty(r) for r in range(size)]
    dist.all_gather(uneven, torch.full((rank,), float(rank)))
    assert all(torch.equal(uneven[r], torch.full((r,), float(r))) for r in range(size))
    for shape in (
        (),
        (1, 2),
        (1, 1, 1, 1, 1, 2, 1, 2),
        (0, 3),
    ):  # on the last rank, others on the rest
        shapes = [(r, 3) for r in range(size - 1)] + [shape]
        uneven = [torch.empty(each) for each in shapes]
        dist.all_gather(uneven, of(rank, shapes[rank]))
        assert all(torch.equal(uneven[r], of(r, shapes[r])) for r in range(size))
    flat = torch.empty(size * 3, dtype=torch.int64)
    dist.all_gather_into_tensor(flat, of(rank, (3,), torch.int64))
    assert torch.equal(flat, torch.cat([of(r, (3,), torch.int64) for r in range(size)]))
    for dtype in DTYPES:
        uneven = [torch.empty(r % 3, dtype=dtype) for r in range(size)]
        # torch.distributed's function makes complex tensors real.
        dist.group.WORLD.allgather([uneven], [of(rank, (rank % 3,), dtype)]).wait()
        expected = [of(r, (r % 3,), dtype) for r in range(size)]
        assert [each.tolist() for each in uneven] == [each.tolist() for each in expected], dtype
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": r, "text": "x" * r} for r in range(size)]
    several = [rank, "of root"] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(several, src=size - 1)
    assert several == [size - 1, "of root"]


def check_reduce_scatter() -> None:
    rank, size = members()
    for shape in [(), (0,), (3,), (2, 5)]:
        output = torch.empty(shape)
        dist.reduce_scatter(output, [of(rank + r, shape) for r in range(size)])
        assert torch.equal(output, sum(of(r + rank, shape) for r in range(size)))
        output = transposed(torch.empty(shape))
        whole = torch.stack([of(rank + r, shape) for r in range(size)])
        dist.reduce_scatter_tensor(output, whole, dist.ReduceOp.AVG)
        total = torch.stack([of(r + rank, shape) for r in range(size)]).mean(0)
        torch.testing.assert_close(output, total)
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, [torch.full((r + 1,), float(r)) for r in range(size)])
    assert torch.equal(output, torch.full((rank + 1,), float(rank * size)))


def check_alltoall() -> None:
    rank, size = members()
    outputs = [torch.empty(r + 1, 2) for r in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + 1, 2), float(10 * rank + r)) for r in range(size)])
    for r in range(size):
        assert torch.equal(outputs[r], torch.full((r + 1, 2), float(10 * r + rank)))
    even = torch.empty(size * 2, 3)
    dist.all_to_all_single(even, torch.arange(size * 6.0).reshape(size * 2, 3) + 100 * rank)
    for r in range(size):
        expected = torch.arange(size * 6.0).reshape(size * 2, 3)[2 * rank : 2 * rank + 2] + 100 * r
        assert torch.equal(even[2 * r : 2 * r + 2], expected)
    # Rank s sends s + r rows to rank r: none from 0 to 0.
    sent = [rank + r for r in range(size)]
    source = torch.cat([torch.full((n, 2), float(10 * rank + r)) for r, n in enumerate(sent)])
    target = torch.empty(sum(sent), 2)
    dist.all_to_all_single(target, source, sent, sent)
    expected = torch.cat([torch.full((n, 2), float(10 * r + rank)) for r, n in enumerate(sent)])
    assert torch.equal(target, expected)
    # In a long loop, with splits that change on some ranks only.
    for step in range(90):
        extra = step % 3 if rank == 0 else 0
        sent = [1] * (size - 1) + [1 + extra]
        coming = [1 + (step % 3 if r == 0 and rank == size - 1 else 0) for r in range(size)]
        target = torch.empty(sum(coming))
        dist.all_to_all_single(target, torch.full((sum(sent),), float(rank)), coming, sent)
        assert target.tolist() == [float(r) for r in range(size) for _ in range(coming[r])]
        uneven = [torch.empty(1 + (step % 5 if r == 0 else r)) for r in range(size)]
        dist.all_gather(uneven, torch.full_like(uneven[rank], float(rank)))
        assert all((tensor == r).all() for r, tensor in enumerate(uneven))
    empty = torch.empty(0, 4)
    dist.all_to_all_single(empty, torch.empty(0, 4))


def check_exchanges_in_place() -> None:
    rank, size = members()
    for count in (3, 70_001):
        for asynchronous in (False, True):

            def wait(work: dist.Work | None) -> None:
                if work is not None:
                    work.wait()

            gathered = torch.full((size * count,), -1.0)
            own = gathered[rank * count : (rank + 1) * count]
            own.copy_(of(rank, (count,)))
            wait(dist.all_gather_into_tensor(gathered, own, async_op=asynchronous))
            assert torch.equal(gathered, torch.cat([of(r, (count,)) for r in range(size)]))
            whole = torch.cat([of(rank + r, (count,)) for r in range(size)])
            own = whole[rank * count : (rank + 1) * count]
            wait(dist.reduce_scatter_tensor(own, whole, async_op=asynchronous))
            assert torch.equal(own, sum(of(r + rank, (count,)) for r in range(size)))
            # A different overlap of the two.
            memory = torch.zeros(size * count + 1)
            memory[1 : 1 + count] = of(rank, (count,))
            source, gathered = memory[1 : 1 + count], memory[: size * count]
            wait(dist.all_gather_into_tensor(gathered, source, async_op=asynchronous))
            assert torch.equal(gathered, torch.cat([of(r, (count,)) for r in range(size)]))
            both = torch.cat([of(10 * rank + r, (count,)) for r in range(size)])
            wait(dist.all_to_all_single(both, both, async_op=asynchronous))
            assert torch.equal(both, torch.cat([of(10 * r + rank, (count,)) for r in range(size)]))


def check_what_autograd_is_told() -> None:
    """Writes for a blocking caller are reported, also to a leaf; inference mode works too."""
    rank, size = members()
    leaf = torch.zeros(size * 3, requires_grad=True)
    part = torch.zeros(3, requires_grad=True)
    for write in (
        lambda: dist.all_gather_into_tensor(leaf, of(rank, (3,))),
        lambda: dist.reduce_scatter_tensor(part, of(rank, (size * 3,))),
        lambda: dist.all_to_all_single(leaf, of(rank, (size * 3,))),
    ):
        before = leaf._version + part._version
        write()
        assert leaf._version + part._version > before
    assert torch.equal(
        part.detach(), sum(of(r, (size * 3,))[3 * rank : 3 * rank + 3] for r in range(size))
    )
    with torch.inference_mode():
        made = torch.zeros(size * 3) * 1
    dist.all_gather_into_tensor(made, of(rank, (3,)))
    assert torch.equal(made, torch.cat([of(r, (3,)) for r in range(size)]))


def check_autograd_is_not_told_of_what_is_only_read() -> None:
    """The root of a broadcast can go on with a backward pass that has saved the tensor."""
    rank = dist.get_rank()
    for wrap in (lambda tensor: tensor, transposed, spread):
        for asynchronous in (False, True):
            leaf = torch.ones(4, 3, requires_grad=True)
            saved = wrap(leaf * 3)
            loss = (saved * saved).sum()
            version = saved._version
            work = dist.broadcast(saved.detach(), 0, async_op=asynchronous)
            if work is not None:
                work.wait()
            if rank == 0:
                assert saved._version == version
                loss.backward()
            else:
                assert saved._version > version


def check_the_keywords_of_the_group() -> None:
    """The overloads for single tensors, with the names that torch has for their parameters."""
    rank, size = members()
    group = dist.group.WORLD
    timeout = timedelta(seconds=60)
    last = size - 1
    tensor = of(rank)
    group.broadcast(tensor=tensor, root=last, timeout=timeout).wait()
    assert torch.equal(tensor, of(last))
    for begin in (
        lambda tensor: group.allreduce(tensor=tensor, op=dist.ReduceOp.MAX, timeout=timeout),
        lambda tensor: group.allreduce(tensors=[tensor], op=dist.ReduceOp.MAX),
        lambda tensor: group.reduce(
            tensor=tensor, root=last, op=dist.ReduceOp.MAX, timeout=timeout
        ),
    ):
        tensor = torch.full((3,), rank)
        begin(tensor).wait()
        assert rank < last or tensor.tolist() == [last] * 3
    outputs = [torch.empty(5, 3) for _ in range(size)]
    group.allgather(output_tensors=outputs, input_tensor=of(rank), timeout=timeout).wait()
    assert all(torch.equal(outputs[r], of(r)) for r in range(size))
    outputs = [torch.empty(5, 3) for _ in range(size)] if rank == last else []
    group.gather(output_tensors=outputs, input_tensor=of(rank), root=last, timeout=timeout).wait()
    assert all(torch.equal(output, of(r)) for r, output in enumerate(outputs))
    output = torch.empty(5, 3)
    inputs = [of(r) for r in range(size)] if rank == last else []
    group.scatter(output_tensor=output, input_tensors=inputs, root=last, timeout=timeout).wait()
    assert torch.equal(output, of(rank))
    inputs = [torch.full((2,), rank + r) for r in range(size)]
    for begin in (
        lambda output: group.reduce_scatter(output, inputs, dist.ReduceOp.MAX, timeout),
        lambda output: group.reduce_scatter(output=output, input=inputs, op=dist.ReduceOp.MAX),
        lambda output: group.reduce_scatter_single(
            outputTensor=output, inputTensor=torch.cat(inputs), opts=most()
        ),
    ):
        output = torch.empty(2, dtype=torch.int64)
        begin(output).wait()
        assert output.tolist() == [rank + last] * 2
    outputs = [torch.empty(2, dtype=torch.int64) for _ in range(size)]
    group.alltoall(outputs, inputs, timeout=timeout).wait()
    assert all((output == r + rank).all() for r, output in enumerate(outputs))
    sent = group.send([torch.full((2,), rank)], dstRank=(rank + 1) % size, tag=3)
    received = torch.empty(2, dtype=torch.int64)
    group.recv([received], srcRank=(rank - 1) % size, tag=3).wait()
    sent.wait()
    assert (received == (rank - 1) % size).all()
    group.barrier(timeout=timeout).wait()
    group.get_group_store().set("from the last" if rank == last else "from others", "it")
    assert group.get_group_store().get("from the last") == b"it"


def most() -> dist.ReduceScatterOptions:
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


def check_how_much_python_runs_for_a_caller_that_waits_at_once() -> None:
    """Limits Rueda's Python calls per CPU collective, in a loop."""
    size = dist.get_world_size()
    if DEVICE.type != "cpu":
        return
    part, whole = torch.ones(8), torch.ones(size * 8)
    output, parts = torch.empty(size * 8), [torch.empty(8) for _ in range(size)]
    limits = {
        "all_gather": (lambda: dist.all_gather_into_tensor(output, part), 55),
        "all_gather of a list": (lambda: dist.all_gather(parts, part), 60 + 12 * size),
        "reduce_scatter": (lambda: dist.reduce_scatter_tensor(part, whole), 55),
        "all_to_all": (lambda: dist.all_to_all_single(output, whole), 60),
        "broadcast": (lambda: dist.broadcast(whole, 0), 38),
        "barrier": (dist.barrier, 30),
        "all_reduce": (lambda: dist.all_reduce(output), 20),
    }
    package = os.path.dirname(rueda.__file__) + os.sep
    for name, (begin, limit) in limits.items():
        calls = 0

        def count(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            calls += event == "call" and frame.f_code.co_filename.startswith(package)

        for _ in range(40):
            begin()
        sys.setprofile(count)
        for _ in range(20):
            begin()
        sys.setprofile(None)
        assert calls <= 20 * limit, (name, calls / 20, limit)


def check_barriers() -> None:
    rank, size = members()
    entered = torch.zeros(1)
    if rank == size - 1:
        time.sleep(0.05)
        entered += 1
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.all_reduce(entered)
    assert entered.item() == 1
    for wait_all_ranks in (False, True):
        dist.group.WORLD.monitored_barrier(wait_all_ranks=wait_all_ranks)


def check_async() -> None:
    rank, size = members()
    tensors = [torch.full((1000,), float(rank + i)) for i in range(100)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        assert tensor[0] == size * (size - 1) / 2 + size * i
        assert work.is_success()
        assert work.exception() is None
    # Without a waiter: a future, and a chain of futures.
    tensor = torch.full((10,), float(rank))
    future = dist.all_reduce(tensor, async_op=True).get_future()
    chained = future.then(lambda done: done.value()[0].sum().item())
    until = time.monotonic() + 60
    while not chained.done():
        assert time.monotonic() < until, "the future does not complete by itself"
        time.sleep(0.001)
    assert chained.value() == 10 * size * (size - 1) / 2
    # The result is in place once is_completed() returns True.
    outputs = [torch.empty(3, 2).t() for _ in range(size)]
    work = dist.all_gather(outputs, of(rank, (2, 3)), async_op=True)
    while not work.is_completed():
        assert time.monotonic() < until
    assert all(torch.equal(outputs[r], of(r, (2, 3))) for r in range(size))
    # Even a result that is never awaited arrives eventually, if the group goes on.
    outputs = [torch.empty(3, 2).t() for _ in range(size)]
    dist.all_gather(outputs, of(rank, (2, 3)), async_op=True)
    arrived = torch.zeros(1)
    while arrived.item() < size:
        assert time.monotonic() < until
        arrived = torch.tensor(
            [float(all(torch.equal(outputs[r], of(r, (2, 3))) for r in range(size)))]
        )
        dist.all_reduce(arrived, async_op=True).wait()


def check_any_number_of_equal_collectives_in_flight() -> None:
    """Beginning one waits for no other rank: these would wait for each other."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(40):  # until all that precede one are equal, and so their names recur
        dist.all_reduce(torch.ones(3))
    message = torch.zeros(1)
    if rank > 0:
        dist.recv(message, rank - 1)
    tensors = [torch.full((3,), float(number)) for number in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if rank + 1 < size:
        dist.send(message, rank + 1)
    for number in reversed(range(50)):
        works[number].wait()
        assert tensors[number].tolist() == [number * size] * 3


def check_callbacks_that_wait() -> None:
    """For operations begun inside them, nested three deep, or before and after their own."""
    tensor = torch.ones(3)
    size = dist.get_world_size()

    def again(future: Future[list[torch.Tensor]], left: int = 3) -> torch.Tensor:
        value = future.value()[0]
        if left == 0:
            return value
        begun = dist.all_reduce(value, async_op=True).get_future()
        return begun.then(lambda inner: again(inner, left - 1)).wait()

    result = dist.all_reduce(tensor, async_op=True).get_future().then(again).wait()
    assert result.tolist() == [float(size**4)] * 3

    for step in (1, -1):
        if dist.get_rank() == size - 1:
            time.sleep(0.02)  # so that the other ranks' operations stay pending for a while
        futures = [
            dist.all_reduce(torch.full((4,), float(i)), async_op=True).get_future()
            for i in range(8)
        ]
        pairs = [(i, i + step) for i in range(8) if 0 <= i + step < 8]
        chained = [futures[i].then(lambda _, at=at: futures[at].wait()[0]) for i, at in pairs]  # noqa: B023
        for (_, at), one in zip(pairs, chained, strict=True):
            assert one.wait().tolist() == [float(at * size)] * 4


def check_messages() -> None:
    rank, size = members()
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    for shape in [(0,), (3,), (2, 3), (200_000,)]:
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            # All ranks send at once around a ring, with two tags in opposite orders.
            sends = [dist.isend(of(rank + tag, shape, dtype), right, tag=tag) for tag in (1, 2)]
            for tag in (2, 1):
                into = torch.empty(shape, dtype=dtype)
                assert dist.recv(into, left, tag=tag) == left
                assert torch.equal(into, of(left + tag, shape, dtype))
            for send in sends:
                send.wait()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        for arrange in (torch.clone, transposed):
            send = dist.isend(arrange(of(rank).to(dtype)), right)
            into = arrange(torch.zeros(5, 3, dtype=dtype))
            dist.recv(into, left)
            assert torch.equal(into.float(), arrange(of(left).to(dtype)).float())
            send.wait()
    into = transposed(torch.empty(5, 3))
    operations = [
        dist.P2POp(dist.isend, transposed(of(rank)), right),
        dist.P2POp(dist.irecv, into, left),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(into, of(left))


def check_messages_from_any_source() -> None:
    rank, size = members()
    for tag, count in ((9, 4), (10, 100_000)):
        if rank != 0:
            dist.send(torch.full((count,), float(rank)), 0, tag=tag)
            continue
        sources = []
        for _ in range(size - 1):
            into = torch.empty(count)
            sources.append(dist.recv(into, None, tag=tag))
            assert into[-1] == sources[-1]
        assert sorted(sources) == list(range(1, size))


def check_groups() -> None:
    rank, size = members()
    for wanted in ([0], list(range(size)), list(range(0, size, 2)), list(range(size // 2, size))):
        group = dist.new_group(wanted)
        if rank not in wanted:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            continue
        still_works(group)
        mine = wanted.index(rank)
        outputs = [torch.empty(1) for _ in wanted]
        dist.all_gather(outputs, torch.tensor([float(rank)]), group=group)
        assert [int(output) for output in outputs] == wanted
        tensor = torch.tensor([rank])
        dist.broadcast(tensor, wanted[-1], group=group)
        assert tensor.item() == wanted[-1]
        if len(wanted) > 1:
            peer = wanted[(mine + 1) % len(wanted)]
            before = wanted[(mine - 1) % len(wanted)]
            send = dist.isend(torch.tensor([rank]), peer, group=group)
            received = torch.tensor([-1])
            dist.recv(received, before, group=group)
            send.wait()
            assert received.item() == before
        dist.barrier(group)
        dist.destroy_process_group(group)
    # Only members create it, and two groups are used at the same time in different orders.
    pair = [0, size - 1] if size > 1 else [0]
    local = dist.new_group(pair, use_local_synchronization=True) if rank in pair else None
    both = dist.new_group()
    first, second = torch.ones(100), torch.ones(100)
    order = [(first, both), (second, local)] if local is not None else [(first, both)]
    if rank == 0:
        order.reverse()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in order]
    for work in works:
        work.wait()
    assert first[0] == size
    assert local is None or second[0] == len(pair)


def check_groups_that_ranks_make_without_the_others() -> None:
    """Alone, beside a rank that is alone, and in halves: torch counts on each rank, and gives these one name."""
    rank, size = members()
    rest = list(range(1, size))
    half = [peer for peer in range(size) if (peer < size // 2) == (rank < size // 2)]
    for wanted in [[rank]] * 10 + [[rank] if rank == 0 else rest] * 3 + [half] * 3:
        dist.barrier()
        group = dist.new_group(wanted)
        assert group.get_group_store() is not None
        still_works(group)
        total = torch.tensor([rank])
        dist.all_reduce(total, group=group)
        assert total.item() == sum(wanted)
        group.monitored_barrier(timedelta(seconds=60))
    every = [dist.new_group([peer]) for peer in range(size)]
    still_works(every[rank])


def check_random_sequences() -> None:
    """Any sequence that all ranks issue in the same order is right, in loops and outside."""
    rank, size = members()
    generator = random.Random(7)
    body = [generator.choice((1, 5, 300, 40_000)) for _ in range(7)]
    for step in range(30):
        sizes = body if step % 10 else [generator.choice((1, 2, 3)) for _ in range(3)]
        tensors = [torch.full((n,), float(rank)) for n in sizes]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        generator.shuffle(works)
        for work in works:
            work.wait()
        assert all(tensor[-1] == size * (size - 1) / 2 for tensor in tensors)


def huge_bytes_at(address: int) -> int:
    """The kernel's data on the mapping that contains the address."""
    is_it = False
    with open("/proc/self/smaps") as mappings:
        for line in mappings:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                begin, end = (int(word, 16) for word in words[0].split("-"))
                is_it = begin <= address < end
            elif is_it and words[0] == "AnonHugePages:":
                return int(words[1]) << 10
    return 0


def check_what_recurs_lies_on_huge_pages() -> None:
    if DEVICE.type != "cpu":
        return
    size, rank = dist.get_world_size(), dist.get_rank()
    elements = 4 << 20
    bucket = torch.empty(elements)
    found = []
    for step in range(4):
        bucket.fill_(rank + step)
        dist.all_reduce(bucket, async_op=True).wait()
        assert bool((bucket == size * (size - 1) // 2 + size * step).all()), (step, bucket)
        found.append(huge_bytes_at(bucket.data_ptr()))
    # If this kernel and this world use huge pages at all.
    if rueda._native.settle_tensor(bucket.data_ptr(), bucket.nbytes) > 0 and found[1] == 0:
        assert found[2] > 0, found


if __name__ == "__main__":
    run(globals())
