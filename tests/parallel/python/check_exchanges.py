"""Every rank: allgather, broadcast, alltoall, objects, process sets, threads and join, against NumPy."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import sys
import threading

import numpy as np
import parallel
import rueda
from reference import DTYPES, values


def check_allgather_of_everything() -> None:
    handles = {}
    tails = [(), (3,), (0,), (2, 2)]

    def shape(rank, tail):
        return ((rank * 2 + 1) % 4, *tail)  # 1, 3, 1, 3 rows; below, one rank has none

    for dtype, tail in itertools.product(DTYPES, tails):
        name = f"{dtype.name}/{tail}"
        mine = values(name, rueda.rank(), shape(rueda.rank(), tail), dtype)
        handles[name] = (rueda.allgather_async(mine, name=name), dtype, tail)
    for name, (handle, dtype, tail) in handles.items():
        every = [values(name, rank, shape(rank, tail), dtype) for rank in range(rueda.size())]
        result = handle.result()
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, np.concatenate(every))
        assert result.flags.writeable


def check_allgather_where_one_rank_has_nothing() -> None:
    mine = np.full((0 if rueda.rank() == 0 else rueda.rank(), 2), rueda.rank())
    every = [np.full((rank, 2), rank) for rank in range(rueda.size())]
    np.testing.assert_array_equal(rueda.allgather(mine, name="rows"), np.concatenate(every))
    first, second = rueda.grouped_allgather([mine, mine + 1], name="pair")
    np.testing.assert_array_equal(first + 1, second)


def check_broadcast_of_everything() -> None:
    shapes = [(), (0,), (1,), (7, 3), (4099,)]
    for root in range(rueda.size()):
        handles = {}
        for dtype, shape in itertools.product(DTYPES, shapes):
            name = f"{dtype.name}/{shape}"
            mine = values(name, rueda.rank(), shape, dtype)
            in_place = mine.copy()
            handles[name] = (
                mine,
                rueda.broadcast_async(mine, root, name),
                in_place,
                rueda.broadcast_async_(in_place, root, f"{name} in place"),
            )
        for dtype, shape in itertools.product(DTYPES, shapes):
            name = f"{dtype.name}/{shape}"
            mine, handle, in_place, in_place_handle = handles[name]
            expected = values(name, root, shape, dtype)
            np.testing.assert_array_equal(handle.result(), expected)
            assert in_place_handle.result() is in_place
            np.testing.assert_array_equal(in_place, expected)
            np.testing.assert_array_equal(mine, values(name, rueda.rank(), shape, dtype))


def check_alltoall_of_everything() -> None:
    n, me = rueda.size(), rueda.rank()
    split = [[(3 * a + b) % 4 for b in range(n)] for a in range(n)]  # rows from a to b
    for dtype, tail in itertools.product(DTYPES, [(), (2,)]):
        name = f"{dtype.name}/{tail}"
        every = [values(name, a, (sum(split[a]), *tail), dtype) for a in range(n)]
        received, counts = rueda.alltoall(every[me], splits=split[me], name=name)
        starts = [sum(split[a][:me]) for a in range(n)]
        expected = [every[a][starts[a] : starts[a] + split[a][me]] for a in range(n)]
        np.testing.assert_array_equal(received, np.concatenate(expected))
        np.testing.assert_array_equal(counts, [split[a][me] for a in range(n)])
    even = rueda.alltoall(np.arange(2 * n) + 100 * me, name="even")
    np.testing.assert_array_equal(
        even, np.concatenate([[2 * me + 100 * a, 2 * me + 1 + 100 * a] for a in range(n)])
    )
    # The first extent may differ between ranks.
    uneven = rueda.alltoall(np.full(n * (me + 1), me), name="own extents")
    np.testing.assert_array_equal(uneven, np.concatenate([np.full(a + 1, a) for a in range(n)]))


def check_objects() -> None:
    me, n = rueda.rank(), rueda.size()
    for root in range(n):
        thing = {"root": root, "list": list(range(root * 1000))}
        received = rueda.broadcast_object(thing if me == root else None, root_rank=root)
        assert received == thing
    assert rueda.allgather_object({"rank": me, "text": "x" * me}) == [
        {"rank": rank, "text": "x" * rank} for rank in range(n)
    ]

    class Unpicklable:
        def __reduce__(self):
            raise ValueError("not for sale")

    with parallel.raises(rueda.InvalidArgumentError, "rank 0", "not for sale"):
        rueda.broadcast_object(Unpicklable() if me == 0 else None, name="bad")
    with parallel.raises(rueda.InvalidArgumentError, f"rank {n - 1}", "not for sale"):
        rueda.allgather_object(Unpicklable() if me == n - 1 else 1, name="bad")
    parallel.still_works()


class Textless(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


class Refusing:
    """Raises an error of its own when it is pickled."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce__(self) -> str:
        raise self._error


def check_errors_of_pickling_that_cannot_be_sent_as_they_are() -> None:
    """Every rank gets them all the same, in one line."""
    me, last = rueda.rank(), rueda.size() - 1
    quoted = 'caught\nTraceback (most recent call last):\n  File "row.py", line 3\nKeyError: 3\n'
    for error, words in (
        (ValueError("caf\udce9"), "caf\\udce9"),
        (Textless(), "Textless"),
        (ValueError("no name\nno date"), "no name | no date"),
        (ValueError(quoted), "KeyError: 3 (the end of: ValueError: caught |"),
    ):
        with parallel.raises(rueda.InvalidArgumentError, f"rank {last}", words):
            rueda.broadcast_object(Refusing(error) if me == last else None, last, name="bad")
        with parallel.raises(rueda.InvalidArgumentError, f"rank {last}", words):
            rueda.allgather_object(Refusing(error) if me == last else 1, name="bad")
        parallel.still_works()


def check_objects_that_pickle_refuses() -> None:
    class Local:
        factor = 3

    n, me, root = rueda.size(), rueda.rank(), rueda.size() - 1
    if importlib.util.find_spec("cloudpickle"):
        triple = rueda.broadcast_object((lambda x: x * 3) if me == root else None, root)
        assert triple(2) == 6
        assert [f() for f in rueda.allgather_object(lambda: me)] == list(range(n))
        assert rueda.broadcast_object(Local() if me == root else None, root).factor == 3
    hidden = sys.modules.get("cloudpickle")
    sys.modules["cloudpickle"] = None  # as if it were not installed
    try:
        for attempt in (
            lambda: rueda.broadcast_object(lambda: 1),
            lambda: rueda.allgather_object(Local),
        ):
            with parallel.raises(rueda.InvalidArgumentError, "<locals>", "pip install cloudpickle"):
                attempt()
    finally:
        del sys.modules["cloudpickle"]
        if hidden is not None:
            sys.modules["cloudpickle"] = hidden


def check_shared_memory_arrays() -> None:
    x = rueda.empty((5, 3), np.float32)
    np.testing.assert_array_equal(x, np.zeros((5, 3), np.float32))
    x[:] = rueda.rank()
    rueda.allreduce_(x, name="x", op=rueda.Sum)
    np.testing.assert_array_equal(x, np.full((5, 3), sum(range(rueda.size())), np.float32))
    assert rueda.empty(0).shape == (0,)
    row = x[1]
    del x
    gc.collect()
    np.testing.assert_array_equal(row, np.full(3, sum(range(rueda.size())), np.float32))


def check_dropped_handles_complete() -> None:
    for step in range(20):
        rueda.allreduce_async(np.full(1000, float(step)), name=f"dropped {step}")
    gc.collect()
    parallel.still_works()


def check_handles() -> None:
    handle = rueda.allreduce_async(np.ones(3), name="handle", op=rueda.Sum)
    assert handle.wait(60)
    assert rueda.poll(handle)
    assert handle.result() is handle.result()
    if rueda.size() > 1:
        if rueda.rank() == 0:
            waiting = rueda.allreduce_async(np.ones(3), name="later")
            assert not waiting.wait(0.05)
            assert not waiting.done()
            with parallel.raises(rueda.TimeoutError, "0.05"):
                waiting.result(timeout=0.05)
        rueda.barrier()
        if rueda.rank() != 0:
            waiting = rueda.allreduce_async(np.ones(3), name="later")
        np.testing.assert_array_equal(waiting.result(), np.ones(3))


def check_process_sets() -> None:
    n, me = rueda.size(), rueda.rank()
    groups = [list(range(n)), [0], list(range(0, n, 2)), list(range(n // 2, n))]
    sets = []
    for ranks in groups:
        sets.append(rueda.add_process_set(ranks))
    for ranks, process_set in zip(groups, sets, strict=True):
        assert process_set.ranks == ranks
        assert process_set.size() == len(ranks)
        assert process_set.included() == (me in ranks)
        assert process_set.rank() == (ranks.index(me) if me in ranks else -1)
    # Overlapping sets, with the same name, awaited in different orders.
    handles = []
    mine = [(r, s) for r, s in zip(groups, sets, strict=True) if me in r]
    for ranks, process_set in mine[:: 1 if me % 2 else -1]:
        handles.append(
            (ranks, rueda.allreduce_async([me], "x", rueda.Sum, process_set=process_set))
        )
    for ranks, handle in handles:
        np.testing.assert_array_equal(handle.result(), [sum(ranks)])
    for ranks, process_set in mine:
        root = ranks[-1]
        received = rueda.broadcast([me], root, "root", process_set=process_set)
        np.testing.assert_array_equal(received, [root])
        gathered = rueda.allgather([me], "gather", process_set=process_set)
        np.testing.assert_array_equal(gathered, ranks)
        assert rueda.allgather_object(me, process_set=process_set) == ranks
        assert rueda.broadcast_object(me, root, process_set=process_set) == root
        rueda.barrier(process_set)
        if len(ranks) < n:
            outside = next(rank for rank in range(n) if rank not in ranks)
            with parallel.raises(rueda.InvalidArgumentError, str(outside)):
                rueda.broadcast([me], outside, "outside", process_set=process_set)
    rueda.barrier()
    for ranks, process_set in zip(groups, sets, strict=True):
        if me not in ranks:
            with parallel.raises(rueda.InvalidArgumentError):
                rueda.allreduce([1.0], name="not a member", process_set=process_set)
    rueda.barrier()
    for process_set in sets:
        rueda.remove_process_set(process_set)
        with parallel.raises(rueda.InvalidArgumentError):
            rueda.allreduce([1.0], name="removed", process_set=process_set)
    parallel.still_works()


def check_process_sets_from_threads() -> None:
    n, me = rueda.size(), rueda.rank()
    sets = [rueda.add_process_set(range(first, n)) for first in range(n)]
    errors = []

    def work(number):
        try:
            for step in range(10):
                total = rueda.allreduce([step + me], op=rueda.Sum, process_set=sets[number])
                expected = sum(step + rank for rank in range(number, n))
                np.testing.assert_array_equal(total, [expected])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n) if me >= i]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for process_set in sets:
        rueda.remove_process_set(process_set)


def check_threads_with_names() -> None:
    errors = []

    def work(number):
        try:
            for step in range(10):
                total = rueda.allreduce([number], f"thread {number} step {step}", rueda.Sum)
                np.testing.assert_array_equal(total, [number * rueda.size()])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def check_join_with_uneven_work() -> None:
    n, me = rueda.size(), rueda.rank()
    for _ in range(2):  # the world continues after a join
        for step in range(me + 2):  # rank r has r + 2 batches
            working = [rank for rank in range(n) if step < rank + 2]
            average = rueda.allreduce([float(me)], name=f"average {step}")
            over = n if rueda.options()["join_average"] == "all" else len(working)
            np.testing.assert_allclose(average, [sum(working) / over])
            for op, expected in (
                (rueda.Sum, sum(working)),
                (rueda.Min, min(working)),
                (rueda.Max, max(working)),
                (rueda.Product, int(np.prod(working))),
                (rueda.BitAnd, int(np.bitwise_and.reduce(working))),
                (rueda.BitOr, int(np.bitwise_or.reduce(working))),
                (rueda.BitXor, int(np.bitwise_xor.reduce(working))),
            ):
                result = rueda.allreduce([me], name=f"{op.name} {step}", op=op)
                np.testing.assert_array_equal(result, [expected], err_msg=f"{op.name} {step}")
            gathered = rueda.allgather([me], name=f"gather {step}")
            np.testing.assert_array_equal(gathered, working)
            received = rueda.broadcast([me], working[-1], name=f"broadcast {step}")
            np.testing.assert_array_equal(received, [working[-1]])
            rows = rueda.reducescatter(np.ones((n, 2)), f"rows {step}", rueda.Sum)
            np.testing.assert_array_equal(rows, np.full((1, 2), len(working)))
        assert rueda.join() == n - 1
        parallel.still_works()


def check_counters_and_options() -> None:
    before = rueda.metrics()
    rueda.allreduce(np.ones(100), name="counted")
    after = rueda.metrics()
    assert all(isinstance(value, int) for value in after.values())
    assert after != before
    assert "fusion_threshold" in rueda.options()


if __name__ == "__main__":
    parallel.run(globals())
