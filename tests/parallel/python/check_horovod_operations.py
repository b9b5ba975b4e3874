"""Every rank: the operations of Horovod's API, against NumPy or torch."""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import parallel
import rueda
import rueda.horovod.torch as hvd
import torch
from rueda.horovod.exceptions import HorovodInvalidArgumentError


def check_who_is_there() -> None:
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == (rueda.rank(), rueda.size())
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous()
    assert hvd.gloo_built()
    assert hvd.mpi_enabled() != hvd.gloo_enabled()
    for is_built in (hvd.rocm_built, hvd.ccl_built, hvd.ddl_built):
        assert not is_built()
    assert hvd.cuda_built() or not hvd.nccl_built()


def check_codecs_are_no_compressors() -> None:
    ones = torch.ones(3)
    optimizer = torch.optim.SGD([ones.clone().requires_grad_()], lr=0.1)
    for call in (
        lambda codec: hvd.allreduce(ones, compression=codec),
        lambda codec: hvd.grouped_allreduce([ones], compression=codec),
        lambda codec: hvd.reducescatter(ones, compression=codec),
        lambda codec: hvd.allreduce(ones, op=hvd.Adasum, compression=codec),
    ):
        with parallel.raises(HorovodInvalidArgumentError, "compression='int8'", "Compression.fp16"):
            call("int8")
    if hvd.size() > 1:
        with parallel.raises(HorovodInvalidArgumentError, "compression='int8'", "Compression.fp16"):
            hvd.DistributedOptimizer(optimizer, compression="int8", op=hvd.Adasum)
    assert torch.equal(hvd.allreduce(ones, compression=hvd.Compression.fp16), ones)


def check_a_forked_child() -> None:
    """A data loader's worker knows its parent's rank; as it is no rank, its collectives raise."""
    questions = (
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        hvd.local_size,
        hvd.cross_rank,
        hvd.cross_size,
        hvd.is_homogeneous,
        hvd.is_initialized,
        hvd.ProcessSet([hvd.rank()]).included,
    )
    expected = [ask() for ask in questions]

    def forked(work: Callable[[], object]) -> None:
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def work() -> None:
        hvd.init()
        assert [ask() for ask in questions] == expected
        with parallel.raises(ValueError, "has not been initialized in this process", "forked"):
            hvd.allreduce(torch.ones(2))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads
        forked(work)
        forked(lambda: forked(work))
    parallel.still_works()


def mine(*shape: int) -> torch.Tensor:
    return torch.full(shape, float(hvd.rank() + 1))


def check_allreduce() -> None:
    n = hvd.size()
    total = n * (n + 1) / 2
    expected = {hvd.Average: total / n, hvd.Sum: total, hvd.Min: 1.0, hvd.Max: float(n)}
    for op, value in expected.items():
        for shape in ((), (0,), (7,), (3, 0), (2, 3)):
            tensor = mine(*shape)
            want = torch.full(shape, value)
            assert torch.equal(hvd.allreduce(tensor, op=op), want)
            assert torch.equal(hvd.synchronize(hvd.allreduce_async(tensor, op=op)), want)
            assert torch.equal(tensor, mine(*shape))
            assert hvd.allreduce_(tensor, op=op) is tensor
            assert torch.equal(tensor, want)
            tensor = mine(*shape)
            handle = hvd.allreduce_async_(tensor, op=op)
            hvd.synchronize(handle)
            assert hvd.poll(handle)
            assert torch.equal(tensor, want)
    scaled = hvd.allreduce(mine(2), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
    assert torch.equal(scaled, torch.full((2,), total))
    halves = hvd.allreduce(mine(3) / 4, compression=hvd.Compression.fp16)
    assert halves.dtype == torch.float32
    torch.testing.assert_close(halves, torch.full((3,), total / n / 4), rtol=1e-3, atol=0)


def check_averages_of_whole_numbers() -> None:
    """Rounded towards zero, after scaling, like Horovod's; in all variants."""
    n, me = hvd.size(), hvd.rank()
    ranks = n * (n - 1) // 2
    toward_zero = [ranks // n, -(ranks // n)]
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        mine = torch.tensor([me, -me], dtype=dtype)
        other = torch.full((2,), float(me))
        in_place = mine.clone()
        assert hvd.allreduce(mine, name="whole").tolist() == toward_zero
        assert hvd.synchronize(hvd.allreduce_async(mine)).tolist() == toward_zero
        assert hvd.allreduce_(in_place) is in_place
        assert in_place.tolist() == toward_zero
        in_place = mine.clone()
        assert hvd.synchronize(hvd.allreduce_async_(in_place)) is in_place
        assert in_place.tolist() == toward_zero
        scaled = hvd.allreduce(mine, postscale_factor=2.0)
        assert scaled.tolist() == [int(2 * ranks / n), -int(2 * ranks / n)]
        assert hvd.allreduce(mine, op=hvd.Sum).tolist() == [ranks, -ranks]
        for group in (
            hvd.grouped_allreduce([mine, other, mine], name="group"),
            hvd.synchronize(hvd.grouped_allreduce_async([mine, other, mine])),
            hvd.grouped_allreduce_([mine.clone(), other.clone(), mine.clone()]),
            hvd.synchronize(hvd.grouped_allreduce_async_([t.clone() for t in (mine, other, mine)])),
        ):
            assert [t.dtype for t in group] == [dtype, torch.float32, dtype]
            assert group[0].tolist() == group[2].tolist() == toward_zero
            torch.testing.assert_close(group[1], torch.full((2,), ranks / n))
        rows = mine.repeat(n)[1:]  # -me, me, -me, ...; 2n - 1 rows
        parts = [
            hvd.reducescatter(rows),
            hvd.synchronize(hvd.reducescatter_async(rows)),
            *hvd.grouped_reducescatter([rows, rows], name="whole parts"),
            *hvd.synchronize(hvd.grouped_reducescatter_async([rows])),
        ]
        begin = 2 * me
        expected = [toward_zero[(i + 1) % 2] for i in range(2 * n - 1)][begin : begin + 2]
        assert all(part.tolist() == expected for part in parts), (parts, expected)
    assert hvd.allreduce(torch.tensor([200 + me], dtype=torch.uint8), op=hvd.Max).item() == 199 + n


def check_averages_of_whole_numbers_of_a_set_that_is_gone() -> None:
    """The divisor is the set's size at the call, even if the set is gone at synchronize()."""
    n, me = hvd.size(), hvd.rank()
    if n == 1:
        return
    some = hvd.add_process_set(range(n - 1))
    if me < n - 1:
        numbers = torch.tensor([me + 5, -me - 5])
        average = (2 * 5 + n - 2) // 2
        handles = [
            hvd.allreduce_async(numbers, name="copied", process_set=some),
            hvd.allreduce_async_(numbers.clone(), name="in place", process_set=some),
        ]
        group = hvd.grouped_allreduce_async([numbers, numbers.float()], process_set=some)
        part = hvd.reducescatter_async(torch.full((n - 1,), me + 5), process_set=some)
        for handle in (*handles, group, part):
            while not hvd.poll(handle):
                time.sleep(0.001)
    assert hvd.remove_process_set(some)
    if me < n - 1:
        assert [hvd.synchronize(handle).tolist() for handle in handles] == [[average, -average]] * 2
        assert hvd.synchronize(group)[0].tolist() == [average, -average]
        assert hvd.synchronize(part).tolist() == [average]


def check_average_is_deprecated() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        total = hvd.allreduce(mine(2), average=False, name="old")
    assert any("average" in str(w.message) for w in caught)
    assert total[0] == hvd.size() * (hvd.size() + 1) / 2
    with parallel.raises(ValueError, "supersedes"):
        hvd.allreduce(mine(2), average=True, op=hvd.Sum)


def check_groups() -> None:
    n = hvd.size()
    tensors = [mine(3), mine(2, 2).double(), mine(0)]
    for result in (
        hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group"),
        hvd.synchronize(hvd.grouped_allreduce_async(tensors, op=hvd.Sum)),
        hvd.grouped_allreduce_([t.clone() for t in tensors], op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async_([t.clone() for t in tensors], op=hvd.Sum)),
    ):
        for before, after in zip(tensors, result, strict=True):
            assert torch.equal(after, torch.full_like(before, n * (n + 1) / 2))
    rows = hvd.grouped_allgather([mine(1), mine(2, 1)])
    assert [len(r) for r in rows] == [n, 2 * n]
    rows = hvd.synchronize(hvd.grouped_allgather_async([mine(1), mine(2, 1)], name="rows"))
    assert rows[0].tolist() == [r + 1.0 for r in range(n)]
    parts = hvd.grouped_reducescatter([mine(2 * n), mine(n, 2)], op=hvd.Sum, name="parts")
    assert [list(p.shape) for p in parts] == [[2], [1, 2]]
    parts = hvd.synchronize(hvd.grouped_reducescatter_async([mine(n)], op=hvd.Sum))
    assert parts[0].tolist() == [n * (n + 1) / 2]


def check_exchanges() -> None:
    n, me = hvd.size(), hvd.rank()
    everyone = torch.cat([torch.full((r, 2), float(r)) for r in range(n)])
    uneven = torch.full((me, 2), float(me))
    assert torch.equal(hvd.allgather(uneven, name="uneven"), everyone)
    assert torch.equal(hvd.synchronize(hvd.allgather_async(uneven)), everyone)
    root = n - 1
    for tensor in (
        hvd.broadcast(mine(3), root),
        hvd.synchronize(hvd.broadcast_async(mine(3), root)),
        hvd.broadcast_(mine(3), root),
        hvd.synchronize(hvd.broadcast_async_(mine(3), root)),
    ):
        assert tensor.tolist() == [float(n)] * 3
    even = hvd.alltoall(torch.arange(2 * n) + 100 * me)
    assert even.tolist() == [100 * r + 2 * me + i for r in range(n) for i in range(2)]
    splits = torch.tensor([r + me for r in range(n)], dtype=torch.int32)
    received, counts = hvd.alltoall(torch.full((int(splits.sum()),), me), splits)
    assert counts.dtype == torch.int32
    assert counts.tolist() == [r + me for r in range(n)]
    assert received.tolist() == [r for r in range(n) for _ in range(r + me)]
    _, counts = hvd.synchronize(hvd.alltoall_async(torch.arange(n)))
    assert counts.tolist() == [1] * n
    part = hvd.reducescatter(torch.arange(n + 1.0), op=hvd.Sum)
    assert part.tolist() == ([0.0, float(n)] if me == 0 else [(me + 1.0) * n])
    part = hvd.synchronize(hvd.reducescatter_async(torch.arange(n + 1.0), op=hvd.Average))
    assert part[0] == (0 if me == 0 else me + 1)
    hvd.barrier()
    assert hvd.allgather_object({"rank": me}) == [{"rank": r} for r in range(n)]
    assert hvd.broadcast_object(f"of {me}", root_rank=root) == f"of {root}"


def check_gradients() -> None:
    n = hvd.size()
    operations = {
        "allreduce": (lambda x: hvd.allreduce(x, op=hvd.Sum), n),
        "average": (hvd.allreduce, 1),
        "allgather": (hvd.allgather, 1),
        "broadcast": (lambda x: hvd.broadcast(x, 0), 1 if hvd.rank() == 0 else 0),
        "alltoall": (hvd.alltoall, 1),
        "reducescatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum), n),
    }
    for name, (operation, factor) in operations.items():
        tensor = torch.ones(2 * n, requires_grad=True)
        (3 * operation(tensor)).sum().backward()
        assert tensor.grad is not None
        assert torch.equal(tensor.grad, torch.full((2 * n,), 3.0 * factor)), name
    for group in (False, True):
        tensor = torch.ones(2, requires_grad=True)
        if group:
            (result,) = hvd.grouped_allreduce([tensor], op=hvd.Adasum)
        else:
            result = hvd.allreduce(tensor, op=hvd.Adasum)
        with parallel.raises(rueda.UnsupportedError, "through adasum"):
            result.sum().backward()


def check_gradients_beside_whole_numbers() -> None:
    """A group's integers are averaged separately; gradients of the others are unaffected."""
    n, me = hvd.size(), hvd.rank()
    whole, tensor = torch.full((n,), -me), torch.full((2 * n,), float(me), requires_grad=True)
    for name in ("mixed", None):
        for operation in (hvd.grouped_allreduce, hvd.grouped_reducescatter):
            tensor.grad = None
            of_whole, result, of_others = operation([whole, tensor, whole.float()], name=name)
            assert (of_whole == -((n - 1) // 2)).all()
            assert (of_others == -(n - 1) / 2).all()
            assert (result == (n - 1) / 2).all()
            assert not of_whole.requires_grad
            (3 * result).sum().backward()
            assert torch.equal(tensor.grad, torch.full((2 * n,), 3.0))


def check_grouped_reducescatter() -> None:
    """All tensors are submitted before the first wait: ranks may list them in any order."""
    n, me = hvd.size(), hvd.rank()
    tensors = [torch.full((n + i, 2), float(me + i), requires_grad=True) for i in range(3)]
    rows = [len(range(me, n + i, n)) for i in range(3)]  # as even as possible
    for op, factor in ((hvd.Sum, n), (hvd.Average, 1)):
        for tensor in tensors:
            tensor.grad = None
        results = hvd.grouped_reducescatter(
            tensors, name="rs", op=op, compression=hvd.Compression.fp16
        )
        for i, result in enumerate(results):
            assert result.dtype == torch.float32
            total = sum(r + i for r in range(n)) * factor / n
            assert torch.equal(result, torch.full((rows[i], 2), total)), (i, result)
        (2 * results[0].sum() + results[2].sum()).backward()
        for tensor, gradient in zip(tensors, (2.0, 0.0, 1.0), strict=True):
            assert torch.equal(tensor.grad, torch.full_like(tensor, gradient * factor))
    first = tensors[0]  # filled with the rank
    loss = hvd.grouped_reducescatter([first**2])[0].square().sum()
    (gradient,) = torch.autograd.grad(loss, first, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), first)
    mean, mean_square = sum(range(n)) / n, sum(r * r for r in range(n)) / n
    torch.testing.assert_close(second, torch.full_like(first, 4 * mean_square + 8 * me * mean))
    assert hvd.grouped_reducescatter([]) == []
    for attempt in range(2):
        bad = torch.ones(n) if attempt == 0 or me > 0 else torch.ones(n + 1)
        both = [torch.ones(n), bad]
        if attempt == 0 or n == 1:
            hvd.grouped_reducescatter(both, name="differs")
        else:
            with parallel.raises(hvd.HorovodInternalError, "Mismatched tensor shapes", "differs.1"):
                hvd.grouped_reducescatter(both, name="differs")


def adasum_by_hand(tensors: list[torch.Tensor]) -> torch.Tensor:
    def pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        dot = (a * b).sum()
        return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b

    if len(tensors) == 1:
        return tensors[0]
    whole = 1
    while whole * 2 < len(tensors):
        whole *= 2
    return pair(adasum_by_hand(tensors[:whole]), adasum_by_hand(tensors[whole:]))


def check_adasum() -> None:
    def of(rank: int) -> torch.Tensor:
        return torch.randn(5, 3, generator=torch.Generator().manual_seed(rank)).double()

    expected = adasum_by_hand([of(rank) for rank in range(hvd.size())])
    tensor = of(hvd.rank())
    result = hvd.allreduce(tensor, op=hvd.Adasum, name="adasum")
    torch.testing.assert_close(result, expected)
    assert len(set(hvd.allgather_object(result.numpy().tobytes()))) == 1
    torch.testing.assert_close(
        hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Adasum)), expected
    )
    (grouped,) = hvd.grouped_allreduce([tensor], op=hvd.Adasum)
    torch.testing.assert_close(grouped, expected)
    same = hvd.allreduce(torch.full((4,), 2.5, dtype=torch.float16), op=hvd.Adasum)
    assert same.tolist() == [2.5] * 4
    assert hvd.allreduce_(tensor, op=hvd.Adasum) is tensor
    torch.testing.assert_close(tensor, expected)
    assert hvd.allreduce(torch.zeros(3), op=hvd.Adasum).tolist() == [0.0] * 3
    with parallel.raises(HorovodInvalidArgumentError, "Adasum", "int64"):
        hvd.allreduce(torch.ones(3, dtype=torch.int64), op=hvd.Adasum, name="whole")
    with parallel.raises(HorovodInvalidArgumentError, "allreduce only"):
        hvd.reducescatter(torch.ones(3), op=hvd.Adasum)


def check_sparse() -> None:
    n, me = hvd.size(), hvd.rank()
    dense = torch.zeros(6, 2)
    dense[me] = me + 1.0
    dense[5] = 1.0
    expected = torch.zeros(6, 2)
    for r in range(n):
        expected[r] += r + 1.0
    expected[5] += n
    handle = hvd.sparse_allreduce_async(dense.to_sparse(1), name="sparse", op=hvd.Sum)
    assert torch.equal(handle().to_dense(), expected)
    handle = hvd.sparse_allreduce_async(dense.to_sparse(1), name="sparse", op=hvd.Average)
    torch.testing.assert_close(hvd.synchronize(handle).to_dense(), expected / n)
    assert hvd.poll(handle)
    # One contributing rank, uncoalesced, with two sparse dimensions.
    indices = torch.tensor([[1, 1], [0, 0]]) if me == n - 1 else torch.empty(2, 0).long()
    values = torch.ones(indices.shape[1])
    tensor = torch.sparse_coo_tensor(indices, values, (3, 2))
    result = hvd.sparse_allreduce_async(tensor, "few", hvd.Sum)().to_dense()
    assert result.tolist() == [[0, 0], [2, 0], [0, 0]]
    if n > 1:
        wrong = torch.zeros(6 + (me == 1), 2).to_sparse(1)
        with parallel.raises(
            hvd.HorovodInternalError, "'sized'", "[6, 2] on rank", "[7, 2] on rank 1"
        ):
            hvd.sparse_allreduce_async(wrong, "sized", hvd.Sum)()
    with parallel.raises(HorovodInvalidArgumentError, "averaged or summed"):
        hvd.sparse_allreduce_async(tensor, "few", hvd.Max)()


def check_process_sets() -> None:
    n, me = hvd.size(), hvd.rank()
    assert hvd.global_process_set.ranks == list(range(n))
    assert hvd.global_process_set.size() == n
    assert hvd.global_process_set.rank() == me
    fresh = hvd.ProcessSet([0])
    assert (fresh.size(), fresh.rank(), fresh.included()) == (None, None, me == 0)
    if n == 1:
        return
    most = hvd.add_process_set(range(n - 1))
    with parallel.raises(HorovodInvalidArgumentError, "already"):
        hvd.add_process_set(range(n - 1))
    assert most.included() == (me < n - 1)
    if not most.included():
        with parallel.raises(ValueError, f"rank {me} is not part of"):
            most.rank()
    if most.included():
        assert most.rank() == me
        total = hvd.allreduce(mine(2), op=hvd.Sum, process_set=most)
        assert total[0] == n * (n - 1) / 2
    assert hvd.remove_process_set(most)
    assert not hvd.remove_process_set(most)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert most.size() is None
    with parallel.raises(ValueError, "list of ranks"):
        hvd.ProcessSet("0")
    with parallel.raises(ValueError, "list of ranks"):
        hvd.ProcessSet([0.5])


# This method tells an mpi4py communicator from ranks.
Communicator = type("Communicator", (), {"Get_rank": lambda _: 0})


def check_bad_process_sets_of_one_rank() -> None:
    """Every rank raises the error: the others await the rank that has made the mistake."""
    n, me = hvd.size(), hvd.rank()
    if n == 1:
        return
    last = me == n - 1
    first = hvd.add_process_set([0])
    for wrong, words in (
        ("ab", "list of ranks"),
        (None, "list of ranks"),
        ([0.5], "list of ranks"),
        (hvd.ProcessSet(Communicator()), "communicator"),
        (Communicator(), "communicator"),
        ([0], "already"),
    ):
        with parallel.raises(HorovodInvalidArgumentError, f"rank {n - 1}", words):
            hvd.add_process_set(wrong if last else [1])
        parallel.still_works()
    for wrong in ("ab", [0]):
        with parallel.raises(HorovodInvalidArgumentError, f"rank {n - 1}", "not a process set"):
            hvd.remove_process_set(wrong if last else first)
        parallel.still_works()
    assert hvd.remove_process_set(first)


def check_join() -> None:
    """A joined rank contributes zeros; an average divides by all ranks if join_average is "all"."""
    n, me = hvd.size(), hvd.rank()
    assert rueda.options()["join_average"] == os.environ.get("RUEDA_JOIN_AVERAGE", "all")
    for step in range(me + 1):
        taking_part = [r + 1 for r in range(n) if r >= step]
        count = n if rueda.options()["join_average"] == "all" else len(taking_part)
        expected = sum(taking_part) / count
        average = hvd.allreduce(torch.ones(2) * (me + 1), name=f"step {step}")
        torch.testing.assert_close(average[0], torch.tensor(expected))
        dense = torch.zeros(3)
        dense[1] = me + 1.0
        gathered = hvd.sparse_allreduce_async(dense.to_sparse(), f"sparse {step}", hvd.Average)()
        torch.testing.assert_close(gathered.to_dense()[1], torch.tensor(expected))
        group = [torch.full((k,), me + 1.0) for k in (1, 0, 3)]
        for average, given in zip(
            hvd.grouped_allreduce(group, f"group {step}"), group, strict=True
        ):
            torch.testing.assert_close(average, torch.full_like(given, expected))
        # Integer averages always divide by all ranks.
        whole = hvd.allreduce(torch.tensor([me + 1, -me - 1]), name=f"whole {step}")
        assert whole.tolist() == [sum(taking_part) // n, -(sum(taking_part) // n)]
    assert hvd.join() in range(n)


def check_a_name_that_is_pending() -> None:
    """A second submission raises at the call, on its own rank; the first one is unharmed.

    It is a ValueError, as in Horovod.
    """
    assert issubclass(HorovodInvalidArgumentError, ValueError)
    n, me = hvd.size(), hvd.rank()
    if n == 1:
        return
    tensor, rows = torch.ones(17), torch.ones(n)
    sparse = torch.ones(3).to_sparse()
    begin = {
        "allreduce": lambda: hvd.allreduce_async(tensor, name="twice"),
        "in place": lambda: hvd.allreduce_async_(tensor.clone(), name="twice"),
        "whole": lambda: hvd.allreduce_async(torch.ones(3, dtype=torch.int32), name="twice"),
        "adasum": lambda: hvd.allreduce_async(tensor, name="twice", op=hvd.Adasum),
        "allgather": lambda: hvd.allgather_async(tensor, name="twice"),
        "broadcast": lambda: hvd.broadcast_async(tensor, 0, name="twice"),
        "broadcast in place": lambda: hvd.broadcast_async_(tensor.clone(), 0, name="twice"),
        "alltoall": lambda: hvd.alltoall_async(rows, name="twice"),
        "reducescatter": lambda: hvd.reducescatter_async(rows, name="twice"),
        "sparse": lambda: hvd.sparse_allreduce_async(sparse, "twice", hvd.Sum),
    }
    groups = {
        "grouped allreduce": lambda: hvd.grouped_allreduce_async([tensor, tensor], name="both"),
        "grouped allgather": lambda: hvd.grouped_allgather_async([tensor, tensor], name="both"),
        "grouped parts": lambda: hvd.grouped_reducescatter_async([rows, rows], name="both"),
    }
    now = {
        "allreduce": lambda: hvd.allreduce(tensor, name="twice"),
        "in place": lambda: hvd.allreduce_(tensor.clone(), name="twice"),
        "allgather": lambda: hvd.allgather(tensor, name="twice"),
        "broadcast": lambda: hvd.broadcast(tensor, 0, name="twice"),
        "alltoall": lambda: hvd.alltoall(rows, name="twice"),
        "reducescatter": lambda: hvd.reducescatter(rows, name="twice"),
    }
    words = ("'twice'", f"rank {me}", "same name as another tensor that is currently")
    for what, submit in {**begin, **groups}.items():
        expected = words if what in begin else ("'both.0'", *words[1:])
        for rank_0_is_early in (True, False):
            is_early = (me == 0) == rank_0_is_early
            first = None
            for turn in range(2):  # what early ranks submit is pending until the others submit too
                if (turn == 0) == is_early:
                    first = submit()
                    for again in (submit, *(now.values() if what in begin else ())):
                        if not is_early or hvd.size() == 1:
                            break
                        with parallel.raises(HorovodInvalidArgumentError, *expected):
                            again()
                hvd.barrier()
            hvd.synchronize(first)
            if what == "allreduce":
                assert torch.equal(hvd.synchronize(first), tensor)
            hvd.synchronize(submit())  # the name is free again
    parallel.still_works()


def check_who_is_no_member() -> None:
    """Raises at the call, on the rank that is no member."""
    n, me = hvd.size(), hvd.rank()
    if n == 1:
        return
    first = hvd.add_process_set([0])
    if me > 0:
        with parallel.raises(HorovodInvalidArgumentError, f"rank {me} is not a member"):
            hvd.allreduce_async(torch.ones(2), process_set=first)
        with parallel.raises(HorovodInvalidArgumentError, f"rank {me} is not a member"):
            hvd.allgather(torch.ones(2), process_set=first)
    hvd.remove_process_set(first)


def check_timeline() -> None:
    path = hvd.broadcast_object(tempfile.mktemp(suffix="-%r.json"))
    hvd.allreduce(mine(2), name="before")
    hvd.start_timeline(path, mark_cycles=True)
    with parallel.raises(HorovodInvalidArgumentError, "already"):
        hvd.start_timeline(path)
    hvd.barrier()  # all ranks write
    hvd.allreduce(mine(2), name="between")
    hvd.stop_timeline()
    hvd.allreduce(mine(2), name="after")
    file = path.replace("%r", str(hvd.rank()))
    with open(file) as trace:
        events = json.load(trace)
    os.remove(file)
    expect_horovods_events(events)


def expect_horovods_events(events: list[dict[str, Any]]) -> None:
    """Checks for one allreduce, recorded in Horovod's format."""
    head, *named = [e for e in events if e.get("name") == "process_name"]
    assert "start_time_since_epoch_in_micros" in head["args"]
    lanes = {e["args"]["name"]: e["pid"] for e in named}
    assert "allreduce.before" not in lanes
    lane = [e for e in events if e.get("pid") == lanes["allreduce.between"] and e["ph"] in "BEX"]
    assert [e["ts"] for e in lane] == sorted(e["ts"] for e in lane)
    bars, open_bars = [], []
    for event in lane:
        if event["ph"] == "B":
            bars.append("/".join([*open_bars, event["name"]]))
            open_bars.append(event["name"])
        elif event["ph"] == "E":
            open_bars.pop()
        else:
            assert open_bars == ["NEGOTIATE_ALLREDUCE"], event
    assert not open_bars
    assert bars[:3] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "ALLREDUCE/QUEUE"], bars
    assert "ALLREDUCE/MPI_ALLREDUCE" in bars
    assert lane[-1]["args"] == {"dtype": "float32", "shape": "[2]"}, lane[-1]
    heard_of = {e["name"] for e in lane if e["ph"] == "X"}
    everyone = {str(rank) for rank in range(hvd.size())}
    assert heard_of == everyone if hvd.rank() == 0 else str(hvd.rank()) in heard_of, heard_of
    cycles = [e for e in events if e.get("name") == "CYCLE_START"]
    assert cycles
    assert {(e["ph"], e["s"]) for e in cycles} == {("i", "g")}


def check_roots_and_names_that_are_none() -> None:
    """Errors of the tensor, on every rank, through Horovod's API and through torch's."""
    last, name = hvd.size() - 1, "caf\udce9"
    told = f"rank {last} cannot take part" if hvd.size() > 1 else "cannot take part"
    errors = {hvd: HorovodInvalidArgumentError, rueda.torch: rueda.InvalidArgumentError}
    for door, error in errors.items():
        for root in (2**40, 1.5, None, float("nan"), "0"):
            own = root if hvd.rank() == last else 0
            for call in (door.broadcast, door.broadcast_):
                with parallel.raises(error, "'bad'", told, "root"):
                    call(torch.ones(3), own, name="bad")
        for call in (
            lambda door: door.allreduce(torch.ones(3), name=name),
            lambda door: door.allreduce_(torch.ones(3), name=name),
            lambda door: door.grouped_allreduce([torch.ones(3)], name=name),
            lambda door: door.allgather(torch.ones(3), name=name),
            lambda door: door.broadcast(torch.ones(3), 0, name=name),
            lambda door: door.alltoall(torch.ones(hvd.size()), name=name),
            lambda door: door.reducescatter(torch.ones(hvd.size()), name=name),
        ):
            with parallel.raises(error, "caf", "udce9", "surrogate"):
                call(door)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2


def check_errors() -> None:
    n, me = hvd.size(), hvd.rank()
    if n > 1:
        two, differs = torch.ones(2), me == 1
        for told, call in {
            ("Mismatched tensor shapes", "[3] on rank 1"): lambda name: hvd.allreduce(
                torch.ones(3) if differs else two, name=name
            ),
            ("Mismatched data types", "float64 on rank 1"): lambda name: hvd.allreduce(
                two.double() if differs else two, name=name
            ),
            ("Mismatched reduction operations", "max on rank 1"): lambda name: hvd.allreduce(
                two, name=name, op=hvd.Max if differs else hvd.Min
            ),
            ("Mismatched collective operations", "allgather on rank 1"): lambda name: (
                hvd.allgather if differs else hvd.allreduce
            )(two, name=name),
            ("Mismatched root ranks", "1 on rank 1"): lambda name: hvd.broadcast(
                two, 1 if differs else 0, name=name
            ),
        }.items():
            with parallel.raises(hvd.HorovodInternalError, "'different'", *told):
                call("different")
        with parallel.raises(HorovodInvalidArgumentError, "'strided'", "not contiguous", "rank 0"):
            hvd.allreduce_(torch.ones(2, 2).t() if me == 0 else torch.ones(2, 2), name="strided")
        table = torch.ones(2, 2)
        with parallel.raises(HorovodInvalidArgumentError, "'needs dense'", "sparse", "rank 0"):
            hvd.allreduce(table.to_sparse() if me == 0 else table, name="needs dense")
        for call in (
            lambda t: hvd.allreduce(t, name="a list"),
            lambda t: hvd.allreduce(t, name="a list", compression=hvd.Compression.fp16),
            lambda t: hvd.grouped_allreduce([t], name="a list"),
            lambda t: hvd.reducescatter(t, name="a list"),
            lambda t: hvd.grouped_reducescatter([t], name="a list"),
        ):
            with parallel.raises(HorovodInvalidArgumentError, "'a list", "not a list", "rank 0"):
                call([1.0] if me == 0 else torch.ones(n))
        freed = torch.ones(2)
        freed.untyped_storage().resize_(0)
        for bad in (freed, torch.eye(2).to_sparse_csr(), torch.nested.nested_tensor([table])):
            with parallel.raises(HorovodInvalidArgumentError, "'adasum'", "rank 0"):
                hvd.allreduce(bad if me == 0 else torch.ones(2), op=hvd.Adasum, name="adasum")
        cause = None
        try:
            hvd.allreduce(torch.ones(2 + (me == 1)), name="cause")
        except hvd.HorovodInternalError as error:
            cause = error.__cause__
        assert isinstance(cause, rueda.MismatchError)
        for splits in (torch.full((n,), 1.0), [1.5] * n, [2**70] * n, 5):
            mine = splits if me == 0 else torch.ones(n, dtype=torch.int32)
            with parallel.raises(HorovodInvalidArgumentError, "'floats'", "splits=", "rank 0"):
                hvd.alltoall(torch.ones(n), mine, name="floats")
    assert hvd.synchronize(None) is None
    parallel.still_works()


if __name__ == "__main__":
    torch.set_num_threads(1)
    hvd.init()
    parallel.run(globals())
    with parallel.raises(ValueError, "Horovod has not been initialized; use hvd.init()."):
        hvd.rank()
    with parallel.raises(ValueError, "Horovod has not been initialized; use hvd.init()."):
        hvd.allreduce(torch.ones(1))
