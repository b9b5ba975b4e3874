"""Every rank: each collective on tensors of each dtype against the CPU, and the GPU's work."""

from __future__ import annotations

import itertools
import math

import device  # finds what the checks on CPUs share
import parallel
import rueda
import rueda.torch as rt
import torch
from device import DEVICE, ON_GPU, ROAD, counted, equal, needs_gpu, ranks
from rueda import dtypes

DTYPES = [getattr(torch, name) for name in dtypes.names() if hasattr(torch, name)]
SHAPES = [(), (0,), (1,), (5, 3), (4099,)]
UNSIGNED = {torch.uint8, torch.bool} | {
    getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)
}


def numbers(seed: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns the rank's input on the CPU: whole numbers that are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    low = 0 if dtype in UNSIGNED else -3
    high = 2 if dtype == torch.bool else 4
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def summed(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Returns the sum over ranks, computed in a dtype in which torch can add."""
    dtype = tensors[0].dtype
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.stack([t.to(wide) for t in tensors]).sum(0).to(dtype)


def check_every_dtype() -> None:
    assert len(DTYPES) >= 12
    me = rueda.rank()
    for seed, (dtype, shape) in enumerate(itertools.product(DTYPES, SHAPES)):
        every = [numbers(seed, rank, shape, dtype) for rank in ranks()]
        mine = every[me].to(DEVICE)
        name = f"{dtype}/{shape}"
        expected = summed(every)
        equal(rt.allreduce(mine, name=name, op=rt.Sum), expected)
        equal(mine, every[me])
        in_place = mine.clone()
        assert rt.allreduce_(in_place, name=f"{name}/in place", op=rt.Sum) is in_place
        equal(in_place, expected)
        root = seed % rueda.size()
        equal(rt.broadcast(mine, root, name), every[root])
        copy = mine.clone()
        assert rt.broadcast_(copy, root, name) is copy
        equal(copy, every[root])
        if shape:
            equal(rt.allgather(mine, name=name), torch.cat(every))
            part = torch.tensor_split(expected, rueda.size())[me]
            equal(rt.reducescatter(mine, name=name, op=rt.Sum), part)
            splits = [shape[0]] + [0] * (rueda.size() - 1)
            received, counts = rt.alltoall(mine, splits=splits, name=name)
            equal(received, torch.cat(every) if me == 0 else every[0][:0])
            assert counts.tolist() == [shape[0] * (me == 0)] * rueda.size()


def check_every_operation() -> None:
    me = rueda.rank()
    operations = {
        rt.Min: lambda tensors: tensors.amin(0),
        rt.Max: lambda tensors: tensors.amax(0),
        rt.Product: lambda tensors: tensors.prod(0),
        rt.Average: lambda tensors: tensors.mean(0),
    }
    for dtype, (op, expected) in itertools.product(
        (torch.float64, torch.float32), operations.items()
    ):
        every = [numbers(7, rank, (1001,), dtype) for rank in ranks()]
        result = rt.allreduce(every[me].to(DEVICE), name=f"{dtype} {op}", op=op)
        torch.testing.assert_close(result.cpu(), expected(torch.stack(every)))
    every = [numbers(8, rank, (333,), torch.int64) for rank in ranks()]
    for op in (rt.Min, rt.Max, rt.Product):
        result = rt.allreduce(every[me].to(DEVICE), name=f"int64 {op}", op=op)
        equal(result, operations[op](torch.stack(every)))
    scaled = rt.allreduce(
        torch.full((77,), 3.0, device=DEVICE),
        name="scaled",
        op=rt.Sum,
        prescale_factor=0.5,
        postscale_factor=4.0,
    )
    equal(scaled, torch.full((77,), 6.0 * rueda.size()))


def check_parts_of_different_lengths() -> None:
    n, me = rueda.size(), rueda.rank()
    for step in range(3):  # the later steps are replayed
        gathered = rt.allgather(torch.full((me + 1, 2), float(me + step), device=DEVICE), name="g")
        equal(gathered, torch.cat([torch.full((r + 1, 2), float(r + step)) for r in ranks()]))
        rows = torch.arange(float(n + 1)).repeat_interleave(2).view(n + 1, 2)
        mine = torch.tensor_split(rows * n, n)[me]
        equal(rt.reducescatter(rows.to(DEVICE), name="s", op=rt.Sum), mine)
        splits = [me + target for target in ranks()]
        sent = torch.full((sum(splits),), me, dtype=torch.int32, device=DEVICE)
        received, counts = rt.alltoall(sent, splits=splits, name="a")
        assert counts.tolist() == [source + me for source in ranks()]
        expected = [torch.full((s + me,), s, dtype=torch.int32) for s in ranks()]
        equal(received, torch.cat(expected))


def check_layouts() -> None:
    n = rueda.size()
    matrix = torch.arange(12.0).reshape(3, 4)
    on_device = matrix.to(DEVICE)
    equal(rt.allreduce(on_device.T, name="t", op=rt.Sum), matrix.T * n)
    odd = torch.zeros(1000, device=DEVICE)[1:778]  # not aligned like an allocation
    odd.fill_(1)
    equal(rt.allreduce_(odd, name="odd", op=rt.Sum), torch.full((777,), float(n)))
    first, second = rt.grouped_allreduce([on_device, on_device + 1], name="g", op=rt.Sum)
    equal(first, matrix * n)
    equal(second, (matrix + 1) * n)


def check_gradients() -> None:
    x = torch.ones(4, 2, device=DEVICE, requires_grad=True)
    weights = torch.full((4, 2), rueda.rank() + 1.0, device=DEVICE)
    (rt.allreduce(x, name="x", op=rt.Sum) * weights).sum().backward()
    assert x.grad is not None
    equal(x.grad, torch.full((4, 2), sum(rank + 1.0 for rank in ranks())))


def check_join() -> None:
    alone = rueda.size() == 1
    if alone or rueda.rank() < rueda.size() - 1:
        total = rt.allreduce(torch.ones(100, device=DEVICE), name="some", op=rt.Sum)
        equal(total, torch.full((100,), float(max(1, rueda.size() - 1))))
    rueda.join()


@needs_gpu
def check_one_tensor_is_reduced_where_it_lies() -> None:
    tensor = torch.ones(100003, device=DEVICE)
    rt.allreduce_(tensor, name="lies", op=rt.Sum)
    pointer = tensor.data_ptr()
    with counted() as grown:
        rt.allreduce_(tensor, name="lies", op=rt.Sum)
    assert tensor.data_ptr() == pointer
    device.must_have_taken_its_road(grown)
    assert grown["gpu_launches"] == 0, grown
    assert grown["nccl_calls"] == (1 if ROAD == "nccl" else 0), grown
    equal(tensor, torch.full((100003,), float(rueda.size() ** 2)))


@needs_gpu
def check_many_tensors_are_packed_in_one_launch() -> None:
    lengths = [i * i % 977 + 1 for i in range(161)]
    for step in range(3):
        many = [torch.full((n,), rueda.rank() + 1.0, device=DEVICE) for n in lengths]
        with counted() as grown:
            rt.grouped_allreduce_(many, name="many", op=rt.Sum)
        for tensor in many:
            equal(tensor, torch.full_like(tensor, sum(rank + 1 for rank in ranks())))
        device.must_have_taken_its_road(grown)
        if ROAD == "nccl":
            assert grown["nccl_calls"] == 1, (step, grown)
            assert grown["gpu_launches"] == 2, (step, grown)


def check_large_tensors() -> None:
    """Many chunks on the staged path, and a length that is no multiple of a chunk."""
    count = (48 << 20) // 4 + 1
    me = rueda.rank()
    ramp = torch.arange(count, device=DEVICE, dtype=torch.float32).remainder_(1024)
    with counted() as grown:
        total = rt.allreduce(ramp * (me + 1), name="large", op=rt.Sum)
    device.must_have_taken_its_road(grown)
    assert torch.equal(total, ramp * math.fsum(rank + 1 for rank in ranks()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    parallel.run(globals())
