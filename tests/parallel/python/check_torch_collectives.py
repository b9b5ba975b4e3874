"""Every rank: the collectives on tensors of every dtype, and their gradients."""

from __future__ import annotations

import itertools
import operator
from functools import partial

import numpy as np
import parallel
import rueda
import rueda.torch as rt
import torch
from rueda import dtypes
from training import Wrapper

DTYPES = [getattr(torch, name) for name in dtypes.names() if hasattr(torch, name)]
SHAPES = [(), (0,), (1,), (5, 3), (257,)]
UNSIGNED = {getattr(torch, n) for n in ("uint16", "uint32", "uint64") if hasattr(torch, n)}


def numbers(seed: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A rank's input: integers that are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    low = 0 if dtype in UNSIGNED or dtype in (torch.uint8, torch.bool) else -3
    high = 2 if dtype == torch.bool else 4
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def summed(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum over ranks, computed in a dtype in which torch can add."""
    dtype = tensors[0].dtype
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.stack([t.to(wide) for t in tensors]).sum(0).to(dtype)


def equal(left: torch.Tensor, right: torch.Tensor) -> None:
    assert left.dtype == right.dtype, (left.dtype, right.dtype)
    assert left.shape == right.shape, (left.shape, right.shape)
    wide = torch.complex128 if left.dtype.is_complex else torch.float64
    assert torch.equal(left.to(wide), right.to(wide)), (left, right)


def ranks() -> range:
    return range(rueda.size())


def check_every_dtype() -> None:
    assert len(DTYPES) >= 12
    me = rueda.rank()
    for seed, (dtype, shape) in enumerate(itertools.product(DTYPES, SHAPES)):
        every = [numbers(seed, rank, shape, dtype) for rank in ranks()]
        name = f"{dtype}/{shape}"
        expected = summed(every)
        equal(rt.allreduce(every[me], name=name, op=rt.Sum), expected)
        in_place = every[me].clone()
        assert rt.allreduce_(in_place, name=f"{name}/in place", op=rt.Sum) is in_place
        equal(in_place, expected)
        root = seed % rueda.size()
        equal(rt.broadcast(every[me], root, name), every[root])
        copy = every[me].clone()
        assert rt.broadcast_(copy, root, name) is copy
        equal(copy, every[root])
        if shape:
            equal(rt.allgather(every[me], name=name), torch.cat(every))
            mine = torch.tensor_split(expected, rueda.size())[me]
            equal(rt.reducescatter(every[me], name=name, op=rt.Sum), mine)
            splits = [shape[0]] + [0] * (rueda.size() - 1)
            received, counts = rt.alltoall(every[me], splits=splits, name=name)
            equal(received, torch.cat(every) if me == 0 else every[0][:0])
            assert counts.tolist() == [shape[0] * (me == 0)] * rueda.size()


def check_no_copy_in_place() -> None:
    tensor = torch.ones(1000)
    pointer = tensor.data_ptr()
    rt.allreduce_(tensor, name="pointer", op=rt.Sum)
    assert tensor.data_ptr() == pointer
    assert torch.equal(tensor, torch.full((1000,), float(rueda.size())))


def check_layouts() -> None:
    n = rueda.size()
    matrix = torch.arange(12.0).reshape(3, 4)
    equal(rt.allreduce(matrix.T, name="t", op=rt.Sum), matrix.T * n)
    lazy = torch.tensor([1 + 2j]).conj()
    assert lazy.is_conj()
    equal(rt.allreduce(lazy, name="c", op=rt.Sum), torch.tensor([1 - 2j]) * n)
    equal(rt.broadcast(lazy, 0, name="c"), torch.tensor([1 - 2j]))
    first, second = rt.grouped_allreduce([matrix, matrix + 1], name="g", op=rt.Sum)
    equal(first, matrix * n)
    equal(second, (matrix + 1) * n)


def check_groups_with_the_same_memory_twice() -> None:
    """As in the state of a model with tied weights, or on one rank only."""
    n, me = rueda.size(), rueda.rank()
    total = n * (n + 1) / 2
    for size in (5, 2000, 1 << 20):
        tensor, other = torch.full((size,), me + 1.0), torch.full((3,), me + 1.0)
        group = [tensor, other, tensor, tensor.view(1, -1)]
        results = rt.grouped_allreduce_(group, name="twice", op=rt.Sum)
        assert all(map(operator.is_, results, group))
        equal(tensor, torch.full((size,), total))
        equal(other, torch.full((3,), total))
        single = torch.full((size,), me + 1.0)
        second = single if me == n - 1 else torch.full((size,), me + 1.0)
        rt.grouped_allreduce_([single, second], name="twice on one", op=rt.Sum)
        equal(single, torch.full((size,), total))
        equal(second, torch.full((size,), total))
        array = np.full(size, me + 1.0)
        rueda.grouped_allreduce_([array, array], name="arrays", op=rueda.Sum)
        np.testing.assert_array_equal(array, np.full(size, total))
    whole = torch.ones(9)
    parts = [whole[:5], torch.ones(2), whole[4:]]
    mine = parts if me == n - 1 else [torch.ones(5), torch.ones(2), torch.ones(5)]
    told = ("'overlap.0'", f"rank {n - 1}", "arrays 0 and 2 ", "overlap")
    with parallel.raises(rueda.InvalidArgumentError, *told):
        rt.grouped_allreduce_(mine, name="overlap")
    rt.grouped_allreduce_([whole[:5], whole[5:], whole[9:], whole[9:]], name="side by side")
    parallel.still_works()


def check_bad_tensors() -> None:
    bad = rueda.rank() == rueda.size() - 1
    who = f"rank {rueda.size() - 1}"
    good = torch.ones(2, 2)
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", who, "not contiguous"):
        rt.allreduce_(torch.ones(2, 4)[:, ::2] if bad else good, name="bad")
    with parallel.raises(rueda.UnsupportedError, "'bad'", who, "sparse"):
        rt.allreduce(good.to_sparse() if bad else good, name="bad")
    with parallel.raises(rueda.UnsupportedError, "'bad'", who, "meta", "CPU"):
        rt.allreduce(good.to("meta") if bad else good, name="bad")
    with parallel.raises(rueda.UnsupportedError, "'bad'", who, "complex32"):
        rt.broadcast(good.to(torch.complex32) if bad else good, 0, name="bad")
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=layout)
        with parallel.raises(rueda.UnsupportedError, "'bad'", who, "nested"):
            rt.allreduce(nested if bad else good, name="bad")
        with parallel.raises(rueda.UnsupportedError, "'bad'", who, "nested"):
            rt.allreduce_(nested if bad else good.clone(), name="bad")
    wrapper = Wrapper(good)
    for operation in (
        lambda: rt.allreduce(wrapper if bad else good, name="bad"),
        lambda: rt.allreduce_(wrapper if bad else good.clone(), name="bad"),
        lambda: rt.broadcast_parameters({"bad": wrapper if bad else good}, rueda.size() - 1),
    ):
        with parallel.raises(
            rueda.UnsupportedError, "bad'", who, "Wrapper of shape [2, 2]", "to_local()"
        ):
            operation()
    freed = good.clone()
    freed.untyped_storage().resize_(0)
    with parallel.raises(rueda.UnsupportedError, "'bad'", who, "no memory"):
        rt.allreduce(freed if bad else good, name="bad")
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", who, "list"):
        rt.allgather_async([1.0] if bad else good, name="bad").result()
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", who, "list"):
        rt.allgather([1.0] if bad else good, name="bad")
    with parallel.raises(rueda.UnsupportedError, "'bad'", who, "sparse"):
        rt.allreduce(good.to_sparse_csr() if bad else good, name="bad")
    lazy = torch.nn.parameter.UninitializedParameter()
    for change in (rt.allreduce_, partial(rt.broadcast_, root_rank=0), rt.PersistentAllreduce):
        with parallel.raises(rueda.InvalidArgumentError, "'bad'", who, "uninitialized"):
            change(lazy if bad else good.clone(), name="bad")
    parallel.still_works()


def check_tensors_that_change_in_flight() -> None:
    """The tensor's own rank gets the error; the others get results, and the world goes on."""
    changes = {
        "set_": (lambda t: t.set_(torch.zeros(6)), "was given other memory"),
        ".data": (lambda t: setattr(t, "data", torch.zeros(6)), "was given other memory"),
        "resize_": (lambda t: t.resize_(2, 2), "was resized from [6] to [2, 2]"),
    }
    operations = {
        "allreduce": lambda t, name: rt.allreduce_async_(t, name, rueda.Sum),
        "grouped": lambda t, name: rt.grouped_allreduce_async_([t, t.clone()], name, rueda.Sum),
        "broadcast": lambda t, name: rt.broadcast_async_(t, 0, name),
    }
    mine = rueda.rank() == rueda.size() - 1
    for (how, (change, text)), (what, begin) in itertools.product(
        changes.items(), operations.items()
    ):
        tensor = torch.ones(6)
        handle = begin(tensor, f"{what} {how}")
        if not mine:
            handle.result()
            continue
        change(tensor)
        for _ in range(2):  # and again
            with parallel.raises(rueda.InvalidArgumentError, f"'{what} {how}", text, "in flight"):
                handle.result()
    # The input is read from its old memory, whatever happens to its tensor.
    source = torch.ones(6)
    handle = rt.allreduce_async(source, "read", rueda.Sum)
    source.data = torch.zeros(6)
    equal(handle.result(), torch.full((6,), float(rueda.size())))
    # Here torch itself frees the memory, which is only done when nobody uses it any more.
    for begin in (rt.allreduce_async_, rt.allreduce_async, rt.allgather_async):
        tensor = torch.ones(6)
        handle = begin(tensor, name="freed")
        handle.wait()
        rueda.barrier()
        tensor.untyped_storage().resize_(0)
        with parallel.raises(rueda.InvalidArgumentError, "'freed'", "other memory, or none"):
            handle.result()
    equal(rt.allreduce(torch.ones(2)), torch.ones(2))


def weights(rank: int, *shape: int) -> torch.Tensor:
    """The factor of the result in a rank's loss: the loss's gradient with respect to the result."""
    return numbers(77, rank, shape, torch.float64) + rank


def leaf(*shape: int) -> torch.Tensor:
    return numbers(5, rueda.rank(), shape, torch.float64).requires_grad_()


def average_weight(*shape: int) -> torch.Tensor:
    return torch.stack([weights(rank, *shape) for rank in ranks()]).mean(0)


def check_gradient_of_allreduce() -> None:
    n, me = rueda.size(), rueda.rank()
    for op, factor in ((rt.Average, 1.0), (rt.Sum, float(n))):
        x = leaf(4, 2)
        y = rt.allreduce(x, name=f"x{op}", op=op, prescale_factor=0.5)
        (y * weights(me, 4, 2)).sum().backward()
        torch.testing.assert_close(x.grad, 0.5 * factor * average_weight(4, 2))
    x = leaf(3)
    with parallel.raises(rueda.UnsupportedError, "max"):
        rt.allreduce(x, name="max", op=rt.Max).sum().backward()
    a, b = leaf(3), leaf(2)
    p, q = rt.grouped_allreduce([a, b], name="pair", op=rt.Sum)
    ((p * weights(me, 3)).sum() + (q * weights(me, 2)).sum()).backward()
    torch.testing.assert_close(a.grad, n * average_weight(3))
    torch.testing.assert_close(b.grad, n * average_weight(2))


def check_gradient_of_allgather() -> None:
    me = rueda.rank()
    rows = [rank + 1 for rank in ranks()]
    x = leaf(rows[me], 2)
    (rt.allgather(x, name="x") * weights(me, sum(rows), 2)).sum().backward()
    start = sum(rows[:me])
    expected = average_weight(sum(rows), 2)[start : start + rows[me]]
    torch.testing.assert_close(x.grad, expected)


def check_gradient_of_broadcast() -> None:
    me = rueda.rank()
    for root in ranks():
        x = leaf(3)
        (rt.broadcast(x, root, name="x") * weights(me, 3)).sum().backward()
        expected = average_weight(3) if me == root else torch.zeros(3, dtype=torch.float64)
        torch.testing.assert_close(x.grad, expected)


def check_gradient_of_reducescatter() -> None:
    n, me = rueda.size(), rueda.rank()
    rows = [len(part) for part in torch.tensor_split(torch.zeros(n + 1), n)]
    for op, factor in ((rt.Average, 1.0), (rt.Sum, float(n))):
        x = leaf(n + 1, 2)
        (rt.reducescatter(x, name="x", op=op) * weights(me, rows[me], 2)).sum().backward()
        expected = torch.cat([weights(rank, rows[rank], 2) for rank in ranks()])
        torch.testing.assert_close(x.grad, factor * expected)


def check_gradient_of_alltoall() -> None:
    n, me = rueda.size(), rueda.rank()
    split = [[a + b for b in range(n)] for a in range(n)]
    gradients = [weights(b, sum(split[a][b] for a in range(n))) for b in range(n)]
    x = leaf(sum(split[me]))
    received, _ = rt.alltoall(x, splits=split[me], name="x")
    (received * gradients[me]).sum().backward()
    parts = []
    for b in range(n):
        start = sum(split[a][b] for a in range(me))
        parts.append(gradients[b][start : start + split[me][b]])
    torch.testing.assert_close(x.grad, torch.cat(parts))
    y = leaf(n * (me + 1))  # even splits; extents differ between ranks
    rt.alltoall(y, name="y").sum().backward()
    torch.testing.assert_close(y.grad, torch.ones_like(y))


def check_second_derivatives() -> None:
    """The collective's backward pass is itself differentiable."""
    n, me = rueda.size(), rueda.rank()
    x = torch.stack([numbers(5, rank, (n,), torch.float64) for rank in ranks()])
    v = torch.stack([weights(rank, n) for rank in ranks()])

    # All ranks' tensors, stacked.
    def reduced(a: torch.Tensor) -> torch.Tensor:
        return a.mean(0).expand(n, n)

    def gathered(a: torch.Tensor) -> torch.Tensor:
        return a.flatten().expand(n, a.numel())

    def scattered(a: torch.Tensor) -> torch.Tensor:
        return a.mean(0).view(n, -1)

    def from_root(a: torch.Tensor) -> torch.Tensor:
        return a[0].expand(n, n)

    def to_root(a: torch.Tensor) -> torch.Tensor:
        return torch.cat([a.mean(0, keepdim=True), torch.zeros(n - 1, n)])

    for collective, forward, backward, again in (
        (rt.allreduce, reduced, reduced, reduced),
        (lambda a: rt.grouped_allreduce([a, a], "pair")[0], reduced, reduced, reduced),
        (rt.allgather, gathered, scattered, lambda a: gathered(a) / n),
        (lambda a: rt.broadcast(a, 0), from_root, to_root, lambda a: from_root(a) / n),
        (rt.reducescatter, scattered, gathered, scattered),
        (rt.alltoall, torch.t, torch.t, torch.t),
    ):
        y = forward(x * x)
        w = torch.stack([weights(rank, y.shape[1]) for rank in ranks()])
        expected = 2 * v * backward(3 * y**2 * w) + 2 * x * backward(6 * y * w * again(2 * x * v))
        mine = x[me].clone().requires_grad_()
        loss = (collective(mine * mine) ** 3 * w[me]).sum()
        (gradient,) = torch.autograd.grad(loss, mine, create_graph=True)
        (gradient * v[me]).sum().backward()
        torch.testing.assert_close(mine.grad, expected[me])


def check_autograd_sees_writes() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    z = (y * y).sum()
    rt.allreduce_(y.detach(), name="written", op=rt.Sum)
    with parallel.raises(RuntimeError, "modified by an inplace operation"):
        z.backward()


if __name__ == "__main__":
    parallel.run(globals())
