"""Every rank: a mistake raises a typed error on every rank, in time, and the group goes on."""

from __future__ import annotations

import gc
import time
import weakref
from datetime import timedelta
from inspect import signature

import rueda
import torch
import torch.distributed as dist
from c10d import raises, run, still_works
from rueda.torch import Compression
from rueda.torch.c10d import compression_hook
from rueda.torch.c10d.work import say_timed_out


def check_shapes_that_differ() -> None:
    rank = dist.get_rank()
    for _ in range(3):
        with raises(rueda.MismatchError, "shape", "[4]", "[5]"):
            dist.all_reduce(torch.ones(5 if rank == 1 else 4))
        still_works()
    with raises(rueda.MismatchError, "shape", "[1]", "[2]"):  # one element, and others
        dist.all_reduce(torch.ones((2,) if rank == 1 else ()))
    with raises(rueda.MismatchError, "shape"):
        dist.broadcast(torch.ones(3 + rank), 0)
    with raises(rueda.MismatchError, "shape"):
        size = dist.get_world_size()
        dist.all_gather([torch.ones(2 + rank) for _ in range(size)], torch.ones(2 + rank))
    still_works()


def check_shapes_that_differ_with_as_many_elements() -> None:
    """The errors show the shapes that the ranks have passed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    shape = (3, 2) if rank == 1 else (2, 3)
    one = torch.ones(shape)
    each = [torch.ones(shape) for _ in range(size)]
    of_root = each if rank == 0 else None
    told = (": shape differs between ranks: [2, 3] on ", ", [3, 2] on rank 1")
    for begin in (
        lambda later: dist.all_reduce(one, async_op=later),
        lambda later: dist.reduce(one, 0, async_op=later),
        lambda later: dist.broadcast(one, 0, async_op=later),
        lambda later: dist.all_gather(each, one, async_op=later),
        lambda later: dist.gather(one, of_root, 0, async_op=later),
        lambda later: dist.scatter(one, of_root, 0, async_op=later),
        lambda later: dist.reduce_scatter(one, each, async_op=later),
    ):
        with raises(rueda.MismatchError, *told):
            begin(False)
        still_works()
        work = begin(True)
        with raises(rueda.MismatchError, *told):
            work.wait()
        error = work.exception()
        assert isinstance(error, rueda.MismatchError)
        assert (error.field, error.values) == ("shape", ("[2, 3]", "[3, 2]"))
        still_works()


def check_outputs_of_another_shape_with_as_many_elements() -> None:
    for shape, other in (((2, 3), (3, 2)), ((6,), (2, 3)), ((2,), (2, 1))):
        outputs_must_have(shape, other)
    rank, size = dist.get_rank(), dist.get_world_size()
    # One tensor for all ranks may be stacked or concatenated.
    for form in ((size * 2, 3), (size, 2, 3), (size * 6,)):
        whole = torch.zeros(form)
        dist.all_gather_into_tensor(whole, torch.full((2, 3), rank + 1.0))
        assert whole.all()
        dist.reduce_scatter_tensor(torch.zeros(2, 3), whole)
    # All shapes without elements are alike.
    dist.all_gather([torch.empty(0) for _ in range(size)], torch.empty(0, 3))
    still_works()


def outputs_must_have(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    given = torch.ones(shape)
    right, wrong = ([torch.zeros(each) for _ in range(size)] for each in (shape, other))
    one_wrong = [*right[:-1], torch.zeros(other)]
    bad, is_root = rank == 1, rank == 0
    output = torch.zeros(other if bad else shape)
    told = (str(list(shape)), str(list(other)))
    for begin in (
        lambda: dist.all_gather(wrong if bad else right, given),
        lambda: dist.gather(given, wrong if is_root else None, 0),
        lambda: dist.gather(given, one_wrong if is_root else None, 0),
        lambda: dist.scatter(torch.zeros(shape), wrong if is_root else None, 0),
        lambda: dist.scatter(torch.zeros(shape), one_wrong if is_root else None, 0),
        lambda: dist.reduce_scatter(output, right),
    ):
        with raises(rueda.InvalidArgumentError, *told):
            begin()
        still_works()
    # For the last rank it is the own output; the others expect what it does not send.
    with raises(rueda.InvalidArgumentError, f"rank {size - 1} sends", *told):
        dist.all_gather(one_wrong, given)
    still_works()
    assert not any(each.any() for each in (output, *right, *wrong))


def check_ranks_that_are_to_be_numbered_in_another_order() -> None:
    """All members are told what to do."""
    if "sort_ranks" not in signature(dist.new_group).parameters:  # not in every version
        return
    ranks = list(range(dist.get_world_size()))[::-1]
    with raises(rueda.UnsupportedError, f"must be sorted, not {ranks}: use sort_ranks=True"):
        dist.new_group(ranks, sort_ranks=False)
    still_works()
    still_works(dist.new_group(ranks))


def check_groups_whose_members_name_other_ranks() -> None:
    """Each names who said what, by the ranks' numbers in the world."""
    rank, size = dist.get_rank(), dist.get_world_size()
    # The first is the same rank for all; or, in a circle, another for each.
    everybody, others = list(range(size)), list(range(size - 1))
    told = f"rank 0 says {everybody}, rank 1 says {others}"
    with raises(rueda.InitializationError, "the ranks of a group differ", told):
        dist.new_group(others if rank == 1 else everybody)
    still_works()
    wanted = [sorted((peer, (peer + 1) % size)) for peer in range(size)]
    first = wanted[rank][0]
    told = f"rank {first} says {wanted[first]}, rank {first + 1} says {wanted[first + 1]}"
    if rank == size - 1:  # named by the first, which names the second
        told = f"rank 0 says {wanted[0]}, rank 1 says {wanted[1]}"
    with raises(rueda.InitializationError, "the ranks of a group differ", told):
        dist.new_group(wanted[rank])
    still_works()


def check_lists_of_outputs_that_are_uneven_on_one_rank() -> None:
    """The error says so, and nothing of how they are passed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sizes = [2] * (size - 1) + [3] if rank == 1 else [2] * size
    for asynchronous in (False, True):
        with raises(
            rueda.MismatchError,
            ": shape differs between ranks: outputs of shape [2] on ",
            "outputs of unequal shapes on rank 1",
        ):
            outputs = [torch.empty(n) for n in sizes]
            work = dist.all_gather(outputs, torch.ones(sizes[rank]), async_op=asynchronous)
            if asynchronous:
                work.wait()
        still_works()
    with raises(rueda.MismatchError, f"{2 * size + 1} elements for all ranks", "[2] on"):
        dist.reduce_scatter(torch.empty(sizes[rank]), [torch.ones(n) for n in sizes])
    still_works()


def check_tensors_that_one_rank_cannot_write() -> None:
    """All ranks get errors that torch would raise afterwards only, or on one rank only."""
    rank = dist.get_rank()
    expanded = torch.ones(1).expand(4)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for asynchronous in (False, True):
        with raises(rueda.InvalidArgumentError, "share memory"):
            work = dist.all_reduce(expanded if rank == 0 else torch.ones(4), async_op=asynchronous)
            if asynchronous:
                work.wait()
        still_works()
        with raises(rueda.UnsupportedError, "nested"):
            work = dist.all_reduce(nested if rank == 0 else torch.ones(4), async_op=asynchronous)
            if asynchronous:
                work.wait()
        still_works()
        # Only the root of a reduce is written.
        mine = expanded if rank == 0 else torch.full((4,), 2.0)
        with raises(rueda.InvalidArgumentError, "rank 0", "share memory"):
            work = dist.reduce(mine, 0, async_op=asynchronous)
            if asynchronous:
                work.wait()
        assert mine.tolist() == [1.0 if rank == 0 else 2.0] * 4
        still_works()
        mine = expanded if rank == 0 else torch.full((4,), 2.0)
        work = dist.reduce(mine, 1, async_op=asynchronous)
        if asynchronous:
            work.wait()
        total = 1.0 + 2.0 * (dist.get_world_size() - 1)
        assert mine.tolist() == [1.0 if rank == 0 else total if rank == 1 else 2.0] * 4
    # The root of a broadcast only reads.
    given = torch.full((1,), 7.0).expand(3) if rank == 0 else torch.zeros(3)
    dist.broadcast(given, 0)
    assert given.tolist() == [7.0] * 3


def check_dtypes_that_differ() -> None:
    dtype = torch.float64 if dist.get_rank() == 1 else torch.float32
    with raises(rueda.MismatchError, "dtype", "float32", "float64"):
        dist.all_reduce(torch.ones(4, dtype=dtype))
    still_works()


def check_operations_that_differ() -> None:
    rank = dist.get_rank()
    with raises(rueda.MismatchError, "op", "sum", "max"):
        dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
    with raises(rueda.MismatchError, "operation", "allreduce", "barrier"):
        if rank == 1:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(4))
    with raises(rueda.MismatchError, "root"):
        dist.broadcast(torch.ones(4), min(rank, 1))
    still_works()


def check_errors_do_not_keep_what_their_callers_had() -> None:
    class Large:
        pass

    def fail() -> weakref.ref[Large]:
        large = Large()
        with raises(rueda.MismatchError, "shape"):
            dist.all_reduce(torch.ones(4 + dist.get_rank() % 2), async_op=True).wait()
        return weakref.ref(large)

    kept = fail()
    still_works()
    gc.collect()
    assert kept() is None


def check_asynchronous_errors() -> None:
    work = dist.all_reduce(torch.ones(4 + dist.get_rank() % 2), async_op=True)
    future = work.get_future()
    until = time.monotonic() + 60
    while not future.done():
        assert time.monotonic() < until
    with raises(rueda.MismatchError, "shape"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), rueda.MismatchError)
    with raises(RuntimeError, "MismatchError", "shape"):
        future.wait()
    still_works()


def check_tensors_that_cannot_be_used() -> None:
    """An error on one rank reaches all."""
    rank = dist.get_rank()
    sparse = torch.eye(3).to_sparse()
    group = dist.group.WORLD
    # Sparse tensors can be summed, but not with dense ones.
    with raises(rueda.MismatchError, "operation", "allgather", "rank 1"):
        group.allreduce([sparse if rank == 1 else torch.eye(3)]).wait()
    with raises(rueda.InvalidArgumentError, "unsupported reduction operation", "MAX"):
        dist.all_reduce(sparse.clone(), dist.ReduceOp.MAX)
    with raises(rueda.MismatchError, "shape", "[3, 3] on rank", "[4, 3] on rank 1"):
        dist.all_reduce((torch.eye(4)[:, :3] if rank == 1 else torch.eye(3)).to_sparse(1))
    still_works()
    with raises(rueda.UnsupportedError, "float8_e4m3fn"):
        group.allreduce([torch.zeros(4, dtype=torch.float8_e4m3fn)]).wait()
    with raises(rueda.UnsupportedError, "bool"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
    with raises(rueda.UnsupportedError, "meta"):
        group.allreduce([torch.ones(3, device="meta")]).wait()
    still_works()
    size = dist.get_world_size()
    with raises(rueda.InvalidArgumentError, "elements"):
        group.all_gather_single(torch.empty(3 * size + rank), torch.empty(3)).wait()
    with raises(rueda.InvalidArgumentError, "float32", "float64"):
        group.all_gather_single(torch.empty(3 * size, dtype=torch.float64), torch.empty(3)).wait()
    with raises(rueda.InvalidArgumentError, "add up"):
        group.alltoall_base(torch.empty(size), torch.empty(size), [1] * size, [2] * size).wait()
    # With several tensors, all parts fail on all ranks.
    sparse_or_not = torch.eye(3).to_sparse() if rank == 1 else torch.eye(3)
    outputs = [torch.empty(size, 2), torch.empty(3 * size, 3)]
    with raises(rueda.UnsupportedError, "sparse"):
        group.allgather_into_tensor_coalesced(outputs, [torch.ones(2), sparse_or_not]).wait()
    with raises(rueda.UnsupportedError, "sparse"):
        group.allreduce_coalesced([torch.ones(2), sparse_or_not]).wait()
    still_works()


def check_outputs_whose_sizes_only_add_up() -> None:
    """Rank 0's outputs have the right number of elements together, but not one by one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    shifted = [1, *[2] * (size - 2), 3]
    for asynchronous in (False, True):
        with raises(rueda.InvalidArgumentError, "rank 0 sends 2 elements", str(shifted)):
            work = dist.all_gather(
                [torch.empty(n) for n in (shifted if rank == 0 else [2] * size)],
                torch.ones(2),
                async_op=asynchronous,
            )
            if asynchronous:
                work.wait()
        still_works()
        with raises(rueda.InvalidArgumentError, "gather has outputs", str(shifted)):
            outputs = [torch.empty(n) for n in shifted] if rank == 0 else None
            work = dist.gather(torch.ones(2), outputs, 0, async_op=asynchronous)
            if asynchronous:
                work.wait()
        still_works()


def check_uneven_outputs_of_which_only_one_rank_knows() -> None:
    """Rank 0 expects its own size, and exchanges those of two others: only it can notice."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size < 3:
        return
    right = [1 + r for r in range(size)]
    wrong = [1, 3, 2, *right[3:]]
    for dtype in (torch.float32, torch.bool, torch.float64, torch.int16):
        outputs = [torch.zeros(n, dtype=dtype) for n in (wrong if rank == 0 else right)]
        if rank == 0:
            with raises(rueda.MismatchError, str(wrong), str(right)):
                dist.all_gather(outputs, torch.ones(1 + rank, dtype=dtype))
            assert not any(output.any() for output in outputs)
        else:
            dist.all_gather(outputs, torch.ones(1 + rank, dtype=dtype))
            assert all(output.all() for output in outputs)
        still_works()


def check_uneven_outputs_whose_shape_only_one_rank_mistakes() -> None:
    """As many elements have come as rank 0 expects."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right = [(2, 1 + r) for r in range(size)]
    wrong = [*right[:-1], (1 + size - 1, 2)]
    outputs = [torch.zeros(shape) for shape in (wrong if rank == 0 else right)]
    if rank == 0:
        with raises(rueda.MismatchError, "shapes", str([list(shape) for shape in right])):
            dist.all_gather(outputs, torch.ones(right[rank]))
        assert not any(output.any() for output in outputs)
    else:
        dist.all_gather(outputs, torch.ones(right[rank]))
        assert all(output.all() for output in outputs)
    still_works()


def check_lists_of_which_one_rank_has_too_few_or_too_many() -> None:
    """An error in one rank's lists reaches all, and at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    bad = rank == 1
    one = [torch.ones(2)]
    many = [torch.ones(2) for _ in range(size)]
    two = [torch.ones(2), torch.ones(2)]
    root = dist.BroadcastOptions()
    root.rootRank = size if bad else 0
    whole = [torch.ones(2 * size)]
    for begin in (
        lambda: group.alltoall([] if bad else many, [] if bad else many),
        lambda: group.alltoall(many[1:] if bad else many, many),
        lambda: group.allgather_coalesced([one] * (size - 1) + [[] if bad else one], one),
        lambda: group.all_gather_single_coalesced(whole * 2 if bad else whole, one),
        lambda: group.reduce_scatter_single_coalesced(two if bad else one, whole),
        lambda: group.reduce(two if bad else one, dist.ReduceOptions()),
        lambda: group.allreduce(two if bad else one),
        lambda: group.broadcast([] if bad else one),
        lambda: group.broadcast(one, root),
        lambda: group.allgather([many, many] if bad else [many], one),
        lambda: group.allgather([many], [] if bad else one),
        lambda: group.gather([many] if rank == 0 else [], two if bad else one),
        lambda: group.gather([many[1:]] if rank == 0 else [], one),
        lambda: group.scatter(two if bad else one, [many] if rank == 0 else []),
        lambda: group.reduce_scatter(one, [] if bad else [many]),
        lambda: group.reduce_scatter(torch.ones(2), many[1:] if bad and size > 2 else many + many),
    ):
        begun = time.monotonic()
        with raises(rueda.InvalidArgumentError):
            begin().wait()
        assert time.monotonic() - begun < 30
        still_works()


def check_tensors_that_change_in_flight() -> None:
    """The tensor's own rank gets the error; the group goes on, in step."""
    changes = [
        lambda t: t.set_(torch.zeros(6)),
        lambda t: setattr(t, "data", torch.zeros(3)),
        lambda t: t.resize_(2),
    ]
    for change in changes:
        tensor = torch.ones(6)
        work = dist.all_reduce(tensor, async_op=True)
        if dist.get_rank() == 0:
            change(tensor)
            with raises(rueda.InvalidArgumentError, "the tensor was", "in flight"):
                work.wait()
        else:
            work.wait()
            assert tensor.tolist() == [dist.get_world_size()] * 6
        still_works()


def check_callers_that_wait_at_once_are_told() -> None:
    """With tensors that are usable in place and, but for the last case, consistent on each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 4 + (rank == 1)
    dtype = torch.int32 if rank == 1 else torch.float32
    some, whole = torch.ones(count), torch.ones(size * count)
    for _ in range(3):
        with raises(rueda.MismatchError, "shape"):
            dist.all_gather_into_tensor(whole.clone(), some)
        with raises(rueda.MismatchError, "shape"):
            dist.reduce_scatter_tensor(some, whole)
        with raises(rueda.MismatchError, "dtype"):
            dist.broadcast(torch.ones(4, dtype=dtype), 0)
        with raises(rueda.MismatchError, "dtype"):
            dist.all_to_all_single(torch.ones(size, dtype=dtype), torch.ones(size, dtype=dtype))
        with raises(rueda.InvalidArgumentError, "elements"):
            dist.all_gather_into_tensor(torch.empty(3 * size + (rank == 1)), torch.ones(3))
        still_works()


def check_splits_that_nobody_else_knows() -> None:
    """Only the rank with other expectations can notice; the others go on, and so does it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    expected = [2] + [1] * (size - 1)
    for _ in range(3):
        if rank == 0:
            with raises(rueda.MismatchError, "rank 0 expects", str(expected)):
                dist.all_to_all_single(
                    torch.empty(size + 1), torch.ones(size), expected, [1] * size
                )
        else:
            dist.all_to_all_single(torch.empty(size), torch.ones(size))
        still_works()


def check_messages_that_differ() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank <= 1:
        with raises(
            rueda.MismatchError, "from rank 0 to rank 1", "2000 x float32", "3000 x float32"
        ):
            if rank == 0:
                dist.send(torch.ones(2000), 1)
            else:
                dist.recv(torch.ones(3000), 0)
        with raises(rueda.UnsupportedError, "sparse"):
            dist.group.WORLD.send([torch.eye(3).to_sparse()], 1 - rank, 0)
        with raises(rueda.InvalidArgumentError, f"no rank {size}"):
            dist.group.WORLD.recv([torch.ones(3)], size, 0)
    still_works()


def check_messages_to_tensors_that_cannot_hold_them() -> None:
    """The receiver gets the error, and its next tensor the message."""
    rank = dist.get_rank()
    for kind in (torch.float32, torch.float8_e4m3fn):
        if rank == 1:
            dist.send(torch.full((4, 3), 2.0).to(kind), 0)
        if rank == 0:
            for asynchronous in (False, True):
                with raises(rueda.InvalidArgumentError, "recv: ", "[4, 3] share memory"):
                    expanded = torch.ones(1, 3).to(kind).expand(4, 3)
                    _ = dist.irecv(expanded, 1) if asynchronous else dist.recv(expanded, 1)
            with raises(rueda.InvalidArgumentError, "recv: ", "[4, 3] share memory"):
                dist.recv(expanded)  # from any rank
            received = torch.zeros(4, 3).to(kind)
            dist.recv(received, 1)
            assert received.float().tolist() == [[2.0] * 3] * 4
        still_works()


def check_use_after_destroy() -> None:
    group = dist.new_group()
    still_works(group)
    pending = group
    dist.destroy_process_group(group)
    with raises(rueda.ShutdownError, "destroyed"):
        pending.allreduce([torch.ones(3)])
    with raises(rueda.ShutdownError, "destroyed"):
        pending.send([torch.ones(3)], 0, 0)
    still_works()


def check_groups_that_differ() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size < 3:
        return
    wanted = [0, 1] if rank == 0 else [0, 1, 2]
    if rank in wanted:
        with raises(rueda.InitializationError, "rank 0 says [0, 1]", "rank 1 says [0, 1, 2]"):
            dist.new_group(wanted)
    else:
        dist.new_group(wanted)
    still_works()
    still_works(dist.new_group())


def check_a_group_to_which_a_rank_comes_too_late() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    late = size - 1
    timeout = timedelta(seconds=1)
    if rank == late:
        time.sleep(3)
        with raises(rueda.TimeoutError, "within 1 s"):
            dist.new_group(timeout=timeout)
    else:
        told = f"rank {late} has not come to form the process group within 1 s. Timed out waiting 1000ms"
        with raises(rueda.TimeoutError, told):
            dist.new_group(timeout=timeout)
    still_works()
    still_works(dist.new_group())


def check_a_group_for_which_one_rank_has_no_room() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    form = rueda._native.create_group

    def refuse(number: int, ranks: list[int]) -> int:
        raise rueda.UnsupportedError("no room")

    if rank == size - 1:
        rueda._native.create_group = refuse
    try:
        with raises(rueda.InitializationError, f"rank {size - 1}: no room"):
            dist.new_group()
    finally:
        rueda._native.create_group = form
    still_works()
    still_works(dist.new_group())


def check_hooks_that_raise() -> None:
    """In a backward pass: on all ranks, or on one, whose next collective informs the others."""
    rank = dist.get_rank()
    group = dist.new_group()
    linear = torch.nn.Linear(3, 2)
    compress = compression_hook(Compression.none)

    def model_with_hook(ranks_that_fail: list[int]) -> torch.nn.Module:
        def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch demands GradBucket itself, no text, or nothing
            if rank in ranks_that_fail:
                raise ValueError("a broken hook")
            return compress(state, bucket)

        model = torch.nn.parallel.DistributedDataParallel(linear, process_group=group)
        model.register_comm_hook(group, hook)
        return model

    broken = model_with_hook(list(range(dist.get_world_size())))
    with raises(ValueError, "a broken hook"):
        broken(torch.ones(1, 3)).sum().backward()
    still_works(group)
    broken = model_with_hook([1])
    if rank == 1:
        with raises(ValueError, "a broken hook"):
            broken(torch.ones(1, 3)).sum().backward()
        with raises(rueda.MismatchError, "shape", "rank 1"):
            dist.all_reduce(torch.ones(7), group=group)
    else:
        with raises(RuntimeError, "MismatchError", "shape", "rank 1"):
            broken(torch.ones(1, 3)).sum().backward()
    still_works()


def check_gradients_that_fail() -> None:
    """Without a hook, DistributedDataParallel's C++ must find an error and no gradients."""
    rank = dist.get_rank()
    group = dist.new_group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
    if rank == 1:
        with raises(rueda.MismatchError, "shape", "rank 1"):
            dist.all_reduce(torch.ones(7), group=group)
    else:
        with raises(RuntimeError, "MismatchError", "shape", "rank 1"):
            model(torch.ones(1, 3)).sum().backward()
    still_works()


def check_monitored_barrier() -> None:
    """Names the missing ranks. It uses messages of its own, so the group goes on."""
    rank, size = dist.get_rank(), dist.get_world_size()
    late = size - 1
    if rank != late:
        # In the words of torch's own barrier.
        told = f"Rank {late} failed to pass monitoredBarrier"
        if rank != 0:
            told = (
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
                f"for send/recv from rank 0"
            )
        with raises(rueda.TimeoutError, f"rank {late} has not come", told, "Timed out"):
            dist.group.WORLD.monitored_barrier(timedelta(seconds=0.3))
    else:
        time.sleep(1.0)
        with raises(rueda.TimeoutError, f"rank {late} has not come"):
            dist.group.WORLD.monitored_barrier(timedelta(seconds=0.3))
    still_works()


def said_once() -> None:
    """Once, however often an error passes, even in another error's text; only for timeouts."""
    for error in (rueda.StalledError("'Timed out' is missing"), rueda.TimeoutError("rank 1")):
        before = str(error)
        for _ in range(2):
            say_timed_out(error, 0.3)
        assert str(error) == f"{before}. Timed out waiting 300ms", error
        assert error.reason == "deadline"
    other = rueda.MismatchError("x")
    say_timed_out(other, 0.3)
    assert (str(other), other.reason) == ("x", None)


def check_timeouts() -> None:
    """The last check, since the group is unusable afterwards."""
    rank = dist.get_rank()
    said_once()
    group = dist.new_group(timeout=timedelta(seconds=60))
    group.set_timeout(timedelta(seconds=0.3))
    if rank == 0:
        begun = time.monotonic()
        told = "Timed out waiting 300ms"
        absent = (" has waited for 0.", "missing on rank", told)
        with raises(rueda.StalledError, "(allreduce)", *absent):
            dist.all_reduce(torch.ones(4), group=group)
        with raises(rueda.StalledError, "(allgather)", *absent):
            size = dist.get_world_size()
            dist.all_gather_into_tensor(torch.ones(4 * size), torch.ones(4), group=group)
        assert time.monotonic() - begun < 30
        awaited = f"{told} for the message to be sent"
        with raises(rueda.TimeoutError, "receive", "from rank 1", "tag 4", "0.3 s", awaited):
            dist.recv(torch.ones(4), 1, group=group, tag=4)
        with raises(rueda.TimeoutError, "send", "to rank 1", f"{told} for the message to be rec"):
            dist.send(torch.ones(100_000), 1, group=group, tag=4)
        with raises(rueda.StalledError, "(barrier)", *absent):
            dist.barrier(group)
        future = dist.barrier(group, async_op=True).get_future()
        with raises(RuntimeError, "StalledError", "(barrier)", *absent):
            future.wait()
        # The engine fails operations after the group's timeout only.
        late = dist.barrier(group, async_op=True)
        in_short = ("barrier", "has not completed within 0.1 s", "Timed out waiting 100ms")
        with raises(rueda.TimeoutError, *in_short):
            late.wait(timedelta(seconds=0.1))
    still_works()


if __name__ == "__main__":
    run(globals())
