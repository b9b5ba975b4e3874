"""Every rank: send and recv of NumPy arrays or, with the argument "torch", of tensors."""

from __future__ import annotations

import sys
import time

import numpy as np
import parallel
import rueda
from parallel import raises, still_works
from reference import DTYPES, values

SIZES = [0, 1, 7, 1024, 1025, 100_003]  # below and above the size sent along with its offer


def neighbours() -> tuple[int, int]:
    rank, size = rueda.rank(), rueda.size()
    return (rank - 1) % size, (rank + 1) % size


def check_dtypes_and_sizes_around_the_ring() -> None:
    left, right = neighbours()
    handles = []
    for number, dtype in enumerate(DTYPES):
        for size in SIZES:
            mine = values(f"{dtype}", rueda.rank(), (size,), dtype)
            taken = np.empty((size,), dtype)
            tag = number * 1000 + SIZES.index(size)
            handles.append(rueda.send_async(mine, right, tag))
            assert rueda.recv(taken, left, tag) == left
            np.testing.assert_array_equal(taken, values(f"{dtype}", left, (size,), dtype))
    for handle in handles:
        assert handle.result() is None


def check_arrays_of_any_kind() -> None:
    """Strided arrays, lists and scalars can be sent; the receiver's shape does not matter."""
    left, right = neighbours()
    sent = np.arange(12.0).reshape(3, 4).T + rueda.rank()
    first = rueda.send_async(sent, right)
    second = rueda.send_async([1, 2, 3], right, tag=1)
    third = rueda.send_async(2.5, right, tag=2)
    taken, numbers, scalar = np.empty((4, 3)), np.empty(3, np.int64), np.empty(())
    # Not in the order of sending: tags do not wait for each other.
    rueda.recv(scalar, left, tag=2)
    rueda.recv(numbers, left, tag=1)
    rueda.recv(taken, left)
    np.testing.assert_array_equal(taken, np.arange(12.0).reshape(3, 4).T + left)
    assert numbers.tolist() == [1, 2, 3]
    assert scalar == 2.5
    for handle in (first, second, third):
        handle.result()
    flat = np.empty(12)
    handle = rueda.recv_async(flat, left, tag=3)
    rueda.send(sent, right, tag=3)
    assert handle.result() == left
    np.testing.assert_array_equal(flat.reshape(4, 3), np.arange(12.0).reshape(3, 4).T + left)


def check_order_of_one_sender() -> None:
    left, right = neighbours()
    handles = [rueda.send_async(np.full(n % 3 * 1000 + 1, n), right) for n in range(30)]
    for n in range(30):
        taken = np.empty(n % 3 * 1000 + 1, np.int64)
        rueda.recv(taken, left)
        assert (taken == n).all()
    for handle in handles:
        handle.result()


def check_any_source() -> None:
    if rueda.rank() != 0:
        rueda.send(np.full(2000, rueda.rank()), 0, tag=5)
        return
    sources = []
    for _ in range(rueda.size() - 1):
        taken = np.empty(2000, np.int64)
        source = rueda.recv(taken, tag=5)
        assert (taken == source).all()
        sources.append(source)
    assert sorted(sources) == list(range(1, rueda.size()))


def check_process_sets() -> None:
    """Ranks are ranks of the world, and a message belongs to its set."""
    if rueda.size() < 2:
        return
    last = rueda.size() - 1
    pair = rueda.add_process_set([0, last])
    if rueda.rank() == 0:
        rueda.send(np.array([1]), last, process_set=pair)
        rueda.send(np.array([2]), last)
    elif rueda.rank() == last:
        taken = np.empty(1, np.int64)
        assert rueda.recv(taken, 0) == 0
        assert taken == [2]
        assert rueda.recv(taken, process_set=pair) == 0
        assert taken == [1]
    if rueda.size() > 2 and rueda.rank() in (0, last):
        with raises(rueda.InvalidArgumentError, "1"):
            rueda.send(np.ones(1), 1, process_set=pair)
    rueda.barrier()
    rueda.remove_process_set(pair)


def check_bad_arguments() -> None:
    """They raise here and at once; no other rank notices."""
    array = np.empty(3)
    with raises(rueda.InvalidArgumentError, f"{rueda.size()}"):
        rueda.send(array, rueda.size())
    with raises(rueda.InvalidArgumentError, f"{rueda.size()}"):
        rueda.recv(array, rueda.size())
    for bad in (-1, -2):
        with raises(rueda.InvalidArgumentError, f"no rank {bad}"):
            rueda.recv(array, bad)
        with raises(rueda.InvalidArgumentError, f"no rank {bad}"):
            rueda.send(array, bad)
    with raises(rueda.InvalidArgumentError, "target_rank='left' is not a whole number"):
        rueda.send(array, "left")  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "tag=0.5 is not a whole number"):
        rueda.recv(array, 0, tag=0.5)  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "recv:", "not contiguous"):
        rueda.recv(np.empty((3, 3)).T, 0)
    with raises(rueda.InvalidArgumentError, "recv:", "list"):
        rueda.recv([1, 2], 0)  # type: ignore[arg-type]
    with raises(rueda.UnsupportedError, "send:", "datetime64"):
        rueda.send(np.zeros(2, "datetime64[s]"), 0)
    still_works()


def check_messages_that_differ() -> None:
    """Both sides raise, and their next message arrives."""
    if rueda.size() < 2 or rueda.rank() > 1:
        return
    for mine in (np.ones(2000 + 10 * rueda.rank()), np.ones(2000, "f4" if rueda.rank() else "f8")):
        with raises(rueda.MismatchError, "from rank 0 to rank 1", "2000 x float64"):
            if rueda.rank() == 0:
                rueda.send(mine, 1)
            else:
                rueda.recv(mine, 0)
    if rueda.rank() == 0:
        rueda.send(np.ones(3), 1)  # small: its sender completes without an error
        rueda.send(np.ones(4), 1)
    else:
        with raises(rueda.MismatchError, "3 x float64", "4 x float64"):
            rueda.recv(np.empty(4), 0)
        rueda.recv(np.empty(4), 0)


def check_time_runs_out() -> None:
    left, right = neighbours()
    taken, sent = np.empty(3000), np.full(3000, 1.0 + rueda.rank())
    begun = time.monotonic()
    with raises(rueda.TimeoutError, "0.2 s"):
        rueda.recv(taken, left, tag=9, timeout=0.2)
    assert time.monotonic() - begun < 30
    rueda.barrier()
    rueda.send(sent, right, tag=9)  # the receive remained open: this message completes it
    rueda.barrier()
    deadline = time.monotonic() + 60
    while taken[-1] != 1.0 + left:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    handle = rueda.send_async(sent, right, tag=10)
    with raises(rueda.TimeoutError, "0.2 s"):
        handle.result(timeout=0.2)
    rueda.barrier()
    rueda.recv(taken, left, tag=10)
    handle.result()


def check_tensors() -> None:
    if "torch" not in sys.argv:
        return
    import rueda.torch as rt
    import torch

    left, right = neighbours()
    for dtype in (torch.float32, torch.bfloat16, torch.uint16, torch.bool, torch.complex64):
        for count in (0, 5, 30_000):
            mine = (torch.arange(count) % 5 + rueda.rank()).to(dtype)
            taken = torch.empty(count, dtype=dtype)
            version = taken._version
            handle = rt.send_async(mine.requires_grad_(dtype.is_floating_point), right)
            assert rt.recv(taken, left) == left
            handle.result()
            assert torch.equal(taken, (torch.arange(count) % 5 + left).to(dtype))
            assert taken._version > version
            assert not taken.requires_grad
    conjugate = torch.tensor([1j]).conj()
    received = rt.recv_async(taken := torch.empty(1, dtype=torch.complex64), left)
    rt.send(conjugate, right)
    assert received.result() == left
    assert taken.item() == -1j
    with raises(rueda.UnsupportedError, "send:", "sparse"):
        rt.send(torch.eye(3).to_sparse(), right)
    with raises(rueda.UnsupportedError, "recv:", "meta"):
        rt.recv(torch.empty(3, device="meta"), left)
    with raises(rueda.InvalidArgumentError, "recv:", "not contiguous"):
        rt.recv(torch.empty(3, 3).t(), left)
    with raises(rueda.InvalidArgumentError, "takes tensors"):
        rt.send([1.0], right)  # type: ignore[arg-type]
    still_works()


if __name__ == "__main__":
    parallel.run(globals())
