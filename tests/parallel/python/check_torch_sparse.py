"""Every rank: sums of sparse tensors, against dense ones."""

from __future__ import annotations

import hashlib
from itertools import product
from typing import Any

import parallel
import rueda
import rueda.torch as rt
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

torch.sparse.check_sparse_tensor_invariants.enable()
ALGORITHMS = ["auto", "gather", "split", "dense"]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [torch.bool, *INTEGERS, *UNSIGNED, *FLOATS, *COMPLEX]
# All ranks must draw the same, so examples are neither random nor stored. Shrinking would require
# them to fail alike.
ALIKE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def drawn(
    rank: int,
    seed: int,
    count: int,
    extents: tuple[int, ...],
    dense: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    """A rank's tensor of small integers, whose sums are exact; indices repeat."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    indices = torch.stack([torch.randint(n, (count,), generator=generator) for n in extents])
    values = torch.randint(4, (count, *dense), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (*extents, *dense))


def total(
    tensors: list[torch.Tensor], wide: torch.dtype, divisor: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum as a dense tensor, and the positions at which any rank has a value."""
    shape, sparse = tensors[0].shape, tensors[0].sparse_dim()
    dense = torch.zeros(shape, dtype=wide)
    there = torch.zeros(shape[:sparse], dtype=torch.bool)
    for tensor in tensors:
        places = tuple(tensor._indices())
        dense.index_put_(places, tensor._values().to(wide), accumulate=True)
        there[places] = True
    if divisor > 1:
        exact = wide.is_floating_point or wide.is_complex
        dense = dense / divisor if exact else dense // divisor
    return dense, there


def same_everywhere(tensor: torch.Tensor) -> None:
    """Requires the same bits on all ranks."""
    parts = tensor.indices(), tensor.values().contiguous().view(torch.uint8)
    told = hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()
    assert len(set(rueda.allgather_object(told))) == 1


@ALIKE
@given(
    dtype=st.sampled_from(DTYPES),
    algorithm=st.sampled_from(ALGORITHMS),
    average=st.booleans(),
    extents=st.lists(st.integers(1, 30), min_size=1, max_size=3).map(tuple),
    dense=st.lists(st.integers(0, 5), max_size=2).map(tuple),
    counts=st.lists(st.sampled_from([0, 0, 1, 7, 60, 700]), min_size=4, max_size=4),
    seed=st.integers(0, 99),
)
def agrees(
    dtype: torch.dtype,
    algorithm: str,
    average: bool,
    extents: tuple[int, ...],
    dense: tuple[int, ...],
    counts: list[int],
    seed: int,
) -> None:
    average = average and dtype != torch.bool
    if dtype in INTEGERS + UNSIGNED:
        counts = [min(count, 7) for count in counts]  # sums that fit in int8
    size = rueda.size()
    tensors = [drawn(r, seed, counts[r], extents, dense, dtype) for r in range(size)]
    wide = dtype if dtype.is_complex else torch.float64
    if dtype in (torch.bool, *INTEGERS, *UNSIGNED):
        wide = torch.int64
    expected, there = total(tensors, wide, size if average else 1)
    if dtype == torch.bool:
        expected = expected.bool()
    mine = tensors[rueda.rank()]
    op = rueda.Average if average else rueda.Sum
    result = rt.sparse_allreduce(mine, "drawn", op, algorithm=algorithm)
    problem = ""
    if result.dtype != dtype or result.shape != mine.shape or not result.is_coalesced():
        problem = f"{result.dtype}, {result.shape}, coalesced: {result.is_coalesced()}"
    elif not torch.equal(result.indices().T, there.nonzero()):
        problem = f"other indices: {result.indices()}"
    else:
        values = result.values().to(expected.dtype)
        wanted = expected[tuple(result.indices())]
        if average and (dtype.is_floating_point or dtype.is_complex):
            tolerance = 2 * torch.finfo(dtype).eps
            if not torch.allclose(values, wanted, rtol=tolerance, atol=tolerance):
                problem = f"{values} instead of {wanted}"
        elif not torch.equal(values, wanted.to(dtype).to(expected.dtype)):
            problem = f"{values} instead of {wanted}"
    problems = rueda.allgather_object(problem)  # so that all ranks stop at the same example
    assert not any(problems), problems


def check_against_dense_sums() -> None:
    agrees()


def check_every_dtype_by_every_algorithm() -> None:
    for dtype, algorithm in product(DTYPES, ALGORITHMS):
        tensors = [drawn(r, 5, 9 * (r + 1), (40,), (3,), dtype) for r in range(rueda.size())]
        mine = tensors[rueda.rank()]
        expected, _ = total(tensors, dtype if dtype.is_complex else torch.float64)
        result = rt.sparse_allreduce(mine, "typed", rueda.Sum, algorithm=algorithm)
        wanted = expected[result.indices()[0]].to(dtype)
        assert result.dtype == dtype
        assert torch.equal(result.values(), wanted), (dtype, algorithm)
        same_everywhere(result)


def check_bits_are_the_same_on_all_ranks() -> None:
    """For values whose sums are rounded, even if ranks wait in another order."""
    me = rueda.rank()
    for dtype, algorithm in product(FLOATS, ALGORITHMS):
        tensors = []
        for number in range(3):
            rows = torch.randint(900, (1, 600 * (me + number)))
            values = torch.randn(rows.shape[1], 5, dtype=torch.float64).to(dtype)
            tensors.append(torch.sparse_coo_tensor(rows, values, (900, 5)))
        handles = [
            rt.sparse_allreduce_async(t, f"bits {i}", rueda.Average, algorithm=algorithm)
            for i, t in enumerate(tensors)
        ]
        for number in range(3):
            handles[(number + me) % 3].wait()
        for handle in handles:
            same_everywhere(handle.result())


def check_goes_on_though_nobody_waits() -> None:
    me = rueda.rank()
    tensor = drawn(me, 1, 2000, (9000,), (4,), torch.float32)
    handle = rt.sparse_allreduce_async(tensor, "left alone", rueda.Sum, algorithm="split")
    if me == 0:
        handle.result()  # ends even if the others do something else meanwhile
    rueda.barrier(name="meanwhile")
    same_everywhere(handle.result(timeout=60))
    assert handle.done()


def check_tensors_may_be_written_meanwhile() -> None:
    """Also coalesced ones, whose memory could be sent as it lies."""
    for count, algorithm in product((10, 3000), ALGORITHMS):
        tensor = torch.ones(count, 20).to_sparse(1)
        handle = rt.sparse_allreduce_async(tensor, "written", rueda.Sum, algorithm=algorithm)
        tensor.values().zero_()
        tensor.indices().zero_()
        expected = torch.full((count, 20), float(rueda.size()))
        assert torch.equal(handle.result().to_dense(), expected), (count, algorithm)


def check_complex_values_that_are_conjugated_when_read() -> None:
    for count, algorithm in product((2, 3000), ALGORITHMS):
        values = torch.complex(torch.ones(count, 3), torch.full((count, 3), 2.0)).conj()
        rows = torch.arange(count)[None] * 2
        tensor = torch.sparse_coo_tensor(rows, values, (9000, 3), is_coalesced=True)
        result = rt.sparse_allreduce(tensor, "conjugated", algorithm=algorithm)
        assert torch.equal(result.to_dense(), tensor.to_dense()), (count, algorithm)


def check_a_name_that_is_pending() -> None:
    """A second submission raises at the call, on its own rank; the first one is unharmed."""
    tensor = drawn(0, 1, 900, (9000,), (4,), torch.float32)
    if rueda.size() > 1 and rueda.rank() == 0:
        first = rt.sparse_allreduce_async(tensor, "twice", rueda.Sum)
        with parallel.raises(rueda.DuplicateNameError, "'twice'", "rank 0"):
            rt.sparse_allreduce_async(tensor, "twice", rueda.Sum)
        rueda.barrier(name="tried")
        result = first.result()
    else:
        rueda.barrier(name="tried")
        result = rt.sparse_allreduce(tensor, "twice", rueda.Sum)
    torch.testing.assert_close(result.to_dense(), tensor.to_dense() * rueda.size())


def check_factors_and_small_floats() -> None:
    """fp16 and bf16 are summed in float32; each factor is applied at its place."""
    size, me = rueda.size(), rueda.rank()
    for dtype, algorithm in product((torch.float16, torch.bfloat16), ALGORITHMS[:3]):
        values = torch.full((2000, 1), 1.0, dtype=dtype)
        tensor = torch.sparse_coo_tensor(torch.zeros(1, 2000, dtype=torch.long), values, (4, 1))
        result = rt.sparse_allreduce(tensor, "small", rueda.Average, algorithm=algorithm)
        # A 16-bit sum would stop at 256 or 2048.
        assert result.values().item() == torch.tensor(2000.0).to(dtype).item()
    for algorithm in ALGORITHMS:
        tensor = torch.sparse_coo_tensor([[me, 5]], [[1.0], [2.0]], (7, 1))
        result = rt.sparse_allreduce(
            tensor,
            "scaled",
            rueda.Sum,
            prescale_factor=0.5,
            postscale_factor=4.0,
            algorithm=algorithm,
        ).to_dense()
        assert result[5].item() == 4.0 * size, algorithm
        assert result[me].item() == 2.0
    whole = torch.sparse_coo_tensor([[0]], [1], (3,))
    with parallel.raises(rueda.UnsupportedError, "int64", "scale the result"):
        rt.sparse_allreduce(whole, "whole", rueda.Sum, prescale_factor=0.5)


def check_process_sets() -> None:
    size, me = rueda.size(), rueda.rank()
    if size < 3:
        return
    some = rueda.add_process_set([0, size - 1])
    if some.included():
        for algorithm in ALGORITHMS:
            tensor = drawn(me, 3, 500, (700,), (2,), torch.float32)
            result = rt.sparse_allreduce(tensor, "some", rueda.Sum, some, algorithm=algorithm)
            both = [drawn(r, 3, 500, (700,), (2,), torch.float32) for r in (0, size - 1)]
            assert torch.equal(result.to_dense(), total(both, torch.float32)[0])
    rueda.barrier(name="after some")
    rueda.remove_process_set(some)


def check_bytes_follow_the_union() -> None:
    """If all ranks have the same rows, each receives about one union, not one per rank."""
    size = rueda.size()
    if size == 1:
        return
    count, width, extent = 20_000, 16, 10_000_000
    rows = torch.arange(count) * 499
    tensor = torch.sparse_coo_tensor(rows[None], torch.ones(count, width), (extent, width))
    kinds = ("payload_bytes_received", "bytes_taken")
    received = {}
    for algorithm in ("auto", "gather"):
        before = rueda.metrics()
        rt.sparse_allreduce(tensor, "bytes", rueda.Sum, algorithm=algorithm)
        after = rueda.metrics()
        received[algorithm] = sum(
            after[f"{what}_{kind}"] - before[f"{what}_{kind}"]
            for what in ("allgather", "alltoall")
            for kind in kinds
        )
    assert received["gather"] >= (size - 1) * count * (4 + 4 * width)
    assert received["gather"] <= 1.01 * (size - 1) * count * (4 + 4 * width)
    if size > 2:  # with two ranks both algorithms move the same
        handle = rt.sparse_allreduce_async(tensor, "bytes", rueda.Sum)
        handle.wait()
        assert handle.choice.algorithm == "split"
        assert received["auto"] <= 1.15 * (8 + 4 * width) * count * 2 * (size - 1) / size


def check_choice() -> None:
    choose = rt.choose_sparse_algorithm
    assert choose([1000] * 8, 1000, 10**7, 64).algorithm == "split"
    assert choose([1000] * 8, 8000, 10**7, 64).algorithm == "gather"
    assert choose([70_000] * 8, 90_000, 100_000, 4).algorithm == "dense"
    assert choose([], 0, 10, 64).gather_bytes == 0
    for algorithm in ALGORITHMS[1:]:
        full = drawn(rueda.rank(), 2, 3000, (4000,), (8,), torch.float32)
        handle: Any = rt.sparse_allreduce_async(full, "told", algorithm=algorithm)
        handle.wait()
        assert handle.choice.algorithm == algorithm
        # An estimate of the union, equal on all ranks.
        union = handle.result()._nnz()
        assert abs(handle.choice.union_rows - union) <= 0.35 * union
        assert len(set(rueda.allgather_object(handle.choice))) == 1
    # Nearly full: dense is cheapest.
    full = torch.ones(4000, 8).to_sparse(1)
    handle = rt.sparse_allreduce_async(full, "full")
    handle.wait()
    assert handle.choice.algorithm == ("dense" if rueda.size() > 2 else handle.choice.algorithm)


def check_without_a_name() -> None:
    for count in (3, 900):
        tensors = [drawn(r, 8, count, (5000,), (), torch.float64) for r in range(rueda.size())]
        mine = tensors[rueda.rank()]
        first = rt.sparse_allreduce_async(mine, op=rueda.Sum)
        second = rt.sparse_allreduce_async(mine, op=rueda.Average)
        expected, _ = total(tensors, torch.float64)
        assert torch.equal(first.result().to_dense(), expected)
        torch.testing.assert_close(second.result().to_dense(), expected / rueda.size())


def check_differences() -> None:
    """One error on every rank, which names the rank that differs; the world goes on."""
    size, last = rueda.size(), rueda.size() - 1
    if size == 1:
        return
    odd = rueda.rank() == last
    tensor = drawn(0, 1, 30, (20, 6), (), torch.float32)
    others = {
        "shape": (
            drawn(0, 1, 30, (20, 7), (), torch.float32),
            ("[20, 6]", f"[20, 7] on rank {last}"),
        ),
        "dtype": (tensor.double(), ("float32", f"float64 on rank {last}")),
        "sparse_dim": (drawn(0, 1, 9, (20,), (6,), torch.float32), (f"1 on rank {last}",)),
    }
    for field, (other, told) in others.items():
        for algorithm in ALGORITHMS:
            with parallel.raises(rueda.MismatchError, "'odd'", field, *told):
                rt.sparse_allreduce(other if odd else tensor, "odd", algorithm=algorithm)
            parallel.still_works()
    with parallel.raises(rueda.MismatchError, "'odd'", "op", "average", f"sum on rank {last}"):
        rt.sparse_allreduce(tensor, "odd", rueda.Sum if odd else rueda.Average)
    with parallel.raises(rueda.MismatchError, "'odd'", "algorithm", f"split on rank {last}"):
        rt.sparse_allreduce(tensor, "odd", algorithm="split" if odd else "gather")
    with parallel.raises(rueda.MismatchError, "'odd'", "scale factors"):
        rt.sparse_allreduce(tensor, "odd", postscale_factor=2.0 if odd else 1.0)
    with parallel.raises(rueda.MismatchError, "without a name", "dtype"):
        rt.sparse_allreduce(tensor.double() if odd else tensor)
    parallel.still_works()
    torch.testing.assert_close(
        rt.sparse_allreduce(tensor, "odd").to_dense(), tensor.to_dense()
    )  # the name is free again


def check_values_that_do_not_lie_side_by_side() -> None:
    """Torch calls a single element contiguous, whatever its strides."""
    table = torch.arange(12.0).reshape(3, 4)
    for rows in (1, 2):
        column = torch.sparse_coo_tensor([[2, 0][:rows]], table[:rows, 1], (3,))
        for algorithm in ALGORITHMS:
            result = rt.sparse_allreduce(column, "column", rt.Sum, algorithm=algorithm)
            assert torch.equal(result.to_dense(), rueda.size() * column.to_dense()), algorithm


class Failing:
    def compress(self, tensor: torch.Tensor) -> Any:
        raise RuntimeError("no more")

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor


def check_no_memory_for_a_dense_tensor() -> None:
    far = torch.sparse_coo_tensor([[2**50]], [[1.0, 2.0]], (2**50 + 1, 2))
    size = (2**50 + 1) * 9
    with parallel.raises(rueda.InvalidArgumentError, "'far", f"{size} bytes", "'gather'"):
        rt.sparse_allreduce(far, "far", algorithm="dense")
    parallel.still_works()
    assert torch.equal(rt.sparse_allreduce(far, "far").values(), far._values())


def check_gradients() -> None:
    """Like those of a dense sum or average, wherever the ranks' own tensors have values."""
    size, me = rueda.size(), rueda.rank()
    for op, algorithm in product((rueda.Sum, rueda.Average), ALGORITHMS):
        for dense_loss in (True, False, me == 0):
            values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
            tensor = torch.sparse_coo_tensor([[me, size]], values, (size + 1, 2))
            result = rt.sparse_allreduce(
                tensor, "with gradient", op, prescale_factor=2.0, algorithm=algorithm
            )
            assert result.is_coalesced()
            flat = result.to_dense() if dense_loss else result.values()
            (flat.square().sum() * (me + 1)).backward()
            reduced = result.detach().to_dense()
            factor = 2.0 * 2 * size * (size + 1) / 2 / (size if op == rueda.Average else 1)
            wanted = factor * reduced[[me, size]]
            torch.testing.assert_close(values.grad, wanted)
    leaf = torch.sparse_coo_tensor([[me]], [1.0], (size,)).requires_grad_()
    torch.sparse.sum(rt.sparse_allreduce(leaf, op=rueda.Sum)).backward()
    assert leaf.grad is not None
    assert leaf.grad.to_dense()[me].item() == size
    # torch differentiates twice only from a sparse tensor on, not from its values.
    threes = torch.sparse_coo_tensor([[0]], [3.0], (2,)).requires_grad_()
    cubes = rt.sparse_allreduce(threes, "differentiated twice").to_dense() ** 3
    (first,) = torch.autograd.grad(cubes.sum(), threes, create_graph=True)
    (second,) = torch.autograd.grad(first.to_dense().sum(), threes)
    assert first.to_dense().tolist() == [27.0, 0.0]
    assert second.to_dense().tolist() == [18.0, 0.0]
    with torch.no_grad():
        assert not rt.sparse_allreduce(leaf).requires_grad


def check_no_compression() -> None:
    good = torch.eye(3).to_sparse(1)
    for compression in (None, rt.Compression.fp16):
        result = rt.sparse_allreduce(good, "plain", compression=compression)
        assert torch.equal(result.to_dense(), torch.eye(3))
        handle = rt.sparse_allreduce_async(good, "plain", compression=compression)
        assert torch.equal(handle.result().to_dense(), torch.eye(3))


def check_bad_input() -> None:
    bad = rueda.rank() == rueda.size() - 1
    who = f"rank {rueda.size() - 1}"
    good = torch.eye(3).to_sparse(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    outside = torch.sparse_coo_tensor([[7]], [[1.0] * 3], (3, 3))
    torch.sparse.check_sparse_tensor_invariants.enable()
    for tensor, kind, *told in (
        (outside, rueda.InvalidArgumentError, "index 7", "dimension 0", "extent 3"),
        (torch.eye(3), rueda.UnsupportedError, "strided", "sparse_coo"),
        (good.to("meta"), rueda.UnsupportedError, "meta"),
    ):
        with parallel.raises(kind, "'bad'", who, *told):
            rt.sparse_allreduce(tensor if bad else good, "bad")
        parallel.still_works()
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", who, "list"):
        rt.sparse_allreduce([1.0] if bad else good, "bad")  # type: ignore[arg-type]
    for compression, told in (("int8", "codec"), (Failing(), "RuntimeError: no more")):
        with parallel.raises(rueda.InvalidArgumentError, "'bad'", who, told):
            rt.sparse_allreduce(
                good,
                "bad",
                compression=compression if bad else rt.Compression.none,  # type: ignore[arg-type]
            )
        parallel.still_works()
    with parallel.raises(rueda.InvalidArgumentError, "averaged or summed"):
        rt.sparse_allreduce(good, "bad", rueda.Max)
    with parallel.raises(rueda.InvalidArgumentError, "'fast'", "gather, split, dense"):
        rt.sparse_allreduce(good, "bad", algorithm="fast")
    with parallel.raises(rueda.UnsupportedError, "bool"):
        rt.sparse_allreduce(good.bool(), "bad", rueda.Average)
    parallel.still_works()


def check_join() -> None:
    """Joined ranks contribute nothing; the others skip the alltoall."""
    size, me = rueda.size(), rueda.rank()
    if me < size - 1 or size == 1:
        taking_part = max(1, size - 1)
        for algorithm in ALGORITHMS:
            tensor = drawn(me, 4, 800, (3000,), (2,), torch.float32)
            result = rt.sparse_allreduce(tensor, "joined", rueda.Sum, algorithm=algorithm)
            tensors = [drawn(r, 4, 800, (3000,), (2,), torch.float32) for r in range(taking_part)]
            assert torch.equal(result.to_dense(), total(tensors, torch.float32)[0]), algorithm
    rueda.join()
    parallel.still_works()


def check_the_default_device_has_no_say() -> None:
    """CPU data stays on the CPU, whatever the application's default device."""
    tensors = [drawn(rank, 3, 20, (30,), (2,), torch.float32) for rank in range(rueda.size())]
    expected, _ = total(tensors, torch.float32)
    mine, dense = tensors[rueda.rank()], torch.ones(3)
    received = torch.zeros(3)
    with torch.device("meta"):
        for algorithm in ALGORITHMS:
            summed = rt.sparse_allreduce(mine, op=rt.Sum, algorithm=algorithm, name="default")
            assert torch.equal(summed.to_dense(), expected), algorithm
        nothing = torch.sparse_coo_tensor(size=(4, 2), device="cpu")
        assert rt.sparse_allreduce(nothing, op=rt.Sum, name="nothing").is_cpu
        gathered, counts = rt.allgather(dense, name="g"), rt.alltoall(dense.new_ones(rueda.size()))
        sending = rt.send_async(dense, rueda.rank())
        rt.recv(received, rueda.rank())
        sending.result()
    assert gathered.is_cpu
    assert counts.is_cpu
    assert torch.equal(received, dense)


if __name__ == "__main__":
    parallel.run(globals())
