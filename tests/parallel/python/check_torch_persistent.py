"""Every rank: persistent allreduces of torch tensors."""

from __future__ import annotations

import gc
import time

import parallel
import rueda
import rueda.torch as rt
import torch
from parallel import raises, still_works

SIZES = [0, 1, 14, 500, 4097, 300_001]  # in a cache line, in slots, straight from the tensors


def ranks() -> range:
    return range(rueda.size())


def mine(size: int, step: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return ((torch.arange(size) % 50 + step) * rueda.size() + rank).to(dtype)


def total(size: int, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([mine(size, step, rank, dtype) for rank in ranks()]).sum(0, dtype=dtype)


def check_sums_in_place_and_into_another_tensor() -> None:
    for size in SIZES:
        tensor, output = torch.empty(size), torch.empty(size)
        in_place = rt.PersistentAllreduce(tensor, op=rt.Sum, name=f"in place {size}")
        elsewhere = rt.PersistentAllreduce(tensor, output, op=rt.Sum)
        assert in_place.output is tensor
        assert elsewhere.output is output
        for step in range(5):
            tensor.copy_(mine(size, step, rueda.rank()))
            elsewhere.start()
            elsewhere.wait()
            assert torch.equal(output, total(size, step))
            assert torch.equal(tensor, mine(size, step, rueda.rank()))
            in_place.start()
            while not in_place.done():
                pass
            assert torch.equal(tensor, total(size, step))


def check_averages_and_factors() -> None:
    tensor = torch.empty(1000, dtype=torch.float64)
    average = rt.PersistentAllreduce(tensor, prescale_factor=0.5, postscale_factor=4)
    for step in range(3):
        tensor.copy_(mine(1000, step, rueda.rank()))
        average.start()
        average.wait()
        expected = total(1000, step, torch.float64) / rueda.size() * 2
        torch.testing.assert_close(tensor, expected, rtol=1e-12, atol=0)


def check_any_dtype_and_shape() -> None:
    for dtype in (torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float64):
        tensor = torch.empty(3, 5, dtype=dtype)
        with_most = rt.PersistentAllreduce(tensor, op=rt.Max, name=f"max {dtype}")
        for step in range(2):
            tensor.fill_(rueda.rank() + step)
            with_most.start()
            with_most.wait()
            assert torch.equal(tensor, torch.full_like(tensor, rueda.size() - 1 + step))


def check_the_model_sees_that_a_tensor_was_written() -> None:
    tensor = torch.ones(3)
    operation = rt.PersistentAllreduce(tensor)
    before = tensor._version
    operation.start()
    operation.wait()
    assert tensor._version > before


def check_process_sets() -> None:
    if rueda.size() < 2:
        return
    some = rueda.add_process_set(range(1, rueda.size()))
    if rueda.rank() > 0:
        tensor = torch.ones(7)
        operation = rt.PersistentAllreduce(tensor, op=rt.Sum, process_set=some)
        operation.start()
        operation.wait()
        assert torch.equal(tensor, torch.full((7,), rueda.size() - 1.0))
        del operation
    rueda.remove_process_set(some)


def check_dropping_one() -> None:
    for step in range(3):
        tensor = torch.full((2000,), 1.0)
        operation = rt.PersistentAllreduce(tensor, op=rt.Sum)
        operation.start()
        operation.wait()
        if step == rueda.rank() % 3:
            time.sleep(0.02)
        del operation  # which others may still be reading
        gc.collect()
        assert torch.equal(tensor, torch.full((2000,), float(rueda.size())))
        tensor.fill_(-1)


def check_dropping_one_during_a_run() -> None:
    """The others get its part, whether it has come first or last."""
    last = rueda.size() - 1
    for size in (1, 300, 30_000, 1 << 20):
        for first in (0, last):
            tensor = torch.full((size,), rueda.rank() + 1.0)
            operation = rt.PersistentAllreduce(tensor, op=rt.Sum)
            if rueda.rank() != first:
                time.sleep(0.05)
            operation.start()
            if rueda.rank() != 0:
                operation.wait()
                total = rueda.size() * (rueda.size() + 1) / 2
                assert torch.equal(tensor, torch.full((size,), total))
            del operation
            gc.collect()
    still_works()


def check_what_differs() -> None:
    if rueda.size() > 1:
        with raises(rueda.MismatchError, "'p'", "shape"):
            rt.PersistentAllreduce(torch.ones(3 + rueda.rank() % 2), name="p")
        with raises(rueda.MismatchError, "'p'", "op"):
            rt.PersistentAllreduce(torch.ones(3), op=rt.Sum if rueda.rank() else rt.Max, name="p")
    still_works()


def check_what_cannot_be_reduced() -> None:
    last = rueda.rank() == rueda.size() - 1
    with raises(rueda.InvalidArgumentError, "not contiguous"):
        tensor = torch.ones(4, 6)
        rt.PersistentAllreduce(tensor.T if last else tensor.view(6, 4), name="p")
    with raises(rueda.InvalidArgumentError, "does not match the tensor"):
        rt.PersistentAllreduce(torch.ones(4), torch.ones(5 if last else 4), name="p")
    with raises(rueda.UnsupportedError, "dtype"):
        rt.PersistentAllreduce(torch.empty(4, dtype=torch.float8_e5m2 if last else None), name="p")
    with raises(rueda.UnsupportedError, "bfloat16"):
        rt.PersistentAllreduce(torch.ones(4), compression=rt.Compression.bf16, name="p")
    with raises(rueda.InvalidArgumentError, "compression"):
        rt.PersistentAllreduce(torch.ones(4), compression=object(), name="p")  # type: ignore[arg-type]
    still_works()


def check_a_second_start() -> None:
    operation = rt.PersistentAllreduce(torch.ones(4), name="p")
    operation.start()
    with raises(rueda.InvalidArgumentError, "'p'", "before it was waited for"):
        operation.start()
    operation.wait()
    still_works()


def check_a_tensor_with_other_memory() -> None:
    tensor = torch.ones(4)
    operation = rt.PersistentAllreduce(tensor)
    tensor.data = torch.ones(4)
    with raises(rueda.InvalidArgumentError, "other memory"):
        operation.start()
    still_works()


if __name__ == "__main__":
    parallel.run(globals())
